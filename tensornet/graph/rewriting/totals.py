"""Totals that are known: `sum[j](softmax[j](s))` is 1."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from ...language.expression import (
    Call,
    Contraction,
    Expression,
    Literal,
    Ref,
    contraction,
    free_axes,
    sum_of,
    transform,
    without,
)
from ...operations.functions import FUNCTIONS
from ..graph import Graph
from .draft import Draft

__all__ = ["drop_totals"]


def drop_totals(graph: Graph) -> Graph:
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
