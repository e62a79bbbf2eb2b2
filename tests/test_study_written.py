"""A study as one TOML file, over several seeds: what it trains, what it reports, and what is wrong with it."""

from __future__ import annotations

import base64
import csv
import json
import re
import shutil
import statistics
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import tensornet as tn
from tensornet.errors import TensornetError
from tensornet.study import RunResult, pictures, results_folder
from tensornet.study import report as study_report
from tensornet.study.configuration import TASKS, Subject
from tensornet.study.digits import DIGITS
from tensornet.study.pictures import FORMATS, PICTURES, draw
from tensornet.study.results import Appraisal, Epoch, runs_of, told
from tensornet.study.task import Recipe

from .conftest import needs
from .studies import WRITTEN, Finished, study, toml

needs("sklearn", "matplotlib")

pytestmark = pytest.mark.usefixtures("without_pictures")

NAMES = ["dense", "tucker-0.1", "tucker-0.4"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, without_pictures: None) -> Finished:
    folder = tmp_path_factory.mktemp("written")
    return folder / "out", *study(folder / "out", 120, task=toml(folder, WRITTEN), measure=True)


# ---- what is trained


def test_rows_budgets_and_seeds(finished: Finished) -> None:
    _, results, _ = finished
    assert [(each.name, each.seed) for each in results] == [(name, seed) for name in NAMES for seed in (0, 3)]
    dense, small, large = (each.parameters for each in results[::2])
    assert dense == 650
    assert small < large < dense
    assert large == pytest.approx(0.4 * 640 + 10, rel=0.1)
    assert [each.recipe.learning_rate for each in results[::2]] == [0.01, 0.02, 0.02]
    assert {each.recipe.epochs for each in results} == {2}


def test_a_seed_alone_gives_the_same_run(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And goes before what the file says, as epochs and the recipe do."""
    task = toml(tmp_path, WRITTEN)
    alone, _ = study(tmp_path, task=task, rows=["dense"], seed=3)
    assert alone == [each for each in finished[1] if (each.name, each.seed) == ("dense", 3)]
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


def test_tables_tell_mean_deviation_and_how_many(finished: Finished) -> None:
    folder, results, printed = finished
    report = (folder / "report.md").read_text(encoding="utf-8")
    document = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    for name, summary in zip(NAMES, document["summary"], strict=True):
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


def test_what_is_measured_is_kept(finished: Finished, tmp_path: Path) -> None:
    """Times of each classifier, one and the same for all seeds; measured again only where something changed."""
    folder, _, _ = finished
    (path,) = folder.glob("measured-*.json")
    before = path.read_bytes()
    document = json.loads(before)["content"]
    assert [each["name"] for each in document] == NAMES
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


def test_the_page_needs_nothing_beside_it(finished: Finished) -> None:
    page = Page((finished[0] / "report.html").read_text(encoding="utf-8"))
    assert page.open == []
    assert page.elsewhere == []
    assert len(page.images) == len(PICTURES)
    for image in page.images:
        kind, _, content = image.partition(",")
        assert kind == "data:image/svg+xml;base64"
        assert ElementTree.fromstring(base64.b64decode(content)).tag.endswith("svg")
    assert page.count["details"] == len(NAMES) * 3 + 1  # equations and a plan of each; the environment
    assert page.count["script"] == 1
    assert page.count["tr"] == 1 + len(NAMES)


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
    for rows, heading in (("[rows.dense]", title), (WRITTEN, "Tensor regression on digits")):
        assert Subject.of(toml(tmp_path, rows)).task.title == heading
    own = re.sub("(?m)^title.*\n", "", WRITTEN)
    assert Subject.of(toml(tmp_path, own)).task.title == "{data}: the rows of mine.toml"


def test_data_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    assert Subject.of(toml(tmp_path, 'data = "images"')).data == str(tmp_path / "images")
    assert Subject.of(toml(tmp_path, 'data = "mnist"')).data == "mnist"
    (tmp_path / "wine.npz").touch()
    assert Subject.of(toml(tmp_path, 'data = "wine.npz"')).data == str(tmp_path / "wine.npz")
    assert results_folder(toml(tmp_path, WRITTEN)) == Path("study-mine")
