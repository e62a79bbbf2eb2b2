"""Pictures of graphs: tensors and operations as nodes, axes on the edges, blocks folded; a layered graph layout.

The longest path gives the layer of a node (Sugiyama, Tagawa and Toda 1981). The nodes of a layer are sorted by the
means of their neighbours, so that few edges cross, and are placed near these means.
"""

from __future__ import annotations

import html
import itertools
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from .errors import EquationError, path_of
from .files import whole
from .graph.graph import Graph, of_graph
from .graph.shape_inference import dim_size, index_of
from .language.equation import Equation
from .language.expression import Call, Contraction, Expression, is_scalar, parts_of, show_index
from .ops.table import FUNCTIONS
from .sizes import evaluate

__all__ = ["Edge", "Layout", "Picture", "draw", "layered"]

CHARACTER, LINE, DEEP, MARGIN = 7.2, 16.0, 92.0, 16.0
"""The width of a character and the height of a line at 12 pixels, the distance of layers, and the margin."""

Node: TypeAlias = Hashable
Edge: TypeAlias = "tuple[Node, Node]"
Point: TypeAlias = "tuple[float, float]"

FILLS = {
    "input": "#dbeafe",
    "parameter": "#dcfce7",
    "constant": "#f3f4f6",
    "equation": "#ffffff",
    "block": "#fef3c7",
}
"""The colour of each kind of node."""


@dataclass(frozen=True)
class Picture:
    """A picture in SVG; a notebook shows it."""

    svg: str

    def __str__(self) -> str:
        return self.svg

    def _repr_svg_(self) -> str:
        return self.svg


@dataclass(frozen=True)
class _Node:
    """A box: its kind, and the lines in it."""

    kind: str
    lines: tuple[str, ...]
    bold: bool = False

    @property
    def width(self) -> float:
        """The width of the box."""
        return max(len(line) for line in self.lines) * CHARACTER + 16

    @property
    def height(self) -> float:
        """The height of the box."""
        return len(self.lines) * LINE + 10


@of_graph
def draw(graph: Graph, path: str | Path | None = None) -> Picture:
    """Draws a graph as a picture, with operands above their results.

    A box is an input, a parameter, a constant, an equation with its operations, or a folded call of a block.
    An edge shows the axes that a tensor is read with and, below them, the tensor's sizes if any is known.

    Args:
        graph: a layer or a model.
        path: the SVG file to write, if any.

    Raises:
        EquationError: the name of the file does not end with .svg.
        TensornetError: the file cannot be written.

    Example:
        >>> import tensornet as tn
        >>> picture = tn.draw(tn.layer("y[b,o] = gelu(x[b,i] * W[o,i])", inputs="x"))
        >>> picture.svg[:4], "Σ i" in picture.svg
        ('<svg', True)
    """
    picture = Picture(_svg(graph))
    if path is not None:
        if path_of(path).suffix.lower() != ".svg":
            raise EquationError(f"'{path}' is no name of an SVG file", fix="let it end with .svg")
        with whole(path_of(path)) as half:
            half.write_text(picture.svg, encoding="utf-8")
    return picture


def _svg(graph: Graph) -> str:
    nodes, labels = _nodes(graph), dict[tuple[str, str], dict[str, str]]()
    for start, end, name, axes in _edges(graph):
        labels.setdefault((start, end), {})[axes] = _sizes(graph, name)
    layout = layered(list(nodes), list(labels), {name: node.width for name, node in nodes.items()})
    width, height = layout.width + 2 * MARGIN, (layout.layers - 1) * DEEP + 2 * MARGIN + 60
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}"'
        f' viewBox="0 0 {width:.0f} {height:.0f}" font-family="monospace" font-size="12">',
        "<style>.axes{fill:#475569;paint-order:stroke;stroke:#fff;stroke-width:4px}"
        ".edge{fill:none;stroke:#94a3b8}.box{stroke:#475569}</style>",
    ]
    lines += _drawn_edges(layout, labels)
    for name, node in nodes.items():
        lines += _drawn_box(node, *_at(layout.centres[name]))
    return "\n".join([*lines, "</svg>"])


def _at(point: tuple[float, float]) -> tuple[float, float]:
    return point[0] + MARGIN, point[1] * DEEP + MARGIN + 30


def _drawn_edges(layout: Layout, labels: dict[tuple[str, str], dict[str, str]]) -> Iterator[str]:
    texts = []
    for edge, label in labels.items():
        points = [_at(point) for point in layout.routes[edge]]
        way = f"M{points[0][0]:.1f},{points[0][1]:.1f}"
        for (x, y), (u, v) in itertools.pairwise(points):
            middle = (y + v) / 2
            way += f" C{x:.1f},{middle:.1f} {u:.1f},{middle:.1f} {u:.1f},{v:.1f}"
        yield f'<path class="edge" d="{way}"/>'
        (x, y), (u, v) = points[-2:]
        told = ("; ".join(label), "; ".join(each for each in label.values() if each))
        for n, text in enumerate(each for each in told if each):
            texts.append(f'<text class="axes" x="{(x + u) / 2:.1f}" y="{(y + v) / 2 + 4 + n * LINE:.1f}"'
                         f' text-anchor="middle">{html.escape(text)}</text>')  # fmt: skip
    yield from texts


def _drawn_box(node: _Node, x: float, y: float) -> Iterator[str]:
    left, top = x - node.width / 2, y - node.height / 2
    thick = 2 if node.bold else 1
    yield (
        f'<rect class="box" x="{left:.1f}" y="{top:.1f}" width="{node.width:.1f}" height="{node.height:.1f}"'
        f' rx="6" fill="{FILLS[node.kind]}" stroke-width="{thick}"/>'
    )
    for n, line in enumerate(node.lines):
        bottom = top + 5 + (n + 0.75) * LINE
        weight = ' font-weight="bold"' if n == 0 else ""
        yield f'<text x="{x:.1f}" y="{bottom:.1f}" text-anchor="middle"{weight}>{html.escape(line)}</text>'


# ---------------------------------------------------------------------------- boxes and edges


def _nodes(graph: Graph) -> dict[str, _Node]:
    """The boxes in the order of the graph, by their tensor, or by the first of several results."""
    read = {start for start, *_ in _edges(graph)}
    found: dict[str, _Node] = {}
    for leaf in graph.leaves:
        if leaf.name in read or leaf.name in graph.outputs:
            index = show_index(index_of(leaf.dims))
            found[leaf.name] = _Node(leaf.kind, (leaf.name, f"[{index}]") if index else (leaf.name,))
    names = graph.names_of_blocks()
    for item in graph.body:
        outputs = any(name in graph.outputs for name in item.defines)
        if isinstance(item, Equation):
            left = f"{item.name}[{show_index(item.left)}]" if item.left else item.name
            found[item.name] = _Node("equation", (left, *_done(item.right)), outputs)
        else:
            lines = (
                ", ".join(item.results),
                f"{names[item.graph]}(…)",
                *([item.scope] if item.scope else []),
            )
            found[item.results[0]] = _Node("block", lines, outputs)
    return found


def _done(right: Expression) -> tuple[str, ...]:
    """The operations of an equation, in one line: the functions that it calls, and the axes that it sums."""
    waiting, summed, called = [right], dict[str, None](), dict[str, None]()
    products = 0
    while waiting:
        part = waiting.pop(0)
        if isinstance(part, Contraction):
            summed.update(dict.fromkeys(part.summed))
            products += sum(not is_scalar(each) for each in part.factors) > 1
        elif isinstance(part, Call):
            row = FUNCTIONS[part.function]
            over = f"[{','.join(part.axes)}]" if part.axes else ""
            called[row.infix or f"{row.name}{over}"] = None
        waiting += parts_of(part)
    words = [*called, *(["×"] if products else []), *([f"Σ {','.join(summed)}"] if summed else [])]
    return (" ".join(words),) if words else ()


def _sizes(graph: Graph, name: str) -> str:
    """The sizes of a tensor, `b×4×8`; empty if none is known."""
    sizes = [evaluate(dim_size(dim), graph.bound) for dim in graph.named[name]]
    return "×".join(map(str, sizes)) if any(isinstance(size, int) for size in sizes) else ""


def _edges(graph: Graph) -> Iterator[tuple[str, str, str, str]]:
    """The edges: the box that each comes from and leads to, the tensor, and the axes that it is read with."""
    made = {name: item.defines[0] for item in graph.body for name in item.defines}
    for item in graph.body:
        if isinstance(item, Equation):
            for ref in dict.fromkeys(item.references):
                yield made.get(ref.name, ref.name), item.name, ref.name, show_index(ref.index)
        else:
            for name in dict.fromkeys(item.operands):
                yield made.get(name, name), item.results[0], name, show_index(index_of(graph.named[name]))


# ---------------------------------------------------------------------------- layout

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
