"""How a step goes through memory element by element: an elementwise product, or a copy into another order.

It walks along its result, innermost axis first. What it costs is counted here, and priced by a device:
neighbouring axes that lie together in every tensor are one loop; an operand whose elements do not lie one
after another is read here and there, and what a line of memory holds besides may be gone before it is read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Walk", "walk"]

LINE = 64
"""Bytes that memory gives at once."""

ALIASED = 1024
"""Bytes that one line keeps others out of a cache for, at most: lines at even distances share few places."""

REACH = 12 * 2**20
"""Bytes, so counted, between two reads of a line at which half of the lines are gone from the caches."""


@dataclass(frozen=True)
class Walk:
    """What a step does in memory.

    Attributes:
        moved: bytes read and written.
        written: bytes written.
        runs: how often the innermost loop runs.
        chunks: how often the two innermost loops together do.
        scattered: elements read that do not lie beside the one before.
        fetched: lines of memory fetched again, because they were gone.
    """

    moved: float
    written: float
    runs: float
    chunks: float
    scattered: float
    fetched: float


@dataclass(frozen=True)
class _Loop:
    """One loop: how often, and by how many elements each operand moves on."""

    size: int
    strides: tuple[int, ...]


def walk(
    order: Sequence[str], operands: Sequence[Sequence[str]], sizes: Mapping[str, int], itemsize: int
) -> Walk:
    """What it takes to make a result in some order of operands that lie in theirs.

    Args:
        order: the axes of the result as it lies in memory.
        operands: the axes of each operand as it lies; one without an axis is the same along it.
        sizes: axis to number of positions.
        itemsize: bytes of one element.
    """
    loops = _loops(order, operands, sizes)
    elements = math.prod([float(sizes[axis]) for axis in order])
    parts = [math.prod([float(sizes[axis]) for axis in operand]) for operand in operands]
    scattered = fetched = 0.0
    for number, part in enumerate(parts):
        path = [(loop.size, loop.strides[number]) for loop in loops]
        if path and path[0][1] > 1:
            scattered += elements
        fetched += _fetched(path, elements, part * itemsize, itemsize)
    inner, second = (loops[n].size if n < len(loops) else 1 for n in (0, 1))
    return Walk(
        itemsize * (elements + sum(parts)),
        itemsize * elements,
        elements / inner,
        elements / inner / second,
        scattered,
        fetched,
    )


def _loops(
    order: Sequence[str], operands: Sequence[Sequence[str]], sizes: Mapping[str, int]
) -> list[_Loop]:
    """The loops of a walk, innermost first."""
    strides = [_strides(operand, sizes) for operand in operands]
    loops: list[_Loop] = []
    for axis in reversed(order):
        if sizes[axis] == 1:
            continue
        steps = tuple(each.get(axis, 0) for each in strides)
        last = loops[-1] if loops else None
        if last is not None and steps == tuple(step * last.size for step in last.strides):
            loops[-1] = _Loop(last.size * sizes[axis], last.strides)
        else:
            loops.append(_Loop(sizes[axis], steps))
    return loops


def _strides(layout: Sequence[str], sizes: Mapping[str, int]) -> dict[str, int]:
    """By how many elements each axis moves on."""
    found, step = dict[str, int](), 1
    for axis in reversed(layout):
        found[axis] = step
        step *= sizes[axis]
    return found


def _fetched(path: Sequence[tuple[int, int]], elements: float, extent: float, itemsize: int) -> float:
    """The lines of an operand that are fetched more than once.

    Args:
        path: size and stride of each loop, innermost first.
        elements: how many the result has.
        extent: bytes of the operand.
        itemsize: bytes of an element.
    """
    piece, at, repeated = 1, 0, 1
    while at < len(path) and path[at][1] in (0, piece):  # what lies together, or is the same
        size, stride = path[at]
        piece, repeated, at = piece * size if stride else piece, repeated * size, at + 1
    if at == len(path):
        return 0.0
    between, step = 1, math.inf
    for size, stride in path[at:]:
        if stride == piece:  # here the walk is back beside where it was
            break
        if stride:
            between, step = between * size, min(step, stride)
    if not math.isfinite(step):
        return 0.0
    held = min(between * min(step * itemsize, ALIASED), extent)
    return elements / repeated * min(1.0, step * itemsize / LINE) * held / (held + REACH)
