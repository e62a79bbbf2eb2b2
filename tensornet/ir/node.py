"""Hash-consed nodes of the core form, one operation each: common subexpression elimination by construction.

    Node  = op · sizes of its axes · operands, each a node and a read · result, a write · shape · over · options
    entry = Affine: offset + Σ step · axis      an axis, a position, a composite, a window
          | Gather: positions that a node holds

A read has an entry for each dimension of the operand, a write has one for each dimension of the result. Both are maps
from the axes of the node to positions. The op decides the rest:

    contract    the product of the operands, summed where axes write to the same position
    copy        its operand; positions that are not written hold the option `fill`
    input, constant, number, size, index        leaves
    call        the results of a block, which have no axes together; `item` is one of them
    any other   a function of the language: elementwise, or along the axes in `over`

Equal nodes are one object, so none is computed twice.
"""

from __future__ import annotations

import copyreg
import functools
import operator
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, TypeGuard

from ..ops.record import Element
from ..sizes import product

__all__ = [
    "Affine",
    "Axis",
    "Entries",
    "Gather",
    "Node",
    "Operand",
    "Size",
    "Sizes",
    "along",
    "composed",
    "distinct_axes",
    "has_positions",
    "interned",
    "own_axes",
    "row_major",
    "substitute",
]


Size: TypeAlias = Any
"""A whole number, or a formula in open sizes; see `sizes`."""

Axis: TypeAlias = Any
"""An axis of a node is a number; while a node is built, an axis may be any hashable object."""

Sizes: TypeAlias = "Sequence[Size] | Mapping[Axis, Size]"
"""The sizes of axes: of numbered ones in order, of any others by axis."""


@dataclass(frozen=True)
class Affine:
    """A position: offset + Σ step · axis.

    Attributes:
        terms: axes and their steps, in the order of the text; each axis once.
        offset: the position at which all axes are 0.
    """

    terms: tuple[tuple[Axis, Size], ...] = ()
    offset: Size = 0

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        return hash((self.terms, self.offset))

    @functools.cached_property
    def axis(self) -> Axis | None:
        """The axis, if the position is exactly one axis."""
        return (
            self.terms[0][0] if len(self.terms) == 1 and self.offset == 0 and self.terms[0][1] == 1 else None
        )

    @property
    def steps(self) -> tuple[Size, ...]:
        """The number of positions that each axis advances by."""
        return tuple(step for _, step in self.terms)


@dataclass(frozen=True)
class Gather:
    """A position that is an element of a node, read at the given positions."""

    node: Node
    reads: Entries

    @property
    def axis(self) -> Axis | None:
        """None: a position that a node holds is not an axis."""
        return None


Entries: TypeAlias = "tuple[Affine | Gather, ...]"


class Operand(NamedTuple):
    """A node and the positions at which it is read."""

    node: Node
    reads: Entries = ()


class Node:
    """A tensor, built by `build.node`: equal nodes are the same object.

    Attributes:
        op: the operation; see above.
        sizes: the sizes of its axes, numbered in order of first use: in the result, in `over`, in the operands.
        operands: the nodes that it reads, and where.
        result: the positions at which the result is written, for each of its dimensions.
        shape: the sizes of these dimensions.
        over: the axes along which a function runs.
        options: its attributes as names and values: numbers, sizes, nodes without axes, functions.
        element: the element type.
        dims: the axes of each dimension that is an axis or a composite; None for any other dimension.
        attributes: the options by name.
        children: the nodes that it reads, with repetitions: operands, positions, and options that are nodes.
        is_scalar: whether it is a number computed from numbers and sizes alone, the same wherever it is read.
    """

    __slots__ = (
        *("__weakref__", "attributes", "children", "dims", "element", "is_scalar", "op", "operands"),
        *("options", "over", "result", "shape", "sizes"),
    )

    def __init__(
        self,
        op: str,
        sizes: tuple[Size, ...],
        operands: tuple[Operand, ...],
        result: Entries,
        shape: tuple[Size, ...],
        over: tuple[int, ...],
        options: tuple[tuple[str, Any], ...],
        element: Element,
    ) -> None:
        self.op, self.sizes, self.operands, self.result = op, sizes, operands, result
        self.shape, self.over, self.options, self.element = shape, over, options, element
        self.dims, self.attributes = plain_dims(result, sizes, shape), dict(options)
        self.children, self.is_scalar = tuple(self._children()), self._is_scalar()

    def __repr__(self) -> str:
        shape = ", ".join(map(str, self.shape))
        return f"<{self.op} [{shape}] of {', '.join(each.node.op for each in self.operands)}>"

    def _children(self) -> Iterator[Node]:
        for operand in self.operands:
            yield operand.node
            yield from gathered(operand.reads)
        yield from gathered(self.result)
        yield from (value for _, value in self.options if isinstance(value, Node))

    def _is_scalar(self) -> bool:
        if self.op in ("number", "size"):
            return True
        plain = not self.shape and not self.sizes and bool(self.operands) and self.op != "call"
        return plain and "draw" not in self.attributes and all(each.node.is_scalar for each in self.operands)


_TABLE: weakref.WeakValueDictionary[Any, Node] = weakref.WeakValueDictionary()


def interned(*fields: Any) -> Node:
    """The node with these fields, those of `Node.__init__`: one object for as long as it is referenced."""
    *before, options, element = fields
    key = (*before, tuple((name, _key_of(value)) for name, value in options), element)
    found = _TABLE.get(key)
    if found is None:
        found = _TABLE[key] = Node(*fields)
    return found


def _key_of(value: Any) -> Any:
    """The key that an option is compared by: 1, 1.0, True and -0.0 are different, and all nan are the same."""
    return (type(value), repr(value)) if isinstance(value, int | float | complex) else value


def _pickled(each: Node) -> tuple[Any, ...]:
    fields = (each.op, each.sizes, each.operands, each.result)
    return interned, (*fields, each.shape, each.over, each.options, each.element)


copyreg.pickle(Node, _pickled)


# ---------------------------------------------------------------------------- maps


def plain_dims(
    result: Entries, sizes: tuple[Size, ...], shape: tuple[Size, ...]
) -> tuple[tuple[int, ...] | None, ...]:
    """The axes of each dimension that is an axis or a composite of axes that no earlier dimension has; else None."""
    found: list[tuple[int, ...] | None] = []
    before: set[Axis] = set()
    for entry, length in zip(result, shape, strict=True):
        axes = tuple(axes_of((entry,)))
        plain = fills(entry, sizes, length) and before.isdisjoint(axes)
        found.append(axes if plain else None)
        before.update(axes)
    return tuple(found)


def fills(entry: Affine | Gather, sizes: Sizes, length: Size, same: Any = operator.eq) -> TypeGuard[Affine]:
    """Whether a position is that in a composite which fills a dimension; a single axis counts as one."""
    if entry.axis is not None:
        return bool(same(sizes[entry.axis], length))
    if isinstance(entry, Gather) or entry.offset != 0 or len(entry.terms) < 2:
        return False
    axes = tuple(axis for axis, _ in entry.terms)
    steps = zip(entry.steps, row_major(axes, sizes).steps, strict=True)
    return all(same(one, two) for one, two in steps) and same(product(sizes[axis] for axis in axes), length)


@functools.lru_cache(maxsize=1 << 12)
def along(axis: Axis) -> Affine:
    """The position along an axis: the same object for the same axis, so that it is hashed once."""
    return Affine(((axis, 1),))


def row_major(axes: tuple[Axis, ...], sizes: Sizes) -> Affine:
    """The position in a composite: h · |d| + d for (h, d)."""
    steps = (product(sizes[after] for after in axes[n + 1 :]) for n in range(len(axes)))
    return Affine(tuple(zip(axes, steps, strict=True)))


def gathered(entries: Entries) -> Iterator[Node]:
    """The nodes that hold positions in some entries."""
    for entry in entries:
        if isinstance(entry, Gather):
            yield entry.node
            yield from gathered(entry.reads)


def axes_of(entries: Entries) -> list[Axis]:
    """The axes of some entries, in order."""
    found: list[Axis] = []
    for entry in entries:
        found += axes_of(entry.reads) if isinstance(entry, Gather) else [axis for axis, _ in entry.terms]
    return found


def distinct_axes(reads: Entries) -> tuple[Axis, ...] | None:
    """The axes of some entries; None unless each entry is an axis that no other has."""
    axes = tuple(entry.axis for entry in reads)
    return None if None in axes or len({*axes}) < len(axes) else axes


def has_positions(each: Node) -> bool:
    """Whether a node reads or writes otherwise than along one whole axis in each dimension."""
    return None in each.dims or any(
        entry.axis is None or each.sizes[entry.axis] != length
        for node, reads in each.operands
        for entry, length in zip(reads, node.shape, strict=True)
    )


def own_axes(each: Node) -> tuple[int, ...] | None:
    """The axes of a node's dimensions; None unless each dimension is one axis."""
    axes = tuple(axes[0] for axes in each.dims if axes is not None and len(axes) == 1)
    return axes if len(axes) == len(each.dims) else None


def substitute(entries: Entries, table: Mapping[Axis, Any]) -> Entries:
    """Entries with axes replaced by positions: the composition of maps. Axes that the table lacks stay."""
    return tuple(_substituted(entry, table) for entry in entries)


def _substituted(entry: Affine | Gather, table: Mapping[Axis, Any]) -> Any:
    if isinstance(entry, Gather):
        return Gather(entry.node, substitute(entry.reads, table))
    return composed(entry, table) if entry.axis is None else table.get(entry.axis, entry)


def composed(entry: Affine, table: Mapping[Axis, Affine]) -> Affine:
    """A sum of axes with these replaced by positions."""
    steps: dict[Axis, Size] = {}
    offset = entry.offset
    for axis, step in entry.terms:
        inner = table.get(axis) or along(axis)
        offset += step * inner.offset
        for each, by in inner.terms:
            steps[each] = steps.get(each, 0) + step * by
    return Affine(tuple((axis, step) for axis, step in steps.items() if step != 0), offset)
