"""Algebraic simplification: distribution, and known totals such as `sum[j](softmax[j](s))` = 1.

Distribution of a product over a sum: `(x·A + u)·B` is `x·A·B + u·B`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Sequence

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
    over_operands,
    own_axes,
    summed_axes,
)
from ..ir.positions import Opened, opened
from ..ir.rewriting import Change, Facts, PassContext, Program
from ..ops.table import Element
from ..sizes import evaluate
from .fusion import fused

# ---------------------------------------------------------------------------- distribution


MANY = 6
"""With more factors than this, no orders are compared: the cost decides."""


def multiplied_out(context: PassContext, program: Program, product: Node) -> Iterator[Change]:
    """Ways to multiply out a sum that only this product reads. Sums of integers stay: they are exact as written."""
    if product.op != "contract" or product.element is not Element.NUMBER or None in product.dims:
        return
    for at, (total, _) in enumerate(product.operands):
        if total.op != "add" or program.readers[total] > 1 or total.element <= Element.WHOLE:
            continue
        found = opened(product, at, program.same)
        if found is None:
            continue
        apart = [_beside(found, term) for term in found.inside]
        whole = [Operand(fused(each, program.facts), reads) for each, reads in apart]
        ways = zip(found.inside, apart, whole, strict=True)
        if any(_may_pay(context, program, *(each.node for each in way)) for way in ways):
            yield Change(product, node("add", found.sizes, whole, found.result, product.shape))


def _beside(found: Opened, term: Operand) -> Operand:
    """The product of a term of a sum and the factors that the sum had."""
    factors = found.among([term])
    read = axes_in(factors)
    kept = tuple(along(axis) for axis in axes_of(found.result) if axis in read)
    return Operand(node("contract", found.sizes, factors, kept, None, found.unread(factors)), kept)


def _may_pay(context: PassContext, program: Program, term: Node, apart: Node, whole: Node) -> bool:
    """Whether a term that sums over an axis may take less time as one product with the factors that the sum had.

    It may if another order then needs fewer multiplications, and if others read the term too, since it is no step with
    the sum then. The cost of lowered steps, which decides, takes far longer to compute than this.

    Args:
        context, program: those of the pass.
        term: the term.
        apart, whole: the product with the term computed first, and with the factors of the term.
    """
    if term.op != "contract" or not summed_axes(term):
        return False
    sizes = {**context.values, **dict(program.names.sizes)}
    lengths = [evaluate(size, sizes) for each in (term, whole) for size in each.sizes]
    if (
        program.readers[term] > 1
        or len(whole.operands) > MANY
        or not all(isinstance(n, int) for n in lengths)
    ):
        return True

    def fewest(each: Node) -> float:
        factors = [
            (frozenset(axes_of(reads)), one in program.constants) for one, reads in each.operands if reads
        ]
        return _fewest(
            factors, frozenset(axes_of(each.result)), [float(evaluate(size, sizes)) for size in each.sizes]
        )

    return fewest(whole) < fewest(term) + fewest(apart)


def _fewest(
    factors: Sequence[tuple[frozenset[Axis], bool]], kept: frozenset[Axis], sizes: Sequence[float]
) -> float:
    """The fewest multiplications of a product in any order, of factors by axes; those of constants cost none."""

    def begun_by(*pair: int) -> float:
        (one, still), (two, is_still) = (factors[n] for n in pair)
        others = [each for n, each in enumerate(factors) if n not in pair]
        left = (one | two) & kept.union(*(axes for axes, _ in others))
        least = _fewest([*others, (left, still and is_still)], kept, sizes)
        return least if still and is_still else least + math.prod(sizes[axis] for axis in one | two)

    return min(itertools.starmap(begun_by, itertools.combinations(range(len(factors)), 2)), default=0.0)


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
    axes = own_axes(weights)
    if not weights.function.sums_to_one or weights.is_scalar or axes is None:
        return set()
    pairs = [*zip(axes, reads, strict=True)]
    places = distinct_axes(tuple(entry for axis, entry in pairs if axis in weights.over))
    outside = axes_of(tuple(entry for axis, entry in pairs if axis not in weights.over))
    return {*places} if places is not None and {*places}.isdisjoint(outside) else set()
