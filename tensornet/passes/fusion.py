"""Fusion of products: contraction fusion, and horizontal fusion.

Consecutive contractions become one. Products of one tensor with several weights become one product, with their biases.
These weights must be constants, so that they are concatenated only once, as `AB`. Weights that may change would have to
be concatenated at each call.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ..ir.build import concatenated, node, number
from ..ir.inlining import opened
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
    distinct_axes,
    row_major,
)
from ..ir.rewriting import Change, Cost, Facts, Program, improved
from ..ops.table import Element
from ..sizes import evaluate, product

__all__ = ["fuse_contractions", "fuse_horizontally", "fused"]

MOST = 32
"""The most factors of a product that is merged into another. A search over more factors takes long, and hardly finds a
better order than that of the text."""


def fuse_contractions(program: Program) -> Program:
    """Merges a contraction that is read once, as a factor, into the contraction that reads it."""
    return program.rewritten(fused)


def fused(each: Node, facts: Facts) -> Node:
    """A contraction merged with those of its operands that nothing else reads."""
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


# ---------------------------------------------------------------------------- horizontal fusion


def fuse_horizontally(program: Program, cost: Cost) -> Program:
    """Multiplies a tensor by several constants at once, where `cost` says that this pays."""
    return improved(program, program.nodes, _fused_products, cost)


def _fused_products(program: Program, first: Node) -> Iterator[Change]:
    """One product in place of several, if `first` is the first of them."""
    own = _product(program, first)
    if own is None:
        return
    readers = {*program.reading[own.operand.node]}
    near = readers.union(*(program.reading[each] for each in readers))  # a sum with a bias reads its product
    every = (own if each is first else _product(program, each) for each in program.nodes if each in near)
    alike = [each for each in every if each is not None and each.fits == own.fits]
    if len(alike) > 1 and alike[0] is own:
        yield Change(_joined(alike), least=0.0, with_readers=True)


@dataclass(frozen=True)
class _Product:
    """A tensor times a factor, with or without a bias.

    Attributes:
        root: the node that computes it.
        operand, factor, bias: the operands of that node.
        summed: the axes summed over, in the order of the operand.
        kept: the other axes of the operand.
        columns: the other axes of the factor, in its order.
        result: where the result is written.
        sizes: of all axes.
    """

    root: Node
    operand: Operand
    factor: Operand
    bias: Operand | None
    summed: tuple[Axis, ...]
    kept: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    result: Entries
    sizes: Sizes

    @property
    def fits(self) -> tuple[object, ...]:
        """The properties that products must share to be fused."""
        places = tuple(n for n, entry in enumerate(self.operand.reads) if entry.axis in self.summed)
        elements = tuple(each.node.element for each in (self.factor, self.bias) if each is not None)
        return self.operand.node, places, elements


def _product(program: Program, root: Node) -> _Product | None:
    """The product that a node computes; None if it is not a product with a constant."""
    parts = _parts(program, root)
    if parts is None:
        return None
    (one, two), bias, result, sizes = parts
    operand, factor = (one, two) if _is_constant(program, two) else (two, one)
    weights = [each for each in (factor, bias) if each is not None]
    if _is_constant(program, operand) or not all(_is_constant(program, each) for each in weights):
        return None
    given, own, written = distinct_axes(operand.reads), _axes(factor), {*axes_of(result)}
    if not given or own is None:
        return None
    summed = tuple(axis for axis in given if axis not in written)
    columns = tuple(axis for axis in own if axis not in summed)
    if not columns or {*given} & {*own} != {*summed} or {*given, *columns} - {*summed} != written:
        return None
    if bias is not None and {*(_axes(bias) or ())} != {*columns}:
        return None
    bound = dict(program.names.sizes)
    lengths = [evaluate(sizes[axis], bound) for axis in columns]
    if not all(isinstance(each, int) and each for each in lengths):
        return None
    kept = tuple(axis for axis in given if axis in written)
    return _Product(root, operand, factor, bias, summed, kept, columns, result, sizes)


_Parts: TypeAlias = "tuple[Sequence[Operand], Operand | None, Entries, Sizes]"
"""Two factors, a bias or none, where the result is written, and the sizes of all axes."""


def _parts(program: Program, root: Node) -> _Parts | None:
    """The operands of a product of two factors, with or without a bias."""
    if root.op == "contract":
        alone = len(root.operands) == 2 and not root.over and not _is_before_bias(program, root)
        return (root.operands, None, root.result, root.sizes) if alone else None
    at = next((n for n, each in enumerate(root.operands) if each.node.op == "contract"), None)
    if root.op != "add" or at is None or len(root.operands) != 2:
        return None
    found = opened(root, at, program.same) if program.readers[root.operands[at].node] == 1 else None
    if found is None or found.over or found.inside_over or len(found.inside) != 2:
        return None
    return found.inside, found.operands[0], found.result, found.sizes


def _is_before_bias(program: Program, root: Node) -> bool:
    """Whether a bias is added to a product, so that the sum is considered instead."""
    return any(each.op == "add" and _product(program, each) for each in program.reading[root])


def _is_constant(program: Program, operand: Operand) -> bool:
    given = program.leaves.get(operand.node)
    return given is not None and given.kind == "constant"


def _axes(operand: Operand) -> tuple[Axis, ...] | None:
    """The axes along which a tensor is read, alone or in composites; None unless each occurs once."""
    axes = tuple(axes_of(operand.reads))
    plain = all(isinstance(entry, Affine) and entry.offset == 0 and entry.terms for entry in operand.reads)
    return axes if plain and len({*axes}) == len(axes) else None


def _joined(products: Sequence[_Product]) -> Mapping[Node, Node]:
    """Slices of one fused product, in place of several products."""
    first, n = products[0], "n"
    factors = [_flat(each, each.factor, each.summed) for each in products]
    factor = concatenated(factors, 0)
    sizes = {n: factor.shape[0], **{axis: first.sizes[axis] for axis in (*first.kept, *first.summed)}}
    left = tuple(map(along, (*first.kept, n)))
    reads = tuple(map(along, (n, *first.summed)))
    made = node("contract", sizes, [first.operand, Operand(factor, reads)], left)
    biases = [_flat(each, each.bias, ()) for each in products if each.bias is not None]
    if biases:
        bias = Operand(concatenated(biases, 0), (along(n),))
        made = node("add", sizes, [Operand(made, left), bias], left)
    starts = itertools.accumulate((each.shape[0] for each in factors), initial=0)
    return {each.root: _part(each, made, start) for each, start in zip(products, starts, strict=False)}


def _flat(each: _Product, operand: Operand, summed: tuple[Axis, ...]) -> Node:
    """A factor or a bias with its columns merged into one axis, the first."""
    left = (row_major(each.columns, each.sizes), *map(along, summed))
    return operand.node if operand.reads == left else node("copy", each.sizes, [operand], left)


def _part(each: _Product, made: Node, start: Size) -> Node:
    """The slice of the fused product that is one of the products."""
    *kept, last = range(len(made.shape))
    sizes = [*made.shape[:-1], product(each.sizes[axis] for axis in each.columns)]
    cut = Operand(made, (*map(along, kept), Affine(((last, 1),), start)))
    part = node("copy", sizes, [cut], tuple(map(along, (*kept, last))), options=(("fill", number(0)),))
    left = (*map(along, each.kept), row_major(each.columns, each.sizes))
    return node("copy", each.sizes, [Operand(part, left)], each.result, each.root.shape)
