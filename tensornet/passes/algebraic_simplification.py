"""Algebraic simplification: distribution, and known totals such as `sum[j](softmax[j](s))` = 1.

Distribution of a product over a sum: `(x·A + u)·B` is `x·A·B + u·B`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from ..ir.build import axes_in, node, number, summed_axes
from ..ir.function import over_operands
from ..ir.inlining import Opened, opened
from ..ir.node import Axis, Node, Operand, along, axes_of, distinct_axes, own_axes
from ..ir.rewriting import Change, Cost, Facts, Program, improved
from ..ops.table import FUNCTIONS, Element
from ..sizes import evaluate
from .fusion import fused

__all__ = ["distribute", "drop_known_totals"]

MANY = 6
"""With more factors than this, no orders are compared: the cost function decides."""


# ---------------------------------------------------------------------------- distribution


def distribute(program: Program, cost: Cost, values: Mapping[str, int] | None = None) -> Program:
    """Multiplies out sums that are factors, where `cost` says that this pays.

    Args:
        program: the program.
        cost: the expected seconds of a program; it is evaluated for a few nodes at a time.
        values: every open size; if not given, the cost is evaluated for each sum that is a factor.
    """
    known = {**values, **dict(program.names.sizes)} if values is not None else None
    return improved(program, program.nodes, functools.partial(_distributions, known=known), cost)


def _distributions(program: Program, product: Node, known: Mapping[str, Any] | None) -> Iterator[Change]:
    """Ways to multiply out a sum that only this product reads. Sums of integers stay: they are exact as written."""
    if product.op != "contract" or product.element is not Element.NUMBER or None in product.dims:
        return
    for at, (total, _) in enumerate(product.operands):
        if total.op != "add" or program.readers[total] > 1 or total.element <= Element.WHOLE:
            continue
        found = opened(product, at, program.same)
        if found is not None and any(_may_pay(program, found, term, known) for term in found.inside):
            yield Change({product: _multiplied_out(product, found, program.facts)})


def _may_pay(program: Program, found: Opened, term: Operand, known: Mapping[str, Any] | None) -> bool:
    """Whether multiplying out a sum may pay because of one of its terms, a product that sums over an axis.

    It may if the factors of the term and those next to the sum need fewer multiplications in another order than with
    the term computed first. It may also if others read the term too: then the term cannot be one step with the sum.
    """
    each, reads = term
    if each.op != "contract" or not summed_axes(each):
        return False
    if known is None or program.readers[each] > 1:
        return True
    names: dict[Axis, Axis] = {}
    for axes, entry in zip(each.dims, reads, strict=True):
        if axes is None or len(axes) != 1 or entry.axis is None:
            return True
        names[axes[0]] = entry.axis
    inside = [
        (other, frozenset(names.get(axis, ("sum", axis)) for axis in axes_of(read)))
        for other, read in each.operands
    ]
    outside = [(other, frozenset(axes_of(read))) for other, read in found.operands]
    inner, outer = ([pair for pair in pairs if not pair[0].is_scalar] for pairs in (inside, outside))
    if len(inner) + len(outer) > MANY:
        return True
    lengths = found.sizes | {("sum", axis): size for axis, size in enumerate(each.sizes)}
    sizes = {axis: float(evaluate(size, known)) for axis, size in lengths.items()}
    own, kept = frozenset(axes_of(reads)), frozenset(axes_of(found.result))

    def least(factors: Sequence[tuple[Node, frozenset[Axis]]], left: frozenset[Axis]) -> float:
        still = [other in program.constants for other, _ in factors]
        return _fewest([axes for _, axes in factors], still, left, sizes)

    return least([*inner, *outer], kept) < least(inner, own) + least([(each, own), *outer], kept)


def _fewest(
    factors: Sequence[frozenset[Axis]],
    still: Sequence[bool],
    kept: frozenset[Axis],
    sizes: Mapping[Axis, float],
) -> float:
    """The fewest multiplications of a product in any order; products of factors that no call changes cost none."""
    everything = (1 << len(factors)) - 1

    def axes_of_all(subset: int) -> frozenset[Axis]:
        return frozenset[Axis]().union(*(axes for n, axes in enumerate(factors) if subset >> n & 1))

    @functools.cache
    def left(subset: int) -> frozenset[Axis]:
        return axes_of_all(subset) & (kept | axes_of_all(everything ^ subset))

    @functools.cache
    def least(subset: int) -> float:
        members = [n for n in range(len(factors)) if subset >> n & 1]
        if len(members) == 1 or all(still[n] for n in members):
            return 0.0
        halves = (half for half in range(1, subset) if half & subset == half and half & 1 << members[0])
        return min(
            least(half)
            + least(subset ^ half)
            + math.prod(sizes[axis] for axis in left(half) | left(subset ^ half))
            for half in halves
        )

    return least(everything)


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


def drop_known_totals(program: Program) -> Program:
    """Drops factors that only sum to 1 from the terms of a sum, where other terms have the factors' remaining axes."""
    return program.rewritten(_without_totals)


def _without_totals(total: Node, facts: Facts) -> Node:
    """A sum without the factors of its terms that only sum to 1."""
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
