"""The README and the docstrings say what happens: their code runs, and prints what they print."""

from __future__ import annotations

import doctest
import importlib
import json
import pkgutil
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import tensornet
from tensornet.cli import app

from .conftest import sampled
from .pages import run_blocks

ROOT = Path(__file__).parent.parent
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
