"""How a step goes through memory element by element: an elementwise product, or a copy into another order.

It walks along its result, innermost axis first. What it costs is counted here, and priced by a device:
neighbouring axes that lie together in every tensor are one loop; an operand whose elements do not lie one
after another is read here and there, and what a line of memory holds besides may be gone before it is read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

__all__ = ["MOST", "Walk", "walk"]

MOST = 10**60
"""More elements than any tensor has; four such numbers still multiply to a finite one."""

LINE = 64
"""Bytes that memory gives at once."""

ALIASED = 1024
"""Bytes that one line keeps others out of a cache for, at most: lines at even distances share few places."""

REACH = 12 * 2**20
"""Bytes, so counted, between two reads of a line at which half of the lines are gone from the caches."""


class Walk(NamedTuple):
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
    strides = [_strides(operand, sizes) for operand in operands]
    loops, steps = (_loops_of_copy if len(strides) == 1 else _loops)(order, strides, sizes)
    elements = float(min(math.prod(loops), MOST))
    if not elements:
        return Walk(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    inner, second, *_ = (*loops, 1, 1)
    moved, scattered, fetched = elements, 0.0, 0.0
    for operand, path in zip(operands, steps, strict=True):
        part = float(min(math.prod([sizes[axis] for axis in operand]), MOST))
        moved += part
        scattered += elements if path and path[0] > 1 else 0.0
        fetched += _fetched(loops, path, elements, part * itemsize, itemsize)
    runs = elements / inner
    return Walk(itemsize * moved, itemsize * elements, runs, runs / (second or 1), scattered, fetched)


def _loops(
    order: Sequence[str], strides: Sequence[Mapping[str, int]], sizes: Mapping[str, int]
) -> tuple[list[int], list[list[int]]]:
    """The loops of a walk, innermost first: how often each goes, and by how many elements each operand moves on."""
    loops: list[int] = []
    steps: list[list[int]] = []
    following: list[int] = []  # the steps of a loop that would go on where the last one ends
    for axis in reversed(order):
        size = sizes[axis]
        if size == 1:
            continue
        here = [each.get(axis, 0) for each in strides]
        if loops and here == following:
            loops[-1] *= size
        else:
            loops.append(size)
            steps.append(here)
            following = here
        following = [step * size for step in following]
    return loops, [[each[number] for each in steps] for number in range(len(strides))]


def _loops_of_copy(
    order: Sequence[str], strides: Sequence[Mapping[str, int]], sizes: Mapping[str, int]
) -> tuple[list[int], list[list[int]]]:
    """The same of one operand: a search prices more copies than all else together."""
    loops: list[int] = []
    steps: list[int] = []
    following, (only,) = -1, strides
    for axis in reversed(order):
        size = sizes[axis]
        if size == 1:
            continue
        here = only.get(axis, 0)
        if here == following:
            loops[-1] *= size
        else:
            loops.append(size)
            steps.append(here)
        following = here * size
    return loops, [steps]


def _strides(layout: Sequence[str], sizes: Mapping[str, int]) -> dict[str, int]:
    """By how many elements each axis moves on."""
    found, step = dict[str, int](), 1
    for axis in reversed(layout):
        found[axis] = step
        step *= sizes[axis]
    return found


def _fetched(
    loops: Sequence[int], steps: Sequence[int], elements: float, extent: float, itemsize: int
) -> float:
    """The lines of an operand that are fetched more than once.

    Args:
        loops, steps: how often each loop goes, and by how many elements the operand moves on; innermost first.
        elements: how many the result has.
        extent: bytes of the operand.
        itemsize: bytes of an element.
    """
    piece, at, repeated, count = 1, 0, 1, len(loops)
    while at < count and (steps[at] == piece or not steps[at]):  # what lies together, or is the same
        piece, repeated = piece * loops[at] if steps[at] else piece, repeated * loops[at]
        at += 1
    between, step = 1, 0
    while at < count and steps[at] != piece:  # there the walk is back beside where it was
        if steps[at]:
            between, step = between * loops[at], min(step, steps[at]) if step else steps[at]
        at += 1
    if not step:
        return 0.0
    held = min(between * min(step * itemsize, ALIASED), extent)
    return elements / repeated * min(1.0, step * itemsize / LINE) * held / (held + REACH)
