"""Rematerialisation: which calls are recomputed in the backward pass, by the bytes that autograd saves.

A recurrence is recomputed in segments. Only the states that each segment starts from are kept. Where this library
plans the backward pass itself, `planning.gradients` chooses the calls, and `scan.checkpointing` cuts the segments.
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
    """The plan with a record of what the backend's autograd keeps if some leaves get gradients.

    The function itself is run on arrays without memory to find this.
    """
    found = _kept(plan, backend, changing)
    return plan if found is None else _Choice(plan, found, 0, 1).plan(backend)


def rematerialized_within(
    plans: Iterable[Plan], limit: int, backend: Backend, changing: frozenset[str]
) -> Plan:
    """The first plan that can meet a limit, with as many calls rematerialised as necessary.

    The first calls of the plan are recomputed: by then, everything that was kept of the others is freed (T. Chen,
    B. Xu, C. Zhang, C. Guestrin, 2016, "Training deep nets with sublinear memory cost"). A recurrence among them is
    cut into no more segments than necessary.

    Args:
        plans: plans of one graph.
        limit: bytes, without those of inputs and parameters.
        backend: the backend whose autograd runs the backward pass.
        changing: the leaves that get gradients.

    Raises:
        BackendError: all plans keep more in any case, or the backend cannot report what it keeps.
    """
    most = list[int]()
    for plan in plans:
        found = _kept(plan, backend, changing)
        if found is None:
            raise BackendError(
                f"{backend.name} does not report what it keeps for gradients, and memory_limit is {limit:,}",
                fix="leave the limit out for training, or let autograd choose what it keeps: backward='autograd'",
            )
        for choice in _choices(plan, found):
            if choice.most <= limit:
                return choice.plan(backend)
            most.append(choice.most)
    open_sizes, least = ", ".join(plan.graph.open_sizes) or "all are fixed", min(most)
    raise BackendError(
        f"gradients need at least {least:,} bytes kept, and memory_limit is {limit:,}: only calls of blocks and"
        f" positions of a recurrence can be recomputed",
        fix=f"allow {least:,} bytes, or plan for smaller sizes ({open_sizes})",
    )


def _kept(plan: Plan, backend: Backend, changing: frozenset[str]) -> Kept | None:
    """The memory that autograd keeps of a plan, of each call that can be recomputed, and of each loop iteration."""
    alone = {step.results: 1 for step in _calls(plan)}
    everything = _rematerialized(plan, backend, alone)
    given = [Argument(shape, dtype, leaf.name in changing) for leaf, shape, dtype in arguments(plan)]

    def make(recomputed: Callable[..., Any]) -> Callable[..., Any]:
        return function_of(everything, backend, recomputed=recomputed)

    return backend.kept(make, given, plan.device)


def _calls(plan: Plan) -> Iterator[CallStep]:
    """The calls that can be recomputed, in order: those not sliced and without a backward pass of their own."""
    for step in plan.steps:
        own = isinstance(step, CallStep) and (step.slicing or step.plan.backward)
        if isinstance(step, CallStep) and not own:
            yield step


def _rematerialized(plan: Plan, backend: Backend, lengths: Mapping[tuple[str, ...], int]) -> Plan:
    """The plan with some calls recomputed. `lengths` has their results, and the iterations of a loop's segment."""

    def chosen(step: CallStep) -> CallStep:
        length = lengths.get(step.results)
        if step.along is None:
            return replace(step, recomputed=length is not None)
        return replace(step, along=replace(step.along, segment=length))

    steps = (chosen(step) if isinstance(step, CallStep) else step for step in plan.steps)
    found = replace(plan, steps=tuple(steps))
    return replace(found, code=generate(found, backend))


def _choices(plan: Plan, found: Kept) -> Iterator[_Choice]:
    """The choices of calls to recompute, the one that takes the least time first."""
    loops = [_positions(step) for step in _calls(plan)]
    for count in range(len(loops) + 1):
        positions = max(loops[:count], default=1)
        for doublings in range((positions - 1).bit_length() + 1):
            yield _Choice(plan, found, count, 2**doublings)


def _positions(step: CallStep) -> int:
    """The number of iterations of a loop, each of which can be recomputed by itself; 1 if a call is not a loop."""
    return 1 if step.along is None else max(1, step.along.count)


@dataclass(frozen=True)
class _Choice:
    """A choice: the first calls of a plan are recomputed, loops in segments.

    Attributes:
        whole: the plan.
        found: what is kept if each position of a loop is a call.
        recomputed: how many of the first calls are recomputed.
        segments: the number of segments of each loop among these.
    """

    whole: Plan
    found: Kept
    recomputed: int
    segments: int

    def plan(self, backend: Backend) -> Plan:
        """The plan of this choice, with a record of what is kept."""
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
        """The maximum of the bytes kept: before the backward pass begins, or in one of the recomputed calls."""
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
        """For each call, what is kept in it and what it is given; for a loop, one part per segment."""
        positions, parts = iter(self.found.calls), list[Sequence[_Part]]()
        for step in _calls(self.whole):
            one_by_one = list(itertools.islice(positions, _positions(step)))
            length = self._length(step)
            parts.append([_together(one_by_one[n : n + length]) for n in range(0, len(one_by_one), length)])
        return parts

    def _length(self, step: CallStep) -> int:
        """The number of positions of a segment."""
        return math.ceil(_positions(step) / self.segments)

    def _before(self, calls: int) -> frozenset[int]:
        """The memory that is kept outside of calls, and that of the operands of the first calls."""
        return self.found.around.union(*(operands for each in self._parts[:calls] for _, operands in each))

    def _size(self, numbers: Iterable[int]) -> int:
        return sum(self.found.sizes[number] for number in numbers)


_Part: TypeAlias = "tuple[frozenset[int], frozenset[int]]"
"""The memory that is kept in a call, and that of its operands, by the numbers of `Kept`."""


def _together(parts: Sequence[_Part]) -> _Part:
    """Consecutive positions as one call. States passed between them are not its operands."""
    return frozenset[int]().union(*(kept for kept, _ in parts)), parts[0][1]
