"""A study's folder after damage of every kind: the same numbers, computed anew where need be, and never a raw error."""

from __future__ import annotations

import io
import json
import random
import shutil
import sys
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import tensornet as tn
from tensornet import cli
from tensornet.display import printable
from tensornet.errors import TensornetError
from tensornet.study import RunResult, load_trained, report
from tensornet.study import configuration as subject
from tensornet.study.pictures import FORMATS
from tensornet.study.results import BLANK, RunStore, is_sealed, read_tensors, seal, sealed_tensors
from tensornet.study.task import Examples, Recipe, Task

from . import studies
from .conftest import needs
from .damage import BYTES, DOCUMENTS, damaged, damaged_value
from .studies import kept

needs("safetensors", "sklearn", "matplotlib")


@dataclass(frozen=True)
class Row:
    """Of a study small enough to be run a hundred times."""

    about: str


def load(seed: int) -> Examples:
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
        patched.setitem(subject.TASKS, "tiny", lambda data: TINY)
        blank = {name: b"" for name in report.OUTPUTS if name.endswith(FORMATS)}
        patched.setattr(report, "draw", lambda task, runs, tested: blank)
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
    """One run is finished; of the other there is the checkpoint of a step in the third epoch."""
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


WAYS = [*BYTES, *DOCUMENTS, "gone"]


# ---- any damage


@pytest.mark.parametrize(
    ("files", "way"),
    [*(("two.*.safetensors", way) for way in WAYS), *(("two.*.checkpoint", way) for way in WAYS)],
)
def test_no_damage_changes_a_number(
    finished: Path, stopped: Path, expected: list[RunResult], tmp_path: Path, files: str, way: str
) -> None:
    """Of finished runs and of unfinished ones."""
    folder = copied(stopped if "checkpoint" in files else finished, tmp_path)
    paths = sorted((folder / "runs").glob(files))
    assert len(paths) == 1
    for number, path in enumerate(paths):
        _damage(path, way, random.Random(f"{files} {way} {number}"))
    results, printed = study(folder)
    assert results == expected
    assert "kept, finished before: one\n" in printed
    load_trained(kept(folder, "two.*.safetensors"))
    assert ("is damaged and not used" in printed) == (way != "gone")
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
    (one,) = runs.glob("one.*.safetensors")
    (path,) = runs.glob("two.*.checkpoint")
    path.rename(one.with_name(one.name.replace(".safetensors", ".checkpoint")))
    one.unlink()


def _half_written(runs: Path) -> None:
    (path,) = runs.glob("two.*.checkpoint")
    for end in (".safetensors", ".checkpoint"):
        (runs / f".77.{path.with_suffix(end).name}").write_bytes(b"half")


@pytest.mark.parametrize(
    ("damage", "unfinished", "told", "times"),
    [
        (_swapped("safetensors"), False, "it is not one of this run", 2),
        (_of_another_run, True, "it is not one of this run", 1),
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
    assert [path.suffix for path in (folder / "runs").iterdir()] == 2 * [".safetensors"]


# ---- damage that was sealed again


def test_random_documents_that_were_sealed_again(done: Path) -> None:
    """A result, or nothing: never a raw error."""
    path, rng, found = kept(done, "two.*.safetensors"), random.Random(0), 0
    mapped, texts = read_tensors(path)
    tensors = {name: each.clone() for name, each in mapped.items()}  # the file that they map is written over
    del texts["seal"]
    settings = json.loads(texts["settings"])
    for _ in range(300):
        result = damaged_value(json.loads(texts["result"]), rng)
        path.write_bytes(sealed_tensors(tensors, {**texts, "result": json.dumps(result)}))
        found += RunStore(done).load("two", settings) is not None
    assert 0 < found < 250


@pytest.mark.parametrize("name", ["format", "fingerprint"])
@pytest.mark.parametrize("value", ["other", None])
def test_a_file_of_another_run_or_kind_is_not_taken(
    done: Path, expected: list[RunResult], name: str, value: str | None
) -> None:
    """Sealed like any other: refused, and the run computed again."""
    path = kept(done, "two.*.safetensors")
    tensors, texts = read_tensors(path)
    del texts["seal"], texts[name]
    path.write_bytes(sealed_tensors(tensors, texts if value is None else {**texts, name: value}))
    results, printed = study(done)
    assert results == expected
    assert "two" in printed.partition("is damaged and not used: ")[0].splitlines()[-1]


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


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        *(({"graph": text}, "this is not a graph in JSON") for text in ("", "{", "[1]", '{"format": "tensornet.graph"}')),
        ({"format": "other"}, r"no study of this version wrote it\nfix: (?s:.)*for one of an earlier version give its"),
    ],
)  # fmt: skip
def test_weights_of_something_else_are_told(done: Path, change: dict[str, str], reason: str) -> None:
    path = kept(done, "two.*.safetensors")
    tensors, texts = read_tensors(path)
    del texts["seal"]
    path.write_bytes(sealed_tensors(tensors, {**texts, **change}))
    with pytest.raises(TensornetError, match=rf"is not a trained classifier: {reason}"):
        load_trained(path)


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
    kept(folder, "two.*.safetensors").write_text("damaged")
    _, printed = study(folder)
    assert "\x1b" not in printed


def test_an_error_with_escapes(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["tensornet", "study", "thesis", "--data", "a\x1b[31m\x07b"])
    with pytest.raises(SystemExit, match="2"):
        cli.main()
    assert r"error: there are no images 'a\x1b[31m\x07b'" in capsys.readouterr().err


def test_a_report_with_escapes(finished: Path, tmp_path: Path, expected: list[RunResult]) -> None:
    results = [replace(each, about="a\x1b[2J", formula="b\x1bc") for each in expected]
    environment = json.loads((finished / "results.json").read_text())["environment"]
    data = {**environment["data"], "place": "\x1b"}
    report.write_outputs(tmp_path, TINY, results, {**environment, "data": data}, {})
    assert "\x1b" not in (tmp_path / "report.md").read_text(encoding="utf-8")
    console = Console(file=io.StringIO(), width=100)
    console.print(report.table(TINY, results))
    assert "\x1b" not in console.file.getvalue()  # type: ignore[attr-defined]
