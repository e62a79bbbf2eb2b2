"""Vjp rules: the cotangents of a node's operands, from the cotangent of the node.

    y[b,o] = x[b,i] * W[o,i]     →    W.grad[o,i] = y.grad[b,o] * x[b,i]

An operand of a product gets the product of the cotangent with the other factors. This is read where the product is
written, and written where the operand is read: a window, a gather or a diagonal comes back as a scatter. Records of
functions state their rules as equations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from ..frontend.elaborate_ir import NodeRule, scalar_expression
from ..graph.algebra import ZERO, folded, spread
from ..ir.equations import JOINED
from ..ir.node import Affine, Axis, Entries, Node, Operand, Size, along, axes_of, node, number, substitute
from ..language.expression import Expression, Literal, free_axes
from ..language.parser import parse_rule
from ..ops.record import OPERANDS
from ..ops.table import FUNCTIONS


@dataclass(frozen=True)
class Part:
    """The contribution of one reader to the cotangent of a tensor.

    Attributes:
        node: the tensor.
        reads: where the reader reads it; the contribution is added there.
        factors: the contribution is their product, summed over the axes that the tensor lacks.
        sizes: of the reader's axes.
        alike: the axes along which the product is constant; it is multiplied by their sizes.
    """

    node: Node
    reads: Entries
    factors: tuple[Operand, ...]
    sizes: Mapping[Axis, Size]
    alike: tuple[Axis, ...] = ()


def cotangents(each: Node, gradient: Operand, active: AbstractSet[Node]) -> Iterator[Part]:
    """The cotangents of the operands of a node.

    Args:
        each: the node.
        gradient: its cotangent, read along the axes of the node; it is constant along axes that it lacks.
        active: the tensors that get a cotangent.
    """
    if each.op == "copy" and "fill" in each.attributes:
        yield _of_padded(each, gradient)
        return
    if each.op in JOINED:
        yield from _of_joined(each, gradient, active)
        return
    sizes: dict[Axis, Size] = dict(enumerate(each.sizes))
    for n, operand in enumerate(each.operands):
        if operand.node not in active:
            continue
        if each.op in ("contract", "copy"):
            others = (*each.operands[:n], *each.operands[n + 1 :])
            factors: tuple[Operand, ...] = (gradient, *others)
            around: Sequence[Axis] = range(len(each.sizes))
        else:
            found = _of_function(each, n, gradient)
            if found is None:
                continue
            factors, around = (found,), [*axes_of(each.result)]
        there = {*axes_of(operand.reads), *(axis for factor in factors for axis in axes_of(factor.reads))}
        alike = tuple(axis for axis in dict.fromkeys(around) if axis not in there)
        yield Part(operand.node, operand.reads, factors, sizes, alike)


# ---------------------------------------------------------------------------- nodes that move elements


def _of_padded(each: Node, gradient: Operand) -> Part:
    """The cotangent of the operand of a crop or a padding: the other of the two, with 0."""
    (operand,) = each.operands
    whole = [_axis(entry) for entry in each.result]
    lengths = dict(zip(whole, each.shape, strict=True))
    plain = _whole(gradient, {axis: along(axis) for axis in whole}, lengths, each.result)
    moved = Operand(plain, each.result)
    options = (("fill", number(0)),)
    made = node("copy", dict(enumerate(each.sizes)), [moved], operand.reads, operand.node.shape, (), options)
    left = tuple(map(along, whole))
    return Part(operand.node, left, (Operand(made, left),), dict(zip(whole, operand.node.shape, strict=True)))


def _of_joined(each: Node, gradient: Operand, active: AbstractSet[Node]) -> Iterator[Part]:
    """The cotangents of concatenated operands: for each, the slice at its place."""
    joined, *own = each.over
    sizes: dict[Axis, Size] = dict(enumerate(each.sizes))
    before: Size = 0
    for operand, axis in zip(each.operands, own, strict=True):
        has = axis in axes_of(operand.reads)
        if operand.node in active:
            factor = gradient
            if has and joined in axes_of(gradient.reads):
                factor = _piece(gradient, joined, axis, before, sizes)
            elif not has:
                here = substitute(gradient.reads, {**_plain(sizes), joined: Affine((), before)})
                factor = Operand(gradient.node, here)
            there = {*axes_of(operand.reads), *axes_of(factor.reads), joined}
            alike = tuple(a for a in axes_of(each.result) if a not in there)
            yield Part(operand.node, operand.reads, (factor,), sizes, alike)
        before = before + (sizes[axis] if has else 1)


def _plain(axes: Iterable[Axis]) -> dict[Axis, Affine]:
    return {axis: along(axis) for axis in axes}


def _piece(gradient: Operand, joined: Axis, axis: Axis, before: Size, sizes: Mapping[Axis, Size]) -> Operand:
    """The slice of a cotangent at the positions of one of several concatenated operands."""
    axes = [*dict.fromkeys(axes_of(gradient.reads))]
    left, lengths = tuple(map(along, axes)), {**sizes, joined: sizes[axis]}
    plain = node("copy", sizes, [gradient], left)
    read = tuple(Affine(((a, 1),), before if a == joined else 0) for a in axes)
    options = (("fill", number(0)),)
    made = node("copy", lengths, [Operand(plain, read)], left, [lengths[a] for a in axes], (), options)
    return Operand(made, substitute(left, {**_plain(axes), joined: along(axis)}))


def _axis(entry: Any) -> Axis:
    (axis,) = axes_of((entry,))
    return axis


def _whole(
    gradient: Operand, dims: Mapping[Axis, Affine], lengths: Mapping[Axis, Size], entries: Entries
) -> Node:
    """A cotangent with all dimensions, each starting at its first position."""
    read = tuple(along(_axis(entry)) for entry in gradient.reads)
    return node("copy", lengths, [Operand(gradient.node, read)], tuple(dims.values()), [*lengths.values()])


# ---------------------------------------------------------------------------- functions


def _of_function(each: Node, n: int, gradient: Operand) -> Operand | None:
    """The cotangent of an operand of a function, by the rule of the function's record; None if it is 0."""
    row, rule = FUNCTIONS[each.op], NodeRule(each)
    y, g = rule.ref("$y", Operand(each, each.result)), rule.ref("$g", gradient)
    if row.axes == "kept":
        g = spread(g, rule.over)
    pairs = zip(OPERANDS, each.operands, strict=False)
    meaning: dict[str, Expression] = {letter: rule.ref(f"${letter}", operand) for letter, operand in pairs}
    meaning |= {name: Literal(value) for name, value in row.options}
    meaning |= {name: scalar_expression(value) for name, value in each.options if name in dict(row.options)}
    if row.axes == "moved":
        found = g
        for place, axis in enumerate(rule.over):
            if axis in free_axes(found):
                amounts = {name: scalar_expression(each.attributes[f"{name}{place}"]) for name in row.amounts}
                found = parse_rule(row.gradient(n), {**meaning, **amounts, "g": found}, (axis,))
    else:
        found = parse_rule(row.gradient(n), {**meaning, "y": y, "n": rule.count, "g": g}, rule.over)
    found = folded(found)
    return None if found == ZERO else rule.operand(found)
