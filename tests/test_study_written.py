"""A study as one TOML file, over several seeds: what it trains, what it reports, and what is wrong with it."""

from __future__ import annotations

import base64
import csv
import io
import json
import shutil
import statistics
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from rich.console import Console

import tensornet as tn
from tensornet.errors import TensornetError

pytest.importorskip("torch")
pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")

from tensornet.study import RunResult, load_trained, results_folder, run_study
from tensornet.study.digits import DIGITS, split_digits
from tensornet.study.page import SCRIPT
from tensornet.study.pictures import FORMATS, PICTURES, draw
from tensornet.study.recipe import Recipe
from tensornet.study.results import Epoch, summaries
from tensornet.study.run import TASKS
from tensornet.study.thesis import thesis
from tensornet.study.written import StudyFile, read_study
from tensornet.study.written_rows import BuiltRow, RowEntry

TEXT = """
title = "Tensor regression on digits"
study = "digits"
seeds = [0, 3]
budgets = [0.1, 0.4]
reference = "dense"

[recipe]
epochs = 2

[rows.dense]
model = "trl"
about = "dense 64 → 10"
control = true
settings = { sizes = [8, 8], outputs = 10, factorization = "dense" }

[rows.tucker]
model = "trl"
label = "Tucker"
settings = { sizes = [8, 8], outputs = 10, rank = "budget" }
recipe = { learning_rate = 0.02 }
"""
NAMES = ["dense", "tucker-0.1", "tucker-0.4"]


def written(folder: Path, text: str = TEXT) -> Path:
    path = folder / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture(scope="module", autouse=True)
def _no_calibration() -> Any:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TENSORNET_CALIBRATE", "0")
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[RunResult], str]:
    folder = tmp_path_factory.mktemp("written")
    console = Console(file=io.StringIO(), width=120)
    results = run_study(folder / "out", task=written(folder), console=console)
    assert isinstance(console.file, io.StringIO)
    return folder / "out", results, console.file.getvalue()


# ---- what is trained


def test_rows_budgets_and_seeds(finished: tuple[Path, list[RunResult], str]) -> None:
    _, results, _ = finished
    assert [(each.name, each.seed) for each in results] == [(name, seed) for name in NAMES for seed in (0, 3)]
    dense, small, large = (each.parameters for each in results[::2])
    assert dense == 650
    assert small < large < dense
    assert large == pytest.approx(0.4 * 640 + 10, rel=0.1)
    assert [each.recipe.learning_rate for each in results[::2]] == [0.01, 0.02, 0.02]
    assert {each.recipe.epochs for each in results} == {2}


@pytest.mark.usefixtures("without_pictures")
def test_a_seed_alone_gives_the_same_run(
    finished: tuple[Path, list[RunResult], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And goes before what the file says, as epochs and the recipe do."""
    quiet: dict[str, Any] = {"console": Console(file=io.StringIO()), "measure": False}
    alone = run_study(tmp_path, task=written(tmp_path), rows=["dense"], seed=3, **quiet)
    assert alone == [each for each in finished[1] if (each.name, each.seed) == ("dense", 3)]
    changed = run_study(
        tmp_path, task=written(tmp_path), rows="tucker-0.1", seeds=1, epochs=1,
        recipe={"learning_rate": 0.5}, **quiet,
    )  # fmt: skip
    assert [(each.seed, each.recipe.epochs, each.recipe.learning_rate) for each in changed] == [(0, 1, 0.5)]


@pytest.mark.usefixtures("without_pictures")
def test_rows_of_a_study_are_those_runs(tmp_path: Path) -> None:
    """A row that is only named is that of the study, with the same fingerprint: what was trained is kept."""
    console = Console(file=io.StringIO(), width=200)
    quiet: dict[str, Any] = {"console": console, "measure": False}
    before = run_study(tmp_path, epochs=1, rows=["tcl4-cp"], **quiet)
    file = written(tmp_path, 'rows = ["tcl4-cp"]\nrecipe = { epochs = 1 }\n')
    assert run_study(tmp_path, task=file, **quiet) == before
    assert "kept, finished before: tcl4-cp" in console.file.getvalue()  # type: ignore[attr-defined]


def test_raw_images_give_the_accuracy_of_the_report(finished: tuple[Path, list[RunResult], str]) -> None:
    """Of each seed its own images, as scikit-learn has them: the weights carry their scaling."""
    folder, results, _ = finished
    for each in results:
        (path,) = (folder / "runs").glob(f"{each.name}.seed{each.seed}.*.safetensors")
        graph, parameters = load_trained(path)
        _, _, images, labels = split_digits(each.seed)
        run = tn.compile(graph, backend="numpy")
        x = images.astype("float32")
        logits = np.asarray(run(tn.to_backend(parameters, "numpy"), x))
        assert 100 * int((logits.argmax(1) == labels).sum()) / len(labels) == each.test_top1


# ---- what is reported


def test_tables_tell_mean_deviation_and_how_many(finished: tuple[Path, list[RunResult], str]) -> None:
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


@pytest.mark.usefixtures("without_pictures")
def test_what_is_measured_is_kept(finished: tuple[Path, list[RunResult], str], tmp_path: Path) -> None:
    """Times of each classifier, one and the same for all seeds; measured again only where something changed."""
    folder, _, _ = finished
    before = (folder / "measured.json").read_bytes()
    document = json.loads(before)
    assert [each["name"] for each in document["appraisals"]] == NAMES
    for each in document["appraisals"]:
        assert each["latency_ms"] > 0
        assert each["step_ms"] > 0
        assert "y[" in each["equations"]
        assert each["plan"].startswith("plan for torch on cpu")
    kept = {each["name"]: each["kept"] for each in document["appraisals"]}
    graph = tn.models.trl((8, 8), 10, factorization="dense")
    plan = tn.plan(graph, backend="torch", training=True, lead=32)
    assert kept["dense"] == sum(size for _, size in plan.kept)
    assert kept["tucker-0.1"] < kept["tucker-0.4"]
    task, copy = folder.parent / "mine.toml", tmp_path / folder.name
    shutil.copytree(folder, copy)
    run_study(copy, task=task, console=Console(file=io.StringIO()))
    assert (copy / "measured.json").read_bytes() == before
    (copy / "measured.json").write_bytes(before.replace(b'"kept": ', b'"kept": 1'))
    console = Console(file=io.StringIO(), width=200)
    run_study(copy, task=task, console=console)
    assert "measured.json is damaged, set aside and not used" in console.file.getvalue()  # type: ignore[attr-defined]
    assert json.loads((copy / "measured.json").read_bytes())["appraisals"][0]["kept"] == kept["dense"]


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


def test_the_page_needs_nothing_beside_it(finished: tuple[Path, list[RunResult], str]) -> None:
    page = Page((finished[0] / "report.html").read_text(encoding="utf-8"))
    assert page.open == []
    assert page.elsewhere == []
    assert len(page.images) == len(PICTURES)
    for image in page.images:
        kind, _, content = image.partition(",")
        assert kind == "data:image/svg+xml;base64"
        assert ElementTree.fromstring(base64.b64decode(content)).tag.endswith("svg")
    assert (
        page.count["details"] == len(NAMES) * 4 + 1
    )  # parameters, equations, a plan of each; the environment
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
    script = f"const LINES = {json.dumps(lines)};\n{DOM}\n{SCRIPT}\n{clicks}"
    done = subprocess.run(["node", "-e", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["abc", "abc", "cba", "cba"]


@pytest.mark.usefixtures("without_pictures")
def test_markup_in_a_name_is_text(tmp_path: Path) -> None:
    about = TEXT.replace("dense 64 → 10", "<script>alert(1)</script>").replace("[0, 3]", "[0]")
    task = written(tmp_path, about)
    run_study(tmp_path / "out", task=task, rows="dense", epochs=1, console=Console(file=io.StringIO()))
    text = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert Page(text).count["script"] == 1
    assert "&lt;script&gt;" in text


def test_pictures_have_names_and_no_axis_beyond_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accuracies near 100 % with deviations that would reach beyond; the same picture is the same bytes."""
    from tensornet.study import pictures

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
    drawn = draw(DIGITS, [one, other, dense, replace(dense, seed=1)], {})
    assert set(drawn) == {f"{name}.{kind}" for name in PICTURES for kind in FORMATS}
    assert drawn == draw(DIGITS, [one, other, dense, replace(dense, seed=1)], {})
    for figure in figures[: len(PICTURES)]:
        panels = [axes for axes in figure.axes if axes.axison]
        assert {axes.get_ylim() for axes in panels} == {panels[0].get_ylim()}
        for axes in panels:
            assert 0 <= axes.get_ylim()[0] < axes.get_ylim()[1] <= 100
            for segments in axes.collections:
                for path in segments.get_paths():
                    assert path.vertices.size == 0 or path.vertices[:, 1].max() <= 100 + 1e-9
    texts = {text.get_text() for axes in figures[0].axes for text in axes.texts}
    assert texts == {"TCL 8, TT", "dense 12"}


def test_names_in_pictures() -> None:
    assert DIGITS.label("blocktt-4") == "block-TT 4"
    assert [thesis(None).label(name) for name in ("swin", "tensor-8x4x2-signed")] == ["Swin", "8×4×2, signed"]
    assert DIGITS.controls == {"dense", "dense-12", "dense-6"}


def test_summaries_keep_the_order() -> None:
    history = (Epoch(0.1, 50.0, 100.0, 50.0, 100.0),)
    recipe = Recipe(epochs=1)
    one = RunResult("b", "b", 0, "", recipe, "n", "", 1, 1, 1, history, 1.0, 2.0, 3.0, 4.0)
    found = summaries([one, replace(one, name="a"), replace(one, seed=1, test_top1=4.0)])
    assert [(row.name, row.told("test_top1")) for row in found] == [("b", "3.50 ± 0.71 (2)"), ("a", "3.00")]


# ---- what can be wrong


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[recipe]", "[recipe", r"mine.toml is no TOML: .*\nfix: see docs/studies.md"),
        ('study = "digits"', 'studdy = "digits"', r"mine.toml: studdy: there is no such key\nfix: did you mean 'study'\? its"),
        ('study = "digits"', 'study = "cats"', r"mine.toml: study: there is no study 'cats'\nfix: choose of digits, text"),
        ('study = "digits"', "study = 3", r"mine.toml: study: it is 3\nfix: give a text"),
        ("seeds = [0, 3]", "seeds = [-1]", r"mine.toml: seeds: seed is -1\nfix: give a whole number"),
        ("seeds = [0, 3]", "seeds = 0", r"mine.toml: seeds: there are 0 seeds"),
        ("epochs = 2", "epoch = 2", r"mine.toml: recipe: the recipe has no setting 'epoch'\nfix: did you mean 'epochs'\?"),
        ("epochs = 2", 'optimizer = "adam"', r'mine.toml: recipe.optimizer: the optimizer is not a number of the recipe\nfix: write optimizers = \["adam"\]'),
        ("[rows.tucker]", '[rows."tucker-0.1"]\nmodel = "trl"\n[rows.tucker]', r"mine.toml: rows.tucker: there are two rows 'tucker-0.1'"),
        ("epochs = 2", "epochs = 0", r"mine.toml: recipe: epochs is 0\nfix: give a whole number, 1 or more"),
        ("learning_rate = 0.02", "rate = 1", r"mine.toml: rows.tucker.recipe: the recipe has no setting 'rate'"),
        ("budgets = [0.1, 0.4]", "", r"mine.toml: rows.tucker.settings.rank: there are no budgets\nfix: give a list"),
        ('model = "trl"\nabout', 'model = "trls"\nabout', r"mine.toml: rows.dense.model: there is no model 'trls'\nfix: did you mean 'trl'\?"),
        ("control = true", 'control = "yes"', r"mine.toml: rows.dense.control: it is 'yes'\nfix: give true or false"),
        ("outputs = 10, rank", "outs = 10, rank", r"mine.toml: rows.tucker.settings.outs: 'trl' has no such setting\nfix: .*outputs"),
        ("outputs = 10, rank", "outputs = 12, rank", r"mine.toml: rows.tucker.settings: of 1,347 examples the model makes 1347×12 numbers\nfix: let it give a logit for each of the 10"),
        ("sizes = [8, 8], outputs = 10, rank", "sizes = [7, 8], outputs = 10, rank", r"mine.toml: rows.tucker.settings: sizes disagree"),
        ('"dense" }', '"dens" }', r"(?s)mine.toml: rows.dense.settings: .*dens"),
        ('model = "trl"\nabout = "dense 64 → 10"\n', "", r"mine.toml: rows.dense: it has settings, and no model\nfix: add model"),
        ('reference = "dense"', 'reference = "none"', r"mine.toml: reference: there is no row 'none'\nfix: choose of dense, tucker-0.1"),
        ("[rows.dense]", '[rows."../dense"]', r"mine.toml: rows.../dense: a name goes into names of files"),
        ('reference = "dense"', 'optimizers = ["adan"]', r"mine.toml: optimizers: there is no optimizer 'adan'\nfix: did you mean 'adam'\?"),
        ('reference = "dense"', 'optimizers = [["adam"]]', r"mine.toml: optimizers: there is no optimizer '\['adam'\]'"),
        ("sizes = [8, 8], outputs = 10, rank", f"sizes = {'[' * 20}8{']' * 20}, outputs = 10, rank", r"mine.toml: rows.tucker.settings.sizes: lists or tables lie more than 16 deep"),
        ("[rows.dense]", f"x = {'[' * 3000}{']' * 3000}\n[rows.dense]", r"mine.toml: line 11: lists or tables lie more than 16 deep in one another\nfix: write them flat"),
        ("[rows.dense]", f"[rows.dense{'.a' * 3000}]\n[rows.b]", r"mine.toml: rows.dense.a.a: lists or tables lie more than 16 deep"),
        ("sizes = [8, 8], outputs = 10, rank", "sizes = [1000000000, 1000000000], outputs = 10, rank", r"mine.toml: rows.tucker.settings: sizes disagree: axis 'i1' of 'x' is 8, and should be 1000000000; an example is 8×8 numbers\n.*\n.*\nfix: let the model take 8×8"),
        ('rank = "budget"', "rank = 1000000000", r"(?s)mine.toml: rows.tucker.settings: its 1,000,\S+ parameters and their gradients take \S+ GB, and cpu has .*fix: give smaller sizes"),
        ("[rows.dense]", "[rows.denser]\n[rows.dense]", r"mine.toml: rows.denser: the study 'digits' has no row 'denser'\nfix: did you mean 'dense'\? give it a model"),
    ],
)  # fmt: skip
def test_errors_name_the_file_the_key_and_the_fix(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in TEXT
    task = written(tmp_path, TEXT.replace(old, new))
    with pytest.raises(TensornetError, match=message):
        run_study(tmp_path / "out", task=task, console=Console(file=io.StringIO()))
    assert not list((tmp_path / "out").glob("runs/*"))


def test_a_row_of_the_study_that_takes_other_examples(tmp_path: Path) -> None:
    """Every row is looked at before one is trained, one that the file only names too."""
    vectors, labels = np.ones((4, 5)), [0, 1] * 2
    file = written(
        tmp_path, '[rows.dense]\n[rows.mine]\nmodel = "trl"\nsettings = { sizes = [6], outputs = 2 }'
    )
    with pytest.raises(
        TensornetError, match=r"rows.mine.settings: sizes disagree.*; an example is 5 numbers"
    ):
        run_study(tmp_path, task=file, data=lambda: (vectors, labels, vectors, labels))
    monkey = replace(DIGITS, build=lambda row, examples: tn.models.trl((8, 9), 10))
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(TASKS, "digits", lambda data: monkey)
        with pytest.raises(
            TensornetError, match=r"^row tcl4-cp: sizes disagree.*; an example is 8×8 numbers"
        ):
            run_study(tmp_path, rows=["tcl4-cp"])
        with pytest.raises(TensornetError, match=r"mine.toml: rows.tcl4-cp: sizes disagree"):
            run_study(tmp_path, task=written(tmp_path, "[rows.tcl4-cp]"))
    assert not list(tmp_path.glob("runs/*"))


def test_a_heading_of_rows_of_ones_own() -> None:
    base = thesis("mnist")
    entries = {"swin": RowEntry("rows.swin")}
    assert StudyFile("a/mine.toml", "thesis", rows=entries).of(base).title == base.title
    entries["mine"] = RowEntry("rows.mine", BuiltRow("", "vit", {}))
    assert StudyFile("a/mine.toml", "thesis", rows=entries).of(base).title == "{data}: the rows of mine.toml"


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TensornetError, match=r"cannot read .*none.toml: No such file"):
        read_study(tmp_path / "none.toml")


def test_data_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    assert read_study(written(tmp_path, 'data = "images"')).data == str(tmp_path / "images")
    assert read_study(written(tmp_path, 'data = "mnist"')).data == "mnist"
    (tmp_path / "wine.npz").touch()
    assert read_study(written(tmp_path, 'data = "wine.npz"')).data == str(tmp_path / "wine.npz")
    assert results_folder(written(tmp_path)) == Path("study-mine")


def test_one_way_to_give_seeds(tmp_path: Path) -> None:
    with pytest.raises(TensornetError, match="seed and seeds are both given"):
        run_study(tmp_path, seed=1, seeds=[1, 2])
