"""Scenes as SVG, and as PNG and PDF by matplotlib; diagrams as DOT and Mermaid, for the layout of others."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from ..errors import optional
from .diagram import Diagram, Node
from .scene import LINE, Box, Curve, Scene

Mark: TypeAlias = "tuple[str, dict[str, Any], str]"
"""An element of SVG: its name, attributes (points as an array) and text."""

MARGIN, DOTS, TIP = 12.0, 200, 4.0
"""What is left around a scene, in pixels; the dots per inch of a PNG; half of the width of an arrow."""

WHITE, INK, FAINT, LINES = "#ffffff", "#1e293b", "#64748b", "#94a3b8"
"""The colours of the paper, of names, of the lines below them, and of edges."""

FILLS = {
    "input": "#dbeafe",
    "parameter": "#dcfce7",
    "constant": "#f3f4f6",
    "block": "#fef3c7",
    "panel": "none",
}
"""The colours of boxes by kind; others are white."""

FONT = "DejaVu Sans Mono, Menlo, Consolas, monospace"


# ---------------------------------------------------------------------------- pictures


def _marks(scene: Scene) -> Iterator[Mark]:
    """What is drawn, in order."""
    for curve in scene.curves:
        yield from _of_curve(curve)
    for box in scene.boxes:
        yield from _of_box(box)


def _of_curve(curve: Curve) -> Iterator[Mark]:
    points = np.array(curve.points)[:: -1 if curve.back else 1]
    dashes = {"stroke-dasharray": "4 3"} if curve.back else {}
    yield "path", {"d": points, "fill": "none", "stroke": LINES, **dashes}, ""
    if curve.directed:
        ways = points - points[-1]
        back = ways[abs(ways).max(1) > 1][-1]
        back *= TIP / np.linalg.norm(back)
        corners = points[-1] + np.outer((0, 2, 2), back) + np.outer((0, 1, -1), back[::-1] * (1, -1))
        yield "polygon", {"points": corners, "fill": LINES}, ""


def _of_box(box: Box) -> Iterator[Mark]:
    look: dict[str, Any] = {"fill": FILLS.get(box.kind, WHITE)}
    left, top = box.x - box.width / 2, box.y - box.height / 2
    radius = box.height / 2 if box.kind == "axis" else 6
    if box.kind not in ("label", "leg", "text"):
        look |= {"stroke": FAINT, "stroke-width": 1 + box.result, "rx": radius}
    if box.width:
        yield "rect", {"x": left, "y": top, "width": box.width, "height": box.height, **look}, ""
    for number, line in enumerate(filter(None, box.lines)):
        is_name = number == 0 and box.kind not in ("label", "leg", "axis")
        look = {"fill": INK, "font-weight": "bold"} if is_name else {"fill": FAINT}
        y = box.y + (number + 0.5 - len(box.lines) / 2) * LINE + 4
        yield "text", {"x": box.x, "y": y, **look}, line


def svg(scene: Scene) -> str:
    """The scene as an SVG picture on white."""
    width, height = scene.width + 2 * MARGIN, scene.height + 2 * MARGIN
    look = f'font-family="{FONT}" font-size="12" text-anchor="middle"'
    area = f'viewBox="{-MARGIN:.0f} {-MARGIN:.0f} {width:.1f} {height:.1f}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" {area} {look}>',
        f'<rect x="{-MARGIN}" y="{-MARGIN}" width="100%" height="100%" rx="4" fill="{WHITE}"/>',
    ]
    for name, attributes, text in _marks(scene):
        shown = "".join(f' {key}="{_value(key, value)}"' for key, value in attributes.items())
        lines.append(f"<{name}{shown}>{html.escape(text)}</{name}>" if text else f"<{name}{shown}/>")
    return "\n".join([*lines, "</svg>"])


def _value(key: str, value: Any) -> str:
    if isinstance(value, np.ndarray):
        start, *rest = (f"{x:.1f},{y:.1f}" for x, y in value.tolist())
        return f"M{start} C{' '.join(rest)}" if key == "d" else " ".join([start, *rest])
    return value if isinstance(value, str) else f"{value:.1f}".removesuffix(".0")


def by_matplotlib(scene: Scene, path: Path, kind: str) -> None:
    """Writes the scene as a file of matplotlib.

    Args:
        scene: the scene.
        path: the file.
        kind: "png" or "pdf".

    Raises:
        BackendError: matplotlib cannot be imported.
    """
    fix = "pip install matplotlib, or write an SVG file, which needs no other library"
    matplotlib, figures = optional("matplotlib", fix), optional("matplotlib.figure", fix)
    right, bottom = scene.width + MARGIN, scene.height + MARGIN
    with matplotlib.rc_context({"font.family": "DejaVu Sans Mono", "pdf.fonttype": 42}):
        figure = figures.Figure(figsize=((right + MARGIN) / 96, (bottom + MARGIN) / 96))
        axes = figure.add_axes((0, 0, 1, 1), xlim=(-MARGIN, right), ylim=(bottom, -MARGIN))
        axes.set_axis_off()
        for order, (_, attributes, text) in enumerate(_marks(scene)):
            _plot(axes, attributes, text, order)
        metadata = {"CreationDate": None} if kind == "pdf" else None
        figure.savefig(path, format=kind, dpi=DOTS, metadata=metadata)


def _plot(axes: Any, mark: dict[str, Any], text: str, order: int) -> None:
    from matplotlib.patches import FancyBboxPatch, PathPatch
    from matplotlib.path import Path as Way

    if text:
        look = {"weight": mark.get("font-weight"), "color": mark["fill"], "zorder": order}
        axes.text(mark["x"], mark["y"], text, ha="center", size=9, parse_math=False, **look)
        return
    fill = {"facecolor": mark["fill"], "edgecolor": mark.get("stroke", "none"), "zorder": order}
    line = {"lw": 0.75 * mark.get("stroke-width", 1), "ls": "--" if "stroke-dasharray" in mark else "-"}
    if "x" in mark:
        inset = mark.get("rx", 0)
        corner, width, height = (mark["x"] + inset, mark["y"] + inset), mark["width"], mark["height"]
        style = f"round,pad={inset}"
        axes.add_patch(FancyBboxPatch(corner, width - 2 * inset, height - 2 * inset, style, **fill, **line))
    else:
        points, code = (mark["d"], Way.CURVE4) if "d" in mark else (mark["points"], Way.LINETO)
        way = Way(points, [Way.MOVETO, *[code] * (len(points) - 1)])
        axes.add_patch(PathPatch(way, **fill, **line))


# ---------------------------------------------------------------------------- text for the layout of others


def dot(diagrams: Sequence[Diagram]) -> str:
    """The diagrams in DOT, the language of Graphviz."""
    kind, arrow = ("digraph", "->") if diagrams[0].directed else ("graph", "--")
    edges = [f"{{}} {arrow} {{}} [label={{}}{each}]" for each in ("", ", style=dashed, constraint=false")]
    lines = _lines(diagrams, _quoted, _dot_node, edges, ("cluster_{} {{ label={}", "}"))
    font = '[fontname="Courier", fontsize=10]'
    return "\n".join([f"{kind} {{", f"  node {font}", f"  edge {font}", *lines, "}"])


def _dot_node(node: Node) -> str:
    shape = {"leg": "plaintext", "axis": "circle"}.get(node.kind, "box")
    fill = f', style="rounded,filled", fillcolor="{FILLS.get(node.kind, WHITE)}"' if shape == "box" else ""
    return f"{{}} [shape={shape}, label={{}}{fill}{', penwidth=2' if node.result else ''}]"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def mermaid(diagrams: Sequence[Diagram]) -> str:
    """The diagrams in Mermaid, which GitHub, GitLab and Jupyter show."""
    way, link = ("TD", "-->") if diagrams[0].directed else ("LR", "---")
    edges = [f"{{0}} {each}|{{2}}| {{1}}" for each in (link, "-.->")]
    lines = _lines(diagrams, _entities, _mermaid_node, edges, ("s{} [{}]", "end"))
    kinds = dict.fromkeys(node.kind for each in diagrams for node in each.nodes.values())
    styles = (f"  classDef {kind} fill:{FILLS.get(kind, WHITE)},stroke:{FAINT},color:{INK}" for kind in kinds)
    return "\n".join([f"flowchart {way}", *(line.replace('|""|', "") for line in lines), *styles])


def _mermaid_node(node: Node) -> str:
    opening, closing = ("((", "))") if node.kind == "axis" else ("[", "]")
    return f"{{}}{opening}{{}}{closing}:::{node.kind}"


def _entities(text: str) -> str:
    """Text in quotes, with what Mermaid reads as a sign of its own as a number."""
    return '"' + re.sub(r'["#;&|]', lambda found: f"#{ord(found[0])};", text).replace("\n", "<br/>") + '"'


def _lines(
    diagrams: Sequence[Diagram],
    quoted: Callable[[str], str],
    node: Callable[[Node], str],
    edges: Sequence[str],
    group: tuple[str, str],
) -> Iterator[str]:
    """The lines of all nodes and edges, by templates; a diagram in layers that has a title is a group."""
    for number, diagram in enumerate(diagrams):
        opening, closing = group if diagram.title and diagram.directed else ("", "")
        yield from [f"  subgraph {opening.format(number, quoted(diagram.title))}"] * bool(opening)
        for n, each in enumerate(diagram.nodes.values()):
            yield f"  {node(each).format(f'n{number}_{n}', quoted(chr(10).join(each.lines)))}"
        for (start, end), edge in zip(diagram.ends, diagram.edges, strict=True):
            text = edges[edge.back].format(f"n{number}_{start}", f"n{number}_{end}", quoted(edge.label))
            yield f"  {text}"
        yield from [f"  {closing}"] * bool(closing)
