"""The study: what it writes, what it keeps, and that the same seed gives the same numbers."""

from __future__ import annotations

import csv
import io
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

import tensornet as tn
from tensornet.errors import BackendError, TensornetError
from tensornet.study import STUDY, RunResult, load_trained, results_folder, run_study
from tensornet.study import jobs as study_jobs
from tensornet.study import pictures as study_pictures
from tensornet.study import report as study_report
from tensornet.study import run as study_run
from tensornet.study.arrays import NAMES
from tensornet.study.digits import DIGITS, build_graph, split_digits
from tensornet.study.libraries import library
from tensornet.study.pictures import FORMATS, PICTURES
from tensornet.study.report import table
from tensornet.study.results import Trained, pareto_front, runs_of
from tensornet.study.training import TrainingRun

from . import studies
from .conftest import needs
from .studies import Finished, kept

needs("sklearn", "matplotlib")

ROWS = ("dense-6", "tcl4-cp")
DRAWN = list(PICTURES)


def study(folder: Path, **changes: Any) -> tuple[list[RunResult], str]:
    """Two rows at two epochs, and what was printed."""
    return studies.study(folder, **{"epochs": 2, "rows": ROWS, **changes})


pytestmark = pytest.mark.usefixtures("without_pictures")
"""But for the study that the module finishes first."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("study")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study_report, "draw", study_pictures.draw)
        results, text = study(folder, measure=True)
    return folder, results, text


@pytest.fixture
def copy(finished: Finished, tmp_path: Path) -> Path:
    """A folder with the finished runs, free to be damaged."""
    (tmp_path / "runs").mkdir()
    for path in (finished[0] / "runs").iterdir():
        (tmp_path / "runs" / path.name).write_bytes(path.read_bytes())
    return tmp_path


def stamps(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in (folder / "runs").glob("*.safetensors")}


# ---- the rows


def test_the_counts_are_these() -> None:
    assert {name: tn.parameter_count(build_graph(row)) for name, row in STUDY.items()} == {
        "dense": 2 * (64 * 64 + 64) + 64 * 10 + 10,
        "dense-12": (64 * 12 + 12) + (12 * 12 + 12) + 12 * 10 + 10,
        "dense-6": (64 * 6 + 6) + (6 * 6 + 6) + 6 * 10 + 10,
        "blocktt-4": 2 * (2 * 8 * 8 * 4 + 64) + 64 * 10 + 10,
        "tcl12-tucker": 2 * 8 * 12 + 2 * 12 * 12 + 2 * 144 + 8 * 8 * 10 + 2 * 12 * 8 + 10 * 10 + 10,
        "tcl8-tucker": 4 * 64 + 2 * 64 + 6 * 6 * 8 + 2 * 8 * 6 + 10 * 8 + 10,
        "tcl8-cp": 4 * 64 + 2 * 64 + 16 * (8 + 8 + 10) + 10,
        "tcl8-tt": 4 * 64 + 2 * 64 + 8 * 6 + 6 * 8 * 8 + 8 * 10 + 10,
        "tcl6-tucker": 2 * 8 * 6 + 2 * 36 + 2 * 36 + 4 * 4 * 8 + 2 * 6 * 4 + 10 * 8 + 10,
        "tcl6-cp": 2 * 8 * 6 + 2 * 36 + 2 * 36 + 10 * (6 + 6 + 10) + 10,
        "tcl4-cp": 2 * 8 * 4 + 2 * 16 + 2 * 16 + 8 * (4 + 4 + 10) + 10,
    }


@pytest.mark.parametrize("shape", [(8, 8), (13,), (7, 5), (3, 4, 5)])
@pytest.mark.parametrize("name", STUDY)
def test_the_rows_take_examples_of_any_shape(name: str, shape: tuple[int, ...]) -> None:
    graph = build_graph(STUDY[name], shape, 3)
    module = tn.module(graph, seed=0)
    assert module(torch.randn(4, *shape)).shape == (4, 3)
    counted = sum(parameter.numel() for parameter in module.parameters())
    assert tn.parameter_count(graph) == tn.parameter_formula(graph).subs(graph.bound) == counted


def wines() -> tuple[np.ndarray, ...]:
    draw = np.random.default_rng(0)
    labels = draw.integers(1, 4, 90)
    x = draw.normal(size=(90, 5)) * 100.0 + 300.0 * labels[:, None]
    return x[:60], labels[:60], x[60:], labels[60:]


def test_a_study_of_arrays(tmp_path: Path) -> None:
    """Of a file and of a function the same numbers; the report tells of them, and of nothing that was tried."""
    np.savez(tmp_path / "wine.npz", **dict(zip(NAMES, wines(), strict=True)))
    (from_file,), text = study(tmp_path / "a", data=tmp_path / "wine.npz", rows=["dense-6"])
    (from_function,), _ = study(tmp_path / "b", data=wines, rows=["dense-6"])
    assert from_file == from_function
    assert from_file.test_top1 > 60.0
    assert "wine.npz: parameters and accuracy" in text
    report = (tmp_path / "a" / "report.md").read_text(encoding="utf-8")
    assert report.startswith(
        "# wine.npz: parameters and accuracy\n\nClassifiers of wine.npz: 60 examples of 5 num"
    )
    assert "were chosen" not in report
    assert "| dense, hidden layers of 6 and 6 |" in report
    assert f"--data {tmp_path / 'wine.npz'}" in report
    report = (tmp_path / "b" / "report.md").read_text(encoding="utf-8")
    assert "The function `wines` is given as `data`, in Python." in report
    assert "--data" not in report
    assert results_folder("digits", "my/wine.npz") == Path("study-digits-wine")
    assert results_folder("digits", wines) == Path("study-digits-wines")


def test_what_was_tried_on_the_digits_is_said(finished: Finished) -> None:
    report = (finished[0] / "report.md").read_text(encoding="utf-8")
    assert report.startswith("# Handwritten digits: parameters and accuracy\n")
    assert (
        "recipe batch, learning rate, weight decay and warmup were chosen as those of the better of two"
        in report
    )


# ---- what is written


def test_results_are_whole(finished: Finished) -> None:
    _, results, _ = finished
    assert [each.name for each in results] == list(ROWS)
    for each in results:
        assert each.parameters == each.counted
        assert each.flops > 0
        assert each.seed == 0
        assert len(each.history) == 2
        assert each.history[1].train_loss < each.history[0].train_loss
        assert all(0 <= epoch.test_top1 <= epoch.test_top5 <= 100 for epoch in each.history)
        assert (each.test_top1, each.test_top5) == (each.history[-1].test_top1, each.history[-1].test_top5)


def test_json_and_csv_say_the_same(finished: Finished) -> None:
    folder, results, _ = finished
    document = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    environment = document["environment"]
    assert (environment["task"], environment["seed"], environment["recipe"]["epochs"]) == ("digits", 0, 2)
    assert environment["versions"]["tensornet-einsum"] == tn.__version__
    told = environment["versions"]["torch"]  # the build behind "+" is not in the metadata of each package
    assert told.partition("+")[0] == torch.__version__.partition("+")[0]
    with (folder / "results.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for each, record, row in zip(results, document["results"], rows, strict=True):
        assert record["name"] == row["name"] == each.name
        assert record["parameters"] == int(row["parameters"]) == each.parameters
        assert record["test_top1"] == float(row["test_top1"]) == each.test_top1
        assert [epoch["test_top5"] for epoch in record["history"]] == [e.test_top5 for e in each.history]


def test_the_report_links_what_is_there(finished: Finished) -> None:
    folder, results, _ = finished
    text = (folder / "report.md").read_text(encoding="utf-8")
    for each in results:
        assert f"{each.about} | AdamW, 0.01, 0.1 | {each.parameters:,} |" in text
        assert f"`{each.formula}`" in text
    for name in DRAWN:
        assert f"]({name}.png)" in text
    assert (
        "$ tensornet study digits --seed 0 --threads 1 --device cpu --precision float32 --row dense-6 --row tcl4-cp --set epochs=2\n"
        in text
    )
    assert {path.name for path in folder.iterdir()} == {
        "runs",
        "results.json",
        "results.csv",
        "report.md",
        "report.html",
        *(path.name for path in folder.glob("measured-*.json")),
        *(f"{name}.{kind}" for name in DRAWN for kind in FORMATS),
    }
    assert set((folder / "runs").iterdir()) == {
        kept(folder, f"{each.name}.*.safetensors") for each in results
    }


@pytest.mark.parametrize("backend", ["torch", "numpy"])
@pytest.mark.parametrize("number", [0, 1])
def test_raw_pixels_give_the_accuracy_of_the_report(finished: Finished, backend: str, number: int) -> None:
    """As scikit-learn has them, 0 to 16: nothing has to be known of how the run was trained."""
    folder, results, _ = finished
    graph, parameters = load_trained(kept(folder, f"{ROWS[number]}.*.safetensors"))
    train, labels, test, test_labels = split_digits(0).values()
    run = tn.compile(graph, backend=backend)
    for pixels, known, told in (
        (train, labels, results[number].train_top1),
        (test, test_labels, results[number].test_top1),
    ):
        x = tn.to_backend({"x": pixels.astype("float32")}, backend)["x"]
        logits = np.asarray(run(tn.to_backend(parameters, backend), x))
        assert 100 * int((logits.argmax(1) == known).sum()) / len(known) == told


def test_the_scaling_is_an_equation(finished: Finished) -> None:
    """In front of those of the classifier, whose parameters it leaves as they are."""
    graph, _ = load_trained(kept(finished[0], "tcl4-cp.*.safetensors"))
    classifier, train = build_graph(STUDY["tcl4-cp"]), split_digits(0)["x_train"]
    mean, deviation = float(train.mean()), float(train.std())
    first, *rest = map(str, graph.equations)
    assert first == f"y[b,i,j] = (x[b,i,j] + -{mean}) / {deviation}"
    assert len(rest) == len(classifier.equations)
    assert list(map(str, graph.parameters)) == list(map(str, classifier.parameters))


def test_the_pictures_are_pictures(finished: Finished) -> None:
    import matplotlib.image

    for name, size in (("costs", (1440, 2100)), ("curves", (780, 2100)), ("training", (750, 2100))):
        path = finished[0] / f"{name}.png"
        assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
        assert matplotlib.image.imread(path).shape[:2] == size
        assert path.with_suffix(".pdf").read_bytes().startswith(b"%PDF-")
        assert b"<svg" in path.with_suffix(".svg").read_bytes()


def test_times_are_measured_or_not_printed(finished: Finished, copy: Path) -> None:
    text = (finished[0] / "report.md").read_text(encoding="utf-8")
    assert "| top-5 (%) | ms a step | ms a prediction | kept (MB) |\n" in text
    assert "ms a" in finished[2]
    _, printed = study(copy)
    text = (copy / "report.md").read_text(encoding="utf-8")
    assert "| top-1 (%) | top-5 (%) |\n" in text
    assert "ms a" not in text + printed


def test_what_is_printed(finished: Finished) -> None:
    folder, results, text = finished
    for each in results:
        assert f"{each.name}: {each.parameters:,} parameters, test top-1 {each.test_top1:.2f} %" in text
    assert text.endswith(f"results in {folder}\n")


def test_the_table_fits_80_columns(finished: Finished) -> None:
    widest = replace(finished[1][0], name="tcl12-tucker", flops=99999, test_top1=100.0, test_top5=100.0)
    several = [replace(widest, seed=seed, parameters=99999, test_top1=90.0 + seed) for seed in range(3)]
    printed = [table(DIGITS, each).splitlines() for each in ([widest], several)]
    assert printed[0][-1].split() == ["tcl12-tucker", str(widest.parameters), "99,999", "100.00", "100.00"]
    assert printed[1][-1].split()[2:7] == ["99,999", "91.00", "±", "1.00", "(3)"]
    assert max(len(line) for lines in printed for line in lines) <= 80


def test_the_pareto_front_holds_what_no_other_beats(finished: Finished) -> None:
    def result(name: str, parameters: int, top1: float) -> RunResult:
        return replace(finished[1][0], name=name, parameters=parameters, test_top1=top1, test_top5=100.0)

    rows = [result("a", 100, 90.0), result("b", 50, 95.0), result("c", 200, 97.0), result("d", 200, 96.0)]
    assert list(pareto_front(runs_of(rows, {})).name) == ["b", "c"]


# ---- resuming


def test_finished_runs_are_kept(copy: Path, finished: Finished) -> None:
    before = stamps(copy)
    results, text = study(copy)
    assert results == finished[1]
    assert stamps(copy) == before
    assert "kept, finished before: dense-6, tcl4-cp" in text


@pytest.mark.parametrize("changes", [{"seed": 1}, {"epochs": 1}, {"recipe": {"batch": 64}}])
def test_runs_with_other_settings_stand_beside(copy: Path, changes: dict[str, object]) -> None:
    """And what was there is not lost: the first settings find their runs again."""
    before = stamps(copy)
    _, text = study(copy, rows=["dense-6"], **changes)
    assert "kept" not in text
    after = stamps(copy)
    assert {name: after[name] for name in before} == before
    assert len(after) == len(before) + 1
    _, text = study(copy)
    assert "kept, finished before: dense-6, tcl4-cp" in text


def test_an_interrupt_keeps_what_is_finished(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside runs of other settings."""

    def interrupted(run: TrainingRun, *arguments: Any) -> Trained:
        if run.name == ROWS[1]:
            raise KeyboardInterrupt
        return whole(run, *arguments)

    whole, console, before = study_jobs.train, Console(file=io.StringIO(), width=100), stamps(copy)
    monkeypatch.setattr(study_jobs, "train", interrupted)
    with console.capture() as printed, pytest.raises(KeyboardInterrupt):
        run_study(copy, epochs=1, rows=ROWS, console=console)
    assert "stopped: 1 of 2 runs are finished and kept" in printed.get()
    assert "give the same command again to resume" in printed.get()
    assert [name.partition(".")[0] for name in stamps(copy) if name not in before] == [ROWS[0]]


def test_the_files_show_runs_of_an_earlier_call(copy: Path) -> None:
    results, _ = study(copy, rows=["tcl4-cp"])
    assert [each.name for each in results] == ["tcl4-cp"]
    document = json.loads((copy / "results.json").read_text(encoding="utf-8"))
    assert [each["name"] for each in document["results"]] == ["dense-6", "tcl4-cp"]


def test_bars_are_drawn_on_a_terminal(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    with console.capture() as printed:
        run_study(tmp_path, epochs=1, rows=["dense-6"], console=console)
    assert "0/1" in printed.get()
    assert "dense-6: " not in printed.get()


# ---- what a user can get wrong


def test_a_folder_that_is_a_file_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study_run, "train_job", None)  # it is told before a run is trained
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    with pytest.raises(TensornetError, match=r"cannot write .*file"):
        study(tmp_path / "file")
    assert (tmp_path / "file").read_text(encoding="utf-8") == "mine"


def test_a_missing_library_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(BackendError, match=r"needs scikit-learn(.|\n)*fix: pip install scikit-learn;"):
        study(tmp_path)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(BackendError, match="needs scikit-learn"):
        library("sklearn.datasets")
