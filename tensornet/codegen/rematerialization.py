"""Rematerialisation: what is recomputed in the backward pass, by the bytes that autograd saves.

First the results of functions of elements and rows, such as GELU and layer norms, whose operands are saved in any
case; then whole calls. A recurrence is recomputed in segments. Only the states that each segment starts from are kept.
Where this library plans the backward pass itself, `planning.gradients` chooses the calls.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from ..errors import BackendError
from ..graph.graph import Graph
from ..planning.plans import AnyStep, CallStep, Plan
from ..protocol import Argument, Backend, Kept
from .function import arguments, function_of, generate


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

    Cheap results are rematerialised before any call, except with loops, where this would slow each position. The first
    calls of the plan are recomputed: by then, everything that was kept of the others is freed (T. Chen,
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
    for plan, calls in _in_order(plans):
        found = _kept(plan, backend, changing)
        if found is None:
            fix = (
                "leave the limit out for training, or let autograd choose what it keeps: backward='autograd'"
            )
            what = (
                f"{backend.name} does not report what it keeps for gradients, and memory_limit is {limit:,}"
            )
            raise BackendError(what, fix=fix)
        for choice in _Choice.all(plan, found, calls):
            if choice.most <= limit:
                return choice.plan(backend)
            most.append(choice.most)
    open_sizes, least = ", ".join(plan.graph.open_sizes) or "all are fixed", f"{min(most):,}"
    what = f"gradients need at least {least} bytes kept, and memory_limit is {limit:,}"
    why = "only calls of blocks and positions of a recurrence can be recomputed, and cheap results"
    raise BackendError(f"{what}: {why}", fix=f"allow {least} bytes, or plan for smaller sizes ({open_sizes})")


def _in_order(plans: Iterable[Plan]) -> Iterator[tuple[Plan, bool]]:
    """The plans, those without loops also with cheap results recomputed; and whether calls are recomputed in them."""
    for plan in plans:
        loops = any(step.along for each in (plan, *plan.functions) for step in _calls(each))
        yield plan, loops
        if not loops:
            yield replace(plan, remakes=True), True


def _kept(plan: Plan, backend: Backend, changing: frozenset[str]) -> Kept | None:
    """The memory that autograd keeps of a plan, of each call that can be recomputed, and of each loop iteration."""
    everything = _rematerialized(plan, backend, {step.results: 1 for step in _calls(plan)})
    given = [Argument(shape, dtype, leaf.name in changing) for leaf, shape, dtype in arguments(plan)]
    make = functools.partial(function_of, everything, backend)
    return backend.kept(lambda recomputed: make(recomputed=recomputed), given, plan.device)


def _calls(plan: Plan) -> list[CallStep]:
    """The calls that can be recomputed, in order: those not sliced and without a backward pass of their own."""
    calls = (step for step in plan.steps if isinstance(step, CallStep))
    return [step for step in calls if not (step.slicing or step.plan.backward)]


def _positions(step: CallStep) -> int:
    """The number of iterations of a loop, which can be recomputed one by one; 1 if a call is not a loop."""
    return 1 if step.along is None else max(1, step.along.count)


def _rematerialized(plan: Plan, backend: Backend, lengths: Mapping[tuple[str, ...], int]) -> Plan:
    """The plan with some calls recomputed. `lengths` has their results, and the iterations of a loop's segment."""

    def chosen(step: AnyStep) -> AnyStep:
        if not isinstance(step, CallStep):
            return step
        length = lengths.get(step.results)
        if step.along is None:
            return replace(step, recomputed=length is not None)
        return replace(step, along=replace(step.along, segment=length))

    found = replace(plan, steps=tuple(map(chosen, plan.steps)))
    return replace(found, code=generate(found, backend))


@dataclass(frozen=True)
class _Choice:
    """A choice: the first calls of a plan are recomputed, loops in segments.

    Attributes:
        whole: the plan.
        found: what is kept if each position of a loop is a call.
        count: how many of the first calls are recomputed.
        segments: the number of segments of each loop among these.
    """

    whole: Plan
    found: Kept
    count: int
    segments: int

    @classmethod
    def all(cls, plan: Plan, found: Kept, calls: bool) -> Iterator[_Choice]:
        """The choices, the one that takes the least time first; only the first without `calls`."""
        loops = [*map(_positions, _calls(plan))]
        for count in range(len(loops) * calls + 1):
            positions = max(loops[:count], default=1)
            for doublings in range((positions - 1).bit_length() + 1):
                yield cls(plan, found, count, 2**doublings)

    @functools.cached_property
    def parts(self) -> list[list[tuple[frozenset[int], frozenset[int]]]]:
        """For each call, what is kept in it and what it is given, by the numbers of `Kept`; for a loop, one part per
        segment. States passed between the positions of a segment are not its operands."""
        positions, parts = iter(self.found.calls), []
        for step in _calls(self.whole):
            each = list(itertools.islice(positions, _positions(step)))
            length = -(-len(each) // self.segments)
            cut = [each[n : n + length] for n in range(0, len(each), length)]
            parts.append([(_union(kept for kept, _ in segment), segment[0][1]) for segment in cut])
        return parts

    @property
    def most(self) -> int:
        """The maximum of the bytes kept: before the backward pass begins, or in one of the recomputed calls."""
        recomputed = [part for each in self.parts[: self.count] for part in each]
        others = _union(kept for each in self.parts[self.count :] for kept, _ in each)
        most, before = self._size(self._before | others), self.found.around
        for kept, operands in recomputed:
            before |= operands
            most = max(most, self._size(before | kept))
        return most

    def plan(self, backend: Backend) -> Plan:
        """The plan of this choice, with a record of what is kept."""
        steps, seen = _calls(self.whole), self._before
        told = [("", self._size(seen))]
        for step, parts in list(zip(steps, self.parts, strict=True))[self.count :]:
            kept = _union(each for each, _ in parts)
            told.append((step.results[0], self._size(kept - seen)))
            seen |= kept
        lengths = {step.results: -(-_positions(step) // self.segments) for step in steps[: self.count]}
        return replace(_rematerialized(self.whole, backend, lengths), recorded=tuple(told))

    @property
    def _before(self) -> frozenset[int]:
        """The memory that is kept outside of calls, and that of the operands of the recomputed calls."""
        return self.found.around | _union(
            operands for each in self.parts[: self.count] for _, operands in each
        )

    def _size(self, numbers: Iterable[int]) -> int:
        return sum(self.found.sizes[number] for number in numbers)


def _union(parts: Iterable[frozenset[int]]) -> frozenset[int]:
    return frozenset[int]().union(*parts)
