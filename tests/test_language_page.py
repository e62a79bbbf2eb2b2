"""The reference page: it is what the records say, its examples run, and what errors point at is there."""

from __future__ import annotations

import ast
import doctest
import json
import re
from typing import Any

import pytest
from typer.testing import CliRunner

import tensornet as tn
from tensornet.cli import app
from tensornet.errors import PAGE
from tensornet.language import reference
from tensornet.ops.table import FUNCTIONS
from tensornet.runtime.compiling import result_of

from .test_structure import FILES, ROOT

TEXT = (ROOT / PAGE).read_text(encoding="utf-8")
OWN = [row for row in FUNCTIONS.values() if not row.is_kernel and not row.implementations]


def test_the_page_is_what_the_records_say() -> None:
    """`make page` writes it anew."""
    assert reference.page(result_of) == TEXT


def test_the_examples_on_the_page_run() -> None:
    (helper,) = re.findall(r"```python\n(import.*?)```", TEXT, re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(helper, PAGE, "exec"), names)
    blocks = "\n".join(re.findall(r"```python\n(>>> .*?)```", TEXT, re.DOTALL))
    examples = doctest.DocTestParser().get_doctest(blocks, names, PAGE, PAGE, 0)
    assert len(examples.examples) > len(OWN)
    runner = doctest.DocTestRunner(verbose=False)
    assert runner.run(examples).failed == 0


def test_every_function_is_told_in_full() -> None:
    sections = dict(re.findall(r"\n### (\w+)\n(.*?)(?=\n##|\Z)", TEXT, re.DOTALL))
    for row in OWN:
        assert row.form in sections[row.name]
        assert row.formula in sections[row.name]
        assert row.name in row.shown.equation or row.infix in row.shown.equation
        for each in (*row.derivative, *(name for name, _ in row.options)):
            assert each in sections[row.name]


def headings() -> list[str]:
    """The headings of the page, as links find them."""
    found = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", TEXT, flags=re.DOTALL), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in found]


def test_every_anchor_exists_once() -> None:
    known = headings()
    assert len(set(known)) == len(known)
    assert set(re.findall(r"\(#([^)]*)\)", TEXT)) <= set(known)
    assert reference.anchors() <= set(known)
    named = set()
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "told_in":
                named.update(each.value for each in node.args if isinstance(each, ast.Constant))
    assert len(named) > 8
    assert named <= set(known)


MISTAKES = [
    ("y[b] = x[b,i", "lines"),
    ("y[b] == x[b]", "lines"),
    ("y[b] = x[b] @ x[b]", "functions"),
    ("sum[b] = x[b]", "names"),
    ("y[b] = z\nz[b] = x[b]", "names"),
    ("h[b] = x[b]\ny[b] = x[b]", "names"),
    ("y[b] = x[b,(i,i)]", "axes"),
    ("y[b] = x[...,i] * w[...,i,...]", "axes"),
    ("y[b,z] = x[b,i]", "sums"),
    ("y[b] = tanh(x[b,i])", "sums"),
    ("y[b] = sum[j](x[b,i])", "sums"),
    ("h[b,-1] = 0\nh[b,-1] = 1\nh[b,t] = x[b,t] + h[b,t-1]", "recurrences"),
    ("x[b,i]: inputs\ny[b] = x[b,i]", "declarations"),
    ("W[i]: parameter(stdd=1)\ny[b] = x[b,i] * W[i]", "declarations"),
    ("i: 2 +* 3\ny[b] = x[b,i]", "lines"),
    ("i: x(3)\ny[b] = x[b,i]", "sizes"),
    ("x[b,i:3]: input\nW[i:4]: parameter\ny[b] = x[b,i] * W[i]", "sizes"),
    ("def f(x=1):\n    y[b] = x[b]\ny = f(x)", "blocks"),
    ("y[b] = softmax[j](x[b,i])", "softmax"),
    ("y[b] = softmax(x[b,i])", "softmax"),
    ("y[b] = where(x[b,i])", "where"),
    ("y[b] = pad(x[b,i], i=3)", "pad"),
    ("y[b,i] = normalize[i](x[b,i], esp=1)", "normalize"),
    ("y[b] = sofmax[i](x[b,i])", "functions"),
]


@pytest.mark.parametrize(("text", "section"), MISTAKES)
def test_an_error_points_at_the_section_that_tells_of_it(text: str, section: str) -> None:
    with pytest.raises(tn.TensornetError, match=rf"see: {re.escape(PAGE)}#{section}$") as caught:
        tn.layer(text, inputs="x")
    assert caught.value.see == section
    assert section in headings()


def test_help_holds_the_reference_in_short() -> None:
    text = tn.language.__doc__ or ""
    for row in OWN:
        assert row.form in text
    assert PAGE in text


def test_the_command_line_tells_of_one_function() -> None:
    told = CliRunner().invoke(app, ["functions", "softmax"]).stdout
    for word in ("softmax[j](a)", "eᵃ / Σ eᵃ", "y * (g - sum[j](g * y))", "[0.0391, 0.1753, 0.7856]"):
        assert word in told
    document = json.loads(CliRunner().invoke(app, ["functions", "pad", "--json"]).stdout)
    assert document["options"] == {"value": 0}
    assert document["result"] == "[0.0, 1.0, 2.0, 0.0, 0.0]"
    assert "less" in CliRunner().invoke(app, ["functions", "<"]).stdout
    assert CliRunner().invoke(app, ["functions", "--page"]).stdout == TEXT
    with pytest.raises(tn.EquationError, match=r"'sofmax' is not a function\nfix: did you mean 'softmax'\?"):
        CliRunner().invoke(app, ["functions", "sofmax"], catch_exceptions=False)


# ---------------------------------------------------------------------------- hints


@pytest.mark.parametrize(
    ("mistake", "where"), [("mean[j]({})", "mean"), ("sum[j]({})", "the sum"), ("softmax[j]({})", "softmax")]
)
def test_the_same_mistake_gets_the_same_words(mistake: str, where: str) -> None:
    """Where it is read, and where a bare name tells its axes only later."""
    said = []
    for text in (f"y[b] = {mistake.format('x[b,i]')}", f"h[b,i] = x[b,i]\ny[b] = {mistake.format('h')}"):
        with pytest.raises(tn.EquationError, match=f"axis 'j' does not occur inside {where}\n") as caught:
            tn.layer(text, inputs="x")
        said.append((caught.value.message, caught.value.fix))
    assert said[0] == said[1]
