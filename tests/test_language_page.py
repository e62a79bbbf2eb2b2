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

LANGUAGE = "docs/language.md"
TEXT = (ROOT / LANGUAGE).read_text(encoding="utf-8")
OWN = [row for row in FUNCTIONS.values() if not row.is_kernel and not row.implementations]


def test_the_page_is_what_the_records_say() -> None:
    """`make page` writes it anew."""
    assert reference.page(result_of) == TEXT


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    """What the page defines: `run`."""
    (helper,) = re.findall(r"```python\n(import.*?)```", TEXT, re.DOTALL)
    found: dict[str, Any] = {}
    exec(compile(helper, LANGUAGE, "exec"), found)
    return found


def test_the_examples_on_the_page_run(names: dict[str, Any]) -> None:
    blocks = "\n".join(re.findall(r"```python\n(>>> .*?)```", TEXT, re.DOTALL))
    examples = doctest.DocTestParser().get_doctest(blocks, names, LANGUAGE, LANGUAGE, 0)
    assert len(examples.examples) > len(OWN)
    runner = doctest.DocTestRunner(verbose=False)
    assert runner.run(examples).failed == 0


def test_the_forms_in_brackets_give_what_the_table_says(names: dict[str, Any]) -> None:
    rows = re.findall(r"^\| `.*?` \| .*? \| (.*) of `(.*)` \| `(.*)` \|$", TEXT, re.MULTILINE)
    assert len(rows) > 14
    for lines, given, result in rows:
        text = "\n".join(re.findall("`(.*?)`", lines))
        values = ast.literal_eval(re.sub(r"(\w+) = ", r'"\1": ', f"{{{given}}}"))
        assert names["run"](text, **values) == ast.literal_eval(result)


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
    assert {row.name for row in reference.functions()} <= set(known)
    assert {*reference.sections()} <= set(known)
    named = set()
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "told_in":
                named.update(each.value for each in node.args if isinstance(each, ast.Constant))
    assert len(named) > 8
    told = (ROOT / "tests" / "data" / "errors.txt").read_text(encoding="utf-8")
    named.update(re.findall(rf"^\| see: {re.escape(PAGE)} (.*)$", told, re.MULTILINE))
    assert named <= set(known)


def test_the_command_line_tells_of_one_function() -> None:
    told = CliRunner().invoke(app, ["functions", "softmax"]).stdout
    for word in ("softmax[j](a)", "eᵃ / Σ eᵃ", "y * (g - sum[j](g * y))", "[0.0391, 0.1753, 0.7856]"):
        assert word in told
    document = json.loads(CliRunner().invoke(app, ["functions", "pad", "--json"]).stdout)
    assert document["options"] == {"value": 0, "inside": 0}
    assert document["result"] == "[0.0, 1.0, 2.0, 0.0, 0.0]"
    assert "less" in CliRunner().invoke(app, ["functions", "<"]).stdout
    assert CliRunner().invoke(app, ["functions", "--page"]).stdout == TEXT
    for anchor, text in reference.sections().items():  # where errors point to
        told = CliRunner().invoke(app, [*PAGE.split()[1:], anchor]).stdout
        assert told == f"{text}\n"
        assert f"\n\n{told}\n" in TEXT
    with pytest.raises(tn.EquationError, match=r"'sofmax' is not a function\nfix: did you mean 'softmax'\?"):
        CliRunner().invoke(app, ["functions", "sofmax"], catch_exceptions=False)
