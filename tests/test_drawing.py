"""Graphs as pictures, as LaTeX and in notebooks; FLOPs by block."""

from __future__ import annotations

import itertools
import math
import random
import re
import runpy
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sympy

import tensornet as tn
from tensornet.drawing.scene import Scene, layered

from .conftest import ROOT, rows, sampled, stacked

ATTENTION = """
q[b,i,d] = x[b,i,c] * Q[d,c]
k[b,j,d] = x[b,j,c] * K[d,c]
a[b,i,j] = softmax[j](q * k / sqrt(d))
y[b,i,e] = a * x[b,j,c] * V[e,c]
"""
STEPS = np.linspace(0, 1, 17)[:, None]
BERNSTEIN = np.array([1, 3, 3, 1]) * STEPS ** np.arange(4) * (1 - STEPS) ** np.arange(3, -1, -1)
"""The polynomials of a cubic Bézier curve, at steps dense enough to find the boxes that it crosses."""
SVG = "{http://www.w3.org/2000/svg}"


def attention() -> tn.Graph:
    return tn.layer(ATTENTION, inputs="x", c=8, d=4, e=8)


def tower(depth: int) -> tn.Graph:
    return stacked(*((attention(), f"blocks.{n}") for n in range(depth)), inputs="x[b,i,e]")


# ---------------------------------------------------------------------------- pictures


def texts(picture: object) -> list[str]:
    return [each.text or "" for each in ElementTree.fromstring(str(picture)).iter(f"{SVG}text")]


def test_a_picture_shows_tensors_and_the_axes_they_are_read_with(tmp_path: Path) -> None:
    path = tmp_path / "attention.svg"
    picture = tn.draw(attention(), path)
    assert path.read_text(encoding="utf-8") == picture.svg == picture._repr_svg_()
    assert len({picture, tn.draw(attention())}) == 1
    shown = texts(picture)
    for word in ("x", "Q", "K", "V", "q[b,i,d]", "a[b,i,j]", "y[b,i,e]", "b,i,c", "b,j,c", "d,c", "× Σ c"):
        assert word in shown
    assert {"4×8", "8×8", "b×i×8", "b×i×4"} <= set(shown)
    assert not any("×i" in each for each in texts(tn.draw(tn.layer("y[b,i] = exp(x[b,i])", inputs="x"))))
    assert any(re.fullmatch(r"softmax\[j\].*Σ d", each) for each in shown)
    edges = ElementTree.fromstring(picture.svg).iter(f"{SVG}path")
    assert sum(1 for _ in edges) == 9
    with pytest.raises(tn.EquationError, match=r"is no name of a picture\nfix: let it end with .svg, .png"):
        tn.draw(attention(), tmp_path / "attention.jpg")


def test_pictures_in_every_format(tmp_path: Path) -> None:
    graph = tower(2)
    for kind, start in {
        "png": b"\x89PNG",
        "pdf": b"%PDF",
        "dot": b"digraph {",
        "mmd": b"flowchart TD",
    }.items():
        tn.draw(graph, tmp_path / f"tower.{kind}", unfold=True)
        written = (tmp_path / f"tower.{kind}").read_bytes()
        assert written.startswith(start)
    picture = tn.draw(graph, unfold=True)
    assert (tmp_path / "tower.mmd").read_text(encoding="utf-8") == picture.mermaid
    for text, edge in ((picture.dot, r"n1_\d+ -> n1_\d+ \["), (picture.mermaid, r"n1_\d+ -->\|")):
        assert len(re.findall(edge, text)) == 9
        assert "softmax[j]" in text


def test_pictures_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder.svg").mkdir()
    with pytest.raises(tn.TensornetError, match=r"cannot write .*folder\.svg.*\nfix: "):
        tn.draw(attention(), tmp_path / "folder.svg")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(
        tn.BackendError, match=r"matplotlib cannot be imported.*\nfix: pip install matplotlib"
    ):
        tn.draw(attention(), tmp_path / "attention.png")
    assert [path.name for path in tmp_path.iterdir()] == ["folder.svg"]


def test_names_of_axes_cannot_end_a_label() -> None:
    text = tn.draw(tn.layer("y[b] = where(x[b] | z[b], 1, 2)", inputs="x,z")).mermaid
    assert all(line.count('"') in (0, 2) for line in text.splitlines())
    assert "#124;" in text


def test_blocks_are_folded_and_those_in_a_chain_are_one() -> None:
    shown = texts(tn.draw(tower(12)))
    assert [each for each in shown if each.startswith("blocks")] == ["blocks.0 … 11"]
    assert "12 × blocks(…)" in shown
    assert "Q" not in shown
    unfolded = texts(tn.draw(tower(12), unfold=True))
    assert unfolded.count("Q") == unfolded.count("blocks") == 1


def test_lines_in_a_box_and_edges_of_many_results_are_short() -> None:
    shown = texts(tn.draw(tn.gradient(tn.models.create("vit", depth=2))))
    assert {"12 results", "13 results", "17 results"} <= set(shown)
    names = ("exp", "tanh", "gelu", "silu", "relu", "sigmoid", "softplus", "log", "sin", "cos")
    many = tn.layer("y[i] = " + " + ".join(f"{name}(x[i])" for name in names), inputs="x")
    assert max(map(len, texts(tn.draw(many)))) == 48


def test_calls_between_which_something_is_read_stay_apart() -> None:
    def stacked(x: tn.Tensor) -> tuple[tn.Tensor, ...]:
        first = attention()(x, scope="blocks.0")
        second = attention()(first, scope="blocks.1")
        return attention()(second, scope="blocks.2"), first

    shown = texts(tn.draw(tn.model(stacked, inputs="x[b,i,e]")))
    assert [each for each in shown if each.startswith("blocks.")] == ["blocks.0", "blocks.1 … 2"]


def test_a_tensor_read_at_another_position_has_a_dashed_edge_from_below() -> None:
    graph = tn.layer(
        "z[b,t,o] = x[b,t,i] * W[o,i] + h[b,t-1,p] * U[o,p]\n"
        "c[b,t,o] = sigmoid(z) * c[b,t-1,o]\nh[b,t,o] = tanh(c) * z",
        inputs="x",
    )
    picture = tn.draw(graph)
    assert {"b,t-1,p", "b,t-1,o"} <= set(texts(picture))
    dashed = [curve for curve in picture.scene.curves if curve.back]
    assert len(dashed) == 2 == picture.svg.count("stroke-dasharray")
    boxes = {box.lines[0]: box for box in picture.scene.boxes if box.lines}
    assert boxes["x"].y < boxes["z[b,t,o]"].y < boxes["c[b,t,o]"].y < boxes["h[b,t,o]"].y


@pytest.mark.parametrize(
    ("text", "edges", "legs"),
    [
        ("y[b,o] = x[b,i] * W[o,i]", {"i": ("x", "W")}, {"b": "x", "o": "W"}),
        (
            "y[b,(o,p)] = x[b,(i,j)] * G[o,i,r] * H[r,p,j]",
            {"i": ("x", "G"), "j": ("x", "H"), "r": ("G", "H")},
            {"b": "x", "o": "G", "p": "H"},
        ),
        ("y[o] = sum[r,k](A[o,r] * x[r,k])", {"r": ("A", "x")}, {"o": "A", "Σ k": "x"}),
    ],
)
def test_a_product_is_a_tensor_network(
    text: str, edges: dict[str, tuple[str, str]], legs: dict[str, str]
) -> None:
    (diagram,) = tn.draw(tn.layer(text, inputs="x")).diagrams
    assert not diagram.directed
    assert {edge.label: (edge.start, edge.end) for edge in diagram.edges if edge.label} == edges
    titles = {name: node.lines[0] for name, node in diagram.nodes.items()}
    assert {titles[edge.end]: edge.start for edge in diagram.edges if not edge.label} == legs


def test_an_axis_of_several_tensors_joins_them_and_is_open_where_it_stays() -> None:
    cp, batched = (
        tn.draw(tn.layer(text, inputs="x")).diagrams[0]
        for text in ("y[o,p] = x[o,r] * B[p,r] * C[r]", "y[b,o] = x[b,i] * W[b,o,i]")
    )
    assert [edge.start for edge in cp.edges if edge.end == "[r]"] == ["x", "B", "C"]
    assert [(edge.start, edge.end) for edge in batched.edges if "[b]" in (edge.start, edge.end)] == [
        ("x", "[b]"),
        ("W", "[b]"),
        ("[b]", "[b] open"),
    ]
    with pytest.raises(tn.EquationError, match="the graph is no tensor network"):
        tn.draw(attention(), style="network")
    with pytest.raises(tn.EquationError, match=r"style='nets'\nfix: "):
        tn.draw(attention(), style="nets")


@pytest.mark.parametrize(
    ("text", "inputs"), [("y = x * z", "x[()],z[()]"), ("y = x * z + z * w", "x[()],z[()],w[()]")]
)
def test_a_product_of_numbers_is_a_network_without_edges(text: str, inputs: str) -> None:
    picture = tn.draw(tn.layer(text, inputs=inputs))
    assert not any(diagram.directed or diagram.edges for diagram in picture.diagrams)
    assert not collisions(picture.scene)


def test_tensors_that_a_start_of_the_layout_puts_in_one_place_are_drawn_apart() -> None:
    pairs = " * ".join(f"x{n}[r,a{n}] * w{n}[r,a{n}]" for n in range(3))
    picture = tn.draw(tn.layer(f"y[r] = {pairs}", inputs="x0"), style="network")
    assert "nan" not in picture.svg
    assert picture.scene.width > 100
    assert not collisions(picture.scene)


# ---------------------------------------------------------------------------- layout


def collisions(scene: Scene) -> list[str]:
    """The boxes and edges without a place, the boxes that overlap, and those that an edge of others crosses."""
    numbers = [n for n, box in enumerate(scene.boxes) if box.kind != "panel" and box.width]
    boxes = [scene.boxes[number] for number in numbers]
    centres = np.array([(box.x, box.y) for box in boxes])
    halves = np.array([(box.width / 2, box.height / 2) for box in boxes])
    lost = [box.lines for box in boxes if not math.isfinite(box.x + box.y + box.width + box.height)]
    lost += [("an edge",) for curve in scene.curves if not np.isfinite(curve.points).all()]
    if lost:
        return [f"{lines} has no place" for lines in lost]
    overlap = (abs(centres[:, None] - centres) < halves[:, None] + halves).all(-1)
    found = [f"{boxes[n].lines} overlaps {boxes[m].lines}" for n, m in np.argwhere(np.triu(overlap, 1))]
    for curve in scene.curves:
        pieces = (BERNSTEIN @ curve.points[at : at + 4] for at in range(0, len(curve.points) - 1, 3))
        crossed = (abs(np.concatenate([*pieces])[:, None] - centres) < halves).all(-1).any(0)
        others = (n for n in np.flatnonzero(crossed) if numbers[n] not in curve.ends)
        found += (f"an edge crosses {boxes[n].lines}" for n in others)
    return found


PAGES = sorted((ROOT / "docs" / "gallery").glob("plot_*.py"))
PRESETS = [name for name in tn.models.names() if not hasattr(tn.models, name)]
BY_DAY = ("bert_base", "perceiver_imagenet", "transformer_base", "vit_b_16", "xlnet_base")


def apart(picture: object) -> bool:
    """Whether no line of text in a picture lies on another, by the widths of a monospaced font."""
    found = [
        (float(each.get("x", 0)), float(each.get("y", 0)), 7.2 * len(each.text or ""))
        for each in ElementTree.fromstring(str(picture)).iter(f"{SVG}text")
    ]
    return not any(
        abs(x - u) < (width + other) / 2 and abs(y - v) < 12
        for (x, y, width), (u, v, other) in itertools.combinations(found, 2)
    )


def layers_of(page: Path, patch: pytest.MonkeyPatch) -> list[tn.Graph]:
    """The layers of a page of the gallery, which are not checked here."""
    patch.syspath_prepend(page.parent)
    layers = list[tn.Graph]()
    patch.setattr("against.check", lambda layer, *_, **__: layers.append(layer))
    runpy.run_path(str(page))
    assert layers
    return layers


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_label_of_a_layer_of_the_gallery_lies_on_anything(
    page: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for layer in layers_of(page, monkeypatch):
        for style in ("auto", "layers"):
            picture = tn.draw(layer, style=style)
            assert not collisions(picture.scene)
            assert apart(picture)


@pytest.mark.parametrize("name", sampled(PRESETS, BY_DAY))
def test_no_label_of_a_model_lies_on_anything(name: str) -> None:
    picture = tn.draw(tn.models.create(name), unfold=True)
    assert not collisions(picture.scene)
    assert apart(picture)


def test_collisions_are_found() -> None:
    scene = tn.draw(attention()).scene
    labels = [box for box in scene.boxes if box.kind == "label"]
    moved = replace(labels[0], x=labels[1].x + 3)
    assert collisions(replace(scene, boxes=tuple(moved if box is labels[0] else box for box in scene.boxes)))
    for lost in (math.nan, math.inf):
        told = " ".join(collisions(replace(scene, boxes=(replace(scene.boxes[0], x=lost), *scene.boxes[1:]))))
        assert f"{scene.boxes[0].lines} has no place" in told
        curve = replace(scene.curves[0], points=((lost, 0.0), *scene.curves[0].points[1:]))
        assert collisions(replace(scene, curves=(curve, *scene.curves[1:]))) == ["('an edge',) has no place"]
    (x, y), box = scene.curves[0].points[0], next(box for box in scene.boxes if box.lines[0] == "V")
    across = replace(scene.curves[0], points=((x, y), (x, y), (box.x, box.y), (box.x, box.y + 90)))
    assert "an edge crosses ('V'" in " ".join(collisions(replace(scene, curves=(across,))))


def test_text_fits_its_box_in_the_font_of_matplotlib() -> None:
    from matplotlib.textpath import TextPath

    for box in tn.draw(tower(2), unfold=True).scene.boxes:
        for line in filter(None, box.lines):
            path = TextPath((0, 0), line, size=12, prop={"family": "DejaVu Sans Mono", "weight": "bold"})
            assert path.get_extents().width <= box.width


@pytest.mark.parametrize("seed", range(5))
def test_boxes_lie_apart_and_below_what_they_read(seed: int) -> None:
    random.seed(seed)
    nodes = np.array([(random.uniform(20, 120), random.uniform(20, 60)) for _ in range(40)])
    links = [(random.randrange(n), n) for n in range(1, 40) for _ in range(2)]
    labels = np.array([(random.uniform(0, 60), 16.0) for _ in links])
    kept = np.array([30.0 * (n == 3) for n in range(40)])
    centres, routes = layered(np.concatenate([nodes, labels]), links, kept)
    boxes = [*zip(centres.tolist(), [*nodes.tolist(), *labels.tolist()], strict=True)]
    for ((x, y), (w, h)), ((u, v), (width, height)) in itertools.combinations(boxes, 2):
        assert abs(x - u) >= (w + width) / 2 - 1e-6 or abs(y - v) >= (h + height) / 2 - 1e-6
    assert all(x - w / 2 + 1e-6 >= 0 for (x, _), (w, _) in boxes)
    for (start, end), centre, route in zip(links, centres[40:], routes, strict=True):
        assert all(above <= below + 1e-6 for above, below in itertools.pairwise(route[:, 1]))
        assert centres[start, 1] < centre[1] < centres[end, 1]
        for node, (x, y), side in ((start, route[0], 1), (end, route[-1], -1)):
            assert y == centres[node, 1] + side * nodes[node, 1] / 2
            assert abs(x - centres[node, 0]) <= nodes[node, 0] / 2


def test_few_edges_cross_where_none_need_to() -> None:
    links = [(n, 10 + (n * 7) % 10) for n in range(10)]
    centres, _ = layered(np.full((30, 2), (20.0, 16.0)), links, np.zeros(20))
    across = sorted((centres[start, 0], centres[end, 0]) for start, end in links)
    assert [end for _, end in across] == sorted(end for _, end in across)
    assert all(abs(start - end) < 1e-6 for start, end in across)


# ---------------------------------------------------------------------------- LaTeX and notebooks


@pytest.mark.parametrize(("text", "expected"), rows("latex.txt"))
def test_equations_as_latex(text: str, expected: str) -> None:
    found = tn.layer(text, inputs="x")._repr_latex_()
    assert found == f"$\\displaystyle \\begin{{aligned}}\n{expected}\n\\end{{aligned}}$"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_matplotlib_reads_the_formulas_of_the_gallery(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.mathtext import MathTextParser

    parser = MathTextParser("path")
    for layer in layers_of(page, monkeypatch):
        for line in layer._repr_latex_().splitlines()[1:-1]:
            row = line.removesuffix(" \\\\").replace("&", "", 1)
            assert parser.parse(f"${row}$")


def test_a_model_as_latex_has_a_row_for_each_line_of_its_blocks() -> None:
    graph = tn.models.create("vit", depth=2)
    rows = graph._repr_latex_().splitlines()
    assert rows[1] == r"&\operatorname{embed}\left(x\right)\colon \\"
    assert r"s_{b h i j} &= \sum_{d} \frac{q_{b h i d} \, k_{b h j d}}{\sqrt{d}} \\" in rows
    assert rows[-2] == r"\mathrm{head.y} &= \operatorname{head}\left(\mathrm{norm.y}\right)"
    assert len(rows) > 2 * len(graph.body)


def test_a_notebook_folds_leaves_blocks_and_steps() -> None:
    graph = tn.models.create("swin_t")
    shown = ElementTree.fromstring(graph._repr_html_())
    folded = [each.text or "" for each in shown.iter("code")]
    assert folded[0] == "sizes and leaves"
    assert set(folded[1:]) == {f"def {name}(…):" for name in graph.names_of_blocks().values()}
    assert shown.findall("pre")[-1].text == "\n".join(graph.body_lines())
    plan = ElementTree.fromstring(tn.plan(graph, b=1, compare=False)._repr_html_())
    assert any((each.text or "").endswith("called 3×") for each in plan.iter("code"))


def test_tables_of_a_notebook_have_the_colours_of_the_page() -> None:
    graph = tn.layer("y[b,o] = x[b,i] * U[r,i] * V[o,r]", inputs="x", i=64, o=64, r=4)
    plan = tn.plan(graph, b=512)
    small = tn.compress(
        tn.layer("y[b,o] = x[b,i] * W[o,i]", inputs="x", i=64, o=64), {"W": np.ones((64, 64))}, parameters=0.1
    )
    sweep = tn.sweep({"factors": graph, "same": graph}, measure=False, b=512)
    steps, costs = ElementTree.fromstring(plan._repr_html_()).findall("table")
    assert [row[1][0].text for row in steps.findall("tr")[1:]] == [
        step.shown(plan.functions) for step in plan.steps
    ]
    assert [row[0].text for row in costs.findall("tr")[1:]] == [
        "this plan",
        *(row.name for row in plan.alternatives),
    ]
    (weight,) = ElementTree.fromstring(small._repr_html_()).findall("tr")[1:]
    assert [cell.text for cell in weight][:4] == ["W", "64×64", "low_rank", "1"]
    assert "factors" in sweep._repr_html_()
    for shown in (plan, small, sweep, graph, tn.flop_table(graph), tn.parameter_table(graph)):
        text = shown._repr_html_()
        assert "<script" not in text
        assert not re.search(r"color: ?(?!transparent)|#[0-9a-f]{3}", text)


# ---------------------------------------------------------------------------- FLOPs by block


def test_flops_are_collected_by_block() -> None:
    graph = tn.models.create("swin_t")
    table = tn.flop_table(graph)
    assert sympy.expand(table.formula - tn.flop_formula(graph)) == 0
    assert sympy.expand(table.flops - tn.flop_count(graph)) == 0
    assert sum(part.times > 1 for part in table.parts) >= 2
    assert all(len(str(part.formula)) < 300 for part in table.parts)
    lines = [
        line for line in str(table).splitlines() if line[0] != " "
    ]  # a long formula stands below its row
    assert [line.split()[0] for line in lines] == [*(part.name or "itself" for part in table.parts), "total"]
    assert lines[-1].split() == ["total", str(table.flops)]
    cells = ElementTree.fromstring(table._repr_html_()).findall("tr")
    assert len(cells) == len(table.parts) + 2
    assert table._repr_latex_().startswith(r"$\displaystyle")


def test_one_equation_is_one_part() -> None:
    table = tn.flop_table(tn.layer("y[b,o] = x[b,i] * W[o,i]", inputs="x", i=4, o=2), b=10)
    assert [(part.name, part.times, str(part.formula)) for part in table.parts] == [("", 1, "2*b*i*o")]
