"""Contraction fusion: consecutive contractions become one."""

from __future__ import annotations

from ..ir.node import Node, Operand, Size, node
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
    child = each.operands[at].node
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


def _summed(each: Node) -> set[Size]:
    """The sizes of the axes that a product sums over."""
    written = {axis for axes in each.dims for axis in axes or ()}
    return {size for axis, size in enumerate(each.sizes) if axis not in written}


def _count(factor: Operand) -> Size:
    """The number of positions that a factor divides by; None if it does not."""
    below = factor.node.operands[0].node if factor.node.op == "reciprocal" else None
    return below.attributes.get("size") if below is not None else None
