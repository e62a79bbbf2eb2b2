"""Layered graph layout: nodes in ranks, few crossings, and a place of its own for every label of an edge.

Sugiyama, Tagawa and Toda 1981, in the form of Gansner, Koutsofios, North and Vo 1993 (`dot` of Graphviz): a label, and
each rank that a long edge passes, is an item of the layout like a node is. So no label lies on another, on a node or on
another edge. The ranks and the horizontal positions are linear programs, which HiGHS solves.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right, insort
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

__all__ = ["Layout", "Link", "layered"]

Node: TypeAlias = str
Item: TypeAlias = Any
"""A node, or a rank that an edge passes, as (number of the edge, rank)."""

Extent: TypeAlias = "tuple[float, float]"
"""Width and height."""

Point: TypeAlias = "tuple[float, float]"
Term: TypeAlias = "tuple[float, Item]"

SWEEPS = 24
"""The number of sweeps over the ranks that look for an order with few crossings."""

APART = 16.0
"""The least distance between the items of a rank."""

PORTS = 22.0
"""The distance of the ends of edges at a node, where it is wide enough."""

GAPS = (12.0, 44.0)
"""The least and the greatest distance between ranks."""

STRAIGHT, CENTRED = 8.0, 0.2
"""The weight of straightness of an edge between bends, and of a node's place in the middle of its neighbours."""


@dataclass(frozen=True)
class Link:
    """An edge, and the extent of its label."""

    start: Node
    end: Node
    label: Extent


@dataclass(frozen=True)
class Layout:
    """The positions of nodes, labels and edges.

    Attributes:
        centres: the centre of each node.
        labels: the centre of the label of each edge.
        routes: the points that each edge goes through. It runs vertically at each of them.
        width, height: the extent of all, from 0.
    """

    centres: Mapping[Node, Point]
    labels: tuple[Point, ...]
    routes: tuple[tuple[Point, ...], ...]
    width: float
    height: float


def layered(nodes: Mapping[Node, Extent], links: Sequence[Link], kept: Mapping[Node, float]) -> Layout:
    """Computes a layered layout.

    Args:
        nodes: the extent of each node.
        links: the edges, without cycles.
        kept: the width to keep free on either side of a node, for those that need it.
    """
    if not nodes:
        return Layout({}, (), (), 0, 0)
    ranks = _Ranks(dict(nodes), _rank_of(list(nodes), links), kept)
    ways = [ranks.way(number, link) for number, link in enumerate(links)]
    ranks.order()
    across = ranks.placed()
    bands = ranks.bands(across)

    def centre(item: Item) -> Point:
        return across[item], bands.middle(ranks.rank[item])

    return Layout(
        {node: centre(node) for node in nodes},
        tuple(centre(way[-2]) for way in ways),
        tuple(tuple(ranks.route(way, across, bands)) for way in ways),
        max(across[item] + ranks.half(item) for item in ranks.rank),
        max(bands.bottoms.values()),
    )


def _rank_of(nodes: Sequence[Node], links: Sequence[Link]) -> dict[Node, int]:
    """The rank of each node, by which edges are as short as possible in total; even, as labels lie between."""
    rows: list[tuple[Term, ...]] = [((1.0, link.start), (-1.0, link.end)) for link in links]
    cost = dict.fromkeys(nodes, 0.0)
    for link in links:
        cost[link.end] += 1
        cost[link.start] -= 1
    found = _least(cost, rows, [-1.0] * len(rows))
    first = min(found.values())
    return {node: 2 * round(found[node] - first) for node in nodes}


def _least(
    cost: Mapping[Any, float], rows: Sequence[Sequence[tuple[float, Any]]], most: Sequence[float]
) -> dict[Any, float]:
    """The values from 0 with the least cost by which no row is more than its bound: a linear program."""
    from scipy.optimize import linprog
    from scipy.sparse import csr_array

    at = {name: n for n, name in enumerate(cost)}
    if not rows:
        return dict.fromkeys(cost, 0.0)
    entries = [(factor, n, at[name]) for n, row in enumerate(rows) for factor, name in row]
    factors, lines, columns = zip(*entries, strict=True)
    matrix = csr_array((factors, (lines, columns)), shape=(len(rows), len(at)))
    solved = linprog([*cost.values()], A_ub=matrix, b_ub=most, method="highs")
    return dict(zip(at, map(float, solved.x), strict=True))


@dataclass
class _Ranks:
    """Nodes, labels and bends in ranks."""

    extents: dict[Item, Extent]
    rank: dict[Item, int]
    kept: Mapping[Node, float]
    rows: dict[int, list[Item]] = field(default_factory=dict)
    above: dict[Item, list[Item]] = field(default_factory=dict)
    below: dict[Item, list[Item]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for node, rank in list(self.rank.items()):
            self._add(node, rank, self.extents[node])

    def _add(self, item: Item, rank: int, extent: Extent) -> None:
        self.rank[item], self.extents[item] = rank, extent
        self.rows.setdefault(rank, []).append(item)
        self.above[item], self.below[item] = [], []

    def way(self, number: int, link: Link) -> tuple[Item, ...]:
        """The items that an edge goes through, one in each rank. The last before its end is its label."""
        inner = range(self.rank[link.start] + 1, self.rank[link.end])
        for rank in inner:
            self._add((number, rank), rank, link.label if rank == inner[-1] else (0.0, 0.0))
        way = (link.start, *((number, rank) for rank in inner), link.end)
        for one, other in itertools.pairwise(way):
            self.below[one].append(other)
            self.above[other].append(one)
        return way

    # ---- order

    def order(self) -> None:
        """Sorts each rank by the means of the neighbours, in the ranks above and below in turn."""
        best, fewest = {rank: [*row] for rank, row in self.rows.items()}, self._crossings()
        for sweep in range(SWEEPS):
            if not fewest:
                break
            beside = self.above if sweep % 2 == 0 else self.below
            at = {item: float(n) for row in self.rows.values() for n, item in enumerate(row)}
            for rank in sorted(self.rows, reverse=sweep % 2 == 1):
                row = self.rows[rank]
                means = {item: _mean([at[each] for each in beside[item]], at[item]) for item in row}
                row.sort(key=lambda item, means=means: means[item])  # type: ignore[misc]
                at.update({item: float(n) for n, item in enumerate(row)})
            found = self._crossings()
            if found < fewest:
                best, fewest = {rank: [*row] for rank, row in self.rows.items()}, found
        self.rows = best
        at = {item: float(n) for row in best.values() for n, item in enumerate(row)}
        for beside in (self.above, self.below):
            for near in beside.values():
                near.sort(key=at.__getitem__)

    def _crossings(self) -> int:
        """The number of crossings between neighbouring ranks."""
        at = {item: n for row in self.rows.values() for n, item in enumerate(row)}
        crossings = 0
        for row in self.rows.values():
            ends = list[int]()
            for item in row:
                below = [at[each] for each in self.below[item]]
                crossings += sum(len(ends) - bisect_right(ends, end) for end in below)
                for end in below:
                    insort(ends, end)
        return crossings

    # ---- positions

    def half(self, item: Item) -> float:
        """Half of the width that an item takes."""
        return self.extents[item][0] / 2 + (self.kept.get(item, 0.0) if isinstance(item, str) else 0.0)

    def port(self, item: Item, other: Item) -> float:
        """How far from the middle of an item the edge to a neighbour ends."""
        near = (self.above if self.rank[other] < self.rank[item] else self.below)[item]
        step = min(PORTS, max(self.extents[item][0] - 12, 0) / len(near))
        return (near.index(other) - (len(near) - 1) / 2) * step

    def _wishes(self) -> Iterator[tuple[float, float, list[Term]]]:
        """What should be 0: its weight, a number, and the sum of items by their factors."""
        for item, near in self.below.items():
            for other in near:
                bends = sum(isinstance(each, tuple) for each in (item, other))
                shift = self.port(item, other) - self.port(other, item)
                yield (1.0, 2.0, STRAIGHT)[bends], shift, [(1.0, item), (-1.0, other)]
        for beside in (self.above, self.below):
            for item, near in beside.items():
                if len(near) > 1:
                    yield CENTRED, 0.0, [(1.0, item), *((-1 / len(near), each) for each in near)]

    def placed(self) -> dict[Item, float]:
        """The horizontal positions by which edges are as straight as possible, and items keep their distance."""
        cost: dict[Any, float] = dict.fromkeys(self.rank, 0.0)
        rows, most = list[list[tuple[float, Any]]](), list[float]()
        for number, (weight, shift, terms) in enumerate(self._wishes()):
            cost["wish", number] = weight
            for sign in (1.0, -1.0):
                rows.append([*((sign * factor, item) for factor, item in terms), (-1.0, ("wish", number))])
                most.append(-sign * shift)
        for row in self.rows.values():
            for one, other in itertools.pairwise(row):
                rows.append([(1.0, one), (-1.0, other)])
                most.append(-self.half(one) - self.half(other) - APART)
        found = _least(cost, rows, most)
        left = min(found[item] - self.half(item) for item in self.rank)
        return {item: found[item] - left for item in self.rank}

    def bands(self, across: Mapping[Item, float]) -> _Bands:
        """The heights of the ranks, which are farther apart where edges run far across."""
        tops, bottoms, bottom = dict[int, float](), dict[int, float](), 0.0
        for rank in sorted(self.rows):
            row = self.rows[rank]
            far = max(
                (abs(across[each] - across[item]) for item in row for each in self.above[item]), default=0
            )
            gap = min(max(GAPS[0], far / 5), GAPS[1]) if rank else 0.0
            tops[rank] = bottom + gap
            bottom = bottoms[rank] = tops[rank] + max(self.extents[item][1] for item in row)
        return _Bands(tops, bottoms)

    def route(self, way: Sequence[Item], across: Mapping[Item, float], bands: _Bands) -> Iterator[Point]:
        """The points of an edge: out of its start, along each rank, into its end."""
        (start, first), (last, end) = way[:2], way[-2:]
        out, into = across[start] + self.port(start, first), across[end] + self.port(end, last)
        yield out, bands.middle(self.rank[start]) + self.extents[start][1] / 2
        yield out, bands.bottoms[self.rank[start]]
        for item in way[1:-1]:
            yield across[item], bands.tops[self.rank[item]]
            yield across[item], bands.bottoms[self.rank[item]]
        yield into, bands.tops[self.rank[end]]
        yield into, bands.middle(self.rank[end]) - self.extents[end][1] / 2


@dataclass(frozen=True)
class _Bands:
    """The top and the bottom of each rank."""

    tops: Mapping[int, float]
    bottoms: Mapping[int, float]

    def middle(self, rank: int) -> float:
        """The height at which the centres of a rank lie."""
        return (self.tops[rank] + self.bottoms[rank]) / 2


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise
