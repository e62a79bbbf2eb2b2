"""What the documents say: README, docstrings, the page of the language, the site, the gallery."""

from __future__ import annotations

import ast
import doctest
import importlib
import json
import pkgutil
import re
import runpy
import shlex
import sys
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import tensornet
import tensornet as tn
from tensornet import models, study
from tensornet.cli import app
from tensornet.errors import PAGE
from tensornet.language import reference
from tensornet.ops.table import FUNCTIONS
from tensornet.runtime.compiling import result_of

from .conftest import ROOT, sampled
from .pages import run_blocks
from .test_structure import FILES

# ---------------------------------------------------------------------------- The README and the docstrings say what happens


README = (ROOT / "README.md").read_text(encoding="utf-8")
GUIDES = {
    each.name: each.read_text(encoding="utf-8") for each in sorted((ROOT / "docs" / "guides").iterdir())
}
APART = ("distributed.md", "sharding.md")  # tests of these names run their scripts on several processes
PAGES = {"README.md": README} | {
    name: text for name, text in GUIDES.items() if "```python" in text and name not in APART
}
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(tensornet.__path__, "tensornet.")
    if not module.name.endswith(("__main__", "cupy"))
)


@pytest.mark.usefixtures("registering")
@pytest.mark.parametrize("page", sampled(PAGES, PAGES.keys() - {"compression.md"}))
def test_python_blocks_print_what_a_page_prints(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where a picture is written
    ran = run_blocks(PAGES[page], page)[1]
    assert ran == PAGES[page].count("```python") >= (5 if page == "README.md" else 1)


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) < 160


def test_training_is_the_same_on_every_backend() -> None:
    names, _ = run_blocks((ROOT / "docs" / "training.md").read_text(), "training.md")
    losses = {**names["losses"], "jax": names["train"]("jax")[0]}
    assert set(names["BACKENDS"]) >= {"numpy", "torch"}
    for found in losses.values():
        np.testing.assert_allclose(found, losses["numpy"], rtol=0, atol=1e-6)
        assert len(found) == 100
        assert found[-1] < 0.1 * found[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "names"),
    [
        (0, ("dense", "tucker-0.1", "tucker-0.4", "tcl4-cp")),
        (1, ("dense", "tcl4-cp", "small-0.5", "small-0.2", "uniform")),
    ],
)
def test_the_studies_of_the_page_run(tmp_path: Path, number: int, names: tuple[str, ...]) -> None:
    """As their files say, but for epochs."""
    page = (ROOT / "docs" / "studies.md").read_text(encoding="utf-8")
    text = re.findall(r"```toml\n(.*?)```", page, re.S)[number]
    file = tmp_path / "mine.toml"
    file.write_text(text, encoding="utf-8")
    command = ["study", str(file), "--out", str(tmp_path / "out"), "--epochs", "1", "--no-measure", "--json"]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert [(each["name"], each["seeds"]) for each in document["summary"]] == [
        (name, [0, 1, 2]) for name in names
    ]


def test_the_error_in_the_guide_is_the_error() -> None:
    command, shown = re.findall(r"\$ tensornet (plan \"h.*?)\n(error: .*?)```", GUIDES["layers.md"], re.S)[0]
    result = CliRunner().invoke(app, shlex.split(command))
    assert f"error: {result.exception}\n" == shown


@pytest.mark.parametrize("command", re.findall(r"\$ tensornet ((?:plan \"y|count|functions).*)", README))
def test_commands_of_the_readme_run(command: str) -> None:
    result = CliRunner().invoke(app, shlex.split(command), catch_exceptions=False)
    assert result.exit_code == 0


def test_the_targets_of_the_readme_are_in_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"[$`] ?make (\w+)", README)
    assert {"study", "test", "bench"} <= set(targets)
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.M)


def test_examples_in_docstrings() -> None:
    flags = doctest.NORMALIZE_WHITESPACE
    failed = {
        name: doctest.testmod(importlib.import_module(name), optionflags=flags).failed for name in MODULES
    }
    assert [name for name, count in failed.items() if count] == []


def test_every_public_name_is_documented_with_an_example() -> None:
    for name in tensornet.__all__:
        thing = getattr(tensornet, name)
        assert thing.__doc__, name
        if callable(thing) and not isinstance(thing, type):
            assert ">>>" in thing.__doc__, name


# ---------------------------------------------------------------------------- The reference page


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


# ---------------------------------------------------------------------------- The site


DOCS = ROOT / "docs"


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(DOCS)


def test_every_public_name_stands_once_in_the_reference() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in (DOCS / "reference").glob("*.md"))
    found = Counter(re.findall(r"^\.\. (?:autofunction|autoclass|autodata|py:data):: ([\w.]+)$", text, re.M))
    named = {module.__name__: module.__all__ for module in (tn, models, study)}
    expected = {f"{module}.{name}" for module, names in named.items() for name in names}
    assert found == Counter(expected - {"tensornet.models"})


def test_tables_of_speeds_are_those_of_the_files(site: None) -> None:
    import made

    rows = json.loads((made.RESULTS / "attention-usual-cpu-float32-1.json").read_text())["rows"]
    chosen = next(row for row in rows if row["measure"] == "forward" and "sdpa" in row["seconds"])
    ratio = chosen["seconds"]["sdpa"]["median"] / chosen["seconds"]["tensornet"]["median"]
    table = (
        made.measured("attention")
        .split("2 × Intel(R) Xeon(R) Processor, 1 thread, float32</summary>")[1]
        .split("</details>")[0]
    )
    heads, row = (
        next(line for line in table.splitlines() if line.startswith(f"| {first} |")).split(" | ")
        for first in ("case", chosen["case"])
    )
    assert row[heads.index("sdpa, forward")] == f"{ratio:.2f}"
    for name in {path.name.split("-")[0] for path in made.RESULTS.glob("*.json")}:
        assert f"```{{speed}} {name}\n" in (DOCS / "results" / "speed.md").read_text(encoding="utf-8")


def test_every_command_is_described(site: None) -> None:
    import made

    text = made.commands()
    for command in app.registered_commands:
        assert f"## `tensornet {command.callback.__name__}`" in text


def test_the_front_page_counts_the_layers_of_the_gallery() -> None:
    layers = sum(
        path.read_text(encoding="utf-8").count("# %%\n") for path in (DOCS / "gallery").glob("plot_*.py")
    )
    for page in (DOCS / "index.md", ROOT / "README.md"):
        assert re.search(rf"\b{layers} (layers )?of", page.read_text(encoding="utf-8")), page


def test_fences_of_code_close() -> None:
    for page in DOCS.rglob("*.md"):
        opened = False
        for line in page.read_text(encoding="utf-8").splitlines():
            if line.startswith("```"):
                assert not opened or line == "```", f"{page}: {line}"
                opened = not opened
        assert not opened, page


def test_links_that_lead_nowhere_are_found(site: None, tmp_path: Path) -> None:
    from links import broken

    (tmp_path / "index.html").write_text(
        '<a href="other.html#here">a</a> <img src="no.png"> <a href="#no">b</a>'
    )
    (tmp_path / "other.html").write_text(
        '<h1 id="here"></h1> <a href="index.html">c</a> <a href="https://x.y">d</a>'
    )
    (tmp_path / "alone.html").write_text("")
    assert broken(tmp_path) == ["index.html: #no", "index.html: no.png", "no page links to alone.html"]


@pytest.mark.usefixtures("site")
def test_downloads_of_the_gallery_run_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from made import add_check

    monkeypatch.setitem(sys.modules, "against", None)  # importing it fails
    source = (DOCS / "gallery" / "plot_paths.py").read_text(encoding="utf-8")
    cells = [{"cell_type": "code", "source": source.splitlines(keepends=True)}]
    files = {"layer.py": source, "layer.ipynb": json.dumps({"cells": cells}), "lesson.py": "import torch\n"}
    with zipfile.ZipFile(tmp_path / "layer.zip", "w") as archive:
        for name, text in files.items():
            (tmp_path / name).write_text(text, encoding="utf-8")
            archive.writestr(name, text)
    for name in (*files, "layer.zip") * 2:  # done twice, as when a site is built again
        add_check(tmp_path / name)
    runpy.run_path(str(tmp_path / "layer.py"))
    script = (tmp_path / "layer.py").read_text(encoding="utf-8")
    (cell,) = json.loads((tmp_path / "layer.ipynb").read_text(encoding="utf-8"))["cells"]
    assert "".join(cell["source"]) == script
    assert (tmp_path / "lesson.py").read_text(encoding="utf-8") == files["lesson.py"]
    with zipfile.ZipFile(tmp_path / "layer.zip") as archive:
        for name in files:
            assert archive.read(name) == (tmp_path / name).read_bytes()


# ---------------------------------------------------------------------------- The gallery of layers, each held against plain torch, and the tutorials


GALLERY = ROOT / "docs" / "gallery"
LAYERS = sorted(GALLERY.glob("plot_*.py"))
assert LAYERS


@pytest.mark.parametrize("page", LAYERS, ids=lambda page: page.stem)
def test_layers_compute_what_plain_torch_does(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(GALLERY)
    runpy.run_path(str(page))
    text = page.read_text(encoding="utf-8")
    assert text.count("# %%\n") == text.count("\ncheck(")


TUTORIALS = sorted((GALLERY.parent / "tutorials").glob("plot_*.py"))
assert TUTORIALS


@pytest.mark.parametrize("page", sampled(TUTORIALS, TUTORIALS[2:]), ids=lambda page: page.stem)
def test_tutorials_run(
    page: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MPLBACKEND", "agg")
    runpy.run_path(str(page))
    assert capsys.readouterr().out


def test_the_check_refuses_another_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(GALLERY)
    names = runpy.run_path(str(GALLERY / "against.py"))
    layer = names["tn"].layer("y[b,o] = x[b,i] * W[o,i]", inputs="x", i=3, o=3)
    with pytest.raises(AssertionError, match=r"^numpy: .* of the largest value apart$"):
        names["check"](layer, lambda x, W: x @ W, x=(2, 3))
