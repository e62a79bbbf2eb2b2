"""The node builder: the axes of a new node may have any names, and are numbered in order of first use."""

from __future__ import annotations

import itertools
import math
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from ..ops.record import Element
from ..ops.structure import CONCAT, PAD
from ..ops.table import CONVERSIONS, FUNCTIONS
from ..sizes import product
from .node import (
    Affine,
    Axis,
    Entries,
    Node,
    Operand,
    Size,
    Sizes,
    along,
    axes_of,
    interned,
    plain_dims,
    substitute,
)

__all__ = [
    "at_position",
    "cast",
    "concatenated",
    "items",
    "leaf",
    "met_axes",
    "node",
    "number",
    "size",
    "whole",
]

Options = tuple[tuple[str, Any], ...]

Kernel: TypeAlias = "tuple[str, Sequence[Operand], Sequence[Axis], Options]"
"""A call of a kernel: its name, operands, the axes that it runs over, and options."""


def node(
    op: str,
    sizes: Sizes,
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
        scattered = op == "contract" and None in plain_dims(written, lengths, tuple(shape))
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


def cast(each: Node, element: Element) -> Node:
    """A node converted to another element type."""
    operand = Operand(each, tuple(map(along, range(len(each.shape)))))
    return node(CONVERSIONS[element], dict(enumerate(each.shape)), [operand], operand.reads)


def items(
    call: Any, operands: Sequence[Node], shapes: Sequence[Any], elements: Sequence[Element]
) -> list[Node]:
    """The results of a call of a block.

    Args:
        call: how the block is called.
        operands: the tensors that the block reads, its parameters and constants included.
        shapes, elements: the shape and the element type of each result.
    """
    given = [whole(each, n) for n, each in enumerate(operands)]
    sizes = {(n, d): length for n, each in enumerate(operands) for d, length in enumerate(each.shape)}
    made = node("call", sizes, given, options=(("call", call),), element=Element.TRUTH)
    pairs = zip(shapes, elements, strict=True)
    return [leaf("item", shape, element, call=made, n=n) for n, (shape, element) in enumerate(pairs)]


def at_position(each: Node, d: int, position: Size) -> Node:
    """A tensor at one position of a dimension."""
    axes = range(len(each.shape))
    reads = tuple(Affine((), position) if axis == d else along(axis) for axis in axes)
    left = tuple(along(axis) for axis in axes if axis != d)
    return node("copy", dict(enumerate(each.shape)), [Operand(each, reads)], left)


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


# ---------------------------------------------------------------------------- products


def axes_in(operands: Iterable[Operand]) -> dict[Axis, None]:
    """The axes that operands are read along, in order."""
    return dict.fromkeys(axis for each in operands for axis in axes_of(each.reads))


def summed_axes(each: Node) -> set[Axis]:
    """The axes that a product sums over."""
    return {*range(len(each.sizes))}.difference(axes_of(each.result))


def part(factors: Sequence[Operand], summed: Container[Axis], sizes: Sizes) -> Operand:
    """The product of some factors as an operand: a new node, or the factor if it is single and not summed.

    Args:
        factors: the factors.
        summed: the axes that it sums over; other axes are ignored.
        sizes: the sizes of the axes.
    """
    axes = axes_in(factors)
    kept = tuple(along(axis) for axis in axes if axis not in summed)
    if len(factors) == 1 and len(kept) == len(axes):
        return factors[0]
    return Operand(node("contract", sizes, factors, kept), kept)


def multiplied(each: Node, factors: Sequence[Operand], sizes: Sizes) -> Node:
    """A product with other factors and the same result; a copy if it is a single factor that is not summed."""
    plain = len(factors) == 1 and None not in each.dims and not each.over
    is_copy = plain and {*axes_in(factors)} == {*axes_of(each.result)}
    op = "copy" if is_copy else "contract"
    return node(op, sizes, factors, each.result, each.shape, each.over)


def called(kernel: Kernel, sizes: Sizes) -> Operand:
    """The result of a kernel, along those axes of its operands that it does not run over."""
    op, operands, over, options = kernel
    left = tuple(along(axis) for axis in axes_in(operands) if axis not in over)
    return Operand(node(op, sizes, operands, left, None, over, options), left)


def computed(each: Node, kernel: Kernel, beside: Sequence[Operand], sizes: Sizes) -> Node:
    """A product in which a kernel computes all factors except those in `beside`."""
    made = called(kernel, sizes)
    alone = not beside and not each.over and None not in each.dims
    if alone and {*axes_in([made])} == {*axes_of(each.result)}:
        op, operands, over, options = kernel
        return node(op, sizes, operands, each.result, each.shape, over, options)
    return multiplied(each, [made, *beside], sizes)


# ---------------------------------------------------------------------------- element type inference


def of_node(op: str, operands: Sequence[Operand], options: Mapping[str, Any], is_scattered: bool) -> Element:
    """The element type of the result of an operation.

    Args:
        op: `contract`, `copy`, or a function of the language.
        operands: its operands.
        options: its options.
        is_scattered: whether it is written at some positions only; zeros fill the others.
    """
    found = [each.node.element for each in operands]
    if op == "contract":
        return max(Element.WHOLE, Element.NUMBER if is_scattered else Element.TRUTH, *found)
    if op == "copy":
        fill = options.get("fill")
        return found[0] if fill is None else FUNCTIONS[PAD.name].element(found, list, [fill.element])
    function = FUNCTIONS[op]
    if function.rounds and _is_whole_quotient(operands[0].node):
        return Element.WHOLE
    return function.element(found, lambda: [_value(each.node) for each in operands])


def _value(node: Node) -> Any:
    """The value of a number that consists of literals alone; None for any other node."""
    if node.op == "number":
        return node.attributes["value"]
    if node.op == "size":
        return None
    values = [_value(each.node) for each in node.operands] if node.is_scalar else [None]
    if None in values:
        return None
    return math.prod(values) if node.op == "contract" else FUNCTIONS[node.op].scalar(*values)  # type: ignore[misc]


def _is_whole_quotient(node: Node) -> bool:
    """Whether the node divides integers by an integer scalar other than 0."""
    if node.op != "contract" or len(node.operands) < 2 or len(node.sizes) > len(node.shape):
        return False
    *above, last = (each.node for each in node.operands)
    if last.op != "reciprocal":
        return False
    below = last.operands[0].node
    whole = all(each.element <= Element.WHOLE for each in (*above, below))
    return whole and below.is_scalar and _value(below) != 0
