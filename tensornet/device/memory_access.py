"""Memory access analysis: bytes, strides, loops and cache lines of an elementwise step or a copy.

The step walks along its result, innermost axis first. This file counts bytes and lines; `DeviceProfile.access_seconds`
(`cost_model.py`) converts them to seconds. Neighbouring axes that are contiguous in
every tensor are one loop. An operand that is not contiguous is read at strides, and a cache line may be evicted before
its other elements are read.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

__all__ = ["MOST", "MemoryAccess", "memory_access"]

MOST = 10**60
"""More elements than any tensor has; four such numbers still multiply to a finite one."""

DIGIT = 1 << 256
"""More than any stride."""

LINE = 64
"""Bytes of a cache line."""

PAGE = 4096
"""Lines this far apart share one set of the L1 cache, which has as many sets as a page has lines."""

WAYS, LOST_AT = 8, 8.0
"""The associativity of the L1 cache. A line is certainly evicted if this many times the cache's capacity is read
between two reads of it."""

HELD, GONE_AT = 256, 16.0
"""The same for the L2 cache, which holds this many lines for each line of a page, wherever pages are mapped."""

STREAMED = 256
"""Bytes between reads from which the processor does not prefetch them."""

PREFETCHED = (1.0, 0.66, 0.15)
"""The relative cost of a line evicted from L1 if reads use 1, 2 or 4 sets; with more sets, none is evicted."""


class MemoryAccess(NamedTuple):
    """The memory traffic of a step.

    Attributes:
        moved: bytes read and written.
        written: bytes written.
        runs: how often the innermost loop runs.
        chunks: how often the two innermost loops together run.
        scattered: elements read that are not next to the one before.
        jumped: bytes moved in runs that do not follow one another in memory.
        lost: lines fetched again from the L2 cache, because they were evicted from L1.
        fetched: lines fetched again from beyond L2.
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
    """The memory traffic to compute a result in one layout from operands in their own layouts.

    Args:
        order: the axes of the result, in memory order.
        operands: the axes of each operand, in memory order; an operand that lacks an axis is broadcast along it.
        sizes: axis to number of positions.
        itemsize: bytes of one element.
    """
    loops, steps, parts = _loops(order, operands, sizes)
    elements = float(min(math.prod(loops), MOST))
    if not elements:
        return MemoryAccess(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    inner, second, *_ = (*loops, 1, 1)
    moved, scattered, jumped, lost, fetched = elements, 0.0, 0.0, 0.0, 0.0
    for part, path in zip(parts, steps, strict=True):
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
    order: Sequence[str], operands: Sequence[Sequence[str]], sizes: Mapping[str, int]
) -> tuple[list[int], Sequence[Sequence[int]], list[float]]:
    """The loops of a walk, innermost first: their sizes, the strides of each operand, and its count of elements."""
    strides, parts = dict.fromkeys(order, 0), list[float]()  # each operand's is a digit of one number
    for operand in operands:
        step = unit = DIGIT ** len(parts)
        for axis in reversed(operand):
            strides[axis] += step
            step *= sizes[axis]
        parts.append(float(min(step // unit, MOST)))
    loops, steps, following = list[int](), list[int](), -1
    for axis in reversed(order):
        step, size = strides[axis], sizes[axis]
        if size == 1:
            continue
        if step == following:  # it continues where the last loop ends
            loops[-1] *= size
        else:
            loops.append(size)
            steps.append(step)
        following = step * size
    if len(parts) == 1:
        return loops, [steps], parts
    return loops, [[step // DIGIT**n % DIGIT for step in steps] for n in range(len(parts))], parts


class _Between(NamedTuple):
    """The reuse distance of a cache line: what is read between two reads of it.

    Attributes:
        lines: the number of other lines.
        step: elements from one to the next.
        places: the number of cache sets that they fall into.
        repeated: how often an element is read before the next one is.
    """

    lines: int
    step: int
    places: int
    repeated: int


def _between(loops: Sequence[int], steps: Sequence[int], itemsize: int) -> _Between | None:
    """The reuse distance of a line of an operand; None if it is read in memory order, or line by line.

    Args:
        loops, steps: the size of each loop, and the stride of the operand in elements; innermost first.
        itemsize: bytes of one element.
    """
    piece, at, repeated, count = 1, 0, 1, len(loops)
    while at < count and (steps[at] == piece or not steps[at]):  # contiguous or repeated
        piece, repeated = piece * loops[at] if steps[at] else piece, repeated * loops[at]
        at += 1
    lines, step, common, places, beside = 1, 0, 0, 1, max(piece, LINE // itemsize)
    while at < count and not 0 < steps[at] <= beside:  # there the walk returns next to where it was
        if steps[at]:
            lines, step, common = lines * loops[at], step or steps[at], math.gcd(common, steps[at])
            places *= min(loops[at], _places(steps[at] * itemsize))
        at += 1
    return (
        _Between(min(lines, MOST), step, min(places, _places(common * itemsize)), repeated) if step else None
    )


def _lost(between: _Between, itemsize: int) -> tuple[float, float]:
    """The lines fetched again for an element of the result: from the L2 cache, and from beyond.

    Lines at strides with many factors of two fall into few sets of a cache, others into all of them. Fitted to
    transposed copies at strides of 64 bytes to 256 KiB, on a processor with 8 ways.
    """
    step = between.step * itemsize
    places, turn = between.places, _places(step).bit_length() - 1
    lost = PREFETCHED[turn] if turn < len(PREFETCHED) else 0.0
    near, far = between.lines / (WAYS * places), between.lines / (HELD * places)
    lost *= _share(near, LOST_AT) if near > 1.0 else 0.0
    gone = _share(far, GONE_AT) * min(1.0, step / STREAMED) if far > 1.0 else 0.0
    return lost / between.repeated * min(1.0, step / LINE), gone / between.repeated


@functools.lru_cache(maxsize=1 << 12)
def _places(step: int) -> int:
    """The number of cache sets that lines at this stride fall into."""
    return PAGE // max(math.gcd(step, PAGE), LINE)


def _share(times: float, most: float) -> float:
    """The share of lines that is lost if they exceed a cache's capacity `times` times; all from `most` times on."""
    return float(min(1.0, math.log(times) / math.log(most)) ** 1.5)
