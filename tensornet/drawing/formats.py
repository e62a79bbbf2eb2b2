"""Scenes as SVG, and as PNG and PDF by matplotlib; diagrams as DOT and Mermaid, for the layout of others."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import BackendError
from .diagram import Diagram, Node
from .scene import LINE, Box, Curve, Scene

__all__ = ["by_matplotlib", "dot", "mermaid", "svg"]

MARGIN, DOTS = 12.0, 200
"""What is left around a scene, in pixels, and the dots per inch of a PNG."""

FILLS = {
    "input": "#dbeafe",
    "parameter": "#dcfce7",
    "constant": "#f3f4f6",
    "equation": "#ffffff",
    "block": "#fef3c7",
    "axis": "#ffffff",
    "panel": "#ffffff",
}
"""The colour of each kind of box that has a frame."""

PLATES = ("label", "leg")
"""The kinds of boxes that hide what is behind their text."""

INK, FAINT, LINES = "#1e293b", "#64748b", "#94a3b8"
"""The colours of names, of what is told of them, and of edges."""

FONT = "DejaVu Sans Mono, Menlo, Consolas, monospace"


def _texts(box: Box) -> Iterator[tuple[str, float, bool]]:
    """The lines of a box: each with the height of its middle, and whether it is a name."""
    top = box.y - len(box.lines) * LINE / 2
    for number, line in enumerate(box.lines):
        yield line, top + (number + 0.5) * LINE, number == 0 and box.kind not in ("label", "leg", "axis")


# ---------------------------------------------------------------------------- pictures


def svg(scene: Scene) -> str:
    """The scene as an SVG picture on white."""
    width, height = scene.width + 2 * MARGIN, scene.height + 2 * MARGIN
    scene = scene.moved(MARGIN, MARGIN)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}"'
        f' viewBox="0 0 {width:.1f} {height:.1f}" font-family="{FONT}" font-size="12" text-anchor="middle">',
        '<rect width="100%" height="100%" rx="4" fill="#fff"/>',
        *(_svg_box(box) for box in scene.boxes if box.kind == "panel"),
        *(_svg_curve(curve) for curve in scene.curves),
        *(_svg_box(box) for box in scene.boxes if box.kind != "panel"),
        "</svg>",
    ]
    return "\n".join(filter(None, lines))


def _svg_curve(curve: Curve) -> str:
    start, *rest = (f"{x:.1f},{y:.1f}" for x, y in curve.points)
    dashes = ' stroke-dasharray="4 3"' if curve.dashed else ""
    path = f'<path d="M{start} C{" ".join(rest)}" fill="none" stroke="{LINES}"{dashes}/>'
    corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in curve.tip)
    return path + (f'<polygon points="{corners}" fill="{LINES}"/>' if corners else "")


def _svg_box(box: Box) -> str:
    if not box.width:
        return ""
    framed = box.kind in FILLS
    left, top = box.x - box.width / 2, box.y - box.height / 2
    shape = ""
    if framed or box.kind in PLATES:
        frame = (
            f' rx="{_radius(box):.0f}" stroke="{_stroke(box)}" stroke-width="{1 + box.result}"'
            if framed
            else ""
        )
        shape = (
            f'<rect x="{left:.1f}" y="{top:.1f}" width="{box.width:.1f}" height="{box.height:.1f}"'
            f' fill="{FILLS.get(box.kind, "#fff")}"{frame}/>'
        )
    return shape + "".join(
        f'<text x="{box.x:.1f}" y="{y + 4:.1f}" fill="{INK if is_name else FAINT}"'
        f"{' font-weight=' + chr(34) + 'bold' + chr(34) if is_name else ''}>{html.escape(line)}</text>"
        for line, y, is_name in _texts(box)
    )


def _radius(box: Box) -> float:
    return box.height / 2 if box.kind == "axis" else 6.0


def _stroke(box: Box) -> str:
    return LINES if box.kind == "panel" else FAINT


def by_matplotlib(scene: Scene, path: Path, kind: str) -> None:
    """Writes the scene as a file of matplotlib.

    Args:
        scene: the scene.
        path: the file.
        kind: "png" or "pdf".

    Raises:
        BackendError: matplotlib cannot be imported.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        fix = "pip install matplotlib, or write an SVG file, which needs no other library"
        raise BackendError(f"matplotlib cannot be imported: {error}", fix=fix) from None
    width, height = scene.width + 2 * MARGIN, scene.height + 2 * MARGIN
    with matplotlib.rc_context({"font.family": "DejaVu Sans Mono", "pdf.fonttype": 42}):
        figure = Figure(figsize=(width / 96, height / 96))
        axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
        axes.set_axis_off()
        scene = scene.moved(MARGIN, MARGIN)
        for curve in scene.curves:
            _plot_curve(axes, curve)
        for box in scene.boxes:
            _plot_box(axes, box)
        figure.savefig(
            path, format=kind, dpi=DOTS, metadata={"CreationDate": None} if kind == "pdf" else None
        )


def _plot_curve(axes: Any, curve: Curve) -> None:
    from matplotlib.patches import PathPatch, Polygon
    from matplotlib.path import Path as Way

    way = Way(curve.points, [Way.MOVETO, *[Way.CURVE4] * (len(curve.points) - 1)])
    axes.add_patch(
        PathPatch(way, fill=False, edgecolor=LINES, lw=0.75, ls="--" if curve.dashed else "-", zorder=2)
    )
    if curve.tip:
        axes.add_patch(Polygon(curve.tip, color=LINES, lw=0, zorder=2))


def _plot_box(axes: Any, box: Box) -> None:
    from matplotlib.patches import FancyBboxPatch

    framed = box.kind in FILLS
    if framed or box.kind in PLATES:
        radius = _radius(box) if framed else 0.0
        inner = (box.x - box.width / 2 + radius, box.y - box.height / 2 + radius)
        style = f"round,pad={radius},rounding_size={radius}" if framed else "square,pad=0"
        axes.add_patch(
            FancyBboxPatch(
                inner,
                box.width - 2 * radius,
                box.height - 2 * radius,
                boxstyle=style,
                facecolor=FILLS.get(box.kind, "#fff"),
                edgecolor=_stroke(box) if framed else "none",
                lw=0.75 * (1 + box.result) if framed else 0,
                zorder=1 if box.kind == "panel" else 3,
            )
        )
    for line, y, is_name in _texts(box):
        weight = "bold" if is_name else "normal"
        axes.text(
            box.x, y, line, ha="center", va="center_baseline", size=9, weight=weight, zorder=4,
            color=INK if is_name else FAINT, parse_math=False,
        )  # fmt: skip


# ---------------------------------------------------------------------------- text for the layout of others


def dot(diagrams: Sequence[Diagram]) -> str:
    """The diagrams in DOT, the language of Graphviz."""
    kind, arrow = ("digraph", "->") if diagrams[0].directed else ("graph", "--")
    lines = [
        f"{kind} {{",
        '  node [fontname="Courier", fontsize=10]',
        '  edge [fontname="Courier", fontsize=9]',
    ]

    def edge(start: str, end: str, label: str, back: bool) -> str:
        dashed = ", style=dashed, constraint=false" if back else ""
        return f"{start} {arrow} {end} [label={_quoted(label)}{dashed}]"

    def opening(number: int, title: str) -> str:
        return f"subgraph cluster_{number} {{ label={_quoted(title)}"

    lines += _grouped(diagrams, _dot_node, edge, opening, "}")
    return "\n".join([*lines, "}"])


def _dot_node(key: str, node: Node) -> str:
    shape = {"leg": "plaintext", "axis": "circle"}.get(node.kind, "box")
    fill = f', style="rounded,filled", fillcolor="{FILLS[node.kind]}"' if shape == "box" else ""
    thick = ", penwidth=2" if node.result else ""
    return f"{key} [shape={shape}, label={_quoted(chr(10).join(node.lines))}{fill}{thick}]"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def mermaid(diagrams: Sequence[Diagram]) -> str:
    """The diagrams in Mermaid, which GitHub, GitLab and Jupyter show."""
    link = "-->" if diagrams[0].directed else "---"

    def edge(start: str, end: str, label: str, back: bool) -> str:
        way = "-.->" if back else link
        return f"{start} {way}{f'|{_entities(label)}|' if label else ''} {end}"

    kinds = dict.fromkeys(node.kind for each in diagrams for node in each.nodes.values())
    lines = ["flowchart TD" if diagrams[0].directed else "flowchart LR"]
    lines += _grouped(
        diagrams, _mermaid_node, edge, lambda n, title: f"subgraph s{n} [{_entities(title)}]", "end"
    )
    lines += [
        f"  classDef {kind} fill:{FILLS.get(kind, '#ffffff')},stroke:{FAINT},color:{INK}" for kind in kinds
    ]
    return "\n".join(lines)


def _mermaid_node(key: str, node: Node) -> str:
    opening, closing = ("((", "))") if node.kind == "axis" else ("[", "]")
    return f"{key}{opening}{_entities('<br/>'.join(node.lines) or ' ')}{closing}:::{node.kind}"


def _entities(text: str) -> str:
    """Text in quotes, with what Mermaid reads as a sign of its own as a number."""
    return '"' + re.sub(r'["#;&|]', lambda found: f"#{ord(found[0])};", text) + '"'


def _grouped(
    diagrams: Sequence[Diagram],
    node: Callable[[str, Node], str],
    edge: Callable[[str, str, str, bool], str],
    opening: Callable[[int, str], str],
    closing: str,
) -> Iterator[str]:
    """The lines of all nodes and edges; a diagram with a title is a group."""
    for number, diagram in enumerate(diagrams):
        keys: Mapping[str, str] = {name: f"n{number}_{n}" for n, name in enumerate(diagram.nodes)}
        titled = diagram.title and diagram.directed
        if titled:
            yield f"  {opening(number, diagram.title)}"
        for name, each in diagram.nodes.items():
            yield f"  {node(keys[name], each)}"
        for each_edge in diagram.edges:
            yield f"  {edge(keys[each_edge.start], keys[each_edge.end], each_edge.label, each_edge.back)}"
        if titled:
            yield f"  {closing}"
