"""Autotuning: the few best plans are timed on the device, and the winner is kept.

What the time model has wrong of a device is its constants, so a plan that is fastest where one of them is
another is a candidate. All are timed on random data, at the sizes that are planned for.
"""

from __future__ import annotations

import contextvars
import functools
import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from ..device.model import DeviceProfile
from ..device.timing import Clock
from ..errors import BackendError
from ..planning.plans import CallStep, Plan
from ..planning.progress import measuring
from ..protocol import Backend
from ..threads import apart
from .loading import LoadedProgram, Place, arguments, constant_array, drawn

__all__ = ["check_tuning", "tuned"]

VARIED = {
    "flops": (0.4, 2.5),
    "bandwidth": (0.4, 2.5),
    "launch": (5.0,),
    "batch": (0.1, 10.0),
    "scattered": (0.2, 5.0),
}
"""Constants of the device, and by which factors each of them may be another."""

MOST = 6
"""So many candidates are timed."""

ROUNDS, TURN = 5, 5e-3
"""How often each has its turn, and for how many seconds at least."""

HOPELESS = 1.5
"""A candidate that took so many times the least in its first turn has no other."""


def check_tuning(tune: str | None) -> None:
    """Refuses a way of tuning that there is not."""
    if tune not in (None, "measure"):
        raise BackendError(f"there is no way of tuning {tune!r}", fix="use tune='measure', or leave it out")


def tuned(
    make: Callable[[DeviceProfile], Plan], profile: DeviceProfile, backend: Backend, alone: bool = False
) -> Plan:
    """The fastest of the candidates, as it is measured.

    Args:
        make: gives the plan for a device, with its code.
        profile: the device.
        backend: the library.
        alone: whether blocks that the plan calls run by themselves, and are not at hand; then it is the first.
    """
    first = make(profile)
    if alone and any(isinstance(step, CallStep) and step.slicing is None for step in first.steps):
        return first
    candidates = [first, *_others(make, profile, first)]
    here = contextvars.copy_context()  # of whoever watches
    return first if len(candidates) == 1 else apart(lambda: here.run(_fastest, candidates, backend))


def _others(make: Callable[[DeviceProfile], Plan], profile: DeviceProfile, first: Plan) -> Iterator[Plan]:
    """Plans whose code differs from that of the one that is expected to be fastest, and from one another's."""
    known = {first.code}
    for name, factors in VARIED.items():
        for factor in factors:
            if len(known) == MOST:
                return
            try:
                other = make(replace(profile, **{name: factor * getattr(profile, name)}))
            except BackendError:  # it needs more memory than it may
                continue
            if other.code not in known:
                known.add(other.code)
                yield other


def _fastest(candidates: list[Plan], backend: Backend) -> Plan:
    """The candidate of least time, in the median of turns that they take one after another."""
    calls = [_call_of(plan, backend) for plan in candidates]
    times: list[list[float]] = [[] for _ in candidates]
    waiting = list(range(len(candidates)))
    for number in range(ROUNDS):
        for at in waiting:
            measuring(number * len(candidates) + at, ROUNDS * len(candidates))
            times[at].append(_seconds(calls[at], candidates[at].device, backend))
        least = min(min(each) for each in times if each)
        waiting = [at for at in waiting if min(times[at]) <= HOPELESS * least]
    return candidates[min(waiting, key=lambda at: statistics.median(times[at]))]


def _seconds(call: Callable[[], Any], device: str, backend: Backend) -> float:
    """Seconds that a call takes, in the mean of a turn."""
    return Clock(wait=functools.partial(backend.synchronize, device)).turn(call, TURN)


def _call_of(plan: Plan, backend: Backend) -> Callable[[], Any]:
    """The function of a plan, called on random numbers, and on positions that are all 0."""
    sizes, program = dict(plan.sizes), LoadedProgram(plan, backend)
    place = Place(plan.device, plan.dtype, tuple(sizes[name] for name in plan.sizes_once))
    taken = (each for each in arguments(plan) if each[0].kind != "constant")
    given = list(drawn(taken, backend, plan.device).values())

    def source(leaf: Any) -> Any:
        return constant_array(leaf, backend, plan.dtype, plan.device)

    given += map(source, plan.constants)
    given += program.tables(place, source).arrays
    program.function(*given)  # what is done at a first call is not timed
    return lambda: program.function(*given)
