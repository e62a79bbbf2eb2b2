"""Rematerialisation: which calls are recomputed in the backward pass, by the bytes that autograd saves.

A recurrence is recomputed in segments: of each nothing is kept but the states that it starts from. Where the backward
pass is the library's own, `planning.gradients.rematerialized_to_fit` chooses the calls, and `scan.checkpointing` cuts
the segments.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from ..errors import BackendError
from ..graph.graph import Graph
from ..planning.plans import CallStep, Plan
from ..protocol import Argument, Backend, Kept
from .function import generate
from .loading import arguments, function_of

__all__ = ["can_rematerialize", "with_saved_bytes", "rematerialized_within"]


def can_rematerialize(graph: Graph) -> bool:
    """Whether a graph has parts that can be recomputed by themselves: calls of blocks, and recurrences."""
    return bool(graph.calls or graph.recurrences)


def with_saved_bytes(plan: Plan, backend: Backend, changing: frozenset[str]) -> Plan:
    """The plan, which says what the backend's autograd keeps where some leaves get gradients.

    It is told by the function itself, run on arrays without memory.
    """
    found = _kept(plan, backend, changing)
    return plan if found is None else _Choice(plan, found, 0, 1).plan(backend)


def rematerialized_within(
    plans: Iterable[Plan], limit: int, backend: Backend, changing: frozenset[str]
) -> Plan:
    """The first plan that can keep to a limit, with as many calls rematerialised as it takes.

    They are the first ones: when these are recomputed, all that was kept of the others is gone (T. Chen, B. Xu,
    C. Zhang, C. Guestrin, 2016, "Training deep nets with sublinear memory cost"). A recurrence among them is cut into
    no more segments than it takes.

    Args:
        plans: plans of one graph.
        limit: bytes, of which those of inputs and parameters are none.
        backend: whose autograd goes back.
        changing: the leaves that get gradients.

    Raises:
        BackendError: all keep more in any case, or the backend cannot tell.
    """
    most = list[int]()
    for plan in plans:
        found = _kept(plan, backend, changing)
        if found is None:
            raise BackendError(
                f"what {backend.name} keeps for gradients cannot be told, and memory_limit is {limit:,}",
                fix="leave it out for training, or have autograd keep what it will: backward='autograd'",
            )
        for choice in _choices(plan, found):
            if choice.most <= limit:
                return choice.plan(backend)
            most.append(choice.most)
    open_sizes, least = ", ".join(plan.graph.open_sizes) or "all are fixed", min(most)
    raise BackendError(
        f"{least:,} bytes at least are kept for gradients, and memory_limit is {limit:,}: each call of a"
        f" block can be recomputed, and each position of a recurrence, and nothing smaller",
        fix=f"allow {least:,} bytes, or plan for smaller sizes ({open_sizes})",
    )


def _kept(plan: Plan, backend: Backend, changing: frozenset[str]) -> Kept | None:
    """What autograd keeps of a plan, of each of the calls that can be recomputed, and of each position of loops."""
    alone = {step.results: 1 for step in _calls(plan)}
    everything = _rematerialized(plan, backend, alone)
    given = [Argument(shape, dtype, leaf.name in changing) for leaf, shape, dtype in arguments(plan)]

    def make(recomputed: Callable[..., Any]) -> Callable[..., Any]:
        return function_of(everything, backend, recomputed=recomputed)

    return backend.kept(make, given, plan.device)


def _calls(plan: Plan) -> Iterator[CallStep]:
    """The calls of blocks, in order; a product that has its backward pass keeps what it needs for that."""
    for step in plan.steps:
        own = isinstance(step, CallStep) and (step.slicing or step.plan.backward)
        if isinstance(step, CallStep) and not own:
            yield step


def _rematerialized(plan: Plan, backend: Backend, lengths: Mapping[tuple[str, ...], int]) -> Plan:
    """The plan, with some calls recomputed: by their results, with how many iterations of a loop at a time."""

    def chosen(step: CallStep) -> CallStep:
        length = lengths.get(step.results)
        if step.along is None:
            return replace(step, recomputed=length is not None)
        return replace(step, along=replace(step.along, segment=length))

    steps = (chosen(step) if isinstance(step, CallStep) else step for step in plan.steps)
    found = replace(plan, steps=tuple(steps))
    return replace(found, code=generate(found, backend))


def _choices(plan: Plan, found: Kept) -> Iterator[_Choice]:
    """What can be recomputed, the choice that takes least time first."""
    loops = [_positions(step) for step in _calls(plan)]
    for count in range(len(loops) + 1):
        positions = max(loops[:count], default=1)
        for doublings in range((positions - 1).bit_length() + 1):
            yield _Choice(plan, found, count, 2**doublings)


def _positions(step: CallStep) -> int:
    """The number of iterations of a loop, each of which can be recomputed by itself; 1 for a call that is no loop."""
    return 1 if step.along is None else max(1, step.along.count)


@dataclass(frozen=True)
class _Choice:
    """The first calls of a plan recomputed, loops in segments.

    Attributes:
        whole: the plan.
        found: what is kept where each position of a loop is a call.
        recomputed: how many of the first calls are recomputed.
        segments: of each loop among these.
    """

    whole: Plan
    found: Kept
    recomputed: int
    segments: int

    def plan(self, backend: Backend) -> Plan:
        """The plan, with what is kept then."""
        steps = list(_calls(self.whole))
        seen = self._before(self.recomputed)
        told = [("", self._size(seen))]
        for step, parts in list(zip(steps, self._parts, strict=True))[self.recomputed :]:
            kept = frozenset[int]().union(*(each for each, _ in parts))
            told.append((step.results[0], self._size(kept - seen)))
            seen |= kept
        lengths = {step.results: self._length(step) for step in steps[: self.recomputed]}
        return replace(_rematerialized(self.whole, backend, lengths), recorded=tuple(told))

    @functools.cached_property
    def most(self) -> int:
        """Bytes that are kept at the most: before the first backward pass, or in one of the recomputed calls."""
        most = self._size(
            self._before(self.recomputed).union(
                *(kept for each in self._parts[self.recomputed :] for kept, _ in each)
            )
        )
        before = set(self.found.around)
        for kept, operands in (part for each in self._parts[: self.recomputed] for part in each):
            before |= operands
            most = max(most, self._size(before | kept))
        return most

    @functools.cached_property
    def _parts(self) -> list[Sequence[_Part]]:
        """For each recomputed call what is kept in it and what it is given; for a loop, of each segment."""
        positions, parts = iter(self.found.calls), list[Sequence[_Part]]()
        for step in _calls(self.whole):
            one_by_one = list(itertools.islice(positions, _positions(step)))
            length = self._length(step)
            parts.append([_together(one_by_one[n : n + length]) for n in range(0, len(one_by_one), length)])
        return parts

    def _length(self, step: CallStep) -> int:
        """The positions of a segment."""
        return math.ceil(_positions(step) / self.segments)

    def _before(self, calls: int) -> frozenset[int]:
        """What is kept outside of calls, and for the recomputed ones."""
        return self.found.around.union(*(operands for each in self._parts[:calls] for _, operands in each))

    def _size(self, numbers: Iterable[int]) -> int:
        return sum(self.found.sizes[number] for number in numbers)


_Part: TypeAlias = "tuple[frozenset[int], frozenset[int]]"
"""What is kept in a call, and what it is given, by the numbers of `Kept`."""


def _together(parts: Sequence[_Part]) -> _Part:
    """Positions one after another as one call: what comes from one to the next is not given to it."""
    return frozenset[int]().union(*(kept for kept, _ in parts)), parts[0][1]
