"""How two tensors are contracted: as one matrix product, a dot product, or an elementwise product.

A tensor lies in memory in some order of its axes, its layout. For a pair, the axes fall into
four groups: batch (in both and in the result), rows (of the left only), columns (of the right
only) and summed (in both, not in the result). A matrix product wants each group in one piece:
`view` says whether a layout offers that for free, by a transposition, or only by a copy.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .device import DeviceProfile

__all__ = ["Arrangement", "arrangements", "extent", "flatten", "ordered", "view_order"]

MOST = 10**60
"""More elements than any tensor has; four such numbers still multiply to a finite one."""

Layout = tuple[str, ...]
Groups = tuple[Layout, ...]


@dataclass(frozen=True)
class Arrangement:
    """One way to contract a pair, with what it costs.

    Attributes:
        kind: "matmul", "linear" (a matrix product whose rows keep their dimensions, and to which a bias may be
            added), "dot" (rows and columns empty) or "multiply" (nothing summed).
        swapped: whether the second tensor stands on the left of the product.
        batch, rows, columns, summed: the groups, each in the order used.
        result: the groups of the result as it comes out.
        seconds: expected time, copies of operands included.
    """

    kind: str
    swapped: bool
    batch: Layout
    rows: Layout
    columns: Layout
    summed: Layout
    result: Groups
    seconds: float

    @property
    def groups(self) -> Groups:
        """Batch, rows, columns and summed axes."""
        return (self.batch, self.rows, self.columns, self.summed)

    def renamed(self, names: Mapping[str, str]) -> Arrangement:
        """The same of axes under other names."""
        batch, rows, columns, summed, *result = (
            tuple(names.get(axis, axis) for axis in group) for group in (*self.groups, *self.result)
        )
        return replace(self, batch=batch, rows=rows, columns=columns, summed=summed, result=tuple(result))


def flatten(groups: Groups) -> Layout:
    """The groups as one order."""
    return tuple(itertools.chain.from_iterable(groups))


def ordered(axes: Sequence[str] | frozenset[str] | set[str], *orders: Sequence[str]) -> Layout:
    """The axes in the order of the first layouts that mention them."""
    wanted = set(axes)
    found = dict.fromkeys(axis for order in orders for axis in order if axis in wanted)
    return (*found, *sorted(wanted - set(found)))


@functools.lru_cache(maxsize=1 << 16)
def view_order(layout: Layout, groups: Groups) -> tuple[int, ...] | None:
    """The order in which the groups lie in the layout, or nothing if only a copy brings them there."""
    present = [index for index, group in enumerate(groups) if group]
    for order in itertools.permutations(present):
        if flatten(tuple(groups[index] for index in order)) == layout:
            return order
    return None


def _in_place(layout: Layout, batch: Layout, outer: Layout, inner: Layout) -> bool:
    """Whether a matrix product can read the layout in place: batch axes must not lie innermost."""
    order = view_order(layout, (batch, outer, inner))
    return order is not None and not (order and order[-1] == 0 and (outer or inner))


def extent(axes: Collection[Any], sizes: Mapping[Any, int]) -> float:
    """The number of positions along some axes, cut off where only a hopeless order comes to."""
    return min(math.prod([sizes[axis] for axis in axes]), MOST)


def arrangements(
    a: Layout,
    b: Layout,
    kept: frozenset[str],
    wanted: Layout | None,
    sizes: Mapping[str, int],
    profile: DeviceProfile,
    size: int,
    free: tuple[bool, bool] = (False, False),
) -> list[Arrangement]:
    """The ways to contract two tensors: for each order the result may come out in, the fastest.

    Args:
        a: layout of the first tensor.
        b: layout of the second.
        kept: the axes of the result.
        wanted: the order the result must end in, if this is the last step; its cost is included.
        sizes: axis to number of positions.
        profile: the device.
        size: bytes of one element.
        free: whether each tensor can still be made in any order at no cost, as an elementwise
            product can.
    """
    both, summed = set(a) & set(b), (set(a) & set(b)) - kept
    if not summed:
        return [_multiply(a, b, wanted, sizes, profile, size)]
    rows, columns = set(a) - both, set(b) - both
    if not rows and not columns:
        return [_dot(a, b, both & kept, summed, wanted, sizes, profile, size, free)]
    best: dict[Layout, Arrangement] = {}
    for groups in _candidates(a, b, both & kept, summed, wanted):
        for way in _priced(a, b, groups, wanted, sizes, profile, size, free):
            layout = flatten(way.result)
            if layout not in best or way.seconds < best[layout].seconds:
                best[layout] = way
    return list(best.values())


def _multiply(
    a: Layout, b: Layout, wanted: Layout | None, sizes: Mapping[str, int], profile: DeviceProfile, size: int
) -> Arrangement:
    everything = set(a) | set(b)
    big, small = (a, b) if extent(a, sizes) >= extent(b, sizes) else (b, a)
    result = wanted if wanted is not None and set(wanted) == everything else ordered(everything, big, small)
    elements = extent(result, sizes)
    moved = size * (extent(a, sizes) + extent(b, sizes) + elements)
    seconds = profile.pointwise(moved, size * elements)
    return Arrangement("multiply", False, result, (), (), (), tuple((axis,) for axis in result), seconds)


def _dot(
    a: Layout,
    b: Layout,
    batch: set[str],
    summed: set[str],
    wanted: Layout | None,
    sizes: Mapping[str, int],
    profile: DeviceProfile,
    size: int,
    free: tuple[bool, bool],
) -> Arrangement:
    lead, tail = ordered(batch, wanted or (), a), ordered(summed, a)
    for first in (a, b):
        if view_order(first, (ordered(batch, first), ordered(summed, first))) == (0, 1):
            lead, tail = ordered(batch, first), ordered(summed, first)
            break
    elements = extent(a, sizes)
    seconds = profile.pointwise(2.0 * size * elements, size * extent(lead, sizes))
    seconds += sum(
        profile.permute(elements, size)
        for each, loose in zip((a, b), free, strict=True)
        if each != lead + tail and not loose
    )
    if wanted is not None and wanted != lead:
        seconds += profile.permute(extent(lead, sizes), size)
    return Arrangement("dot", False, lead, (), (), tail, (lead,) if lead else (), seconds)


def _lead(layout: Layout, own: set[str]) -> Layout:
    """The leading axes that only this tensor has."""
    return tuple(itertools.takewhile(lambda axis: axis in own, layout))


def _candidates(
    a: Layout, b: Layout, batch: set[str], summed: set[str], wanted: Layout | None
) -> dict[tuple[Layout, Layout, Layout, Layout], None]:
    """Orders of the groups worth pricing: those of either tensor, and those the result wants."""
    own_a, own_b = set(a) - set(b), set(b) - set(a)
    found: dict[tuple[Layout, Layout, Layout, Layout], None] = {}
    leads: dict[Layout, None] = {(): None}
    if not batch:
        leads |= {_lead(a, own_a): None, _lead(b, own_b): None}
    orders = [order for order in (a, b, wanted) if order]
    inners = dict.fromkeys(ordered(summed, inner) for inner in (a, b))
    for lead in leads:
        rows, columns = own_a - set(lead), own_b - set(lead)
        shared = dict.fromkeys(lead + ordered(batch, order, a) for order in orders)
        outers = dict.fromkeys((ordered(rows, order, a), ordered(columns, order, b)) for order in orders)
        for together, inner, (outer_a, outer_b) in itertools.product(shared, inners, outers):
            found[(together, outer_a, outer_b, inner)] = None
    return found


def _priced(
    a: Layout,
    b: Layout,
    groups: tuple[Layout, Layout, Layout, Layout],
    wanted: Layout | None,
    sizes: Mapping[str, int],
    profile: DeviceProfile,
    size: int,
    free: tuple[bool, bool],
) -> Iterator[Arrangement]:
    """The product with the tensors as they stand, and with the second before the first."""
    batch, rows, columns, summed = groups
    copies = 0.0
    if not free[0] and not _in_place(a, tuple(axis for axis in batch if axis in a), rows, summed):
        copies += profile.permute(extent(a, sizes), size)
    if not free[1] and not _in_place(b, tuple(axis for axis in batch if axis in b), summed, columns):
        copies += profile.permute(extent(b, sizes), size)
    many, m, n, k = (extent(group, sizes) for group in groups)
    for swapped in (False, True):
        seconds = profile.matmul(many, *((n, m) if swapped else (m, n)), k, size)
        if swapped and not batch:
            seconds *= 1.05  # nearly a tie: what comes after likes the order as it stands
        seconds += copies
        result = (batch, columns, rows) if swapped else (batch, rows, columns)
        if wanted is not None and flatten(result) != wanted:
            seconds += profile.permute(extent(flatten(result), sizes), size)
        kept = tuple(group for group in result if group)
        yield Arrangement("matmul", swapped, batch, rows, columns, summed, kept, seconds)
