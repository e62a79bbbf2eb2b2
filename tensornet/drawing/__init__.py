"""Pictures of graphs: layered graph drawing, and tensor network diagrams.

In: a graph. Out: a picture, as SVG in a notebook, or as a file of SVG, PNG, PDF, DOT or Mermaid. A graph becomes
diagrams (`diagram`), these a scene of boxes and curves (`scene`, by `layout`), and the scene a picture (`formats`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import EquationError, near, path_of
from ..files import whole
from ..graph.graph import Graph, of_graph
from .diagram import Diagram, diagram_of, networks_of
from .formats import by_matplotlib, dot, mermaid, svg
from .scene import Scene, in_panels, networks

STYLES = ("auto", "layers", "network")
TEXTS = {".svg": "svg", ".dot": "dot", ".mmd": "mermaid"}
"""The attribute of a picture that is in a file, by its ending."""


@dataclass(frozen=True)
class Picture:
    """A picture, which a notebook shows.

    Attributes:
        svg: the picture in SVG.
        scene: its boxes and curves.
        diagrams: what it shows: nodes and edges.
    """

    svg: str
    scene: Scene
    diagrams: tuple[Diagram, ...] = field(hash=False)

    def __str__(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        nodes = sum(len(each.nodes) for each in self.diagrams)
        return f"<Picture: {nodes} nodes, {self.scene.width:.0f} × {self.scene.height:.0f}>"

    def _repr_svg_(self) -> str:
        return self.svg

    def _repr_html_(self) -> str:
        return f'<div style="max-width:100%;overflow-x:auto">{self.svg}</div>'

    @property
    def dot(self) -> str:
        """The picture in DOT, for Graphviz and what reads its language."""
        return dot(self.diagrams)

    @property
    def mermaid(self) -> str:
        """The picture in Mermaid, for pages on GitHub, GitLab or in Jupyter."""
        return mermaid(self.diagrams)

    def save(self, path: str | Path) -> None:
        """Writes the picture to a file, in the format by which its name ends: .svg, .png, .pdf, .dot or .mmd.

        Raises:
            EquationError: the name ends with something else.
            BackendError: matplotlib, which writes .png and .pdf, cannot be imported.
            TensornetError: the file cannot be written.
        """
        kind = path_of(path).suffix.lower()
        if kind not in (*TEXTS, ".png", ".pdf"):
            fix = "let it end with .svg, .png, .pdf, .dot or .mmd"
            raise EquationError(f"'{path}' is no name of a picture", fix=fix)
        with whole(path_of(path)) as half:
            if kind in TEXTS:
                half.write_text(getattr(self, TEXTS[kind]), encoding="utf-8")
            else:
                by_matplotlib(self.scene, half, kind[1:])


@of_graph
def draw(
    graph: Graph, path: str | Path | None = None, *, unfold: bool = False, style: str = "auto"
) -> Picture:
    """Draws a graph: in layers, with operands above their results, or as a tensor network.

    In layers, a box is an input, a parameter, a constant, an equation with its operations, or a call of a block. An
    edge shows the axes that a tensor is read with; it is dashed where the tensor is read at another position. A graph
    of one equation that is a product of tensors, or a sum of such, is a tensor network: each shared axis is an edge,
    and each axis of the result an open leg.

    Args:
        graph: a layer or a model.
        path: a file to write, if any: .svg; .png or .pdf, by matplotlib; .dot for Graphviz; .mmd for Mermaid.
        unfold: whether each block is drawn too, once, in a frame of its own.
        style: "layers", "network", or "auto" for a network where the graph is one.

    Raises:
        EquationError: the style is unknown, or is "network" and the graph is none; the file's name ends otherwise.
        BackendError: matplotlib is needed and cannot be imported.
        TensornetError: the file cannot be written.

    Example:
        >>> import tensornet as tn
        >>> picture = tn.draw(tn.layer("y[b,o] = gelu(x[b,i] * W[o,i])", inputs="x"))
        >>> picture.svg[:4], "Σ i" in picture.svg
        ('<svg', True)
        >>> print(tn.draw(tn.layer("y[b,o] = x[b,i] * W[o,i]", inputs="x", i=8, o=4)).dot.splitlines()[-2])
          n0_1 -- n0_3 [label=""]
    """
    if style not in STYLES:
        fix = f"{near(str(style), STYLES)}it is one of {', '.join(STYLES)}"
        raise EquationError(f"style={style!r}", fix=fix)
    picture = _picture(graph, unfold, style)
    if path is not None:
        picture.save(path)
    return picture


def _picture(graph: Graph, unfold: bool, style: str) -> Picture:
    if style != "layers" and (diagrams := networks_of(graph)):
        scene = networks(diagrams)
        return Picture(svg(scene), scene, diagrams)
    if style == "network":
        fix = 'take style="layers", or write one equation: a product of tensors, or a sum of such'
        raise EquationError("the graph is no tensor network", fix=fix)
    diagrams = (diagram_of(graph), *(_blocks(graph) if unfold else ()))
    scene = in_panels(diagrams)
    return Picture(svg(scene), scene, diagrams)


def _blocks(graph: Graph) -> Iterator[Diagram]:
    """The diagram of each block at any depth, once; those of blocks in blocks are named under them."""
    titles = {graph: ""}
    for part in graph.parts:
        prefix = f"{titles[part]}." if titles[part] else ""
        for block, name in part.names_of_blocks().items():
            titles.setdefault(block, f"{prefix}{name}")
    for block, title in titles.items():
        if block is not graph:
            yield diagram_of(block, title)
