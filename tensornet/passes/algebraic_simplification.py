"""Algebraic simplification: distribution, and known totals such as `sum[j](softmax[j](s))` = 1.

Distribution of a product over a sum: `(x·A + u)·B` is `x·A·B + u·B`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from ..ir.function import over_operands
from ..ir.node import (
    Axis,
    Node,
    Operand,
    along,
    axes_in,
    axes_of,
    distinct_axes,
    node,
    number,
    own_axes,
    summed_axes,
)
from ..ir.positions import Opened, opened
from ..ir.rewriting import Change, Facts, PassContext, Program
from ..ops.table import FUNCTIONS, Element
from .fusion import fused

__all__ = ["multiplied_out", "without_totals"]

# ---------------------------------------------------------------------------- distribution


def multiplied_out(context: PassContext, program: Program, product: Node) -> Iterator[Change]:
    """Ways to multiply out a sum that only this product reads, if one of its terms is a product that sums over an axis.

    Sums of integers stay: they are exact as written.
    """
    if product.op != "contract" or product.element is not Element.NUMBER or None in product.dims:
        return
    for at, (total, _) in enumerate(product.operands):
        if total.op != "add" or program.readers[total] > 1 or total.element <= Element.WHOLE:
            continue
        found = opened(product, at, program.same)
        if found is not None and any(each.op == "contract" and summed_axes(each) for each, _ in found.inside):
            yield Change(product, _multiplied_out(product, found, program.facts))


def _multiplied_out(product: Node, found: Opened, facts: Facts) -> Node:
    """The sum of the products of a product's other factors with each term of a sum in it."""
    axes = tuple(axes_of(found.result))
    terms: list[Operand] = []
    for term in found.inside:
        factors = found.among([term])
        read = axes_in(factors)
        kept = tuple(along(axis) for axis in axes if axis in read)
        made = node("contract", found.sizes, factors, kept, None, found.unread(factors))
        terms.append(Operand(fused(made, facts), kept))
    return node("add", found.sizes, terms, found.result, product.shape)


# ---------------------------------------------------------------------------- known totals


def without_totals(total: Node, facts: Facts) -> Node:
    """A sum without those factors of its terms that only sum to 1, where other terms have their remaining axes."""
    if total.op != "add" or total.is_scalar:
        return total
    terms = [*total.operands]
    for at, term in enumerate(terms):
        others = axes_in(each for n, each in enumerate(terms) if n != at)
        while facts.readers[term.node] == 1 and (shorter := _without_total(term, others)) is not None:
            terms[at] = term = shorter
    made = over_operands(total, terms)
    return made if made.element is total.element else total


def _without_total(term: Operand, others: Collection[Axis]) -> Operand | None:
    """A product without one factor that only sums to 1; None if no factor can go.

    The remaining axes of the factor must be in `others` or in the remaining factors.
    """
    product, reads = term
    dims = own_axes(product)
    if product.op != "contract" or dims is None:
        return None
    for at, factor in enumerate(product.operands):
        rest = [each for n, each in enumerate(product.operands) if n != at]
        summed, beside = _summed_to_one(factor), axes_in(rest)
        lost = {*axes_of(factor.reads)} - summed - beside.keys()
        places = [reads[dims.index(axis)].axis for axis in lost if axis in dims]
        goes = summed and summed.isdisjoint((*dims, *beside)) and len(places) == len(lost)
        if goes and all(place in others for place in places):
            kept = [d for d, axis in enumerate(dims) if axis not in lost]
            left = tuple(product.result[d] for d in kept)
            factors = rest or [Operand(number(1))]
            made = node("contract", product.sizes, factors, left, None, product.over)
            return Operand(made, tuple(reads[d] for d in kept))
    return None


def _summed_to_one(factor: Operand) -> set[Axis]:
    """The axes along which a factor sums to 1, as the product names them."""
    weights, reads = factor
    function, axes = FUNCTIONS.get(weights.op), own_axes(weights)
    if function is None or not function.sums_to_one or weights.is_scalar or axes is None:
        return set()
    pairs = [*zip(axes, reads, strict=True)]
    places = distinct_axes(tuple(entry for axis, entry in pairs if axis in weights.over))
    outside = axes_of(tuple(entry for axis, entry in pairs if axis not in weights.over))
    return {*places} if places is not None and {*places}.isdisjoint(outside) else set()
