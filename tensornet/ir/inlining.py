"""Inlining: the operands of a node, in the axes of the node that reads it.

    contract(h[(g,d),b] …) and h[c,b] = U[c,i] * x[b,i]        U[(g,d),i], x[b,i]

Axes of the reader that are composites in its operand are split into their parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from .build import axes_in
from .node import (
    Affine,
    Axis,
    Entries,
    Node,
    Operand,
    Size,
    along,
    axes_of,
    fills,
    row_major,
    substitute,
)

__all__ = ["Opened", "opened"]


@dataclass(frozen=True)
class Opened:
    """A reader and the operands of one of its operands, in the axes of both.

    Attributes:
        operands: the operands of the reader, without the inlined one.
        inside: the operands of the inlined one.
        at: its position among the operands of the reader.
        result, over: those of the reader.
        axes: the axes of the reader.
        inside_over: the axes that the inlined operand sums although none of its operands has them.
        sizes: the sizes of all axes.
    """

    operands: tuple[Operand, ...]
    inside: tuple[Operand, ...]
    at: int
    result: Entries
    over: tuple[Axis, ...]
    axes: tuple[Axis, ...]
    inside_over: tuple[Axis, ...]
    sizes: dict[Axis, Size]

    def among(self, others: Sequence[Operand]) -> list[Operand]:
        """The operands of the reader, with others in the place of the inlined one."""
        return [*self.operands[: self.at], *others, *self.operands[self.at :]]

    def unread(self, operands: Iterable[Operand]) -> tuple[Axis, ...]:
        """The axes that a product sums although none of its operands has them: each multiplies it by its size."""
        there = {*axes_in(operands), *axes_of(self.result)}
        return tuple(axis for axis in (*self.axes, *self.inside_over) if axis not in there)


def opened(reader: Node, at: int, same: Callable[[Size, Size], bool]) -> Opened | None:
    """Inlines an operand of a node.

    Returns None if it is read or written at positions or in windows, or if both split a dimension differently.
    """
    child = reader.operands[at].node
    sizes: dict[Axis, Size] = {("out", axis): size for axis, size in enumerate(reader.sizes)}
    sizes |= {("in", axis): size for axis, size in enumerate(child.sizes)}
    tables = _tables(reader, at, sizes, same)
    if tables is None:
        return None
    outer, inner = tables
    others = (each for n, each in enumerate(reader.operands) if n != at)
    return Opened(
        tuple(Operand(each.node, substitute(each.reads, outer)) for each in others),
        tuple(Operand(each.node, substitute(each.reads, inner)) for each in child.operands),
        at,
        substitute(reader.result, outer),
        tuple(("out", axis) for axis in reader.over),
        tuple(axes_of(tuple(outer.values()))),
        tuple(("in", axis) for axis in child.over),
        sizes,
    )


_Table: TypeAlias = "dict[Axis, Affine]"


def _tables(
    reader: Node, at: int, sizes: Mapping[Axis, Size], same: Callable[[Size, Size], bool]
) -> tuple[_Table, _Table] | None:
    """The axes of a reader and those of its operand, each in terms of the axes of both."""
    child, reads = reader.operands[at]
    outer = {axis: along(("out", axis)) for axis in range(len(reader.sizes))}
    inner = {axis: along(("in", axis)) for axis in range(len(child.sizes))}
    apart: _Table = {}
    for axes, entry, length in zip(child.dims, reads, child.shape, strict=True):
        if axes is None or not fills(entry, reader.sizes, length, same):
            return None
        own = [axis for axis, _ in entry.terms]
        alike = len(own) == len(axes) and all(
            same(reader.sizes[one], child.sizes[two]) for one, two in zip(own, axes, strict=True)
        )
        if len(axes) == 1:
            inner[axes[0]] = _moved(entry, outer)
        elif alike:
            inner |= {axis: outer[other] for axis, other in zip(axes, own, strict=True)}
        elif len(own) == 1 and own[0] not in apart and own[0] not in reader.over:
            apart[own[0]] = row_major(tuple(("in", axis) for axis in axes), sizes)
        else:
            return None
    outer |= apart
    both = {("in", axis): along(("in", axis)) for axis in inner}
    both |= {("out", axis): each for axis, each in outer.items()}
    return outer, {axis: _moved(each, both) for axis, each in inner.items()}


def _moved(entry: Affine, table: _Table) -> Affine:
    """A position in terms of other axes."""
    (found,) = substitute((entry,), table)
    return found  # type: ignore[return-value]
