"""Horizontal fusion: products of one tensor with several weights as one product.

Biases are fused too. The weights must be constants, so that they are concatenated only once, as `AB`. Weights that may
change would have to be concatenated at each call.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ..ir.build import node, number, whole
from ..ir.inlining import opened
from ..ir.node import Affine, Axis, Entries, Node, Operand, Size, along, axes_of, row_major
from ..ir.rewriting import Change, Cost, Program, improved
from ..ops.structure import CONCAT
from ..sizes import evaluate, product

__all__ = ["fuse_horizontally"]


def fuse_horizontally(program: Program, cost: Cost) -> Program:
    """Multiplies a tensor by several constants at once, where `cost` says that this pays."""
    return improved(program, program.nodes, _changes, cost)


def _changes(program: Program, first: Node) -> Iterator[Change]:
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
        lengths: of the columns.
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
    lengths: tuple[int, ...]
    result: Entries
    sizes: Mapping[Axis, Size]

    @property
    def fits(self) -> tuple[object, ...]:
        """The properties that products must share to be fused."""
        places = tuple(n for n, entry in enumerate(self.operand.reads) if entry.axis in self.summed)
        elements = tuple(each.node.element for each in (self.factor, self.bias) if each is not None)
        return self.operand.node, places, elements

    @property
    def length(self) -> int:
        """The number of positions of all columns together."""
        return int(product(self.lengths))


def _product(program: Program, root: Node) -> _Product | None:
    """The product that a node computes; None if it is not a product with a constant."""
    parts = _parts(program, root)
    if parts is None:
        return None
    (one, two), bias, result, sizes = parts
    operand, factor = (one, two) if _is_constant(program, two) else (two, one)
    at_hand = [each for each in (factor, bias) if each is not None]
    if _is_constant(program, operand) or not all(_is_constant(program, each) for each in at_hand):
        return None
    given, own = [entry.axis for entry in operand.reads], _axes(factor)
    if not given or None in given or len({*given}) < len(given) or own is None:
        return None
    written = {*axes_of(result)}
    summed = tuple(axis for axis in given if axis not in written)
    columns = tuple(axis for axis in own if axis not in summed)
    if not columns or {*given} & {*own} != {*summed} or {*given, *columns} - {*summed} != written:
        return None
    if bias is not None and ((axes := _axes(bias)) is None or {*axes} != {*columns}):
        return None
    bound = dict(program.names.sizes)
    lengths = tuple(evaluate(sizes[axis], bound) for axis in columns)
    if not all(isinstance(each, int) and each for each in lengths):
        return None
    kept = tuple(axis for axis in given if axis in written)
    return _Product(root, operand, factor, bias, summed, kept, columns, lengths, result, sizes)


_Parts: TypeAlias = "tuple[Sequence[Operand], Operand | None, Entries, Mapping[Axis, Size]]"
"""Two factors, a bias or none, where the result is written, and the sizes of all axes."""


def _parts(program: Program, root: Node) -> _Parts | None:
    """The operands of a product of two factors, with or without a bias."""
    if root.op == "contract":
        alone = len(root.operands) == 2 and not root.over and not _is_before_bias(program, root)
        return (root.operands, None, root.result, dict(enumerate(root.sizes))) if alone else None
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
    first = products[0]
    sizes, n = dict(first.sizes), "n"
    lengths = [each.length for each in products]
    factor = _concatenated([_flat(each, each.factor, each.summed) for each in products], lengths)
    sizes[n] = sum(lengths)
    left = tuple(map(along, (*first.kept, n)))
    reads = tuple(map(along, (n, *first.summed)))
    made = node("contract", sizes, [first.operand, Operand(factor, reads)], left)
    biases = [_flat(each, each.bias, ()) for each in products if each.bias is not None]
    if biases:
        made = node(
            "add", sizes, [Operand(made, left), Operand(_concatenated(biases, lengths), (along(n),))], left
        )
    starts = itertools.accumulate(lengths, initial=0)
    return {each.root: _part(each, made, start) for each, start in zip(products, starts, strict=False)}


def _flat(each: _Product, operand: Operand, summed: tuple[Axis, ...]) -> Node:
    """A factor or a bias with its columns merged into one axis, the first."""
    if operand.reads == (row_major(each.columns, each.sizes), *map(along, summed)):
        return operand.node
    sizes = {**each.sizes, **dict(zip(each.columns, each.lengths, strict=True))}
    left = (row_major(each.columns, sizes), *map(along, summed))
    return node("copy", sizes, [operand], left)


def _concatenated(parts: Sequence[Node], lengths: Sequence[int]) -> Node:
    """Tensors concatenated along the first axis."""
    axes = [("along", d) for d in range(1, len(parts[0].shape))]
    pieces = [("piece", n) for n in range(len(parts))]
    sizes: dict[Axis, Size] = dict(zip(axes, parts[0].shape[1:], strict=True))
    sizes |= dict(zip(pieces, lengths, strict=True))
    sizes["n"] = sum(lengths)
    operands = [
        Operand(part, tuple(map(along, (piece, *axes)))) for piece, part in zip(pieces, parts, strict=True)
    ]
    return node(CONCAT.name, sizes, operands, tuple(map(along, ("n", *axes))), None, ("n", *pieces))


def _part(each: _Product, made: Node, start: int) -> Node:
    """The slice of the fused product that is one of the products."""
    operand = whole(made)
    sizes: dict[Axis, Size] = dict(zip((entry.axis for entry in operand.reads), made.shape, strict=True))
    last = operand.reads[-1].axis
    sizes[last] = each.length
    cut = Operand(made, (*operand.reads[:-1], Affine(((last, 1),), start)))
    part = node("copy", sizes, [cut], operand.reads, None, (), (("fill", number(0)),))
    left = (*map(along, each.kept), row_major(each.columns, each.sizes))
    return node("copy", each.sizes, [Operand(part, left)], each.result, each.root.shape)
