"""The site: every public name has its place in the reference, and what is made of data says what the data say."""

from __future__ import annotations

import json
import re
import runpy
import sys
import zipfile
from collections import Counter
from pathlib import Path

import pytest

import tensornet as tn
from tensornet import models, study
from tensornet.cli import app

from .conftest import ROOT

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
        .split("2 × AMD EPYC, 1 thread, float32</summary>")[1]
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
