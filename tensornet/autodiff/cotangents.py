"""Cotangent accumulation: the gradient of a tensor is the sum over its readers.

A gradient that is constant along a dimension is kept without that dimension for as long as possible.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Mapping, Sequence
from typing import TypeAlias

from ..ir.node import (
    Affine,
    Axis,
    Node,
    Operand,
    Size,
    along,
    axes_of,
    cast,
    fills,
    node,
    number,
    row_major,
    size,
)
from ..ops.table import Element
from ..sizes import product
from .equation_vjp import Part

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
            sizes: dict[Axis, Size] = dict(enumerate(each.shape))
            operands = [Operand(term, tuple(map(along, own))) for term, own in terms]
            self.terms[each] = terms = [(node("add", sizes, operands, tuple(map(along, dims))), dims)]
        return terms[0] if terms else None

    def read(self, each: Node) -> Operand | None:
        """The gradient of a node, read along the axes that the node is written along; None if it has none."""
        found = self.total(each)
        if found is None:
            return None
        term, dims = found
        return Operand(term, tuple(each.result[d] for d in dims))

    def whole(self, each: Node) -> Node:
        """The gradient of a tensor with all dimensions; zeros where it has none."""
        term, dims = self.total(each) or (number(0), ())
        if dims == (*range(len(each.shape)),) and not term.is_scalar:
            return term
        return _spread(term, dims, each)


def zeros(each: Node) -> Node:
    """A tensor of zeros with the shape of another."""
    return _spread(number(0), (), each)


def _spread(term: Node, dims: Sequence[int], each: Node) -> Node:
    """A tensor that has some dimensions of another, broadcast to all of them."""
    source, left = (
        cast(term, Element.NUMBER) if term.is_scalar else term,
        tuple(map(along, range(len(each.shape)))),
    )
    return node("copy", dict(enumerate(each.shape)), [Operand(source, tuple(map(along, dims)))], left)


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
