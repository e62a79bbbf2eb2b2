"""Algebraic simplification: expansion, contraction fusion, distribution, and known totals.

    silu(a)                     a * sigmoid(a)              expansion: a function that the backend lacks, in others
    (x·A)·B                     x·A·B                       contraction fusion: consecutive contractions become one
    (x·A + u)·B                 x·A·B + u·B                 distribution of a product over a sum
    sum[j](softmax[j](s))       1                           known totals

The cost decides about distribution. The others always pay.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from functools import partial

from ..frontend.elaborate_ir import NodeRule
from ..ir.equations import options_of
from ..ir.node import (
    Axis,
    Node,
    Operand,
    Size,
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
from ..language.canonical import expanded
from ..language.expression import Call, Expression, flat
from ..ops.record import left_of
from ..ops.table import FUNCTIONS, Element
from ..sizes import evaluate

# ---------------------------------------------------------------------------- expansion


def expand(each: Node, supported: Collection[str]) -> Node:
    """The node of a function's expansion, if the backend lacks the function; else the node itself.

    Args:
        each: the node.
        supported: the operations that the backend has; empty if nothing will run, and then nothing is expanded.
    """
    if not supported or not each.function.name or _is_there(each.op, supported) or each.is_scalar:
        return each
    rule = NodeRule(each)
    arguments = tuple(rule.ref(f"${n}", operand) for n, operand in enumerate(each.operands))
    whole = _in_others(Call(each.op, arguments, rule.over, options_of(each)), supported, rule.count)
    return rule.made(whole, left_of(rule.named(axes or ()) for axes in each.dims))


def _in_others(part: Expression, supported: Collection[str], count: Expression) -> Expression:
    """An expression in functions that the backend has."""
    changed = part.transform(partial(_in_others, supported=supported, count=count))
    if not isinstance(changed, Call) or _is_there(changed.function, supported):
        return part if changed is part else flat(changed)
    return _in_others(expanded(changed, count), supported, count)


def _is_there(name: str, supported: Collection[str]) -> bool:
    """Whether a function stays: the backend has it, or Python an operator for it, or it has no expansion."""
    function = FUNCTIONS[name]
    return name in supported or bool(function.infix) or not function.expansion


# ---------------------------------------------------------------------------- contraction fusion


MOST = 32
"""The most factors of a product that is merged into another. A search over more factors takes long, and hardly finds a
better order than that of the text."""


def fused(each: Node, facts: Facts) -> Node:
    """A contraction merged with those of its factors that nothing else reads."""
    at = 0
    while each.op == "contract" and at < len(each.operands):
        merged = _with_factors_of(each, at, facts) if facts.readers[each.operands[at].node] == 1 else None
        if merged is None:
            at += 1
        else:
            each = merged
    return each


def _with_factors_of(each: Node, at: int, facts: Facts) -> Node | None:
    """A contraction in which the factors of an operand, a product or a copy, replace it; None if they cannot."""
    child, reads = each.operands[at]
    if (apart := _laid_out_apart(child)) is not None:
        child = apart
        each = over_operands(each, [*each.operands[:at], Operand(apart, reads), *each.operands[at + 1 :]])
    if child.is_scalar or child.op not in ("contract", "copy") or "fill" in child.attributes:
        return None
    if len(child.operands) > MOST or not _summed(child).isdisjoint(map(_count, each.operands)):
        return None  # an average over no positions is NaN, but a sum over none is 0
    if child.element <= Element.WHOLE < each.element and _summed(child):
        return None  # sums of integers are exact
    found = opened(each, at, facts.same)
    if found is None:
        return None
    factors = found.among(found.inside)
    merged = node("contract", found.sizes, factors, found.result, each.shape, found.unread(factors))
    return merged if merged.element is each.element else None


def _laid_out_apart(each: Node) -> Node | None:
    """A copy of a kernel's result to the composite axes that the kernel writes; None if it writes none."""
    dims = [axes for axes in each.dims if axes is not None]
    own = tuple(along(axis) for axes in dims for axis in axes)
    if not each.function.is_kernel or len(dims) < len(each.dims) or len(own) == len(dims):
        return None
    made = node(each.op, each.sizes, each.operands, own, None, each.over, each.options)
    return node("copy", each.sizes, [Operand(made, own)], each.result, each.shape)


def _summed(each: Node) -> set[Size]:
    """The sizes of the axes that a product sums over."""
    written = {axis for axes in each.dims for axis in axes or ()}
    return {size for axis, size in enumerate(each.sizes) if axis not in written}


def _count(factor: Operand) -> Size:
    """The number of positions that a factor divides by; None if it does not."""
    below = factor.node.operands[0].node if factor.node.op == "reciprocal" else None
    return below.attributes.get("size") if below is not None else None


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
        lost = {*factor.axes} - summed - beside.keys()
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
