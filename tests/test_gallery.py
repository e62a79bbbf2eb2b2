"""The gallery of layers, each held against plain torch, and the tutorials: each page runs."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from .conftest import sampled

GALLERY = Path(__file__).parent.parent / "docs" / "gallery"
PAGES = sorted(GALLERY.glob("plot_*.py"))
assert PAGES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
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
