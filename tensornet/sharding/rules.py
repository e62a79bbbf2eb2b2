"""Propagation rules: the placements of a node, given how the work on it is divided along one axis of the mesh.

The rules follow from the axes that a node writes and reads, and from the record of its function:

    an axis of the result           its dimension is divided, in the result and in each operand that has the axis
    a summed axis                   the result is partial
    a dimension read at positions   the table is divided along it, and the result is partial: rows elsewhere count as 0
    a factor that is partial        a product is partial in it; so is any linear function if all its operands are
    anything else                   is whole: the axes that a function runs along, windows, and inner axes of composites
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..ir.equations import reads_of
from ..ir.node import Affine, Gather, Node, Operand, fills
from ..ops.record import OPERANDS
from ..ops.table import FUNCTIONS, Element
from .mesh import PARTIAL, REPLICATED, VARYING, Placement


class Division(NamedTuple):
    """How the work of a node is divided along one mesh axis.

    Attributes:
        out: the place of the result.
        ins: the place of each operand that it needs.
        axis: the axis of the node that is divided, if any.
        table: the number of the operand that is divided where positions read it, and the dimension, if any.
    """

    out: int | str
    ins: tuple[int | str, ...]
    axis: int | None = None
    table: tuple[int, int] | None = None


class ShardingStrategy(NamedTuple):
    """How the work of a node is divided: one division for each mesh axis."""

    divisions: tuple[Division, ...]

    @property
    def out(self) -> Placement:
        """The placement of the result."""
        return tuple(each.out for each in self.divisions)

    def need(self, operand: int) -> Placement:
        """The placement of an operand."""
        return tuple(each.ins[operand] for each in self.divisions)


def operands_of(each: Node) -> list[Operand]:
    """The tensors that a node reads: its operands, and those that hold positions. Numbers are everywhere."""
    return [operand for operand in reads_of(each) if not operand.node.is_scalar]


def strategies(each: Node, mesh: Sequence[int]) -> list[ShardingStrategy]:
    """All ways to divide the work of a node on a mesh."""
    along = [list(divisions(each, n)) for n in mesh]
    found = (ShardingStrategy(chosen) for chosen in itertools.product(*along) if _fits(each, chosen, mesh))
    held = range(tensors_of(each), len(operands_of(each)))
    return [strategy for strategy in found if _agrees(each, strategy, held)]


def _agrees(each: Node, strategy: ShardingStrategy, held: Sequence[int]) -> bool:
    """Whether a tensor that holds positions in several places is needed in one placement."""
    needs: dict[Node, Placement] = {}
    nodes = operands_of(each)
    return all(needs.setdefault(nodes[k].node, strategy.need(k)) == strategy.need(k) for k in held)


def _fits(each: Node, chosen: Sequence[Division], mesh: Sequence[int]) -> bool:
    """Whether axes that several mesh axes divide are long enough, and no axis is divided in two ways."""
    if len(chosen) == 1:
        return True
    parts: dict[tuple[int, int], int] = {}
    for division, n in zip(chosen, mesh, strict=True):
        key = (-1, division.axis) if division.axis is not None else division.table
        if key is not None:
            parts[key] = parts.get(key, 1) * n
    tables = [key for key in parts if key[0] >= 0]
    lengths = {key: _length(each, key) for key in parts}
    return len(tables) < 2 and all(lengths[key] % n == 0 for key, n in parts.items())


def _length(each: Node, key: tuple[int, int]) -> int:
    operand, at = key
    return int(each.sizes[at] if operand < 0 else operands_of(each)[operand].node.shape[at])


def divisions(each: Node, n: int) -> Iterator[Division]:
    """All ways to divide the work of a node along a mesh axis of n devices."""
    operands = operands_of(each)
    yield Division(REPLICATED, (REPLICATED,) * len(operands))
    if n == 1 or each.op == "index" or each.function.random:
        return
    for axis in range(len(each.sizes)):
        division = _along(each, operands, axis)
        if division is not None and each.sizes[axis] % n == 0 and each.sizes[axis] >= n:
            yield division
    yield from _tables(each, operands, n)
    yield from _partial(each, operands)


def _along(each: Node, operands: Sequence[Operand], axis: int) -> Division | None:
    """The division along an axis; None if it must be whole."""
    if axis in each.over:
        return None
    places = [_place(each, axis, reads, child.shape) for child, reads in operands]
    if None in places:
        return None
    out = _place(each, axis, each.result, each.shape)
    if each.op == "contract" and out == VARYING:  # it is summed, or held by a tensor of positions
        out = PARTIAL
    if out is None or out == VARYING:
        return None
    return Division(out, tuple(place for place in places if place is not None), axis)


def _place(
    each: Node, axis: int, entries: Sequence[Affine | Gather], shape: Sequence[int]
) -> int | str | None:
    """The dimension along an axis, varying if there is none; None if it is in a window, or inside of a composite."""
    found: list[int] = []
    for d, (entry, length) in enumerate(zip(entries, shape, strict=True)):
        if isinstance(entry, Gather) or axis not in entry.axes:
            continue
        if not fills(entry, each.sizes, length) or entry.terms[0][0] != axis:
            return None
        found.append(d)
    return None if len(found) > 1 else found[0] if found else VARYING


def _tables(each: Node, operands: Sequence[Operand], n: int) -> Iterator[Division]:
    """The divisions of tables along a dimension that is read at positions."""
    if (each.op not in ("contract", "copy")) or "fill" in each.attributes:
        return
    for k, (child, reads) in enumerate(operands[: tensors_of(each)]):
        for d, entry in enumerate(reads):
            if isinstance(entry, Gather) and child.shape[d] % n == 0 and child.element >= Element.WIDE:
                ins = tuple(d if at == k else VARYING for at in range(len(operands)))
                yield Division(PARTIAL, ins, None, (k, d))


def _partial(each: Node, operands: Sequence[Operand]) -> Iterator[Division]:
    """The divisions that leave sums over the devices for later."""
    count = tensors_of(each)
    if each.op == "contract":
        for k in range(count):
            if operands[k].node.element >= Element.WIDE:
                yield Division(PARTIAL, tuple(PARTIAL if at == k else VARYING for at in range(len(operands))))
    elif count and is_linear(each):
        places = (PARTIAL if at < count else VARYING for at in range(len(operands)))
        yield Division(PARTIAL, tuple(places))


def tensors_of(each: Node) -> int:
    """The number of operands that are tensors, without those that hold positions."""
    return sum(not operand.node.is_scalar for operand in each.operands)


def is_linear(each: Node) -> bool:
    """Whether a node is a linear function of all its operands together."""
    if each.op == "copy":
        fill = each.attributes.get("fill")
        return fill is None or fill.attributes.get("value") == 0
    numbers = any(operand.node.is_scalar for operand in each.operands)
    return not numbers and each.element >= Element.WIDE and _is_linear(each.op)


@functools.cache
def _is_linear(op: str) -> bool:
    """Whether a function is linear: its derivative mentions neither its operands nor its result, and is not 0."""
    rules = FUNCTIONS[op].derivative
    words = {word for rule in rules for word in re.findall(r"\w+", rule)}
    return bool(rules) and words.isdisjoint({*OPERANDS, "y"}) and "0" not in rules


def work(each: Node, strategy: ShardingStrategy, mesh: Sequence[int]) -> int:
    """The number of devices that share the work of a node."""
    return math.prod(n for each, n in zip(strategy.divisions, mesh, strict=True) if each.axis is not None)
