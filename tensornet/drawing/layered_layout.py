"""Layered graph layout (Sugiyama): nodes in layers, edges routed around other nodes.

The longest path gives the layer of a node (Sugiyama, Tagawa and Toda 1981). The nodes of a layer are sorted by the
means of their neighbours, so that few edges cross, and are placed near these means.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

__all__ = ["Edge", "Layout", "layered"]

Node: TypeAlias = Hashable
Edge: TypeAlias = "tuple[Node, Node]"
Point: TypeAlias = "tuple[float, float]"

SWEEPS = 12
"""The number of sweeps over the layers, both for the order and for the positions of nodes."""

APART = 18.0
"""The least distance between nodes of a layer."""

BEND = 12.0
"""The width that is reserved for an edge that passes a layer."""


@dataclass(frozen=True)
class Layout:
    """The positions of nodes and edges.

    Attributes:
        centres: the centre of each node: its horizontal position and its layer.
        routes: the points that each edge goes through, including its ends.
        width: the total width, from 0.
        layers: the number of layers.
    """

    centres: Mapping[Node, Point]
    routes: Mapping[Edge, tuple[Point, ...]]
    width: float
    layers: int


def layered(nodes: Sequence[Node], edges: Sequence[Edge], widths: Mapping[Node, float]) -> Layout:
    """Computes a layered layout.

    Args:
        nodes: the nodes in topological order.
        edges: the edges, each as its start and its end.
        widths: the width of each node.
    """
    drawing = _Drawing(_depths(nodes, edges), dict(widths))
    ways = {edge: drawing.way(edge) for edge in dict.fromkeys(edges)}
    drawing.order()
    drawing.place()
    left = min((x - drawing.widths[node] / 2 for node, x in drawing.across.items()), default=0.0)
    centres = {node: (x - left, float(drawing.depth[node])) for node, x in drawing.across.items()}
    width = max((x + drawing.widths[node] / 2 for node, (x, _) in centres.items()), default=0.0)
    routes = {edge: tuple(centres[node] for node in way) for edge, way in ways.items()}
    return Layout({node: centres[node] for node in nodes}, routes, width, len(drawing.layers))


def _depths(nodes: Sequence[Node], edges: Sequence[Edge]) -> dict[Node, int]:
    """The layer of each node: below all its predecessors. A node without any is just above its first reader."""
    above, below = defaultdict[Node, list[Node]](list), defaultdict[Node, list[Node]](list)
    for start, end in edges:
        above[end].append(start)
        below[start].append(end)
    found: dict[Node, int] = {}
    for node in nodes:
        found[node] = max((found[each] + 1 for each in above[node]), default=0)
    for node in nodes:
        if not above[node] and below[node]:
            found[node] = min(found[each] for each in below[node]) - 1
    return found


@dataclass
class _Drawing:
    """Nodes and the bends of long edges, in layers."""

    depth: dict[Node, int]
    widths: dict[Node, float]
    layers: dict[int, list[Node]] = field(default_factory=dict)
    above: dict[Node, list[Node]] = field(default_factory=dict)
    below: dict[Node, list[Node]] = field(default_factory=dict)
    across: dict[Node, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for node, depth in self.depth.items():
            self._add(node, depth)

    def _add(self, node: Node, depth: int) -> None:
        self.depth[node] = depth
        self.layers.setdefault(depth, []).append(node)
        self.above[node], self.below[node] = [], []

    def way(self, edge: Edge) -> tuple[Node, ...]:
        """The nodes that an edge goes through, one in each layer. Those between its ends are created for it."""
        start, end = edge
        found = [start]
        for depth in range(self.depth[start] + 1, self.depth[end]):
            bend = (edge, depth)
            self.widths[bend] = BEND
            self._add(bend, depth)
            found.append(bend)
        found.append(end)
        for one, other in itertools.pairwise(found):
            self.below[one].append(other)
            self.above[other].append(one)
        return tuple(found)

    def order(self) -> None:
        """Sorts each layer by the means of the neighbours, in the layers above and below in turn."""
        at = {node: n for layer in self.layers.values() for n, node in enumerate(layer)}
        for sweep in range(SWEEPS):
            beside = self.above if sweep % 2 == 0 else self.below
            for depth in sorted(self.layers, reverse=sweep % 2 == 1):
                layer = self.layers[depth]
                means = {node: _mean([at[each] for each in beside[node]], at[node]) for node in layer}
                layer.sort(key=lambda node, means=means: means[node])  # type: ignore[misc]
                at.update({node: n for n, node in enumerate(layer)})

    def place(self) -> None:
        """Places nodes near the mean of their neighbours, and keeps their order and distance."""
        for layer in self.layers.values():
            self._spread(layer, dict.fromkeys(layer, 0.0))
        for sweep in range(SWEEPS):
            for depth in sorted(self.layers, reverse=sweep % 2 == 1):
                layer = self.layers[depth]
                beside = {node: [*self.above[node], *self.below[node]] for node in layer}
                wanted = {
                    node: _mean([self.across[each] for each in near], self.across[node])
                    for node, near in beside.items()
                }
                self._spread(layer, wanted)

    def _spread(self, layer: Sequence[Node], wanted: Mapping[Node, float]) -> None:
        """Places the nodes of a layer at their distance from one another, on average where they are wanted."""
        right = -float("inf")
        found: dict[Node, float] = {}
        for node in layer:
            half = self.widths[node] / 2
            found[node] = max(wanted[node], right + APART + half)
            right = found[node] + half
        shift = _mean([wanted[node] - found[node] for node in layer], 0.0)
        self.across.update({node: x + shift for node, x in found.items()})


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise
