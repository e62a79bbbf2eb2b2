"""Graphs as pictures, as LaTeX and in notebooks; FLOPs by block."""

from __future__ import annotations

import itertools
import random
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import sympy

import tensornet as tn
from tensornet.drawing import layered

ATTENTION = """
q[b,i,d] = x[b,i,c] * Q[d,c]
k[b,j,d] = x[b,j,c] * K[d,c]
a[b,i,j] = softmax[j](q * k / sqrt(d))
y[b,i,e] = a * x[b,j,c] * V[e,c]
"""
SVG = "{http://www.w3.org/2000/svg}"


def attention() -> tn.Graph:
    return tn.layer(ATTENTION, inputs="x", c=8, d=4, e=8)


def tower(depth: int) -> tn.Graph:
    def stacked(x: tn.Tensor) -> tn.Tensor:
        for n in range(depth):
            x = attention()(x, scope=f"blocks.{n}")
        return x

    return tn.model(stacked, inputs="x[b,i,c]")


# ---------------------------------------------------------------------------- pictures


def texts(picture: object) -> list[str]:
    return [each.text or "" for each in ElementTree.fromstring(str(picture)).iter(f"{SVG}text")]


def test_a_picture_shows_tensors_and_the_axes_they_are_read_with(tmp_path: Path) -> None:
    path = tmp_path / "attention.svg"
    picture = tn.draw(attention(), path)
    assert path.read_text(encoding="utf-8") == picture.svg == picture._repr_svg_()
    shown = texts(picture)
    for word in ("x", "Q", "K", "V", "q[b,i,d]", "a[b,i,j]", "y[b,i,e]", "b,i,c", "b,j,c", "d,c", "× Σ c"):
        assert word in shown
    assert {"4×8", "8×8", "b×i×8", "b×i×4"} <= set(shown)
    assert not any("×i" in each for each in texts(tn.draw(tn.layer("y[b,i] = exp(x[b,i])", inputs="x"))))
    assert any(re.fullmatch(r"softmax\[j\].*Σ d", each) for each in shown)
    edges = ElementTree.fromstring(picture.svg).iter(f"{SVG}path")
    assert sum(1 for _ in edges) == 9
    with pytest.raises(tn.EquationError, match=r"is no name of an SVG file\nfix: let it end with .svg"):
        tn.draw(attention(), tmp_path / "attention.png")


def test_blocks_are_folded() -> None:
    shown = texts(tn.draw(tower(12)))
    assert [each for each in shown if each.startswith("blocks.") and "." not in each[7:]] == [
        f"blocks.{n}" for n in range(12)
    ]
    assert "W" not in shown


@pytest.mark.parametrize("seed", range(5))
def test_boxes_lie_apart_and_below_what_they_read(seed: int) -> None:
    random.seed(seed)
    nodes = [f"n{n}" for n in range(40)]
    edges = [(nodes[random.randrange(n)], nodes[n]) for n in range(1, 40) for _ in range(2)]
    widths = {node: random.uniform(20, 120) for node in nodes}
    found = layered(nodes, edges, widths)
    for start, end in edges:
        assert found.centres[start][1] < found.centres[end][1]
        route = found.routes[start, end]
        assert (route[0], route[-1]) == (found.centres[start], found.centres[end])
        assert all(b[1] - a[1] == 1 for a, b in itertools.pairwise(route))
    for one, other in itertools.combinations(nodes, 2):
        (x, y), (u, v) = found.centres[one], found.centres[other]
        assert y != v or abs(x - u) >= (widths[one] + widths[other]) / 2
    assert all(0 <= x <= found.width for route in found.routes.values() for x, _ in route)


# ---------------------------------------------------------------------------- LaTeX and notebooks


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("y[b] = x[b,i] * w[i]", r"y_{b} &= \sum_{i} x_{b i} \, w_{i}"),
        ("y[b,i] = x[b,i] - 2 * (w[i] + 1)", r"y_{b i} &= x_{b i} - 2 \, \left(w_{i} + 1\right)"),
        ("y[b,i] = x[b,i] / sqrt(i)", r"y_{b i} &= \frac{x_{b i}}{\sqrt{i}}"),
        ("y[b,i] = -(x[b,i] + 1) / w[i] / 2 * u[i]", r"y_{b i} &= -\frac{\left(x_{b i} + 1\right) \, u_{i}}{w_{i} \, 2}"),
        ("y[b,i] = -(x[b,i] + 1) + 1 / w[i]", r"y_{b i} &= -\left(x_{b i} + 1\right) + \frac{1}{w_{i}}"),
        ("y[b,i] = (x[b,i] + w[i]) ** 2", r"y_{b i} &= \left(x_{b i} + w_{i}\right)^{2}"),
        ("y[b,i] = softmax[i](x[b,i])", r"y_{b i} &= \operatorname{softmax}_{i}\left(x_{b i}\right)"),
        ("y[(h,d)] = x[h,d] * (index(h) >= index(d))",
         r"y_{(h,d)} &= x_{h d} \, \left(\operatorname{index}\left(h\right) \geq \operatorname{index}\left(d\right)\right)"),
        ("out[b] = sum[i](x[b,i])", r"\mathrm{out}_{b} &= \sum_{i} x_{b i}"),
    ],
)  # fmt: skip
def test_equations_as_latex(text: str, expected: str) -> None:
    found = tn.layer(text, inputs="x")._repr_latex_()
    assert found == f"$\\displaystyle \\begin{{aligned}}\n{expected}\n\\end{{aligned}}$"


def test_a_model_as_latex_has_a_row_for_each_line_of_its_blocks() -> None:
    graph = tn.models.create("vit", depth=2)
    rows = graph._repr_latex_().splitlines()
    assert rows[1] == r"&\operatorname{embed}\left(x\right)\colon \\"
    assert r"s_{b h i j} &= \sum_{d} \frac{q_{b h i d} \, k_{b h j d}}{\sqrt{d}} \\" in rows
    assert rows[-2] == r"\mathrm{head.y} &= \operatorname{head}\left(\mathrm{norm.y}\right)"
    assert len(rows) > 2 * len(graph.body)


def test_every_model_can_be_shown() -> None:
    for name in ("swin_t", "vit_b_16", "perceiver_imagenet"):
        if name in tn.models.names():
            graph = tn.models.create(name)
            latex = graph._repr_latex_()
            assert latex.count("{") == latex.count("}")
            assert latex.count(r"\left(") == latex.count(r"\right)")
            ElementTree.fromstring(tn.draw(graph).svg)
            ElementTree.fromstring(graph._repr_html_())


def test_a_notebook_folds_leaves_blocks_and_steps() -> None:
    graph = tn.models.create("swin_t")
    shown = ElementTree.fromstring(graph._repr_html_())
    folded = [each.text or "" for each in shown.iter("code")]
    assert folded[0] == "sizes and leaves"
    assert set(folded[1:]) == {f"def {name}(…):" for name in graph.names_of_blocks().values()}
    assert shown.findall("pre")[-1].text == "\n".join(graph.lines())
    plan = ElementTree.fromstring(tn.plan(graph, b=1, compare=False)._repr_html_())
    assert any((each.text or "").endswith("called 3×") for each in plan.iter("code"))


# ---------------------------------------------------------------------------- FLOPs by block


def test_flops_are_collected_by_block() -> None:
    graph = tn.models.create("swin_t")
    table = tn.flop_table(graph)
    assert sympy.expand(table.formula - tn.flop_formula(graph)) == 0
    assert sympy.expand(table.flops - tn.flop_count(graph)) == 0
    assert sum(part.times > 1 for part in table.parts) >= 2
    assert all(len(str(part.formula)) < 300 for part in table.parts)
    lines = str(table).splitlines()
    assert len(lines) == len(table.parts) + 1
    assert lines[-1].split() == ["total", str(table.flops)]
    cells = ElementTree.fromstring(table._repr_html_()).findall("tr")
    assert len(cells) == len(table.parts) + 2
    assert table._repr_latex_().startswith(r"$\displaystyle")


def test_one_equation_is_one_part() -> None:
    table = tn.flop_table(tn.layer("y[b,o] = x[b,i] * W[o,i]", inputs="x", i=4, o=2), b=10)
    assert [(part.name, part.times, str(part.formula)) for part in table.parts] == [("", 1, "2*b*i*o")]
