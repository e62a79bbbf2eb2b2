"""Scenes: diagrams laid out as boxes with text, and curves.

Layered graph drawing (Sugiyama, Tagawa and Toda 1981), in the form of Gansner, Koutsofios, North and Vo 1993 (`dot` of
Graphviz): a label, and each rank that a long edge passes, is an item of the layout like a node is, so that each label
has a place of its own. The ranks and the horizontal positions are linear programs, which HiGHS solves.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, TypeAlias

import numpy as np

from .diagram import Diagram

Point: TypeAlias = "tuple[float, float]"

CHARACTER, LINE = 7.25, 16.0
"""The width of a character and the height of a line, at a font of 12 pixels."""

LOOP = 26.0
AROUND = np.array([(0, -8), (LOOP * 1.3, -14), (LOOP * 1.3, 14), (0, 8)])
"""How far the edge of a tensor to itself goes out of its node, and the curve of it."""

PADDING = {"label": (4.0, 0.0), "text": (4.0, 0.0), "leg": (4.0, 0.0), "axis": (13.0, 4.0)}
"""What a box has around its text, by its kind; any other has 17 and 8."""

ROW, GUTTER = 1100.0, 24.0
"""The width of a row of panels, and what is between panels."""


@dataclass(frozen=True)
class Box:
    """A box with text: the kind of node or "label", "text" or "panel"; the lines; its centre; its extent."""

    kind: str
    lines: tuple[str, ...]
    x: float
    y: float
    width: float
    height: float
    result: bool = False


@dataclass(frozen=True)
class Curve:
    """An edge, from a box to another.

    Attributes:
        points: the first point, and for each cubic Bézier curve two controls and its end.
        back: whether it leads back: it is dashed, and its tip is at the first point.
        directed: whether it has a tip.
        ends: the number of the boxes that it may touch: those of its nodes and of its label.
    """

    points: tuple[Point, ...]
    back: bool = False
    directed: bool = False
    ends: tuple[int, ...] = ()


@dataclass(frozen=True)
class Scene:
    """Boxes and curves; x goes to the right and y down, in pixels."""

    width: float
    height: float
    boxes: tuple[Box, ...] = ()
    curves: tuple[Curve, ...] = ()


def merged(parts: Iterable[tuple[Scene, float, float]]) -> Scene:
    """Scenes in one, each after how far it is moved to the right and down."""
    boxes, curves, width, height = list[Box](), list[Curve](), 0.0, 0.0
    for scene, x, y in parts:
        for curve in scene.curves:
            points = tuple((u + x, v + y) for u, v in curve.points)
            curves.append(replace(curve, points=points, ends=tuple(end + len(boxes) for end in curve.ends)))
        boxes += (replace(box, x=box.x + x, y=box.y + y) for box in scene.boxes)
        width, height = max(width, x + scene.width), max(height, y + scene.height)
    return Scene(width, height, tuple(boxes), tuple(curves))


def _box(kind: str, lines: tuple[str, ...], result: bool = False) -> Box:
    """A box of the extent of its lines, with its corner at 0."""
    across, along = PADDING.get(kind, (17.0, 8.0)) if any(lines) else (0.0, 0.0)
    width = max(map(len, lines), default=0) * CHARACTER + across
    height = len(lines) * LINE * any(lines) + along
    return Box(kind, lines, width / 2, height / 2, width, height, result)


def _boxes(diagram: Diagram) -> list[Box]:
    """The boxes of the nodes, and then those of the labels of the edges."""
    nodes = [_box(node.kind, node.lines, node.result) for node in diagram.nodes.values()]
    return nodes + [_box("label", tuple(edge.label.split("\n"))) for edge in diagram.edges]


def _drawn(diagram: Diagram, places: np.ndarray, curves: Iterable[np.ndarray]) -> Scene:
    """A diagram with its nodes, and then the labels of its edges, at places, and the edges along curves."""
    placed = zip(_boxes(diagram), places.tolist(), strict=True)
    boxes = tuple(replace(box, x=x, y=y) for box, (x, y) in placed)
    labels = range(len(diagram.nodes), len(boxes))
    drawn = tuple(
        Curve(tuple((x, y) for x, y in points.tolist()), edge.back, diagram.directed, (*ends, label))
        for edge, ends, label, points in zip(diagram.edges, diagram.ends, labels, curves, strict=True)
    )
    halves = np.array([(box.width / 2, box.height / 2) for box in boxes])
    corners = np.concatenate([places - halves, places + halves, *(curve.points for curve in drawn)])
    (left, top), (right, bottom) = corners.min(0).tolist(), corners.max(0).tolist()
    return merged([(Scene(right, bottom, boxes, drawn), -left, -top)])


def in_layers(diagram: Diagram) -> Scene:
    """The nodes in layers, operands above their results, and tensors of a network below those that are named before."""
    ends, count = diagram.ends, len(diagram.nodes)
    extents = np.array([(box.width, box.height) for box in _boxes(diagram)])
    loops = [number for number, (start, end) in enumerate(ends) if start == end]
    others = [number for number, (start, end) in enumerate(ends) if start != end]
    kept, items = np.zeros(count), [*range(count), *(count + number for number in others)]
    for number in loops:
        kept[ends[number][0]] = LOOP + extents[count + number, 0]
    links = [(end, start) if diagram.edges[n].back else (start, end) for n, (start, end) in enumerate(ends)]
    places = np.zeros_like(extents)
    places[items], routes = layered(extents[items], [links[number] for number in others], kept)
    curves = dict(zip(others, map(_smooth, routes), strict=True))
    for number in loops:
        node, label = ends[number][0], count + number
        curves[number] = places[node] + np.array([extents[node, 0] / 2, 0]) + AROUND
        places[label] = places[node] + np.array([(extents[node, 0] + extents[label, 0]) / 2 + LOOP, 0])
    return _drawn(diagram, places, [curves[number] for number in range(len(ends))])


def _smooth(route: np.ndarray) -> np.ndarray:
    """The curve through points that is vertical at each of them."""
    points = np.repeat(route, 3, axis=0)[1:-1]
    points[1::3, 1] = points[2::3, 1] = (route[1:, 1] + route[:-1, 1]) / 2
    return points


def networks(diagrams: Sequence[Diagram]) -> Scene:
    """Networks whose sum is a tensor, in a row."""
    row = [_sign(f"{diagrams[0].title} ="), in_layers(diagrams[0])]
    for diagram in diagrams[1:]:
        row += [_sign("+"), in_layers(diagram)]
    height, parts, x = max(scene.height for scene in row), list[tuple[Scene, float, float]](), 0.0
    for scene in row:
        parts.append((scene, x, (height - scene.height) / 2))
        x += scene.width + 8
    return merged(parts)


def _sign(text: str) -> Scene:
    box = _box("text", (text,))
    return Scene(box.width, box.height, (box,))


def in_panels(diagrams: Iterable[Diagram]) -> Scene:
    """Diagrams in rows; those with a title are framed, below it."""
    parts, x, y, deepest = list[tuple[Scene, float, float]](), 0.0, 0.0, 0.0
    for panel in map(_panel, diagrams):
        if x and x + panel.width > ROW:
            x, y, deepest = 0.0, y + deepest + GUTTER, 0.0
        parts.append((panel, x, y))
        x, deepest = x + panel.width + GUTTER, max(deepest, panel.height)
    return merged(parts)


def _panel(diagram: Diagram) -> Scene:
    scene, title = in_layers(diagram), _sign(diagram.title)
    if not diagram.title:
        return scene
    width, height = max(title.width, scene.width) + 24, scene.height + 44
    frame = Scene(width, height, (Box("panel", (), width / 2, height / 2, width, height),))
    return merged([(frame, 0, 0), (title, 12, 8), (scene, 12, 32)])


# ---------------------------------------------------------------------------- layers and tracks


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
