"""The node builder: the axes of a new node may have any names, and are numbered in order of first use."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from ..ops.record import Element
from ..ops.structure import CONCAT
from ..sizes import product
from .common_subexpressions import interned
from .element_types import of_node
from .node import Axis, Entries, Node, Operand, Size, along, axes_of, plain_dims, substitute

__all__ = ["concatenated", "leaf", "met_axes", "node", "number", "size", "whole"]

Options = tuple[tuple[str, Any], ...]


def node(
    op: str,
    sizes: Mapping[Axis, Size],
    operands: Sequence[Operand] = (),
    result: Entries = (),
    shape: Sequence[Size] | None = None,
    over: Sequence[Axis] = (),
    options: Options = (),
    element: Element | None = None,
) -> Node:
    """The node of an operation.

    Args:
        op: the operation; see `node`.
        sizes: the sizes of its axes; those of other axes are ignored.
        operands: the tensors that it reads, and where.
        result: the positions that it writes.
        shape: the sizes of the result; if it is None, each dimension is an axis or a composite.
        over: the axes along which it runs.
        options: its attributes, as names and values.
        element: its element type, where that does not follow.
    """
    met = met_axes(operands, result, over)
    if shape is None:
        shape = [product(sizes[axis] for axis in axes_of((entry,))) for entry in result]
    numbers = {axis: n for n, axis in enumerate(met)}
    table = {axis: along(n) for axis, n in numbers.items()}
    read = tuple(Operand(each.node, substitute(each.reads, table)) for each in operands)
    written = substitute(result, table)
    axes = tuple(table.values())
    is_same = op == "copy" and not options and read[0].reads == written == axes
    if is_same and read[0].node.shape == tuple(shape):
        return read[0].node
    lengths = tuple(sizes[axis] for axis in met)
    if element is None:
        scattered = None in plain_dims(written, lengths, tuple(shape))
        element = of_node(op, read, dict(options), scattered)
    along_axes = tuple(numbers[axis] for axis in over)
    return interned(op, lengths, read, written, tuple(shape), along_axes, options, element)


def met_axes(operands: Sequence[Operand], result: Entries, over: Sequence[Axis]) -> tuple[Axis, ...]:
    """The axes of a node, in the order of their numbers, which is that of first use."""
    met = dict.fromkeys(itertools.chain(axes_of(result), over, *(axes_of(each.reads) for each in operands)))
    return tuple(met)


def leaf(op: str, shape: Sequence[Size], element: Element, **options: Any) -> Node:
    """A tensor that is not computed: an input (parameters are inputs too), a constant, or a number, size or index."""
    axes = tuple(map(along, range(len(shape))))
    return node(op, dict(enumerate(shape)), (), axes, shape, options=tuple(options.items()), element=element)


def number(value: bool | int | float | complex) -> Node:
    """A number as a node without axes."""
    return leaf("number", (), Element.of(value), value=value)


def size(value: Size) -> Node:
    """A size as a node without axes."""
    return leaf("size", (), Element.WHOLE, size=value)


def index(length: Size) -> Node:
    """0, 1, 2, …: the positions along an axis."""
    return leaf("index", (length,), Element.WHOLE)


def whole(each: Node, tag: Axis = ()) -> Operand:
    """An operand that reads a whole tensor along axes of its own."""
    return Operand(each, tuple(along((tag, n)) for n in range(len(each.shape))))


def concatenated(parts: Sequence[Node], at: int) -> Node:
    """Concatenates tensors along a dimension."""
    if len(parts) == 1:
        return parts[0]
    pieces = {(at, n): part.shape[at] for n, part in enumerate(parts)}
    sizes: dict[Axis, Size] = {**dict(enumerate(parts[0].shape)), at: sum(pieces.values()), **pieces}
    axes = range(len(parts[0].shape))
    operands = [
        Operand(part, tuple(along((at, n) if axis == at else axis) for axis in axes))
        for n, part in enumerate(parts)
    ]
    return node(CONCAT.name, sizes, operands, tuple(map(along, axes)), over=(at, *pieces))
