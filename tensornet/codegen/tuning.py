"""Autotuning: the few best plans are timed on the device, and the winner is kept.

Errors of the device model are errors of its constants. So the candidates are the plans that are fastest if one
constant had another value. All are timed on random data, at the planned sizes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from ..device.cost_model import DeviceProfile
from ..device.timing import Clock, timings
from ..errors import BackendError
from ..planning.plans import CallStep, Plan
from ..protocol import Backend
from ..threads import apart
from .function import LoadedProgram, Place, arguments, drawn

VARIED = {
    "flops": (0.4, 2.5),
    "bandwidth": (0.4, 2.5),
    "launch": (5.0,),
    "batch": (0.1, 10.0),
    "scattered": (0.2, 5.0),
}
"""Constants of the device, and the factors by which each of them is varied."""

MOST = 6
"""The most candidates that are timed."""

ROUNDS = 5
"""The number of turns of each candidate."""


def tuned(
    make: Callable[[DeviceProfile], Plan], profile: DeviceProfile, backend: Backend, alone: bool = False
) -> Plan:
    """The fastest of the candidates, as measured.

    Args:
        make: gives the plan for a device, with its code.
        profile: the device.
        backend: the library.
        alone: whether called blocks run by themselves and are not available; a plan that calls any is not tuned.
    """
    first = make(profile)
    if alone and any(isinstance(step, CallStep) and step.slicing is None for step in first.steps):
        return first
    candidates = [first, *_others(make, profile, first)]
    return first if len(candidates) == 1 else apart(lambda: _fastest(candidates, backend))


def _others(make: Callable[[DeviceProfile], Plan], profile: DeviceProfile, first: Plan) -> Iterator[Plan]:
    """Other candidates: plans whose code differs from that of the expected fastest plan and from each other's."""
    known = {first.code}
    for name, factors in VARIED.items():
        for factor in factors:
            if len(known) == MOST:
                return
            try:
                other = make(replace(profile, **{name: factor * getattr(profile, name)}))
            except BackendError:  # it needs more memory than allowed
                continue
            if other.code not in known:
                known.add(other.code)
                yield other


def _fastest(candidates: list[Plan], backend: Backend) -> Plan:
    """The candidate with the least median time of its turns, which the candidates take alternately."""
    calls = {str(number): _call_of(plan, backend) for number, plan in enumerate(candidates)}
    clock = Clock(wait=functools.partial(backend.synchronize, candidates[0].device))
    times = timings(calls, ROUNDS, warmup=1, clock=clock)
    return candidates[int(min(times, key=lambda number: times[number].median))]


def _call_of(plan: Plan, backend: Backend) -> Callable[[], Any]:
    """A call of the function of a plan, on random numbers, and on positions that are all 0."""
    sizes = dict(plan.sizes)
    place = Place(plan.device, plan.dtype, tuple(sizes[name] for name in plan.sizes_once))
    function = LoadedProgram(plan, backend).bound(place)
    taken = (each for each in arguments(plan) if each[0].kind != "constant")
    given = drawn(taken, backend, plan.device).values()
    function(*given)  # the first call is not timed
    return lambda: function(*given)
