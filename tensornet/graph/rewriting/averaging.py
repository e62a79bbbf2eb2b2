"""Averages taken first: `mean[n](x[b,n,c]*W[o,c] + u[o])` as `mean[n](x[b,n,c])*W[o,c] + u[o]`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from ...language.equation import Equation
from ...language.expression import Call, Contraction, Expression, Ref, free_axes, subexpressions, sum_of
from ...operations.functions import FUNCTIONS
from ..graph import Graph
from .draft import Change, Cost, Draft, improved, replaced
from .fusing import inline

__all__ = ["average_first"]


def average_first(graph: Graph, cost: Cost) -> Graph:
    """Averages what products and sums are made of instead of them, where `cost` says that pays."""
    return improved(graph, reversed(graph.own), _changes, cost)


def _changes(draft: Draft, reader: Equation) -> Iterator[Change]:
    """Ways to average parts of what an equation averages: of what it holds, or of what it alone reads."""
    for call in _averages(reader.right):
        moved = _of_parts(call)
        if moved != call and draft.is_number(call) and _keeps_sizes(draft, call, moved):
            yield Change((replace(reader, right=replaced(reader.right, call, moved)),), (reader,))
        match call.arguments:
            case (Ref(name) as ref,) if name in draft and draft.only_reader(name) is not None:
                factor = replace(call, arguments=(Contraction((ref,)),))
                opened = replace(reader, right=replaced(reader.right, call, factor))
                merged = inline(draft, opened, draft[name], sums=True)
                if merged is not None and draft.is_number(ref):
                    yield from _moved(draft, merged, (draft[name], reader))


def _moved(draft: Draft, merged: Equation, before: tuple[Equation, ...]) -> Iterator[Change]:
    """The change to an equation that now holds what it averages."""
    old = set(before[-1].parts)
    call = next(call for call in _averages(merged.right) if call not in old)
    moved = _of_parts(call)
    if moved != call and _keeps_sizes(draft, call, moved):
        yield Change((replace(merged, right=replaced(merged.right, call, moved)),), before)


def _keeps_sizes(draft: Draft, call: Call, moved: Expression) -> bool:
    """Whether each part that is averaged by itself has the sizes that it has beside the others."""
    inside = draft.scope(call.arguments[0])
    parts = [part.arguments[0] for part in _averages(moved) if part.function == call.function]
    return all(draft.stands_alone(part, inside) for part in parts)


def _averages(expression: Expression) -> Iterator[Call]:
    return (
        part
        for part in subexpressions(expression)
        if isinstance(part, Call) and FUNCTIONS[part.function].averages
    )


def _of_parts(call: Call) -> Expression:
    """The average of a sum, as the sum of averages; of a product, where one factor has an axis, of that factor."""
    match call.arguments[0]:
        case Call("add", terms, place=place):
            return sum_of([_along(call, term) for term in terms], place)
        case Contraction(factors) as product:
            holders = Counter(axis for factor in factors for axis in free_axes(factor) if axis in call.axes)
            if max(holders.values()) == 1:
                return replace(product, factors=tuple(_along(call, factor) for factor in factors))
    return call


def _along(call: Call, part: Expression) -> Expression:
    """The average of a part along those of the axes that it has."""
    axes = tuple(axis for axis in call.axes if axis in free_axes(part))
    return _of_parts(replace(call, arguments=(part,), axes=axes)) if axes else part
