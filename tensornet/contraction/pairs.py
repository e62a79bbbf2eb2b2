"""Pairwise contraction: matrix product, dot product or elementwise product, with layouts and costs.

The layout of a tensor is the order of its axes in memory. The axes of a pair fall into
four groups: batch (in both and in the result), rows (of the left only), columns (of the right
only) and summed (in both, not in the result). A matrix product needs the axes of each group to be adjacent.
`view_order` says whether a layout offers that for free, by a transposed view, or only by a copy.
The cost of a pair is that of the code that `codegen` generates for it: every view, every copy, the kernel.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple, TypeAlias

from ..codec import document
from ..device.cost_model import HELD, MOST, DeviceProfile, memory_access

EXPANDED = 2**20
"""The most bytes to which a tensor may be repeated along the batch axes of the other one. Nothing is copied, but its
derivative has that size."""

EXPANDED_SHARE = 4
"""And always up to this part of the other tensor, beside which such a derivative is small."""

SOONER = 1 - 1e-9
"""The share of the seconds of one way that another may take to be the faster one, whatever is lost in rounding."""

Layout = tuple[str, ...]
Groups = tuple[Layout, ...]
_Fields = tuple[str, bool, Layout, Layout, Layout, Layout, Groups]
Way: TypeAlias = "tuple[float, _Fields]"
"""The seconds of a strategy, and its other fields. Few priced ways become a `Strategy`."""


Limits: TypeAlias = "tuple[float, float]"
"""A lower bound of the seconds of a pair's kernel, see `Pricing.bounds`, and the most seconds of the pair."""


@document()
@dataclass(frozen=True)
class Strategy:
    """One way to contract a pair, with what it costs.

    Attributes:
        kind: "matmul", "linear" (a matrix product whose rows keep their dimensions, and to which a bias may be
            added), "dot" (rows and columns empty), "sum" (a product of elements that is summed; columns empty), or
            "multiply" (nothing summed).
        swapped: whether the second tensor is the left operand of the product.
        batch, rows, columns, summed: the groups, each in the order used. If the result does not have the axes of
            the batch, the products of the batch are added up.
        result: the groups of the result, in its layout.
        seconds: expected time, copies of operands included.
    """

    kind: Annotated[str, ("matmul", "linear", "dot", "sum", "multiply")]
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

    @property
    def added(self) -> Layout:
        """The batch axes along which the products are added up: all of them, or none."""
        return self.batch if self.batch and self.batch[0] not in flatten(self.result) else ()

    @property
    def contracted(self) -> Layout:
        """All axes that the result does not have."""
        return (*self.added, *self.summed)

    def renamed(self, names: Mapping[str, str]) -> Strategy:
        """The strategy with other names for its axes."""
        batch, rows, columns, summed, *result = (
            tuple(names.get(axis, axis) for axis in group) for group in (*self.groups, *self.result)
        )
        return replace(self, batch=batch, rows=rows, columns=columns, summed=summed, result=tuple(result))


def flatten(groups: Groups) -> Layout:
    """The axes of the groups, concatenated."""
    return tuple(itertools.chain.from_iterable(groups))


def ordered(axes: Collection[str], *orders: Sequence[str]) -> Layout:
    """The axes in the order of the first layout that has them. Axes in none of the layouts come last, sorted."""
    found = dict.fromkeys([axis for order in orders for axis in order if axis in axes])
    return tuple(found) if len(found) == len(axes) else (*found, *sorted(set(axes).difference(found)))


def view_order(layout: Layout, groups: Groups) -> tuple[int, ...] | None:
    """The order of the groups in a layout. None if only a copy makes the axes of each group adjacent and in order."""
    starts = {group[0]: number for number, group in enumerate(groups) if group}
    order: list[int] = []
    at = 0
    while at < len(layout):
        number = starts.pop(layout[at], None)
        if number is None or layout[at : at + len(groups[number])] != groups[number]:
            return None
        order.append(number)
        at += len(groups[number])
    return None if starts else tuple(order)


class _Matrix(NamedTuple):
    """A tensor as a matrix operand: the cost of bringing it into that form, and its layout in that form.

    Attributes:
        seconds: the time for views, those of a copy included.
        least: a lower bound of the time for views and a copy.
        turned: whether its second group is outside of its first in memory.
        inner: the positions along the innermost group in memory.
        copied: the layout that it has to be copied into; None if views are enough.
    """

    seconds: float
    least: float
    turned: bool
    inner: float
    copied: Layout | None = None


@dataclass(frozen=True)
class Problem:
    """An n-ary contraction to be ordered.

    Attributes:
        layouts: the axes of each operand, in their order in memory.
        kept: the axes of the result.
        wanted: the layout that is preferred for the result.
        sizes, profile, itemsize: positions along each axis, the device, bytes of one element.
        invariant: the operands that depend on no argument of a call.
        expanded: bytes up to which an operand may be repeated along the batch axes of another; see `EXPANDED_SHARE`.
        asked: the share of the readers of the result that copy it into the wanted layout.
        composite: the axes that represent several axes that always occur together, each a dimension of its own.
    """

    layouts: tuple[Layout, ...]
    kept: frozenset[str]
    wanted: Layout | None
    sizes: Mapping[str, int]
    profile: DeviceProfile
    itemsize: int
    invariant: frozenset[int] = frozenset()
    expanded: float = EXPANDED
    asked: float = 1.0
    composite: frozenset[str] = frozenset()

    def __hash__(self) -> int:
        return hash((self.layouts, self.wanted, frozenset(self.sizes.items())))

    @functools.cached_property
    def pricing(self) -> Pricing:
        """The pricing of its pairs."""
        return Pricing(self)


@dataclass(frozen=True)
class Pair:
    """Two tensors and the strategy to contract them.

    Numbers below the count of operands are operands. Those from there on are the results of pairs, in order.
    """

    first: int
    second: int
    way: Strategy


Order: TypeAlias = "tuple[Pair, ...]"
"""A decided n-ary contraction: its pairs, each with its strategy. Empty for a single operand."""

Choose: TypeAlias = "Callable[[Problem], Order]"


class Pricing:
    """The ways to contract pairs of tensors of a problem, and their seconds on its device."""

    def __init__(self, problem: Problem) -> None:
        profile, itemsize, sizes = problem.profile, problem.itemsize, problem.sizes
        self.profile, self.itemsize, self.sizes, self.composite = profile, itemsize, sizes, problem.composite
        self.expanded, self.asked = problem.expanded, problem.asked
        self.long = frozenset(axis for axis, size in sizes.items() if size > 1)
        cache = functools.cache
        self.extent: Callable[[Any], float] = cache(
            lambda axes: min(math.prod([sizes[axis] for axis in axes]), MOST)
        )
        """The number of positions along some axes; at most `MOST`, which only hopeless orders reach."""
        self.walk: Callable[[Layout, tuple[Layout, ...]], float] = cache(
            lambda result, operands: profile.walk_seconds(result, operands, sizes, itemsize)
        )
        """Seconds to walk through memory in the order of a result, reading operands in their layouts."""
        self.matmul = cache(profile.matmul)
        self.copied_at_least = cache(self._copied_at_least)
        self.matrices = cache(self._matrices)

    def priced(
        self,
        a: Layout,
        b: Layout,
        kept: frozenset[str],
        wanted: Layout | None,
        readers: Sequence[frozenset[str]],
        limits: Limits,
    ) -> Mapping[Layout, Way]:
        """For each layout that the result may have, the fastest way to contract two tensors, if one keeps to
        the limits.

        Args:
            a: layout of the first tensor.
            b: layout of the second.
            kept: the axes of the result.
            wanted: the preferred layout of the result, if this is the last step. The cost of a copy is included.
            readers: the axes of the tensors that the result will be contracted with.
            limits: which matrix products are left out.
        """
        both = {axis for axis in a if axis in b}
        summed, best = both - kept, dict[Layout, Way]()
        if not summed:
            found = self._elementwise(a, b, wanted, readers)
        elif len(a) == len(b) == len(both):
            found = self._dots(a, b, both, summed, wanted)
        else:
            best = self._matrix_products(a, b, both & kept, summed, wanted, limits)
            found = self._sums(a, b, summed, wanted) if len(both) in (len(a), len(b)) else iter(())
        for layout, seconds, fields in found:
            if layout not in best or seconds < best[layout][0]:
                best[layout] = (seconds, fields)
        return best

    def bounds(self, a: frozenset[str], b: frozenset[str], kept: frozenset[str]) -> tuple[float, float]:
        """Lower bounds of the seconds to contract two tensors, in any layouts, and of those of the kernel alone.

        Axes of one position may be dropped from any group, so that views for them may not be needed.
        """
        both = a & b
        if both <= kept:
            moved = self.itemsize * (self.extent(a) + self.extent(b) + self.extent(kept))
            kernel = self.profile.pointwise(moved, self.itemsize * self.extent(kept))
            return kernel, kernel
        many, m, n, k = map(self.extent, (both & kept, a - b, b - a, both - kept))
        kernel = self.profile.at_least(many, m, n, k, self.itemsize)
        summed, batch = both & self.long - kept, both & kept & self.long
        if a == b or not summed:
            return kernel, kernel
        views = 2 * bool(batch)
        for outer in (a - b, b - a):
            views += len(outer & self.long) > 1 or len(summed) > 1 or len(batch) > 1
        return kernel + self.profile.view * views, kernel

    # ---- products of elements

    def _elementwise(
        self, a: Layout, b: Layout, wanted: Layout | None, readers: Sequence[frozenset[str]]
    ) -> Iterator[tuple[Layout, float, _Fields]]:
        """Elementwise products. The result has the layout of the tensors; the one written first takes precedence.

        There is a choice only between axes of one tensor and axes of the other."""
        is_hopeless = self.extent(frozenset((*a, *b))) > HELD
        choices = _ranks(wanted, () if is_hopeless else readers)
        for swapped, (one, other) in enumerate(((a, b), (b, a))):
            if swapped and _agree(a, b):
                return
            for result in dict.fromkeys(_lying(merged(one, other, ranks), one, other) for ranks in choices):
                seconds = self.walk(result, (one, other)) + self.brought(result, wanted)
                seconds += self._aligned(one, result) + self._aligned(other, result)
                groups = tuple((axis,) for axis in result)
                yield result, seconds, ("multiply", bool(swapped), result, (), (), (), groups)

    def _aligned(self, layout: Layout, result: Layout) -> float:
        """Seconds for the views that make an operand broadcast to a result."""
        present = set(layout)
        own = tuple(axis for axis in result if axis in present)
        missing = len(own) < len(result) - (result.index(own[0]) if own else 0)
        return self.profile.view * ((own != layout) + missing)

    # ---- dot products

    def _dots(
        self, a: Layout, b: Layout, both: set[str], summed: set[str], wanted: Layout | None
    ) -> Iterator[tuple[Layout, float, _Fields]]:
        """Dot products: elementwise products that are summed, for each order of axes of either tensor."""
        orders = [order for order in (a, b, wanted) if order]
        leads = dict.fromkeys(ordered(both - summed, order, a) for order in orders)
        tails = dict.fromkeys(ordered(summed, order) for order in (a, b))
        for lead, tail in itertools.product(leads, tails):
            seconds, lying = 0.0, list[Layout]()
            for layout in (a, b):
                order = view_order(layout, (lead, tail))
                lying.append(lead + tail if order is None else layout)
                seconds += self.profile.view * ((order is None or bool(lead and tail)) + (order == (1, 0)))
                seconds += self.transpose_seconds(layout, lead + tail) if order is None else 0.0
            moved = self.itemsize * (self.extent(lying[0]) + self.extent(lead))
            seconds += self.walk(lying[0], tuple(lying)) + self.profile.pointwise(moved, 0.0)
            seconds += self.profile.run * self.extent(lead) + self.brought(lead, wanted)
            yield lead, seconds, ("dot", False, lead, (), (), tail, (lead,) if lead else ())

    def _sums(
        self, a: Layout, b: Layout, summed: set[str], wanted: Layout | None
    ) -> Iterator[tuple[Layout, float, _Fields]]:
        """The elementwise product of a tensor that has all axes of the other, which is summed. Nothing is copied."""
        swapped = len(a) < len(b)
        whole, part = (b, a) if swapped else (a, b)
        rows = tuple([axis for axis in whole if axis not in summed])
        inner = tuple(itertools.takewhile(lambda axis: axis not in summed, reversed(whole)))
        seconds = self.walk(whole, (whole, part)) + self._aligned(part, whole) + self.brought(rows, wanted)
        moved, written = (self.itemsize * self.extent(axes) for axes in (whole, rows))
        seconds += self.profile.pointwise(moved + written, written)
        seconds += self.profile.run * self.extent(whole[: -len(inner)] if inner else rows)
        groups = tuple((axis,) for axis in rows)
        yield rows, seconds, ("sum", swapped, (), rows, (), tuple(ordered(summed, whole)), groups)

    # ---- matrix products

    def _matrix_products(
        self, a: Layout, b: Layout, batch: set[str], summed: set[str], wanted: Layout | None, limits: Limits
    ) -> dict[Layout, Way]:
        """Matrix products with the tensors in the given order, and with the second on the left."""
        best, (kernel, bound) = dict[Layout, Way](), limits
        profile, view = self.profile, self.profile.view
        for together, rows, columns, inner in self._groups(a, b, batch, summed, wanted):
            many, m, n, k = map(self.extent, (together, rows, columns, inner))
            floor = kernel + (2 * view if many > 1 else 0.0)
            is_added = bool(together) and together[0] in summed
            if floor + (view if together and not (batch or is_added) else 0.0) > bound:
                continue
            ones = self.matrices(a, together, rows, inner)
            if floor + min(ones[0].least, ones[1].least) > bound:
                continue
            others = self.matrices(b, together, columns, inner)
            beside = 0.0
            if is_added:  # each product and the sum so far are read, and the sum is written
                beside = profile.pointwise(3 * self.itemsize * self.extent(together + rows + columns), 0.0)
            lead = () if is_added else together
            for swapped in (False, True):
                outer = (columns, rows) if swapped else (rows, columns)
                pair = ((b, others[0]), (a, ones[1])) if swapped else ((a, ones[0]), (b, others[1]))
                lying = lead + outer[0] + outer[1]
                limit = min(bound, best[lying][0] * SOONER if lying in best else bound) - beside
                if floor + pair[0][1].least + pair[1][1].least > limit:
                    continue
                later = 0.0 if wanted is None else self.brought(lying, wanted)
                positions = (many, n, m, k) if swapped else (many, m, n, k)
                seconds = self._product(pair, (together, *outer, inner), positions, limit - later)
                total = seconds + (beside + later)
                if seconds <= limit - later:
                    result = tuple(filter(None, (lead, *outer)))
                    best[lying] = (total, ("matmul", swapped, together, rows, columns, inner, result))
        return best

    def _groups(
        self, a: Layout, b: Layout, batch: set[str], summed: set[str], wanted: Layout | None
    ) -> Iterable[Groups]:
        """The batch axes, rows, columns and summed axes, in every order worth pricing."""
        own_a, own_b = (tuple([axis for axis in x if axis not in y]) for x, y in ((a, b), (b, a)))
        inners = tuple(dict.fromkeys([tuple([axis for axis in x if axis in summed]) for x in (a, b)]))
        outers = {(own_a, own_b): None}
        if wanted is not None:
            outers[ordered(own_a, wanted), ordered(own_b, wanted)] = None
        orders = itertools.product(self._batches(a, b, batch, own_a, own_b, inners, wanted), inners, outers)
        if batch:
            return [(lead, rows, columns, inner) for lead, inner, (rows, columns) in orders]
        return dict.fromkeys(
            [
                (lead, *[tuple([x for x in axes if x not in lead]) for axes in (rows, columns, inner)])
                if lead
                else (lead, rows, columns, inner)
                for lead, inner, (rows, columns) in orders
            ]
        )

    def _batches(
        self,
        a: Layout,
        b: Layout,
        batch: set[str],
        own_a: Layout,
        own_b: Layout,
        inners: Sequence[Layout],
        wanted: Layout | None,
    ) -> Collection[Layout]:
        """The orders of the batch axes worth pricing: those of either tensor, and those of the wanted layout.

        If there are none, leading axes of one tensor may become batch axes, along which the other is repeated. A matrix
        must remain. Only with the first leading axis alone may the rest need a copy. Or leading axes of both tensors
        are summed by adding up products.
        """
        if batch:
            return dict.fromkeys(
                tuple([axis for axis in order if axis in batch]) for order in (a, b, wanted) if order
            )
        leads: list[Layout] = [()]
        for layout, own, other in ((a, own_a, b), (b, own_b, a)):
            most = sum(map(operator.eq, layout, own))
            for count in range(1, min(most, len(own_a) + len(own_b) - 1) + 1):
                lead = layout[:count]
                repeated = self.itemsize * self.extent(lead) * self.extent(other)
                if repeated > max(self.expanded, self.itemsize * self.extent(layout) / EXPANDED_SHARE):
                    break
                if count == 1 or any(view_order(layout[count:], (own[count:], inner)) for inner in inners):
                    leads.append(lead)
        return leads + _added(a, b, own_a, own_b, inners[0]) if a[0] == b[0] and own_a and own_b else leads

    def _product(
        self,
        pair: Sequence[tuple[Layout, _Matrix]],
        groups: Groups,
        positions: tuple[float, float, float, float],
        limit: float,
    ) -> float:
        """Seconds of a product of two matrices. Infinite if it takes more than `limit` by a lower bound.

        Args:
            pair: the layouts of the operands, and their forms.
            groups: batch, rows, columns and summed axes.
            positions: the number of positions along each of these.
            limit: the limit in seconds.
        """
        ((one, left), (two, right)), (batch, rows, columns, _), (_, m, n, k) = pair, groups, positions
        kernel = self.matmul(*positions, self.itemsize, right.turned, left.turned)
        if batch:
            kernel += 0.0 if rows and columns else self.profile.view
        else:
            if not (rows or right.turned):  # a vector times a matrix reads it row by row
                kernel += self.profile.run * k * n / max(1.0, right.inner)
            if not columns:
                kernel += self.profile.run * k * m / max(1.0, left.inner)
        before = left.seconds if left.copied is None else left.seconds + self.walk(left.copied, (one,))
        if kernel + before + right.least > limit:
            return math.inf
        before += right.seconds if right.copied is None else right.seconds + self.walk(right.copied, (two,))
        return before + kernel

    def _matrices(
        self, layout: Layout, batch: Layout, outer: Layout, summed: Layout
    ) -> tuple[_Matrix, _Matrix]:
        """A tensor as the left and as the right operand of a product. The batch may have axes that it lacks."""
        own, view = tuple([axis for axis in batch if axis in layout]), self.profile.view
        is_matrix = bool(outer and summed)
        seconds = view * ((not is_matrix) + (not own)) if batch else 0.0
        grouped = len(own) > 1 or len(outer) > 1 or len(summed) > 1 or not self.composite.isdisjoint(layout)
        order = view_order(layout, (own, outer, summed))
        if order is None or (order and order[-1] == 0 and (outer or summed)):
            seconds += view + view * grouped
            found = list[_Matrix]()
            for other, inmost in ((outer, summed), (summed, outer)):
                last = inmost or other or own
                moves = layout[-1] != last[-1] and self.long.issuperset((layout[-1], last[-1]))
                least = seconds + self.copied_at_least(layout)[moves]
                found.append(_Matrix(seconds, least, False, self.extent(last), own + other + inmost))
            return found[0], found[1]
        turned = is_matrix and order.index(1) > order.index(2)
        inner = self.extent((own, outer, summed)[order[-1]] if order else ())
        if own and order[0] != 0:  # it is read in an order that differs from its layout
            lying = own + (summed + outer if turned else outer + summed)
            access = memory_access(lying, (layout,), self.sizes, self.itemsize)
            seconds += self.profile.reached(access)
        one, two = (
            seconds + view * (grouped + (each != sorted(each)))
            for each in ([*order], [-n % 3 for n in order])
        )
        return _Matrix(one, one, turned, inner), _Matrix(two, two, is_matrix and not turned, inner)

    def _copied_at_least(self, layout: Layout) -> tuple[float, float]:
        """Lower bounds of the seconds to copy a tensor: in all, and if another axis becomes the innermost one."""
        elements = self.extent(layout)
        if elements > HELD:
            return (self.profile.launch,) * 2
        least = self.profile.pointwise(2 * self.itemsize * elements, self.itemsize * elements)
        return least, least + self.profile.scattered * elements

    # ---- memory

    def transpose_seconds(self, layout: Layout, order: Layout) -> float:
        """Seconds to copy a tensor from one layout into another, and to create the view that is copied."""
        return self.walk(order, (layout,)) + self.profile.view

    def brought(self, result: Layout, wanted: Layout | None) -> float:
        """The mean seconds that readers of the last result take to bring it into the wanted layout."""
        if wanted is None or wanted == result:
            return 0.0
        return self.profile.view + self.asked * self.walk(wanted, (result,))


def _added(a: Layout, b: Layout, own_a: Layout, own_b: Layout, summed: Layout) -> list[Layout]:
    """The leading axes of both tensors that may be summed by adding up products, where that avoids a copy."""

    def is_offered(lead: Layout) -> bool:
        inner = _without(summed, lead)
        pairs = ((a, own_a), (b, own_b))
        return all(view_order(layout[len(lead) :], (own, inner)) is not None for layout, own in pairs)

    if is_offered(()):
        return []
    leading = itertools.takewhile(lambda both: both[0] == both[1] in summed, zip(a, b, strict=False))
    most = min(sum(1 for _ in leading), len(summed) - 1)
    return [a[:count] for count in range(1, most + 1) if is_offered(a[:count])]


def _without(layout: Layout, axes: Layout) -> Layout:
    """A layout without some axes."""
    return tuple([axis for axis in layout if axis not in axes])


def _agree(a: Layout, b: Layout) -> bool:
    """Whether two layouts have their shared axes in the same order."""
    shared = set(a) & set(b)
    return [axis for axis in a if axis in shared] == [axis for axis in b if axis in shared]


def _ranks(wanted: Layout | None, readers: Iterable[frozenset[str]]) -> list[dict[str, int]]:
    """Ranks of the axes of an elementwise product, the outermost least: by the wanted layout, or by its readers."""
    if wanted is not None:
        return [{axis: place for place, axis in enumerate(wanted)}]
    return [{}, *(dict.fromkeys(axes, rank) for axes in readers for rank in (1, -1))]


@functools.lru_cache(maxsize=1 << 14)
def _lying(order: Layout, one: Layout, other: Layout) -> Layout:
    """The layout in memory of an elementwise product that is written in some order of axes.

    Libraries sort the axes. For two axes, the first tensor that has both decides which is the outer one. If no tensor
    has both, they stay as they are written.
    """
    places = [{axis: place for place, axis in enumerate(layout)} for layout in (one, other)]
    found = list(order)
    for last in range(len(found) - 2, -1, -1):
        at = last
        for beside in range(last + 1, len(found)):
            both = next((each for each in places if found[at] in each and found[beside] in each), None)
            if both is not None and both[found[at]] < both[found[beside]]:
                break
            if both is not None:
                found[at], found[beside] = found[beside], found[at]
                at = beside
    return tuple(found)


def merged(one: Layout, other: Layout, rank: Mapping[str, int] = MappingProxyType({})) -> Layout:
    """The axes of two tensors merged. Each tensor's own order is kept, as far as the first tensor's order allows.

    Of the axes that may come next, the one of least rank is taken. In a tie it is that of the first tensor."""
    shared = set(one) & set(other)
    order = iter([axis for axis in one if axis in shared])
    theirs = [next(order) if axis in shared else axis for axis in other]
    result: list[str] = []
    at = 0
    for axis in one:
        while at < len(theirs) and theirs[at] not in shared:
            if axis not in shared and rank.get(axis, 0) <= rank.get(theirs[at], 0):
                break
            result.append(theirs[at])
            at += 1
        result.append(axis)
        at += axis in shared
    return (*result, *theirs[at:])
