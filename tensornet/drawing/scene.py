"""Scenes: diagrams laid out as boxes with text, and curves."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from .diagram import Diagram, Edge
from .layout import layered, least_stress

__all__ = ["LINE", "Box", "Curve", "Scene", "collisions", "in_panels", "networks"]

Point: TypeAlias = "tuple[float, float]"

CHARACTER, LINE = 7.25, 16.0
"""The width of a character and the height of a line, at a font of 12 pixels."""

LOOP = 26.0
"""How far the edge of a tensor to itself goes out of its node."""

PADDING = {"label": (4.0, 0.0), "text": (4.0, 0.0), "leg": (4.0, 0.0), "axis": (8.0, 4.0)}
"""What a box has around its text, by its kind; any other has 16 and 8."""

SQUARE = ("axis", "input", "parameter", "constant")
"""The kinds of boxes that are at least as wide as high."""

UNIT, SCALES = 36.0, (1.0, 1.15, 1.3, 1.5, 1.75, 2.0)
"""The distance of neighbours in a tensor network, and how many times it is tried."""

ROW, GUTTER = 1100.0, 24.0
"""The width of a row of panels, and what is between panels."""

STEPS = np.linspace(0, 1, 17)[:, None]
BERNSTEIN = np.array([1, 3, 3, 1]) * STEPS ** np.arange(4) * (1 - STEPS) ** np.arange(3, -1, -1)
"""The polynomials of a cubic Bézier curve, at steps dense enough to find the boxes that it crosses."""


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

    def meets(self, x: Any, y: Any, width: float = 0.0, height: float = 0.0) -> bool:
        """Whether any of these points, or a box with its centre there, lies in the box in part."""
        beside = abs(self.x - x) < (self.width + width) / 2
        return bool(np.any(beside & (abs(self.y - y) < (self.height + height) / 2)))


@dataclass(frozen=True)
class Curve:
    """An edge, from a box to another.

    Attributes:
        points: the first point, and for each cubic Bézier curve two controls and its end.
        dashed: whether the tensor is read at another position.
        directed: whether it has a tip at its end.
        ends: the number of the boxes that it may touch: those of its nodes and of its label.
    """

    points: tuple[Point, ...]
    dashed: bool = False
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


def collisions(scene: Scene) -> list[str]:
    """The boxes that overlap, and those that an edge of others crosses."""
    boxes = [(number, box) for number, box in enumerate(scene.boxes) if box.kind != "panel" and box.width]
    found = [
        f"{one.lines} overlaps {other.lines}"
        for (_, one), (_, other) in itertools.combinations(boxes, 2)
        if one.meets(other.x, other.y, other.width, other.height)
    ]
    for curve in scene.curves:
        pieces = (BERNSTEIN @ curve.points[at : at + 4] for at in range(0, len(curve.points) - 1, 3))
        x, y = np.concatenate([*pieces]).T
        crossed = (box for number, box in boxes if number not in curve.ends and box.meets(x, y))
        found += (f"an edge crosses {box.lines}" for box in crossed)
    return found


def _extent(kind: str, lines: Sequence[str]) -> Point:
    """The width and the height of a box with these lines."""
    if not any(lines):
        return 0.0, 0.0
    across, along = PADDING.get(kind, (16.0, 8.0))
    width, height = max(map(len, lines)) * CHARACTER + across, len(lines) * LINE + along
    return (max(width, height) if kind in SQUARE else width), height


def _drawn(diagram: Diagram, edges: Sequence[Edge], places: Any, curves: Iterable[np.ndarray]) -> Scene:
    """A diagram with its nodes, and then the labels of its edges, at places, and the edges along curves."""
    texts = [(node.kind, node.lines, node.result) for node in diagram.nodes.values()]
    texts += [("label", tuple(edge.label.split("\n")), False) for edge in edges]
    boxes = tuple(
        Box(kind, lines, float(x), float(y), *_extent(kind, lines), result)
        for (kind, lines, result), (x, y) in zip(texts, places, strict=True)
    )
    number = {name: n for n, name in enumerate(diagram.nodes)}
    drawn = tuple(
        Curve(
            tuple(map(tuple, points.tolist())),
            edge.back,
            diagram.directed,
            (number[edge.start], number[edge.end], n),
        )
        for n, (edge, points) in enumerate(zip(edges, curves, strict=True), len(number))
    )
    centres, halves = np.array([((b.x, b.y), (b.width / 2, b.height / 2)) for b in boxes]).swapaxes(0, 1)
    corners = np.concatenate([centres - halves, centres + halves, *(curve.points for curve in drawn)])
    (left, top), (right, bottom) = corners.min(0).tolist(), corners.max(0).tolist()
    return merged([(Scene(right, bottom, boxes, drawn), -left, -top)])


def in_layers(diagram: Diagram) -> Scene:
    """The nodes in layers, operands above their results."""
    number = {name: n for n, name in enumerate(diagram.nodes)}
    loops = [edge for edge in diagram.edges if edge.start == edge.end]
    edges = [edge for edge in diagram.edges if edge.start != edge.end]
    extents = np.array([_extent(node.kind, node.lines) for node in diagram.nodes.values()])
    labels = [_extent("label", edge.label.split("\n")) for edge in (*edges, *loops)]
    kept = np.zeros(len(extents))
    for edge, (width, _) in zip(loops, labels[len(edges) :], strict=True):
        kept[number[edge.start]] = LOOP + width
    ends = ((edge.end, edge.start) if edge.back else (edge.start, edge.end) for edge in edges)
    down = [(number[above], number[below]) for above, below in ends]
    centres, routes = layered(extents, np.reshape(labels[: len(edges)], (-1, 2)), down, kept)
    places = [*centres.tolist()]
    curves = [_smooth(way)[:: -1 if edge.back else 1] for edge, way in zip(edges, routes, strict=True)]
    for edge, (width, _) in zip(loops, labels[len(edges) :], strict=True):
        node = number[edge.start]
        x, y, far = centres[node, 0] + extents[node, 0] / 2, centres[node, 1], LOOP * 1.3
        places.append((x + LOOP + width / 2, y))
        curves.append(np.array([(x, y + 8), (x + far, y + 14), (x + far, y - 14), (x, y - 8)]))
    return _drawn(diagram, [*edges, *loops], places, curves)


def _smooth(route: np.ndarray) -> np.ndarray:
    """The curve through points that is vertical at each of them."""
    points = np.repeat(route, 3, axis=0)[1:-1]
    points[1::3, 1] = points[2::3, 1] = (route[1:, 1] + route[:-1, 1]) / 2
    return points


def networks(diagrams: Sequence[Diagram]) -> Scene:
    """Networks whose sum is a tensor, in a row."""
    row = [_sign(f"{diagrams[0].title} =")]
    for number, diagram in enumerate(diagrams):
        row += [_sign("+")] * bool(number) + [_network(diagram)]
    height, ends = max(scene.height for scene in row), itertools.accumulate(scene.width + 8 for scene in row)
    return merged(
        (each, end - each.width - 8, (height - each.height) / 2) for each, end in zip(row, ends, strict=True)
    )


def _sign(text: str) -> Scene:
    width, height = _extent("text", (text,))
    return Scene(width, height, (Box("text", (text,), width / 2, height / 2, width, height),))


def _network(diagram: Diagram) -> Scene:
    """A network at the smallest scale at which nothing collides."""
    number = {name: n for n, name in enumerate(diagram.nodes)}
    ways = [(number[edge.start], n, number[edge.end]) for n, edge in enumerate(diagram.edges, len(number))]
    links = [link for way in ways for link in itertools.pairwise(way)]
    lengths = [1.0 if edge.label else 0.5 for edge in diagram.edges for _ in range(2)]
    found = list[tuple[int, int, Scene]]()
    layouts = least_stress(len(number) + len(ways), links, lengths)
    for scale, places in itertools.product(SCALES, layouts):
        points = places * UNIT * scale
        scene = _drawn(diagram, diagram.edges, points, [_through(*points[[*way]]) for way in ways])
        found.append((len(collisions(scene)), len(found), scene))
        if not found[-1][0]:
            break
    return min(found)[2]


def _through(start: np.ndarray, middle: np.ndarray, end: np.ndarray) -> np.ndarray:
    """The curve between two ends that has its middle there."""
    turn = (4 * middle - start - end) / 3
    return np.stack([start, start / 3 + turn, end / 3 + turn, end])


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
