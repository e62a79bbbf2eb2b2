"""Distribution of products over sums: `(x·A + u)·B` as `x·A·B + u·B`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..graph.graph import Graph
from ..graph.shape_inference import Scope, size_expression
from ..language.equation import Equation
from ..language.expression import (
    Call,
    Contraction,
    Expression,
    contraction,
    free_axes,
    occurring,
    subexpressions,
    sum_of,
    without,
)
from ..sizes import size_names, symbol
from .common_subexpressions import is_random
from .fuse import inline
from .rewriter import Change, Cost, Draft, improved, replaced

__all__ = ["distribute", "multiplied_out"]


def distribute(graph: Graph, cost: Cost) -> Graph:
    """Multiplies sums out, wherever they stand as factors and `cost` says that pays.

    Args:
        graph: the graph.
        cost: the expected seconds of a graph; it is asked about a few equations at a time.
    """
    return improved(graph, graph.own, _distributions, cost)


def _distributions(draft: Draft, reader: Equation) -> Iterator[Change]:
    """Ways to multiply a sum out in an equation: one that it holds, or one that it alone reads."""
    for product in _products_of_sums(reader.right):
        yield from _changes(draft, reader, product, (reader,))
    before = set(map(id, reader.parts))
    for ref in reader.references:
        if ref.name not in draft or draft.only_reader(ref.name) is None:
            continue
        producer = draft[ref.name]
        merged = inline(draft, reader, producer, sums=True) if _is_sum(producer.right) else None
        if merged is None:
            continue
        new = [
            product
            for product in _products_of_sums(merged.right)
            if any(_is_sum(factor) and id(factor) not in before for factor in product.factors)
        ]
        yield from _changes(draft, merged, new[-1], (producer, reader))  # the last is the innermost


def _changes(
    draft: Draft, equation: Equation, product: Contraction, before: tuple[Equation, ...]
) -> Iterator[Change]:
    changed = multiplied_out(draft, equation, product)
    if changed is not None:
        yield Change((changed,), before)


def _is_sum(expression: Expression) -> bool:
    return isinstance(expression, Call) and expression.function == "add"


def _products_of_sums(expression: Expression) -> list[Contraction]:
    """The products in an expression that have a sum as a factor, those inside of others after them."""
    return [
        part
        for part in subexpressions(expression)
        if isinstance(part, Contraction) and any(map(_is_sum, part.factors))
    ]


def multiplied_out(draft: Draft, equation: Equation, product: Contraction) -> Equation | None:
    """The equation, with the first sum among the factors of a product in it taken apart, term by term.

    Returns nothing where a size that a term must count by has the name of another axis there; where another
    term alone tells the size of an axis that is summed; where what
    would be written twice is random; and for integers and what is made of them, which are exact as written.
    """
    at = next(position for position, factor in enumerate(product.factors) if _is_sum(factor))
    total = product.factors[at]
    assert isinstance(total, Call)
    inside = draft.scope(replace(product, summed=()))
    spoken = {name for axis in product.summed for name in size_names(inside[axis])}
    if any(inside[name] != symbol(name) for name in spoken & occurring(equation.right)):
        return None
    rest = without(product.factors, (total,))
    if any(map(is_random, rest)) or not draft.is_number(product):
        return None
    terms = [_term(product, at, term, inside) for term in total.arguments]
    if product.summed and not all(draft.stands_alone(_unsummed(term), inside) for term in terms):
        return None
    return replace(equation, right=replaced(equation.right, product, sum_of(terms, product.place)))


def _unsummed(term: Expression) -> Expression:
    """A term, all of whose axes are seen."""
    return replace(term, summed=()) if isinstance(term, Contraction) else term


def _term(product: Contraction, at: int, term: Expression, sizes: Scope) -> Expression:
    """The product with one term in the place of the sum; an axis that it has no more counts by its size."""
    rest = product.factors[:at] + product.factors[at + 1 :]
    clash = (
        set(term.summed) & {a for f in rest for a in occurring(f)} if isinstance(term, Contraction) else set()
    )
    if isinstance(term, Contraction) and not clash and not set(term.summed) & set(product.summed):
        inserted, summed = term.factors, set(product.summed) | set(term.summed)
    else:
        inserted, summed = (term,), set(product.summed)
    factors = product.factors[:at] + inserted + product.factors[at + 1 :]
    present = {axis for factor in factors for axis in free_axes(factor)}
    absent = tuple(size_expression(sizes[axis]) for axis in sorted(summed - present))
    return contraction((*absent, *factors), tuple(summed & present), product.place)
