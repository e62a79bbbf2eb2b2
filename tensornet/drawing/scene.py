"""Scenes: diagrams laid out as boxes with text, and curves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from .diagram import Diagram
from .layout import layered

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
