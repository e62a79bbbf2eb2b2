"""Cotangent accumulation: the gradient of a tensor is the sum over its readers.

A gradient that is constant along a dimension is kept without that dimension for as long as possible.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from ..frontend.elaborate_ir import NodeRule, scalar_expression
from ..graph.algebra import ZERO, folded, spread
from ..ir.equations import JOINED
from ..ir.naming import fitting, is_negative, reach
from ..ir.node import (
    Affine,
    Axis,
    Entries,
    Node,
    Operand,
    Size,
    Sizes,
    along,
    axes_of,
    cast,
    fills,
    node,
    number,
    row_major,
    size,
    substitute,
)
from ..ir.positions import apart
from ..language.expression import Expression, Literal, free_axes
from ..language.parser import parse_rule
from ..ops.record import OPERANDS
from ..ops.table import Element
from ..sizes import larger, product, smaller

GRADIENT = "{}.grad"
"""The name of the gradient of a tensor."""

Term: TypeAlias = "tuple[Node, tuple[int, ...]]"
"""A part of a gradient, and the dimensions of the tensor that it has; a number has none."""


def _is(each: Node, value: int) -> bool:
    return each.op == "number" and each.attributes["value"] == value and each.attributes["value"] is not True


class Cotangents:
    """The gradients of tensors, accumulated while their readers are visited from the last to the first.

    Attributes:
        terms: the parts of each tensor's gradient so far.
        uses: the number of readers of each tensor.
        along: the dimension of the recurrence of each recurrent tensor. It keeps its axis where it is read on a
            diagonal.
        same: whether two sizes are equal.
    """

    def __init__(
        self, uses: Counter[Node], along: Mapping[Node, int], same: Callable[[Size, Size], bool]
    ) -> None:
        self.terms = defaultdict[Node, list[Term]](list)
        self.uses, self.along, self.same = uses, along, same

    def give(self, part: Part) -> None:
        """Adds the contribution of a reader to the gradient of a tensor."""
        if any(_is(factor.node, 0) for factor in part.factors):
            return
        factors = [factor for factor in part.factors if not _is(factor.node, 1)]
        there = {axis for factor in factors for axis in axes_of(factor.reads)}
        whole = {d for d in range(len(part.reads)) if _is_whole(part, d, self.same)}
        dims = [d for d in range(len(part.reads)) if d not in whole or there & _axes(part, d)]
        dims.sort(key=lambda d: d != self.along.get(part.node))
        direct = _direct(part, factors, dims) if whole.issuperset(dims) else None
        self.terms[part.node].append(direct or (_made(part, factors, dims, whole), tuple(dims)))

    def total(self, each: Node) -> Term | None:
        """The gradient of a tensor; None if it has none."""
        terms = self.terms.get(each, [])
        if len(terms) > 1:
            dims = tuple(sorted({d for _, own in terms for d in own}))
            operands = [Operand(term, tuple(map(along, own))) for term, own in terms]
            self.terms[each] = terms = [(node("add", each.shape, operands, tuple(map(along, dims))), dims)]
        return terms[0] if terms else None

    def read(self, each: Node) -> Operand | None:
        """The gradient of a node, read along the axes that the node is written along; None if it has none."""
        total = self.total(each)
        if total is None:
            return None
        term, dims = total
        found = Operand(term, tuple(each.result[d] for d in dims))
        return found if "fill" in each.attributes else reached(found, each.sizes, self.same)

    def whole(self, each: Node) -> Node:
        """The gradient of a tensor with all dimensions; zeros where it has none."""
        term, dims = self.total(each) or (number(0), ())
        if dims == (*range(len(each.shape)),) and not term.is_scalar:
            return term
        return _spread(term, dims, each)


def reached(gradient: Operand, sizes: Sizes, same: Callable[[Size, Size], bool]) -> Operand:
    """A cotangent, cropped or padded with zeros to the windows that it is read in, where they do not fit it."""
    term, entries, lengths = gradient.node, [*gradient.reads], [*gradient.node.shape]
    kept, read, written = [*lengths], [*term.plain], [*term.plain]
    for d, (entry, length) in enumerate(zip(gradient.reads, term.shape, strict=True)):
        if not isinstance(entry, Affine) or not entry.terms or fills(entry, sizes, length, same):
            continue
        low, high = reach(entry, sizes)
        high += (
            max(abs(step) for step in (1, *entry.steps) if isinstance(step, int)) - 1
        )  # an axis may be empty
        if is_negative(low) or fitting(entry, sizes, length, same) is None:
            lengths[d], entries[d] = high + 1 - low, replace(entry, offset=entry.offset - low)
            kept[d] = length + smaller(-low, 0) + smaller(high + 1 - length, 0)
            read[d], written[d] = (Affine(((d, 1),), larger(by, 0)) for by in (low, -low))
    options = (("fill", number(0)),) if lengths != [*term.shape] else ()
    made = node("copy", kept, [Operand(term, tuple(read))], tuple(written), lengths, options=options)
    return Operand(made, tuple(entries))


def _spread(term: Node, dims: Sequence[int], each: Node) -> Node:
    """A tensor that has some dimensions of another, broadcast to all of them."""
    source = cast(term, Element.NUMBER) if term.is_scalar else term
    return node("copy", each.shape, [Operand(source, tuple(map(along, dims)))], each.plain)


def _axes(part: Part, d: int) -> set[Axis]:
    return {*axes_of((part.reads[d],))}


def _is_whole(part: Part, d: int, same: Callable[[Size, Size], bool]) -> bool:
    """Whether a dimension is read from end to end, along axes that no other dimension has."""
    entry = part.reads[d]
    others = {*axes_of((*part.reads[:d], *part.reads[d + 1 :]))}
    plain = isinstance(entry, Affine) and fills(entry, part.sizes, part.node.shape[d], same)
    return plain and others.isdisjoint(_axes(part, d))


def _direct(part: Part, factors: Sequence[Operand], dims: Sequence[int]) -> Term | None:
    """The only factor, if it has the dimensions as they are; else None."""
    if len(factors) != 1 or part.alike or factors[0].node.is_scalar:
        return None
    ((term, reads),) = factors
    places = {part.reads[d]: d for d in dims}
    if len(places) < len(dims) or len(reads) != len(dims) or {*reads} != {*places}:
        return None
    return term, tuple(places[entry] for entry in reads)


def _made(part: Part, factors: Sequence[Operand], dims: Sequence[int], whole: Container[int]) -> Node:
    """The product of factors, written where the tensor is read."""
    axes = {
        d: tuple(axes_of((part.reads[d],))) for d in dims if d in whole
    }  # the length of the tensor, in sizes of these axes
    result = tuple(row_major(axes[d], part.sizes) if d in axes else part.reads[d] for d in dims)
    lengths = {d: product(part.sizes[axis] for axis in own) for d, own in axes.items()}
    shape = [lengths.get(d, part.node.shape[d]) for d in dims]
    if not any(map(bool, (dims, *(factor.reads for factor in factors)))):
        counts = [Operand(size(part.sizes[axis])) for axis in part.alike]
        numbers = [*factors, *counts] or [Operand(number(1))]
        return numbers[0].node if len(numbers) == 1 else node("contract", {}, numbers)
    return node("contract", part.sizes, factors or [Operand(number(1))], result, shape, part.alike)


# ---------------------------------------------------------------------------- the rules


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
    made = node("copy", each.sizes, [moved], operand.reads, operand.node.shape, (), options)
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
                is_inside = joined in axes_of(gradient.reads) and along(joined) not in gradient.reads
                whole = apart(gradient, sizes) if is_inside else gradient
                here = substitute(whole.reads, {joined: Affine((), before)})
                factor = Operand(whole.node, here)
            there = {*axes_of(operand.reads), *axes_of(factor.reads), joined}
            alike = tuple(a for a in axes_of(each.result) if a not in there)
            yield Part(operand.node, operand.reads, (factor,), sizes, alike)
        before = before + (sizes[axis] if has else 1)


def _piece(gradient: Operand, joined: Axis, axis: Axis, before: Size, sizes: Mapping[Axis, Size]) -> Operand:
    """The slice of a cotangent at the positions of one of several concatenated operands."""
    plain, left = apart(gradient, sizes)
    axes, lengths = axes_of(left), {**sizes, joined: sizes[axis]}
    read = tuple(Affine(((a, 1),), before if a == joined else 0) for a in axes)
    options = (("fill", number(0)),)
    made = node("copy", lengths, [Operand(plain, read)], left, [lengths[a] for a in axes], (), options)
    return Operand(made, substitute(left, {joined: along(axis)}))


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
    row, rule = each.function, NodeRule(each)
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
