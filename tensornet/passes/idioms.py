"""Idiom recognition: softmax, its logarithm and logsumexp, where they are written in other functions.

    exp(x - max[j](x)) / sum[j](exp(x - max[j](x)))        softmax[j](x)
    x - logsumexp[j](x)                                    log_softmax[j](x)
    log(sum[j](exp(x)))                                    logsumexp[j](x)

These do not overflow, are one pass, and have shorter derivatives. With or without the shift by the maximum, and with
further factors of the product, the forms are the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..ir.node import Node, Operand, distinct_axes, node, number, own_axes
from ..ir.rewriting import Facts, Program
from ..ops.table import Element

IDIOMS = ("exp", "log", "logsumexp")
"""A program that writes out one of these functions has at least one of exp, log and logsumexp."""


def recognised(program: Program) -> Program:
    """The program with these functions in place of what writes them out."""
    return program if program.features.isdisjoint(IDIOMS) else program.rewritten(_recognised)


def _recognised(each: Node, _: Facts) -> Node:
    """The node of the function that a node writes out, or the node itself."""
    match each.op if each.element is Element.NUMBER else "":
        case "contract":
            return _without_quotients(each)
        case "add":
            found = _less(each, "logsumexp")
            return _along("log_softmax", *found) if found is not None else _of_shifted(each) or each
        case "exp" | "log":
            return _inverted(each) or each
    return each


def _without_quotients(each: Node) -> Node:
    """A product with softmax in place of exp(x) and 1 / sum[j](exp(x))."""
    for n, (exponential, reads) in enumerate(each.operands):
        for m, (below, at) in enumerate(each.operands if exponential.op == "exp" else ()):
            total = _argument(below, "reciprocal")
            kept = _kept(total, exponential) if total is not None else None
            x = _argument(exponential, "exp")
            if kept is None or x is None or at != tuple(reads[d] for d in kept):
                continue
            found = Operand(_along("softmax", _unshifted(x, kept), kept), reads)
            factors = [found if at == n else other for at, other in enumerate(each.operands) if at != m]
            if len(factors) == 1 and reads == each.result and not each.over:
                return node("copy", each.sizes, factors, each.result, each.shape)
            return _without_quotients(
                node("contract", each.sizes, factors, each.result, each.shape, each.over)
            )
    return each


def _of_shifted(each: Node) -> Node | None:
    """logsumexp[j](x) for logsumexp[j](x - max[j](x)) + max[j](x)."""
    for whole, greatest in _pairs(each):
        x = whole.operands[0].node if whole.op == "logsumexp" else each
        found, kept = _less(x, "max"), _kept(whole, x, "logsumexp")
        if found is not None and found[1] == kept and _kept(greatest, found[0], "max") == kept:
            return _along("logsumexp", found[0], kept)
    return None


def _inverted(each: Node) -> Node | None:
    """softmax for exp of its logarithm, this for log of softmax, and logsumexp for log(sum[j](exp(x)))."""
    inner = _argument(each, each.op)
    pair = {"exp": ("log_softmax", "softmax"), "log": ("softmax", "log_softmax")}[each.op]
    if inner is not None and inner.op == pair[0] and len(inner.operands) == 1:
        return node(pair[1], inner.sizes, inner.operands, inner.result, inner.shape, inner.over)
    if each.op == "exp" or inner is None or len(inner.operands) != 1:
        return None
    exponential = inner.operands[0].node
    x, kept = _argument(exponential, "exp"), _kept(inner, exponential)
    return None if x is None or kept is None else _along("logsumexp", x, kept)


# ---------------------------------------------------------------------------- parts of the forms


def _along(op: str, x: Node, kept: Sequence[int]) -> Node:
    """A function of a whole tensor along all dimensions but some."""
    over = [d for d in range(len(x.shape)) if d not in kept]
    result = tuple(x.plain[d] for d in kept) if op == "logsumexp" else x.plain
    return node(op, x.shape, [Operand(x, x.plain)], result, over=over)


def _argument(each: Node, op: str) -> Node | None:
    """The tensor that a pointwise function reads as it lies."""
    is_plain = each.op == op and len(each.operands) == 1 and not each.is_scalar
    return each.operands[0].node if is_plain and _is_whole(each, each.operands[0]) else None


def _is_whole(each: Node, operand: Operand) -> bool:
    """Whether a node maps each element of an operand to that at the same position."""
    return operand.reads == each.plain == each.result and operand.node.shape == each.shape


def _kept(each: Node, of: Node, op: str = "contract") -> tuple[int, ...] | None:
    """The dimensions of a tensor, in order, that its sum, or another function along axes, keeps; None if it is none.

    The function is of the whole tensor and of nothing else, with no axis twice.
    """
    if each.op != op or len(each.operands) != 1 or each.operands[0].node is not of:
        return None
    axes, left = distinct_axes(each.operands[0].reads), own_axes(each)
    if axes is None or left is None or not {*left} < {*axes} or (each.op == "contract" and each.over):
        return None
    is_whole = all(each.sizes[axis] == length for axis, length in zip(axes, of.shape, strict=True))
    return tuple(map(axes.index, left)) if is_whole else None


def _pairs(each: Node) -> Iterator[tuple[Node, Node]]:
    """The two terms of a sum, in both orders, if both are whole."""
    if each.op == "add" and len(each.operands) == 2 and all(_is_whole(each, term) for term in each.operands):
        one, other = (term.node for term in each.operands)
        yield from ((one, other), (other, one))


def _less(each: Node, op: str) -> tuple[Node, tuple[int, ...]] | None:
    """The tensor x of `x - op[j](x)`, and the dimensions without j."""
    for n, term in enumerate(each.operands if each.op == "add" and len(each.operands) == 2 else ()):
        negative, reads = each.operands[1 - n]
        factors = negative.operands if negative.op == "contract" and len(negative.operands) == 2 else ()
        taken = [factor for factor in factors if factor.node is not number(-1)]
        if len(taken) != 1 or not _is_whole(each, term) or not _is_whole(negative, taken[0]):
            continue
        kept = _kept(taken[0].node, term.node, op)
        if kept is not None and reads == tuple(each.plain[d] for d in kept):
            return term.node, kept
    return None


def _unshifted(x: Node, kept: Sequence[int]) -> Node:
    """The tensor without its shift by a maximum, which softmax does not mind where it is the same along its axes."""
    found = _less(x, "max")
    return x if found is None or not {*found[1]} <= {*kept} else found[0]
