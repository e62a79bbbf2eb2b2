"""Scenes: diagrams laid out as boxes with text, and curves."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from .diagram import Diagram, Edge
from .layered import Extent, Link, layered
from .network import placed

__all__ = ["Box", "Curve", "Scene", "collisions", "in_panels", "networks"]

Point: TypeAlias = "tuple[float, float]"

CHARACTER, LINE = 7.25, 16.0
"""The width of a character and the height of a line, at a font of 12 pixels."""

LOOP = 26.0
"""How far the edge of a tensor to itself goes out of its node."""

PADDING = {"label": (4.0, 0.0), "text": (4.0, 0.0), "leg": (4.0, 0.0), "axis": (8.0, 4.0)}
"""What a box has around its text, by its kind; any other has 16 and 8."""

SQUARE = ("axis", "input", "parameter", "constant")
"""The kinds of boxes that are at least as wide as high."""

TIP = 4.0
"""Half of the width of an arrow."""

UNIT, SCALES = 36.0, (1.0, 1.15, 1.3, 1.5, 1.75, 2.0)
"""The distance of neighbours in a tensor network, and how many times it is tried."""

ROW = 1100.0
"""The width of a row of panels."""


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

    def overlaps(self, other: Box, apart: float = 0.0) -> bool:
        """Whether two boxes are nearer than a distance."""
        return (
            abs(self.x - other.x) < (self.width + other.width) / 2 + apart
            and abs(self.y - other.y) < (self.height + other.height) / 2 + apart
        )

    def holds(self, point: Point) -> bool:
        """Whether a point lies in the box."""
        return abs(point[0] - self.x) < self.width / 2 and abs(point[1] - self.y) < self.height / 2


@dataclass(frozen=True)
class Curve:
    """An edge, with its ends in the boxes of two nodes.

    Attributes:
        points: the first point, and for each cubic Bézier curve two controls and its end.
        tip: the corners of the arrow; empty for none.
        dashed: whether the tensor is read at another position.
        ends: the number of the boxes that it may touch: those of its nodes and of its label.
    """

    points: tuple[Point, ...]
    tip: tuple[Point, ...] = ()
    dashed: bool = False
    ends: tuple[int, ...] = ()

    def sampled(self) -> Iterator[Point]:
        """Points on the curve, dense enough to find the boxes that it crosses."""
        for at in range(0, len(self.points) - 1, 3):
            piece = self.points[at : at + 4]
            for t in (n / 16 for n in range(17)):
                factors = ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3)
                x, y = (
                    sum(factor * point[axis] for factor, point in zip(factors, piece, strict=True))
                    for axis in (0, 1)
                )
                yield x, y


@dataclass(frozen=True)
class Scene:
    """Boxes and curves; x goes to the right and y down, in pixels."""

    width: float
    height: float
    boxes: tuple[Box, ...] = ()
    curves: tuple[Curve, ...] = ()

    def moved(self, x: float, y: float) -> Scene:
        """The scene to the right and down."""
        return Scene(
            self.width,
            self.height,
            tuple(replace(box, x=box.x + x, y=box.y + y) for box in self.boxes),
            tuple(
                replace(each, points=_moved(each.points, x, y), tip=_moved(each.tip, x, y))
                for each in self.curves
            ),
        )


def _moved(points: Iterable[Point], x: float, y: float) -> tuple[Point, ...]:
    return tuple((u + x, v + y) for u, v in points)


def _extent(kind: str, lines: Sequence[str]) -> Extent:
    """The extent of a box with these lines."""
    across, along = PADDING.get(kind, (16.0, 8.0))
    if not any(lines):
        return 0.0, 0.0
    width = max(map(len, lines)) * CHARACTER + across
    height = len(lines) * LINE + along
    return (max(width, height) if kind in SQUARE else width), height


def _box(kind: str, lines: tuple[str, ...], x: float, y: float, result: bool = False) -> Box:
    return Box(kind, lines, x, y, *_extent(kind, lines), result)


def collisions(scene: Scene) -> list[str]:
    """The boxes that overlap, and those that an edge of others crosses."""
    boxes = [(number, box) for number, box in enumerate(scene.boxes) if box.kind != "panel" and box.width]
    found = [
        f"{one.lines} overlaps {other.lines}"
        for (_, one), (_, other) in itertools.combinations(boxes, 2)
        if one.overlaps(other)
    ]
    for curve in scene.curves:
        points = list(curve.sampled())
        for number, box in boxes:
            if number not in curve.ends and any(map(box.holds, points)):
                found.append(f"an edge crosses {box.lines}")
    return found


# ---------------------------------------------------------------------------- layers


def in_layers(diagram: Diagram) -> Scene:
    """The nodes in layers, operands above their results."""
    loops: dict[str, list[str]] = {}
    for edge in diagram.edges:
        if edge.start == edge.end:
            loops.setdefault(edge.start, []).append(edge.label)
    edges = [edge for edge in diagram.edges if edge.start != edge.end]
    extents = {name: _extent(node.kind, node.lines) for name, node in diagram.nodes.items()}
    kept = {name: LOOP + _extent("label", labels)[0] for name, labels in loops.items()}
    down = [(edge.end, edge.start) if edge.back else (edge.start, edge.end) for edge in edges]
    links = [Link(*ends, _extent("label", (edge.label,))) for ends, edge in zip(down, edges, strict=True)]
    found = layered(extents, links, kept)
    boxes = [
        _box(node.kind, node.lines, *found.centres[name], node.result) for name, node in diagram.nodes.items()
    ]
    number = {name: n for n, name in enumerate(diagram.nodes)}
    curves = list[Curve]()
    for edge, centre, route in zip(edges, found.labels, found.routes, strict=True):
        ends = (number[edge.start], number[edge.end], len(boxes))
        boxes.append(_box("label", (edge.label,) if edge.label else (), *centre))
        curves.append(Curve(_smooth(route), _tip(route, edge.back), edge.back, ends))
    for name, labels in loops.items():
        curves.append(_loop(boxes[number[name]], number[name], len(boxes)))
        boxes.append(_label_of_loop(boxes[number[name]], labels))
    return Scene(found.width, found.height, tuple(boxes), tuple(curves))


def _loop(box: Box, number: int, label: int) -> Curve:
    right, far = box.x + box.width / 2, box.x + box.width / 2 + LOOP * 1.3
    points = ((right, box.y + 8), (far, box.y + 14), (far, box.y - 14), (right, box.y - 8))
    tip = ((right, box.y - 8), (right + 7, box.y - 14), (right + 8, box.y - 7))
    return Curve(points, tip, True, (number, label))


def _label_of_loop(box: Box, labels: Sequence[str]) -> Box:
    width, _ = _extent("label", labels)
    return _box("label", tuple(labels), box.x + box.width / 2 + LOOP + width / 2, box.y)


def _smooth(route: Sequence[Point]) -> tuple[Point, ...]:
    """The curve through points that is vertical at each of them."""
    points = [route[0]]
    for (x, y), (u, v) in itertools.pairwise(route):
        points += [(x, (y + v) / 2), (u, (y + v) / 2), (u, v)]
    return tuple(points)


def _tip(route: Sequence[Point], back: bool) -> tuple[Point, ...]:
    (x, y), step = (route[0], 2 * TIP) if back else (route[-1], -2 * TIP)
    return ((x, y), (x - TIP, y + step), (x + TIP, y + step))


# ---------------------------------------------------------------------------- tensor networks


def networks(diagrams: Sequence[Diagram]) -> Scene:
    """Networks whose sum is a tensor, in a row."""
    row = [_sign(f"{diagrams[0].title} =")]
    for number, diagram in enumerate(diagrams):
        row += [_sign("+")] * bool(number) + [_network(diagram)]
    return joined(row, 8.0, middle=True)


def _sign(text: str) -> Scene:
    width, height = _extent("text", (text,))
    return Scene(width, height, (_box("text", (text,), width / 2, height / 2),))


def _network(diagram: Diagram) -> Scene:
    """A network at the smallest scale at which nothing collides."""
    names = {name: n for n, name in enumerate(diagram.nodes)}
    labels = [(len(names) + n, edge) for n, edge in enumerate(edge for edge in diagram.edges if edge.label)]
    links = [(names[edge.start], names[edge.end]) for edge in diagram.edges if not edge.label]
    for at, edge in labels:
        links += [(names[edge.start], at), (at, names[edge.end])]
    layouts, fewest, best = placed(len(names) + len(labels), links), math.inf, None
    for scale, places in itertools.product(SCALES, layouts):
        scene = _at([(x, y) for x, y in (places * UNIT * scale).tolist()], diagram, names, labels)
        found = len(collisions(scene))
        if best is None or found < fewest:
            fewest, best = found, scene
        if not found:
            break
    assert best is not None
    return best


def _at(
    places: Sequence[Point], diagram: Diagram, names: Mapping[str, int], labels: Sequence[tuple[int, Edge]]
) -> Scene:
    boxes = [_box(node.kind, node.lines, *places[names[name]]) for name, node in diagram.nodes.items()]
    boxes += [_box("label", (edge.label,), *places[at]) for at, edge in labels]
    curves = list[Curve]()
    for edge in diagram.edges:
        start, end = names[edge.start], names[edge.end]
        at = next((at for at, each in labels if each is edge), None)
        (x, y), (u, v) = places[start], places[end]
        middle = ((x + u) / 2, (y + v) / 2) if at is None else places[at]
        turn = [2 * m - (a + b) / 2 for m, a, b in zip(middle, (x, y), (u, v), strict=True)]
        controls = [(a + 2 * (turn[0] - a) / 3, b + 2 * (turn[1] - b) / 3) for a, b in ((x, y), (u, v))]
        ends = (start, end) if at is None else (start, end, at)
        curves.append(Curve(((x, y), *controls, (u, v)), ends=ends))
    left, top = min(b.x - b.width / 2 for b in boxes), min(b.y - b.height / 2 for b in boxes)
    width = max(b.x + b.width / 2 for b in boxes) - left
    height = max(b.y + b.height / 2 for b in boxes) - top
    return Scene(width, height, tuple(boxes), tuple(curves)).moved(-left, -top)


# ---------------------------------------------------------------------------- several scenes


def joined(scenes: Sequence[Scene], apart: float, down: bool = False, middle: bool = False) -> Scene:
    """Scenes in a row, or below one another, at their beginnings or in the middle."""
    breadth, at = max(scene.width if down else scene.height for scene in scenes), 0.0
    boxes, curves = list[Box](), list[Curve]()
    for scene in scenes:
        side = (breadth - (scene.width if down else scene.height)) / 2 if middle else 0.0
        put = scene.moved(*((side, at) if down else (at, side)))
        curves += [replace(c, ends=tuple(end + len(boxes) for end in c.ends)) for c in put.curves]
        boxes += put.boxes
        at += (scene.height if down else scene.width) + apart
    extent = (breadth, at - apart) if down else (at - apart, breadth)
    return Scene(*extent, tuple(boxes), tuple(curves))


def in_panels(diagrams: Sequence[Diagram]) -> Scene:
    """Diagrams in rows; those with a title are framed, below it."""
    rows, taken = [list[Scene]()], 0.0
    for scene in map(_panel, diagrams):
        if rows[-1] and taken + scene.width > ROW:
            rows.append([])
            taken = 0.0
        rows[-1].append(scene)
        taken += scene.width + 24
    return joined([joined(row, 24.0) for row in rows], 24.0, down=True)


def _panel(diagram: Diagram) -> Scene:
    scene = in_layers(diagram)
    if not diagram.title:
        return scene
    title = _sign(diagram.title)
    whole = joined([title, scene], 8.0, down=True).moved(12.0, 8.0)
    width, height = whole.width + 24, whole.height + 20
    frame = Box("panel", (), width / 2, height / 2, width, height)
    curves = tuple(replace(c, ends=tuple(end + 1 for end in c.ends)) for c in whole.curves)
    return Scene(width, height, (frame, *whole.boxes), curves)
