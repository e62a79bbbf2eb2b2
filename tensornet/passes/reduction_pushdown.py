"""Reduction pushdown: `mean[n](x[b,n,c]*W[o,c] + u[o])` as `mean[n](x[b,n,c])*W[o,c] + u[o]`.

What is left of a product that several factors have an axis of is a contraction: `mean[n](x[b,n]*W[n,c])` is
`sum[n](x[b,n]*W[n,c]) / n`.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from ..graph.graph import Graph
from ..graph.shape_inference import size_expression
from ..language.equation import Equation
from ..language.expression import (
    Call,
    Contraction,
    Expression,
    Ref,
    Size,
    contraction,
    free_axes,
    product_of,
    subexpressions,
    sum_of,
)
from ..ops.table import FUNCTIONS
from ..sizes import are_equal, evaluate, size_names, symbol
from .fuse import inline
from .rewriter import Change, Cost, Draft, improved, replaced

__all__ = ["push_reductions_down"]


def push_reductions_down(graph: Graph, cost: Cost, sums: bool = True) -> Graph:
    """Averages what products and sums are made of instead of them, where `cost` says that pays.

    Args:
        graph: the graph.
        cost: the expected seconds of a graph.
        sums: whether averages may become sums: numbers of the working type hold long ones.
    """
    return improved(graph, reversed(graph.own), functools.partial(_changes, sums), cost)


def _changes(sums: bool, draft: Draft, reader: Equation) -> Iterator[Change]:
    """Ways to average parts of what an equation averages: of what it holds, or of what it alone reads."""
    for call in _averages(reader.right):
        if draft.is_number(call):
            yield from _moved(sums, draft, reader, call, (reader,))
        match call.arguments:
            case (Ref(name) as ref,) if name in draft and draft.only_reader(name) is not None:
                factor = replace(call, arguments=(Contraction((ref,)),))
                opened = replace(reader, right=replaced(reader.right, call, factor))
                merged = inline(draft, opened, draft[name], sums=True)
                if merged is not None and draft.is_number(ref):
                    old = set(map(id, reader.parts))
                    inside = next(each for each in _averages(merged.right) if id(each) not in old)
                    yield from _moved(sums, draft, merged, inside, (draft[name], reader))


def _moved(
    sums: bool, draft: Draft, reader: Equation, call: Call, before: tuple[Equation, ...]
) -> Iterator[Change]:
    """The changes to an equation that holds what it averages."""
    moved = call if _speaks_of(call) else _of_parts(call)
    if moved != call and _keeps_sizes(draft, call, moved):
        yield Change((replace(reader, right=replaced(reader.right, call, moved)),), before)
    summed = _as_sum(draft, reader, call) if sums else None
    if summed is not None:
        yield Change((replace(reader, right=replaced(reader.right, call, summed)),), before)


def _speaks_of(call: Call) -> bool:
    """Whether what a call averages speaks of the size of an axis that it runs over, which has that size in it alone."""
    return any(
        isinstance(part, Size) and part.axis in call.axes for part in subexpressions(call.arguments[0])
    )


def _as_sum(draft: Draft, reader: Equation, call: Call) -> Expression | None:
    """The average of a product as its sum, divided by how many positions that is over.

    Nothing where no two factors have an axis of it, or a name of a size means something else in the equation.
    """
    product = call.arguments[0]
    if not isinstance(product, Contraction) or max(_holders(call, product).values()) < 2:
        return None
    inside, bound = draft.scope(product), draft.graph.bound
    sizes = [evaluate(inside[axis], bound) for axis in call.axes]
    spoken = {name for size in sizes for name in size_names(size)}
    if any(not are_equal(inside[name], symbol(name), bound) for name in spoken & reader.axes):
        return None
    total = contraction(product.factors, (*product.summed, *call.axes), product.place)
    return product_of([total, *(Call("reciprocal", (size_expression(size),)) for size in sizes)])


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
            if max(_holders(call, product).values()) == 1:
                return replace(product, factors=tuple(_along(call, factor) for factor in factors))
    return call


def _holders(call: Call, product: Contraction) -> Counter[str]:
    """How many factors have each of the axes that an average runs over."""
    return Counter(axis for factor in product.factors for axis in free_axes(factor) if axis in call.axes)


def _along(call: Call, part: Expression) -> Expression:
    """The average of a part along those of the axes that it has."""
    axes = tuple(axis for axis in call.axes if axis in free_axes(part))
    return _of_parts(replace(call, arguments=(part,), axes=axes)) if axes else part
