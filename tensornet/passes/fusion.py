"""Contraction fusion: consecutive contractions become one."""

from __future__ import annotations

from ..ir.node import Node, Operand, Size, along, node, over_operands
from ..ir.positions import opened
from ..ir.rewriting import Facts
from ..ops.table import Element

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
