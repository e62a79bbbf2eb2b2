"""The study: what it writes, what it keeps, and that the same seed gives the same numbers; one TOML file, over several seeds."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
import shutil
import statistics
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from rich.console import Console

import tensornet as tn
from tensornet.errors import BackendError, TensornetError
from tensornet.study import STUDY, RunResult, load_trained, pictures, results_folder, run_study
from tensornet.study import jobs as study_jobs
from tensornet.study import pictures as study_pictures
from tensornet.study import report as study_report
from tensornet.study import run as study_run
from tensornet.study.arrays import NAMES
from tensornet.study.configuration import TASKS, Subject
from tensornet.study.digits import DIGITS, build_graph, split_digits
from tensornet.study.libraries import library
from tensornet.study.pictures import FORMATS, PICTURES, draw
from tensornet.study.report import table
from tensornet.study.results import Appraisal, Epoch, Trained, pareto_front, runs_of, told
from tensornet.study.task import Recipe
from tensornet.study.training import TrainingRun

from . import studies
from .conftest import needs, rows
from .studies import WRITTEN, Finished, kept, study, toml

pytestmark = pytest.mark.usefixtures("without_pictures")

# ---------------------------------------------------------------------------- The study


needs("sklearn", "matplotlib")

ROWS = ("dense-6", "tcl4-cp")
DRAWN = list(PICTURES)


def short(folder: Path, **changes: Any) -> tuple[list[RunResult], str]:
    """Two rows at two epochs, and what was printed."""
    return studies.study(folder, **{"epochs": 2, "rows": ROWS, **changes})


"""But for the study that the module finishes first."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("study")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study_report, "draw", study_pictures.draw)
        results, text = short(folder, measure=True)
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
    counts = {name: eval(count) for name, count in rows("digits.txt")}
    assert {name: tn.parameter_count(build_graph(row)) for name, row in STUDY.items()} == counts


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
    (from_file,), text = short(tmp_path / "a", data=tmp_path / "wine.npz", rows=["dense-6"])
    (from_function,), _ = short(tmp_path / "b", data=wines, rows=["dense-6"])
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


# ---- what is written


def test_results_are_whole_and_printed(finished: Finished) -> None:
    folder, results, text = finished
    assert text.endswith(f"results in {folder}\n")
    assert [each.name for each in results] == list(ROWS)
    for each in results:
        assert each.parameters == each.counted
        assert each.flops > 0
        assert each.seed == 0
        assert len(each.history) == 2
        assert each.history[1].train_loss < each.history[0].train_loss
        assert all(0 <= epoch.test_top1 <= epoch.test_top5 <= 100 for epoch in each.history)
        assert (each.test_top1, each.test_top5) == (each.history[-1].test_top1, each.history[-1].test_top5)
        assert f"{each.name}: {each.parameters:,} parameters, test top-1 {each.test_top1:.2f} %" in text


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
    assert text.startswith("# Handwritten digits: parameters and accuracy\n")
    chosen = "batch, learning rate, weight decay and warmup were chosen as those of the better of two"
    assert f"recipe {chosen}" in text
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
    for pixels, known, expected in (
        (train, labels, results[number].train_top1),
        (test, test_labels, results[number].test_top1),
    ):
        x = tn.to_backend({"x": pixels.astype("float32")}, backend)["x"]
        logits = np.asarray(run(tn.to_backend(parameters, backend), x))
        assert 100 * int((logits.argmax(1) == known).sum()) / len(known) == expected


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
    _, printed = short(copy)
    text = (copy / "report.md").read_text(encoding="utf-8")
    assert "| top-1 (%) | top-5 (%) |\n" in text
    assert "ms a" not in text + printed


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


@pytest.mark.parametrize("changes", [{"seed": 1}, {"epochs": 1}, {"recipe": {"batch": 64}}])
def test_runs_with_other_settings_stand_beside(copy: Path, changes: dict[str, object]) -> None:
    """And what was there is not lost: the first settings find their runs again."""
    before = stamps(copy)
    _, text = short(copy, rows=["dense-6"], **changes)
    assert "kept" not in text
    after = stamps(copy)
    assert {name: after[name] for name in before} == before
    assert len(after) == len(before) + 1
    _, text = short(copy)
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
    results, _ = short(copy, rows=["tcl4-cp"])
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
        short(tmp_path / "file")
    assert (tmp_path / "file").read_text(encoding="utf-8") == "mine"


def test_a_missing_library_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(BackendError, match=r"needs scikit-learn(.|\n)*fix: pip install scikit-learn;"):
        short(tmp_path)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(BackendError, match="needs scikit-learn"):
        library("sklearn.datasets")


# ---------------------------------------------------------------------------- A study as one TOML file, over several seeds


needs("sklearn", "matplotlib")


WRITTEN_ROWS = ["dense", "tucker-0.1", "tucker-0.4"]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, without_pictures: None) -> Finished:
    folder = tmp_path_factory.mktemp("written")
    return folder / "out", *study(folder / "out", 120, task=toml(folder, WRITTEN), measure=True)


# ---- what is trained


def test_rows_budgets_and_seeds(written: Finished) -> None:
    _, results, _ = written
    assert [(each.name, each.seed) for each in results] == [
        (name, seed) for name in WRITTEN_ROWS for seed in (0, 3)
    ]
    dense, small, large = (each.parameters for each in results[::2])
    assert dense == 650
    assert small < large < dense
    assert large == pytest.approx(0.4 * 640 + 10, rel=0.1)
    assert [each.recipe.learning_rate for each in results[::2]] == [0.01, 0.02, 0.02]
    assert {each.recipe.epochs for each in results} == {2}


def test_a_seed_alone_gives_the_same_run(
    written: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And goes before what the file says, as epochs and the recipe do."""
    task = toml(tmp_path, WRITTEN)
    alone, _ = study(tmp_path, task=task, rows=["dense"], seed=3)
    assert alone == [each for each in written[1] if (each.name, each.seed) == ("dense", 3)]
    settings: dict[str, Any] = {"rows": "tucker-0.1", "seeds": 1, "epochs": 1}
    ((changed,), _) = study(tmp_path, task=task, recipe={"learning_rate": 0.5}, **settings)
    assert (changed.seed, changed.recipe.epochs, changed.recipe.learning_rate) == (0, 1, 0.5)


def test_rows_of_a_study_are_those_runs(tmp_path: Path) -> None:
    """A row that is only named is that of the study, with the same fingerprint: what was trained is kept."""
    before, _ = study(tmp_path, epochs=1, rows=["tcl4-cp"])
    file = toml(tmp_path, 'rows = ["tcl4-cp"]\nrecipe = { epochs = 1 }\n')
    results, printed = study(tmp_path, task=file)
    assert results == before
    assert "kept, finished before: tcl4-cp" in printed


# ---- what is reported


def test_tables_tell_mean_deviation_and_how_many(written: Finished) -> None:
    folder, results, printed = written
    report = (folder / "report.md").read_text(encoding="utf-8")
    document = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    for name, summary in zip(WRITTEN_ROWS, document["summary"], strict=True):
        values = [each.test_top1 for each in results if each.name == name]
        mean, deviation = statistics.fmean(values), statistics.stdev(values)
        told = f"{mean:.2f} ± {deviation:.2f} (2)"
        assert told in report
        assert told in printed
        assert (summary["name"], summary["seeds"]) == (name, [0, 3])
        assert summary["test_top1"] == {"mean": mean, "deviation": pytest.approx(deviation)}
    assert "the seeds are 0, 3." in report
    assert "mine.toml --seeds 0,3 --threads 1" in report
    assert "dense (seed 3): 650 parameters, test top-1" in printed
    with (folder / "results.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["name"], int(row["seed"])) for row in rows] == [(each.name, each.seed) for each in results]


def test_what_is_measured_is_kept(written: Finished, tmp_path: Path) -> None:
    """Times of each classifier, one and the same for all seeds; measured again only where something changed."""
    folder, _, _ = written
    (path,) = folder.glob("measured-*.json")
    before = path.read_bytes()
    document = json.loads(before)["content"]
    assert [each["name"] for each in document] == WRITTEN_ROWS
    for each in document:
        assert each["latency_ms"] > 0
        assert each["step_ms"] > 0
        assert "y[" in each["equations"]
        assert each["plan"].startswith("plan for torch on cpu")
    kept = {each["name"]: each["kept"] for each in document}
    graph = tn.models.trl((8, 8), 10, factorization="dense")
    plan = tn.plan(graph, backend="torch", training=True, lead=32)
    assert kept["dense"] == sum(size for _, size in plan.kept)
    assert kept["tucker-0.1"] < kept["tucker-0.4"]
    task, copy = folder.parent / "mine.toml", tmp_path / folder.name
    shutil.copytree(folder, copy)
    _, printed = study(copy, task=task, measure=True)
    assert "are timed, in turns" not in printed
    assert (copy / path.name).read_bytes() == before
    (copy / path.name).write_bytes(before.replace(b'"kept": ', b'"kept": 1'))
    _, printed = study(copy, task=task, measure=True)
    assert "are timed, in turns" in printed
    assert json.loads((copy / path.name).read_bytes())["content"][0]["kept"] == kept["dense"]


class Page(HTMLParser):
    """The tags of a page, what is open, and what it asks of elsewhere."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.count: dict[str, int] = {}
        self.elsewhere: list[str] = []
        self.images: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1
        if tag not in ("meta", "img"):
            self.open.append(tag)
        for name, value in attributes:
            if name in ("src", "href"):
                (self.images if str(value).startswith("data:") else self.elsewhere).append(str(value))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_needs_nothing_beside_it(written: Finished) -> None:
    page = Page((written[0] / "report.html").read_text(encoding="utf-8"))
    assert page.open == []
    assert page.elsewhere == []
    assert len(page.images) == len(PICTURES)
    for image in page.images:
        kind, _, content = image.partition(",")
        assert kind == "data:image/svg+xml;base64"
        assert ElementTree.fromstring(base64.b64decode(content)).tag.endswith("svg")
    assert page.count["details"] == len(WRITTEN_ROWS) * 3 + 1  # equations and a plan of each; the environment
    assert page.count["script"] == 1
    assert page.count["tr"] == 1 + len(WRITTEN_ROWS)


DOM = """
const cell = text => ({ innerText: text });
const made = texts => ({ cells: texts.map(cell) });
const body = { rows: LINES.map(made), append(...rows) { this.rows = rows; } };
const heads = LINES[0].map((_, column) => ({
  marks: {}, getAttribute(name) { return this.marks[name]; }, setAttribute(name, value) { this.marks[name] = value; },
  removeAttribute(name) { delete this.marks[name]; }, closest: () => ({ tBodies: [body] }),
}));
for (const head of heads) head.parentNode = { cells: heads };
const document = { querySelectorAll: () => heads };
"""
"""As much of a browser as a table that sorts asks for."""


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node, which runs the script of the page")
def test_a_click_on_a_heading_sorts(tmp_path: Path) -> None:
    lines = [["b", "1,066", "94.4 ± 0.6 (2)"], ["a", "282", "–"], ["c", "10,602", "9.5 ± 1.0 (2)"]]
    clicks = "const seen = () => console.log(body.rows.map(row => row.cells[0].innerText).join(''));"
    for column in (0, 1, 1, 2):
        clicks += f"heads[{column}].onclick(); seen();"
    page = (Path(study_report.__file__).parent / "report.html.jinja").read_text(encoding="utf-8")
    own = page.partition("<script>")[2].partition("</script>")[0]
    script = f"const LINES = {json.dumps(lines)};\n{DOM}\n{own}\n{clicks}"
    done = subprocess.run(["node", "-e", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["abc", "abc", "cba", "cba"]


def test_markup_in_a_name_is_text(tmp_path: Path) -> None:
    """Also that of the terminal in the title; and a line of a table stays one, whatever is in it."""
    about = WRITTEN.replace("dense 64 → 10", "<script>alert(1)</script>\\n|two").replace("[0, 3]", "[0]")
    about = re.sub("(?m)^title.*\n", "", about)
    task = toml(tmp_path, f"title = 'no [/end] of it'\n{about}")
    _, printed = study(tmp_path / "out", task=task, rows="dense", epochs=1, measure=True)
    assert "no [/end] of it" in printed
    text = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert Page(text).count["script"] == 1
    assert "&lt;script&gt;alert(1)&lt;/script&gt; |two</td>" in text


def test_pictures_have_names_and_no_axis_beyond_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accuracies near 100 % with deviations that would reach beyond; the same picture is the same bytes."""
    figures: list[Any] = []
    saved = pictures._saved
    monkeypatch.setattr(pictures, "_saved", lambda figure: figures.append(figure) or saved(figure))
    history = tuple(Epoch(0.1, share, 100.0, share, 100.0) for share in (20.0, 90.0, 99.0))
    one = RunResult(
        "tcl8-tt-adamw", "tcl8-tt", 0, "", Recipe(epochs=3), "n", "n=9", 900, 900, 9000, history,
        99.0, 100.0, 98.0, 100.0,
    )  # fmt: skip
    other = replace(
        one, seed=1, test_top1=100.0, history=(*history[:2], Epoch(0.1, 100.0, 100.0, 100.0, 100.0))
    )
    dense = replace(one, name="dense-12-adamw", row="dense-12", parameters=2000, flops=4000)
    runs = runs_of([one, other, dense, replace(dense, seed=1)], {})
    drawn, whole = draw(DIGITS, runs, 450), list(PICTURES)
    assert set(drawn) == {f"{name}.{kind}" for name in whole for kind in FORMATS}
    assert drawn == draw(DIGITS, runs, 450)
    for figure in figures[: len(whole)]:
        panels = [axes for axes in figure.axes if axes.axison]
        assert {axes.get_ylim() for axes in panels} == {panels[0].get_ylim()}
        for axes in panels:
            assert 0 <= axes.get_ylim()[0] < axes.get_ylim()[1] <= 100
            for segments in axes.collections:
                for path in segments.get_paths():
                    assert path.vertices.size == 0 or path.vertices[:, 1].max() <= 100 + 1e-9
    texts = {text.get_text() for axes in figures[0].axes for text in axes.texts}
    assert texts == {"tcl8-tt", "dense-12"}


def test_figures_tell_mean_deviation_and_how_many() -> None:
    """In the order of the rows; each epoch and each kind of row is in a picture, and nothing that is zero is 1 B."""
    history = (Epoch(0.1, 50.0, 100.0, 50.0, 100.0), Epoch(0.1, 99.0, 100.0, 100.0, 100.0))
    one = RunResult("b", "b", 0, "", Recipe(epochs=2), "n", "", 1, 1, 1, history, 1.0, 2.0, 3.0, 4.0)
    found = runs_of([one, replace(one, name="a"), replace(one, seed=1, test_top1=4.0)], {})
    groups = {name: told(group.test_top1) for name, group in found.groupby("name", sort=False)}
    assert list(groups.items()) == [("b", "3.50 ± 0.71 (2)"), ("a", "3.00")]
    costs = {name: Appraisal(name, "", "", 1000 * (name == "b"), 1.0, 1.0) for name in "ab"}
    shown = pictures._Shown(DIGITS, runs_of([one, replace(one, name="a")], costs), 100)
    assert shown.points.spread["b"] == pytest.approx((3.0 * 97.0 / 100) ** 0.5)  # of one seed: √(p(1 - p)/n)
    costs_of_rows = pictures.PICTURES["costs"](shown).axes[3]
    assert costs_of_rows.get_xlim()[0] < 0.0 < costs_of_rows.get_xlim()[1]
    assert (
        next(costs_of_rows.xaxis.get_major_formatter()(tick) for tick in costs_of_rows.get_xticks()) == "0 B"
    )
    (axes,) = pictures.PICTURES["curves"](shown).axes
    low, high = axes.get_ylim()
    assert low < 0.5 <= 50.0 < high  # no error at all is half an example; the first epoch is inside
    assert [line.get_ydata().tolist() for line in axes.lines] == [[50.0, 0.5]] * 2


# ---- what can be wrong


def test_a_row_of_the_study_that_takes_other_examples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every row is looked at before one is trained, one that the file only names too."""
    other = replace(DIGITS, build=lambda row, examples: tn.models.trl((8, 9), 10))
    monkeypatch.setitem(TASKS, "digits", lambda data: other)
    with pytest.raises(TensornetError, match=r"^row tcl4-cp: sizes disagree.*; an example is 8×8 numbers"):
        study(tmp_path, rows=["tcl4-cp"])
    with pytest.raises(TensornetError, match=r"mine.toml: rows.tcl4-cp: sizes disagree"):
        study(tmp_path, task=toml(tmp_path, "[rows.tcl4-cp]"))
    assert not list(tmp_path.glob("runs/*"))


def test_a_heading_of_rows_of_ones_own(tmp_path: Path) -> None:
    title = DIGITS.title
    for own, heading in (("[rows.dense]", title), (WRITTEN, "Tensor regression on digits")):
        assert Subject.of(toml(tmp_path, own)).task.title == heading
    own = re.sub("(?m)^title.*\n", "", WRITTEN)
    assert Subject.of(toml(tmp_path, own)).task.title == "{data}: the rows of mine.toml"


def test_data_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    assert Subject.of(toml(tmp_path, 'data = "images"')).data == str(tmp_path / "images")
    assert Subject.of(toml(tmp_path, 'data = "mnist"')).data == "mnist"
    (tmp_path / "wine.npz").touch()
    assert Subject.of(toml(tmp_path, 'data = "wine.npz"')).data == str(tmp_path / "wine.npz")
    assert results_folder(toml(tmp_path, WRITTEN)) == Path("study-mine")
