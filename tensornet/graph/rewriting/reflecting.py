"""Conditions that hold somewhere whatever the values: `max[j](a[i] == a[j])` is true, since j may be i.

So a token that sees those of its own part of an image, or itself and those before it, sees one at least.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from ...language.expression import Call, Expression, Ref, free_axes, rename, transform
from ...operations.functions import Element
from ...operations.pointwise import AND, REFLEXIVE, WHERE
from ...operations.reductions import MAX
from ...sizes import evaluate
from ..elements import of_expression
from ..graph import Graph
from .draft import Draft

__all__ = ["reflect"]


def reflect(graph: Graph) -> Graph:
    """Leaves out choices by a condition that always holds."""
    draft = Draft(graph)
    for equation in graph.own:
        if equation.name in draft and any(map(_is_choice, equation.parts)):
            right = _chosen(draft, equation.right)
            if right != equation.right:
                draft.put(replace(equation, right=right))
    return draft.finished()


def _is_choice(part: Expression) -> bool:
    """Whether it is `where(max[j](…), …, …)`."""
    match part:
        case Call(choice, (Call(largest), *_)):
            return choice == WHERE.name and largest == MAX.name
    return False


def _chosen(draft: Draft, expression: Expression) -> Expression:
    expression = transform(expression, lambda part: _chosen(draft, part))
    match expression:
        case Call(_, (Call(_, (condition,), axes), chosen, _)) if _is_choice(expression):
            whole = set(free_axes(expression)) == set(free_axes(chosen))
            return chosen if whole and _holds(draft, condition, axes) else expression
    return expression


def _holds(draft: Draft, condition: Expression, axes: Collection[str]) -> bool:
    """Whether a condition is true somewhere along some axes, whatever stands in the tensors."""
    pairs = [_compared(draft, part) for part in _together(draft, condition)]
    names: dict[str, str] = {}
    for one, other in (pair for pair in pairs if pair is not None):
        for a, b in zip(free_axes(one), free_axes(other), strict=False):
            names |= {a: b} if a in axes else {b: a} if b in axes else {}
    scope, bound = draft.scope(condition), draft.graph.bound
    return all(evaluate(scope[a], bound) == evaluate(scope[b], bound) for a, b in names.items()) and all(
        pair is not None and rename(pair[0], names) == rename(pair[1], names) for pair in pairs
    )


def _compared(draft: Draft, part: Expression) -> tuple[Expression, Expression] | None:
    """The integers that a condition compares and that it holds for where they are equal."""
    match part:
        case Call(function, (one, other)) if function in REFLEXIVE:
            whole = (of_expression(each, draft.elements) <= Element.WHOLE for each in (one, other))
            return (one, other) if all(whole) else None
    return None


def _together(draft: Draft, condition: Expression) -> Iterator[Expression]:
    """The conditions that are to hold at once, named ones seen through."""
    match condition:
        case Call(function, parts) if function == AND.name:
            for part in parts:
                yield from _together(draft, part)
        case Ref(name, index) if name in draft:
            names = {
                made: read
                for made, read in zip(draft[name].left, index, strict=True)
                if isinstance(made, str) and isinstance(read, str)
            }
            if len(names) == len(index):
                yield from _together(draft, rename(draft[name].right, names))
            else:
                yield condition
        case _:
            yield condition
