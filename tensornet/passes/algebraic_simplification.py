"""Algebraic simplification: known totals such as `sum[j](softmax[j](s))` = 1, and tautologies."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from ..graph.element_types import of_expression
from ..graph.graph import Graph
from ..language.expression import (
    Call,
    Contraction,
    Expression,
    Literal,
    Ref,
    contraction,
    free_axes,
    rename,
    sum_of,
    transform,
    without,
)
from ..ops.pointwise import AND, REFLEXIVE, WHERE
from ..ops.reduce import MAX
from ..ops.table import FUNCTIONS, Element
from ..sizes import evaluate
from .rewriter import Draft

__all__ = ["drop_known_totals", "drop_tautologies"]


def drop_known_totals(graph: Graph) -> Graph:
    """Leaves weights out of the terms that only sum them, where other terms of the sum have their other axes."""
    draft = Draft(graph)
    for name in [equation.name for equation in graph.own]:
        if name in draft:
            equation = draft[name]
            right = _without(draft, equation.right)
            if right != equation.right:
                draft.put(replace(equation, right=right))
    return draft.finished()


def _without(draft: Draft, expression: Expression) -> Expression:
    expression = transform(expression, lambda part: _without(draft, part))
    if not isinstance(expression, Call) or expression.function != "add":
        return expression
    terms = list(expression.arguments)
    for at, term in enumerate(terms):
        others = {axis for n, each in enumerate(terms) if n != at for axis in free_axes(each)}
        terms[at] = _term(draft, term, others)
    return expression if tuple(terms) == expression.arguments else sum_of(terms, expression.place)


def _term(draft: Draft, term: Expression, others: Collection[str]) -> Expression:
    """A term without the weights that it only sums; the other axes of these stand in `others` or are in it still."""
    for factor in term.factors if isinstance(term, Contraction) else ():
        assert isinstance(term, Contraction)
        summed = _summed_to_one(draft, factor)
        rest = without(term.factors, (factor,))
        beside = {axis for each in rest for axis in free_axes(each)}
        lost = set(free_axes(factor)) - summed - beside
        if summed and summed <= set(term.summed) - beside and lost <= set(others) - set(term.summed):
            left = tuple(axis for axis in term.summed if axis not in summed)
            return _term(draft, contraction(rest or (Literal(1),), left, term.place), others)
    return term


def _summed_to_one(draft: Draft, factor: Expression) -> set[str]:
    """The axes along which a factor sums to 1, under its own names."""
    names = {axis: axis for axis in free_axes(factor)}
    if isinstance(factor, Ref) and factor.name in draft:
        producer = draft[factor.name]
        pairs = list(zip(producer.left, factor.index, strict=True))
        if not all(isinstance(made, str) and isinstance(read, str) for made, read in pairs):
            return set()
        names, factor = {str(made): str(read) for made, read in pairs}, producer.right
    if not isinstance(factor, Call) or not FUNCTIONS[factor.function].sums_to_one:
        return set()
    return {names[axis] for axis in factor.axes if axis in names}


def drop_tautologies(graph: Graph) -> Graph:
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
