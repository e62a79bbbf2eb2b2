"""What autograd keeps for the way back, and calls that keep nothing but what they are given: they are made again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from ..errors import BackendError
from ..planning.plans import CallStep, Plan
from ..protocol import Argument, Backend, Kept
from .functions import arguments, function_of
from .source import generate

__all__ = ["recorded", "recorded_within"]


def recorded(plan: Plan, backend: Backend, changing: frozenset[str]) -> Plan:
    """The plan, which says what the backend's autograd keeps where some leaves get gradients.

    It is told by the function itself, run on arrays without memory.
    """
    found = _kept(plan, backend, changing)
    return plan if found is None else _with_calls(plan, backend, found, 0)


def recorded_within(plan: Plan, limit: int, backend: Backend, changing: frozenset[str]) -> Plan:
    """The plan, of whose calls as many are made again on the way back as it takes to keep no more than a limit.

    They are the first ones: when these are made again, all that was kept of the others is gone (T. Chen, B. Xu,
    C. Zhang, C. Guestrin, 2016, "Training deep nets with sublinear memory cost").

    Args:
        plan: the plan.
        limit: bytes, of which those of inputs and parameters are none.
        backend: whose autograd goes back.
        changing: the leaves that get gradients.

    Raises:
        BackendError: more is kept in any case, or the backend cannot tell.
    """
    found = _kept(plan, backend, changing)
    if found is None:
        raise BackendError(
            f"what {backend.name} keeps for gradients cannot be told, and memory_limit is {limit:,}",
            fix="leave it out for training, or have autograd keep what it will: backward='autograd'",
        )
    most = [_most(found, again) for again in range(len(found.calls) + 1)]
    again = next((n for n, each in enumerate(most) if each <= limit), None)
    if again is None:
        open_sizes = ", ".join(plan.graph.open_sizes) or "all are fixed"
        raise BackendError(
            f"{min(most):,} bytes at least are kept for gradients, and memory_limit is {limit:,}: each call of a"
            f" block can be made again, and nothing smaller",
            fix=f"allow {min(most):,} bytes, or plan for smaller sizes ({open_sizes})",
        )
    return _with_calls(plan, backend, found, again)


def _kept(plan: Plan, backend: Backend, changing: frozenset[str]) -> Kept | None:
    """What autograd keeps of a plan, and of each of the calls that can be made again."""
    all_again = _made_again(plan, backend, len(list(_calls(plan))))
    given = [Argument(shape, dtype, leaf.name in changing) for leaf, shape, dtype in arguments(plan)]

    def make(again: Callable[..., Any]) -> Callable[..., Any]:
        return function_of(all_again, backend, again=again)

    return backend.kept(make, given, plan.device)


def _calls(plan: Plan) -> Iterator[CallStep]:
    """The calls of blocks, in order; a product that has its way back keeps what it needs for that."""
    for step in plan.steps:
        own = isinstance(step, CallStep) and (step.slicing or step.along or step.plan.backward)
        if isinstance(step, CallStep) and not own:
            yield step


def _made_again(plan: Plan, backend: Backend, count: int) -> Plan:
    """The plan, of whose calls so many are made again, the first ones."""
    chosen = {step.results for step in list(_calls(plan))[:count]}
    steps = (
        replace(step, again=step.results in chosen) if isinstance(step, CallStep) else step
        for step in plan.steps
    )
    found = replace(plan, steps=tuple(steps))
    return replace(found, code=generate(found, backend))


def _with_calls(plan: Plan, backend: Backend, found: Kept, again: int) -> Plan:
    """The plan with so many calls made again, and with what is kept then."""
    seen = _before(found, again)
    told = [("", _size(found, seen))]
    for step, (kept, _) in list(zip(_calls(plan), found.calls, strict=True))[again:]:
        told.append((step.results[0], _size(found, kept - seen)))
        seen |= kept
    return replace(_made_again(plan, backend, again), recorded=tuple(told))


def _most(found: Kept, again: int) -> int:
    """Bytes that are kept at the most, where so many calls are made again: before the first way back, or in one."""
    last = _before(found, again).union(*(kept for kept, _ in found.calls[again:]))
    during = (_before(found, n + 1) | found.calls[n][0] for n in range(again))
    return max(_size(found, each) for each in (last, *during))


def _before(found: Kept, calls: int) -> frozenset[int]:
    """What is kept outside of calls, and for so many of them that are made again."""
    return found.around.union(*(operands for _, operands in found.calls[:calls]))


def _size(found: Kept, numbers: frozenset[int]) -> int:
    return sum(found.sizes[number] for number in numbers)
