"""A study's folder after damage of every kind: the same numbers, computed anew where need be, and never a raw error."""

from __future__ import annotations

import io
import json
import random
import re
import shutil
import sys
import unicodedata
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import tensornet as tn
from tensornet.display import printable
from tensornet.errors import TensornetError

pytest.importorskip("torch")
pytest.importorskip("safetensors")
pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")

import safetensors.torch
import torch

from tensornet import cli
from tensornet.study import RunResult, load_trained, report
from tensornet.study import run as study_run
from tensornet.study.checkpoint import Checkpoints
from tensornet.study.files import BLANK, is_sealed, read_tensors, seal, sealed_tensors
from tensornet.study.pictures import FORMATS
from tensornet.study.recipe import Recipe
from tensornet.study.results import Epoch
from tensornet.study.schema import read
from tensornet.study.store import RunStore
from tensornet.study.task import Examples, Task

from . import studies
from .damage import BYTES, DOCUMENTS, applied, damaged, damaged_value
from .studies import kept


@dataclass(frozen=True)
class Row:
    """Of a study small enough to be run a hundred times."""

    about: str


def load(seed: int, data: str | None) -> Examples:
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(24) % 6
    pixels = torch.randint(0, 100, (24, 1, 6), generator=draw)
    pixels[torch.arange(24), 0, labels] += 100
    standard = tn.layer("y[...] = x[...] / 64 - 1", inputs="x")
    return Examples((pixels[:16],), labels[:16], (pixels[16:],), labels[16:], "rows", {}, standard)


def build(row: Row, examples: Examples) -> tn.Graph:
    return tn.layer("y[b,o] = x[b,c,i] * W[o,i] * v[c] + e[o]", inputs="x[b,c,i]", c=1, i=6, o=6)


ROWS = {"one": Row("the first"), "two": Row("the second")}
TINY = Task("tiny", "Tiny", "image", ROWS, Recipe(epochs=3, batch=8, learning_rate=0.1), load, build)


@pytest.fixture(scope="module", autouse=True)
def _tiny() -> Any:
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(study_run.TASKS, "tiny", lambda data: TINY)
        blank = {name: b"" for name in report.OUTPUTS if name.endswith(FORMATS)}
        patched.setattr(report, "draw", lambda task, results, costs: blank)
        yield


def study(folder: Path, **changes: Any) -> tuple[list[RunResult], str]:
    """The results without their times, and what was printed."""
    return studies.study(folder, task="tiny", **changes)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    study(folder)
    return folder


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run is finished; of the other there are the checkpoints of two steps in the third epoch."""
    folder = tmp_path_factory.mktemp("stopped")
    study(folder, rows="one")
    with studies.stopped_after(5):
        study(folder)
    return folder


@pytest.fixture(scope="module")
def expected(finished: Path) -> list[RunResult]:
    results, printed = study(finished)
    assert "kept, finished before: one, two" in printed
    return results


def copied(folder: Path, target: Path) -> Path:
    shutil.copytree(folder / "runs", target / "runs")
    return target


@pytest.fixture
def done(finished: Path, tmp_path: Path) -> Path:
    """A copy of what is finished, free to be damaged."""
    return copied(finished, tmp_path)


@pytest.fixture
def half(stopped: Path, tmp_path: Path) -> Path:
    """A copy of what was stopped."""
    return copied(stopped, tmp_path)


def resealed(content: bytes) -> bytes:
    """As if whoever damaged it had sealed it again."""
    place = re.search(rb'"seal": ?"([^"]*)"', content)
    return seal(content[: place.start(1)] + BLANK.encode() + content[place.end(1) :]) if place else content


WAYS = [*BYTES, *DOCUMENTS, "a folder", "gone"]


# ---- any damage


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("files", ["two.*.json", "two.*.safetensors", "two.*.checkpoint"])
def test_no_damage_changes_a_number(
    finished: Path, stopped: Path, expected: list[RunResult], tmp_path: Path, files: str, way: str
) -> None:
    """Of finished runs and of unfinished ones; what is damaged is set aside, and the report says so."""
    folder = copied(stopped if "checkpoint" in files else finished, tmp_path)
    paths = sorted((folder / "runs").glob(files))
    assert len(paths) == 1 + ("checkpoint" in files)
    for number, path in enumerate(paths):
        _damage(path, way, random.Random(f"{files} {way} {number}"))
    results, printed = study(folder)
    assert results == expected
    assert "kept, finished before: one\n" in printed
    load_trained(kept(folder, "two.*.safetensors"))
    aside = {path.name for path in (folder / "runs").glob("*.damaged*")}
    kept_aside = paths if "checkpoint" in files else [kept(folder, "two.*.json")]
    assert aside >= ({f"{path.name}.damaged" for path in kept_aside if way != "gone"})
    assert all(f"- `runs/{name}`" in (folder / "report.md").read_text(encoding="utf-8") for name in aside)
    again, printed = study(folder)
    assert again == expected
    assert "kept, finished before: one, two\n" in printed


def _damage(path: Path, way: str, rng: random.Random) -> None:
    content = path.read_bytes()
    while way in BYTES or way in DOCUMENTS:
        changed = {**BYTES, **DOCUMENTS}[way](content, rng)
        if changed != content and not is_sealed(changed):
            path.write_bytes(changed)
            return
    path.unlink()
    if way == "a folder":
        (path / "mine").mkdir(parents=True)


@pytest.mark.parametrize("seed", range(10))
def test_several_files_are_damaged_at_once(half: Path, expected: list[RunResult], seed: int) -> None:
    rng, paths = random.Random(seed), sorted((half / "runs").iterdir())
    for path in rng.sample(paths, rng.randint(2, len(paths))):
        damaged(path, rng)
    assert study(half)[0] == expected


def _swap(one: Path, two: Path) -> None:
    content = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(content)


def _swapped(*ends: str) -> Callable[[Path], object]:
    return lambda runs: [_swap(*sorted(runs.glob(f"*.{end}"))) for end in ends]


def _of_another_run(runs: Path) -> None:
    (one,) = runs.glob("one.*.json")
    for path in runs.glob("two.*.checkpoint"):
        end = ".previous.checkpoint" if "previous" in path.name else ".checkpoint"
        path.rename(one.with_name(one.name.replace(".json", end)))
    one.unlink()


def _a_folder_before(runs: Path) -> None:
    (path,) = runs.glob("two.*.previous.checkpoint")
    path.unlink()
    (path / "mine").mkdir(parents=True)


def _half_written(runs: Path) -> None:
    (path,) = runs.glob("two.*.previous.checkpoint")
    for end in ("json", "safetensors", "checkpoint"):
        (runs / f".{path.name.removesuffix('.previous.checkpoint')}.{end}.77").write_bytes(b"half")


@pytest.mark.parametrize(
    ("damage", "unfinished", "told", "times"),
    [
        (_swapped("json"), False, "damaged, set aside and not used: ", 2),
        (_swapped("safetensors"), False, "damaged, set aside and not used: ", 2),
        (_swapped("json", "safetensors"), False, "damaged, set aside and not used: ", 2),
        (_of_another_run, True, "it is not one of this run", 2),
        (_swapped("checkpoint"), True, "two: goes on after step 4 of 6", 1),
        (_a_folder_before, True, "two: goes on after step", 1),
        (_half_written, True, "two: goes on after step", 1),
    ],
)
def test_what_the_run_did_not_write_is_not_taken(
    finished: Path, stopped: Path, expected: list[RunResult], tmp_path: Path,
    damage: Callable[[Path], object], unfinished: bool, told: str, times: int
) -> None:  # fmt: skip
    folder = copied(stopped if unfinished else finished, tmp_path)
    damage(folder / "runs")
    results, printed = study(folder)
    assert results == expected
    assert printed.count(told) == times
    left = sorted(path.suffix for path in (folder / "runs").iterdir())
    assert [each for each in left if each != ".damaged"] == [*2 * [".json"], *2 * [".safetensors"]]
    assert (".damaged" in left) == (damage is _a_folder_before or "goes on" not in told)


@pytest.mark.parametrize("name", [*report.OUTPUTS, "runs/two.*.lock"])
def test_a_folder_in_the_place_of_what_is_written(done: Path, expected: list[RunResult], name: str) -> None:
    path = kept(done, "two.*.json")
    place = path.with_suffix(".lock") if name.startswith("runs") else done / name
    path.unlink()
    (place / "mine").mkdir(parents=True)
    assert study(done)[0] == expected
    assert place.with_name(f"{place.name}.damaged").is_dir()
    assert f"{place.name}.damaged`" in (done / "report.md").read_text(encoding="utf-8")
    assert all((done / each).is_file() for each in report.OUTPUTS)


def test_nothing_set_aside_is_lost(done: Path) -> None:
    for number in range(3):
        kept(done, "two.*.json").write_text(str(number))
        study(done, rows="two")
    aside = (done / "runs").glob("two.*.json.damaged*")
    assert sorted(path.read_text() for path in aside) == ["0", "1", "2"]


# ---- damage that was sealed again


def _without(*names: str) -> Callable[[Any], Any]:
    return lambda document: {name: value for name, value in document.items() if name not in names}


def _result(**changes: Any) -> Callable[[Any], Any]:
    return lambda document: {**document, "result": {**document["result"], **changes}}


def _first_epoch(**changes: Any) -> Callable[[Any], Any]:
    def change(document: Any) -> Any:
        first, *rest = document["result"]["history"]
        return _result(history=[{**first, **changes}, *rest])(document)

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_result(parameters=-1), "parameters is -1"),
        (_result(counted="many"), "counted is no int"),
        (_result(flops=True), "flops is no int"),
        (_result(flops=1.5), "flops is no int"),
        (_result(test_top1=float("nan")), "test_top1 is no finite number"),
        (_result(train_top1=101), "of 100 examples 101.0 have their class first"),
        (_result(test_top5=0.0), "of 100 examples .* and 0.0 among the first five"),
        (_result(seed=-1), "seed is -1"),
        (_result(seed=1), "its result is of another run"),
        (_result(train_top5=10**400), "train_top5 is no finite number"),
        (_result(formula=None), "formula is no str"),
        (_result(history=[]), "there are 0 epochs of 3"),
        (_result(history={}), "history is no list"),
        (_result(name="one"), "its result is of another run"),
        (_result(recipe={}), "recipe is of other fields: batch, clip"),
        (_first_epoch(train_loss=float("nan")), "train_loss is no finite number"),
        (_first_epoch(train_loss=-0.5), "the loss is -0.5"),
        (_first_epoch(more=1), "one of history is of other fields: more"),
        (_without("result"), "it is of other fields: result"),
        (_without("fingerprint"), "it is of other fields: fingerprint"),
        (lambda document: [document], "it is no dict"),
        (lambda document: {**document, "format": "tensornet.study.run"}, "it is not one of this run"),
        (lambda document: {**document, "weights": "0"}, "the weights beside it are not those"),
    ],
)
def test_a_result_that_no_run_can_have(
    done: Path, expected: list[RunResult], change: Any, reason: str
) -> None:
    path = kept(done, "two.*.json")
    path.write_bytes(resealed(applied(path.read_bytes(), change)))
    results, printed = study(done)
    assert results == expected
    assert re.search(rf"two\..*json is damaged, set aside and not used: {reason}", printed)


def newest_and_previous(folder: Path) -> tuple[Path, Path]:
    """The two checkpoints of the run that was stopped."""
    previous = kept(folder, "two.*.previous.checkpoint")
    return previous.with_name(previous.name.replace(".previous", "")), previous


def _tensor(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    return lambda tensors, state: (change(tensors), state)


def _state(**changes: Any) -> Any:
    return lambda tensors, state: (tensors, {**state, **changes})


def _no_optimizer(tensors: dict[str, Any], state: Any) -> Any:
    return {name: each for name, each in tensors.items() if not name.startswith("optimizer")}, state


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_no_optimizer, "wrong or missing: optimizer.0.exp_avg, optimizer.0.exp_avg_sq, optimizer.0.step, opt"),
        (_tensor(_without("optimizer.1.exp_avg")), "wrong or missing: optimizer.1.exp_avg$"),
        (_tensor(_without("sums")), "wrong or missing: sums$"),
        (_tensor(_without("parameters.W")), "wrong or missing: parameters.W$"),
        (_tensor(lambda each: {**each, "parameters.W": each["parameters.W"][:1]}), "wrong or missing: parameters.W$"),
        (_tensor(lambda each: {**each, "sums": each["sums"].float()}), "wrong or missing: sums$"),
        (_tensor(lambda each: {**each, "optimizer.x.y": each["sums"].clone()}), "wrong or missing: optimizer.x.y$"),
        (_tensor(lambda each: {}), "wrong or missing: optimizer.0.exp_avg, "),
        (_state(step=-1), "it is of step -1, after 2 epochs"),
        (_state(step=10**9), "it is of step 1000000000, after 2 epochs"),
        (_state(step=2.5), "step is no int"),
        (_state(step=None), "step is no int"),
        (_state(history=[]), "it is of step 5, after 0 epochs"),
        (_state(history=[{"train_loss": 1.0}] * 2), "one of history is of other fields: test_top1"),
        (_state(step=12), "it is of step 12, after 2 epochs"),
        (_state(scaler={"scale": 2.0}), "its scaler is"),
        (_state(more=1), "it is of other fields: more"),
        (lambda tensors, state: (tensors, {}), "it is of other fields: history"),
        (lambda tensors, state: (tensors, [1, 2]), "it is no dict"),
    ],
)  # fmt: skip
def test_a_checkpoint_that_the_run_cannot_have_written(
    half: Path, expected: list[RunResult], change: Any, reason: str
) -> None:
    """Sealed like any other: refused, and the one before it used."""
    path, _ = newest_and_previous(half)
    tensors, metadata = read_tensors(path)
    tensors, state = change(tensors, json.loads(metadata.pop("state")))
    del metadata["seal"]
    path.write_bytes(sealed_tensors(tensors, {**metadata, "state": json.dumps(state)}))
    results, printed = study(half)
    assert results == expected
    assert re.search(rf"checkpoint is damaged, set aside and not used: .*{reason}", printed, re.MULTILINE)
    assert "two: goes on after step 4 of 6" in printed


def test_random_documents_that_were_sealed_again(done: Path) -> None:
    """A result, or nothing: never a raw error, and never numbers that make no sense."""
    path, rng = kept(done, "two.*.json"), random.Random(0)
    content = path.read_bytes()
    settings, found = json.loads(content)["settings"], 0
    for _ in range(300):
        path.write_bytes(resealed(applied(content, lambda document: damaged_value(document, rng))))
        result = RunStore(done).load("two", settings)
        found += result is not None
        for aside in (done / "runs").glob("two.*.damaged*"):
            aside.rename(aside.with_name(aside.name.partition(".damaged")[0]))
        if result is not None:
            assert read(RunResult, json.loads(json.dumps(asdict(result)))) == result
    assert 0 < found < 250


def test_random_checkpoints_that_were_sealed_again(half: Path) -> None:
    rng, said = random.Random(1), list[str]()
    path, previous = newest_and_previous(half)
    previous.unlink()
    content = path.read_bytes()
    fingerprint = read_tensors(path)[1]["fingerprint"]
    for number in range(200):
        path.write_bytes(resealed(applied(content, lambda document: damaged_value(document, rng))))
        found = Checkpoints(path, fingerprint, said.append).load()
        assert (found is None) == (len(said) == number + 1)
        said += ["read"] * (found is not None)


@given(st.binary(max_size=200), st.integers(0, 2**32), st.integers(1, 255))
def test_a_seal_notices_every_byte(content: bytes, place: int, change: int) -> None:
    whole = seal(json.dumps({"text": content.hex(), "seal": BLANK, "more": 1}).encode() + content)
    assert is_sealed(whole)
    changed = bytearray(whole)
    changed[place % len(whole)] ^= change
    assert not is_sealed(bytes(changed))
    assert not is_sealed(whole[: place % len(whole)])
    assert not is_sealed(whole + b"\0")


# ---- the weights of a finished run


@pytest.mark.parametrize("way", WAYS)
def test_damaged_weights_are_told(done: Path, way: str) -> None:
    path = kept(done, "two.*.safetensors")
    _damage(path, way, random.Random(way))
    with pytest.raises(
        TensornetError, match=r"two\..*\.safetensors is not a trained classifier: .*\nfix: give one"
    ):
        load_trained(path)


def _weights(change: Callable[[Any], Any]) -> Any:
    return lambda tensors, metadata: sealed_tensors(change(tensors), metadata)


def _graph(text: str) -> Any:
    return lambda tensors, metadata: sealed_tensors(tensors, {**metadata, "graph": text})


def _earlier(tensors: Any, metadata: Any) -> bytes:
    """Weights that do not say how inputs are scaled."""
    graph = build(ROWS["two"], load(0, None))
    return safetensors.torch.save(tensors, {"graph": graph.to_json()})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_weights(_without("W")), "its graph and its parameters disagree about W"),
        (_weights(lambda each: {**each, "X": each["W"].clone()}), "its graph and its parameters disagree about X"),
        (_weights(lambda each: {**each, "W": each["W"][:3]}), r"'W' has the shape \(3, 6\), not \(6, 6\)"),
        (_weights(lambda each: {**each, "W": each["W"].reshape(36)}), r"'W' has the shape \(36,\), not \(6, 6\)"),
        (_weights(lambda each: {**each, "W": each["W"].int()}), r"'W' holds torch.int32"),
        *((_graph(text), "this is not a graph in JSON") for text in ("", "{", "[1]", '{"format": "tensornet.graph"}')),
        (lambda tensors, metadata: sealed_tensors(tensors, {**metadata, "format": "other"}), "no study wrote it"),
        (_earlier, "(?s:.)*for one of an earlier version, which did not keep how inputs are scaled, give its `tensornet study`"),
        (lambda tensors, metadata: b"\x02\0\0\0\0\0\0\0{}", ""),
    ],
)  # fmt: skip
def test_weights_and_a_graph_that_do_not_fit_are_told(done: Path, change: Any, reason: str) -> None:
    """And the study trains them anew."""
    path = kept(done, "two.*.safetensors")
    tensors, metadata = read_tensors(path)
    del metadata["seal"]
    path.write_bytes(change(tensors, metadata))
    with pytest.raises(TensornetError, match=rf"is not a trained classifier: {reason}"):
        load_trained(path)
    study(done)
    assert load_trained(path)[0].inputs


# ---- what is printed


def test_control_characters_are_shown() -> None:
    assert printable("a\x1b[2J\x07\x9b\r\u202e\udcff\u2028é\t\n漢") == (
        r"a\x1b[2J\x07\x9b\r\u202e\udcff\u2028é" + "\t\n漢"
    )


@given(st.text(st.characters(exclude_categories=()), max_size=50))
def test_printable_text_steers_nothing(text: str) -> None:
    shown = printable(text)
    assert not any(
        unicodedata.category(each) in ("Cc", "Cf", "Cs", "Zl", "Zp") for each in shown if each not in "\t\n"
    )
    shown.encode()  # half a pair cannot be written
    assert printable(shown) == shown
    assert shown == text or not text.isprintable()


def test_a_folder_with_escapes_in_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "results\x1b[2J\udcff"
    _, printed = study(folder)
    assert "\x1b" not in printed
    assert r"results\x1b[2J\udcff" in printed
    kept(folder, "two.*.json").write_text("damaged")
    _, printed = study(folder)
    assert "\x1b" not in printed


def test_an_error_with_escapes(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["tensornet", "study", "thesis", "--data", "a\x1b[31m\x07b"])
    with pytest.raises(SystemExit, match="2"):
        cli.main()
    assert r"error: there are no images 'a\x1b[31m\x07b'" in capsys.readouterr().err


def test_a_report_with_escapes(finished: Path, tmp_path: Path) -> None:
    results = [replace(each, about="a\x1b[2J", formula="b\x1bc") for each in _loaded(finished)]
    environment = json.loads((finished / "results.json").read_text())["environment"]
    report.write_outputs(
        tmp_path, TINY, results, {**environment, "data": {**environment["data"], "place": "\x1b"}}
    )
    assert "\x1b" not in (tmp_path / "report.md").read_text(encoding="utf-8")
    console = Console(file=io.StringIO(), width=100)
    console.print(report.table(TINY, results))
    assert "\x1b" not in console.file.getvalue()  # type: ignore[attr-defined]


def _loaded(folder: Path) -> list[RunResult]:
    document = json.loads((folder / "results.json").read_text())
    return [read(RunResult, each) for each in document["results"]]


def test_a_schema_reads_what_was_written() -> None:
    epoch = Epoch(1.0, 20.0, 100.0, 10.0, 50.0)
    assert read(Epoch, json.loads(json.dumps(asdict(epoch)))) == epoch
    with pytest.raises(ValueError, match="train_top1 is no finite number"):
        read(Epoch, {**asdict(epoch), "train_top1": True})
