"""Layouts: positions of nodes, and of the labels of their edges, so that each label has a place of its own.

Layered graph drawing (Sugiyama, Tagawa and Toda 1981), in the form of Gansner, Koutsofios, North and Vo 1993 (`dot` of
Graphviz): a label, and each rank that a long edge passes, is an item of the layout like a node is. The ranks and the
horizontal positions are linear programs, which HiGHS solves.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right, insort
from collections.abc import Sequence
from statistics import fmean
from typing import Any, TypeAlias

import numpy as np

Link: TypeAlias = "tuple[int, int]"

SWEEPS = 24
"""The number of sweeps over the ranks that look for an order with few crossings."""

APART, GAPS = 16.0, (12.0, 44.0)
"""The least distance between the items of a rank; the least and the greatest between ranks."""

PORTS = 22.0
"""The distance of the ends of edges at a node, where it is wide enough."""

STRAIGHTNESS, CENTRED = np.array([1.0, 2.0, 8.0]), 0.2
"""The weight of straightness of an edge by its ends that are bends, and of a node's place amid its neighbours."""


def layered(
    extents: np.ndarray, links: Sequence[Link], kept: np.ndarray
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Computes a layered layout.

    Args:
        extents: the width and the height of each node, and then of the label of each link.
        links: the edges, from one node to another, without cycles.
        kept: the width to keep free on either side of each node.

    Returns:
        The centres of the nodes and then of the labels, and the points that each edge goes through; it runs vertically
        at each of them.
    """
    ranks, ways = _ranks(len(kept), links), list[list[int]]()
    for start, end in links:
        between = range(ranks[start] + 1, ranks[end])
        ways.append([start, *range(len(ranks), len(ranks) + len(between)), end])
        ranks += between
    rank, items = np.array(ranks), [*range(len(kept)), *(way[-2] for way in ways)]
    (width, high), free = np.zeros((2, len(ranks))), np.pad(kept, (0, len(ranks) - len(kept)))
    width[items], high[items] = extents.T
    pairs = np.array([pair for way in ways for pair in itertools.pairwise(way)], int).reshape(-1, 2)
    (above, below), at = pairs.T, _order(ranks, [(one, other) for one, other in pairs.tolist()])
    out, into = _ports(above, at[below], width), _ports(below, at[above], width)
    row = np.lexsort((at, rank))
    beside = np.stack([row[:-1], row[1:]], 1)[rank[row[:-1]] == rank[row[1:]]]
    x = _across(width / 2 + free, len(kept), pairs, out - into, beside)
    far, height = np.zeros((2, max(ranks) + 1))
    np.maximum.at(far, rank[below], abs(x[above] - x[below]))
    np.maximum.at(height, rank, high)
    bottom = np.cumsum(height + np.clip(far / 5, *GAPS))
    top, y = bottom - height, (bottom - height / 2)[rank]
    pieces = np.stack([x[above] + out, bottom[rank[above]], x[below] + into, top[rank[below]]], 1)
    split, half = np.split(pieces, np.cumsum([len(way) - 1 for way in ways])[:-1]), high / 2
    routes = [
        np.vstack([(way[0, 0], (y + half)[start]), way.reshape(-1, 2), (way[-1, 2], (y - half)[end])])
        for (start, end), way in zip(links, split, strict=False)
    ]
    return np.stack([x, y], 1)[items], routes


def _differences(pairs: Any, count: int) -> Any:
    """The matrix by which values become their differences: of the first of each pair and the second."""
    from scipy.sparse import csr_array

    pairs = np.reshape(np.array(pairs, int), (-1, 2))
    signs, rows = np.tile([1.0, -1.0], len(pairs)), np.repeat(np.arange(len(pairs)), 2)
    return csr_array((signs, (rows, pairs.ravel())), shape=(len(pairs), count))


def _least(cost: np.ndarray, rows: Any, most: np.ndarray) -> np.ndarray:
    """The values from 0 with the least cost by which no row is more than its bound: a linear program."""
    from scipy.optimize import linprog

    return np.asarray(linprog(cost, A_ub=rows, b_ub=most, method="highs").x)


def _ranks(nodes: int, links: Sequence[Link]) -> list[int]:
    """The rank of each node, by which edges are as short as possible in total; even, as labels lie between."""
    rows = _differences(links, nodes)
    found = _least(-rows.sum(axis=0), rows, np.full(len(links), -1.0))
    return [2 * round(each) for each in found - found.min()]


def _order(rank: Sequence[int], pairs: Sequence[Link]) -> np.ndarray:
    """The place of each item in its rank, sorted by the means of the neighbours above and below in turn."""
    rows = [[item for item, its in enumerate(rank) if its == each] for each in range(max(rank) + 1)]
    beside = [list[int]() for _ in rank], [list[int]() for _ in rank]
    for one, other in pairs:
        beside[0][one].append(other)
        beside[1][other].append(one)
    at, found = [0] * len(rank), list[tuple[int, int, list[int]]]()
    for sweep in range(SWEEPS + 1):
        for row in rows[:: 1 if sweep % 2 else -1]:
            if sweep:
                means = {each: fmean([at[n] for n in beside[sweep % 2][each]] or [at[each]]) for each in row}
                row.sort(key=means.__getitem__)
            for place, item in enumerate(row):
                at[item] = place
        found.append((_crossings(rank, pairs, at), sweep, [*at]))
        if not found[-1][0]:
            break
    return np.array(min(found)[2])


def _crossings(rank: Sequence[int], pairs: Sequence[Link], at: Sequence[int]) -> int:
    """The number of crossings between neighbouring ranks."""
    crossings, ends = 0, [list[int]() for _ in range(max(rank) + 1)]
    for (_, end), above in sorted(((at[one], at[other]), rank[one]) for one, other in pairs):
        crossings += len(ends[above]) - bisect_right(ends[above], end)
        insort(ends[above], end)
    return crossings


def _ports(items: np.ndarray, others: np.ndarray, widths: np.ndarray) -> Any:
    """How far from the middle of each item the edge to a neighbour, by its place, ends."""
    order = np.lexsort((others, items))
    counts, places = np.bincount(items)[items], np.empty(len(items))
    places[order] = np.arange(len(items)) - np.searchsorted(items[order], items[order])
    return (places - (counts - 1) / 2) * np.minimum(PORTS, np.maximum(widths[items] - 12, 0) / counts)


def _across(
    half: np.ndarray, nodes: int, pairs: np.ndarray, shifts: np.ndarray, beside: np.ndarray
) -> np.ndarray:
    """The horizontal positions by which edges are as straight as possible, and items keep their distance."""
    from scipy.sparse import csr_array

    wishes, rows, factors = [pairs], [np.arange(len(pairs))], [np.ones(len(pairs))]
    weights = [STRAIGHTNESS[(pairs >= nodes).sum(1)]]
    for ends in pairs.T:
        counts = np.bincount(ends)[ends]
        items, row = np.unique(ends[counts > 1], return_inverse=True)
        wishes.append(pairs[counts > 1])
        factors.append(1 / counts[counts > 1])
        rows.append(row + sum(map(len, weights)))
        weights.append(np.full(len(items), CENTRED))
    weight, columns = np.concatenate(weights), np.concatenate(wishes).ravel()
    sign, lines = np.outer(np.concatenate(factors), (1, -1)).ravel(), np.repeat(np.concatenate(rows), 2)
    missed, apart = np.arange(2 * len(weight)), np.arange(2 * len(beside))
    values = [sign, -sign, np.full(len(missed), -1.0), 1.0 - 2 * (apart % 2)]
    lines = np.concatenate([lines, lines + len(weight), missed, len(missed) + apart // 2])
    columns = np.concatenate([columns, columns, len(half) + missed % max(len(weight), 1), beside.ravel()])
    shift = np.pad(shifts, (0, len(weight) - len(shifts)))
    most = np.concatenate([-shift, shift, -half[beside].sum(1) - APART])
    matrix = csr_array((np.concatenate(values), (lines, columns)), shape=(len(most), len(half) + len(weight)))
    found = _least(np.concatenate([0 * half, weight]), matrix, most)[: len(half)]
    return np.asarray(found - np.min(found - half))
