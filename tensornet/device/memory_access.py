"""Memory access analysis: bytes, strides, loops and cache lines of an elementwise step or a copy.

The step goes along its result, innermost axis first. Here bytes and lines are counted; `DeviceProfile.access_seconds`
(`model.py`) makes them seconds, and `transpose_cost.py` asks for both:
neighbouring axes that lie together in every tensor are one loop; an operand whose elements do not lie one
after another is read here and there, and what a line of memory holds besides may be gone before it is read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

__all__ = ["MOST", "MemoryAccess", "memory_access"]

MOST = 10**60
"""More elements than any tensor has; four such numbers still multiply to a finite one."""

LINE = 64
"""Bytes that memory gives at once."""

PAGE = 4096
"""Lines this far apart share one place of a processor's first cache, which has as many places as a page has lines."""

WAYS, LOST_AT = 8, 8.0
"""The associativity of the first cache. A line is certainly lost where between two reads of it this many times as many
others were read as the cache holds."""

HELD, GONE_AT = 256, 16.0
"""The same of the cache after it, of which a place for each line of a page holds so many, wherever pages lie."""

STREAMED = 256
"""Bytes between reads from which the processor does not see them come."""

PREFETCHED = (1.0, 0.66, 0.15)
"""What a line lost from the first cache costs where reads take turns at 1, 2 or 4 places; at more, none is lost."""


class MemoryAccess(NamedTuple):
    """What a step does in memory.

    Attributes:
        moved: bytes read and written.
        written: bytes written.
        runs: how often the innermost loop runs.
        chunks: how often the two innermost loops together do.
        scattered: elements read that do not lie beside the one before.
        jumped: bytes moved in runs that do not follow one another in memory.
        lost: lines fetched again from the second cache, because they were gone from the first.
        fetched: lines fetched again from beyond it.
    """

    moved: float
    written: float
    runs: float
    chunks: float
    scattered: float
    jumped: float
    lost: float
    fetched: float


def memory_access(
    order: Sequence[str], operands: Sequence[Sequence[str]], sizes: Mapping[str, int], itemsize: int
) -> MemoryAccess:
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
        return MemoryAccess(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    inner, second, *_ = (*loops, 1, 1)
    moved, scattered, jumped, lost, fetched = elements, 0.0, 0.0, 0.0, 0.0
    for operand, path in zip(operands, steps, strict=True):
        part = float(min(math.prod([sizes[axis] for axis in operand]), MOST))
        moved += part
        scattered += elements if path and path[0] > 1 else 0.0
        if (between := _between(loops, path, itemsize)) is not None:
            jumped += 2 * itemsize * part if path[0] <= 1 else 0.0
            again, gone = _lost(between, itemsize)
            lost, fetched = lost + again * elements, fetched + gone * elements
    runs = elements / inner
    chunks = runs / (second or 1)
    return MemoryAccess(itemsize * moved, itemsize * elements, runs, chunks, scattered, jumped, lost, fetched)


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


class _Between(NamedTuple):
    """The reuse distance of a cache line: what is read between two reads of it.

    Attributes:
        lines: how many other lines.
        step: bytes from one to the next.
        places: how many sets of the cache they fall into.
        repeated: how often an element is read before the next one is.
    """

    lines: int
    step: int
    places: int
    repeated: int


def _between(loops: Sequence[int], steps: Sequence[int], itemsize: int) -> _Between | None:
    """What lies between two reads of a line of an operand; nothing where it is read as it lies, or line by line.

    Args:
        loops, steps: how often each loop goes, and by how many elements the operand moves on; innermost first.
        itemsize: bytes of one element.
    """
    piece, at, repeated, count = 1, 0, 1, len(loops)
    while at < count and (steps[at] == piece or not steps[at]):  # what lies together, or is the same
        piece, repeated = piece * loops[at] if steps[at] else piece, repeated * loops[at]
        at += 1
    lines, step, common, places, beside = 1, 0, 0, 1, max(piece, LINE // itemsize)
    while at < count and not 0 < steps[at] <= beside:  # there the walk is back beside where it was
        if steps[at]:
            lines, step, common = lines * loops[at], step or steps[at], math.gcd(common, steps[at])
            places *= min(loops[at], _places(steps[at] * itemsize))
        at += 1
    return (
        _Between(min(lines, MOST), step, min(places, _places(common * itemsize)), repeated) if step else None
    )


def _lost(between: _Between, itemsize: int) -> tuple[float, float]:
    """The lines fetched again for an element of the result: from the second cache, and from beyond.

    Lines at an even step take turns at few places of a cache, and others at all of them. Fitted to transposed copies at
    steps of 64 bytes to 256 KiB, on a processor with 8 ways.
    """
    step = between.step * itemsize
    places, turn = between.places, _places(step).bit_length() - 1
    lost = PREFETCHED[turn] if turn < len(PREFETCHED) else 0.0
    lost *= _share(between.lines / (WAYS * places), LOST_AT)
    gone = _share(between.lines / (HELD * places), GONE_AT) * min(1.0, step / STREAMED)
    return lost / between.repeated * min(1.0, step / LINE), gone / between.repeated


def _places(step: int) -> int:
    """At how many places of a cache lines at such steps take turns."""
    return PAGE // max(math.gcd(step, PAGE), LINE)


def _share(times: float, most: float) -> float:
    """The part that is lost of what is so many times as much as a cache holds; all of it from `most` times on."""
    return min(1.0, math.log(times) / math.log(most)) ** 1.5 if times > 1.0 else 0.0
