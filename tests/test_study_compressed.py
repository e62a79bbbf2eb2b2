"""Rows of a study that compress the trained classifier of another: what they keep, report, and go on from."""

from __future__ import annotations

import csv
import functools
import io
import json
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import tensornet as tn
from tensornet.errors import TensornetError

pytest.importorskip("torch")
pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")

from tensornet.study import Processes, RunResult, load_trained, run_study, training
from tensornet.study import jobs as study_jobs
from tensornet.study import workers as study_workers
from tensornet.study.checkpoint import Checkpoint, Checkpoints
from tensornet.study.digits import split_digits
from tensornet.study.pictures import COMPRESSION, FORMATS, PICTURES

TEXT = """
study = "digits"
seeds = [0, 3]
reference = "dense"
recipe = { epochs = 3, batch = 64 }

[rows.small]
from = "dense"
parameters = "budget"
budgets = [0.5, 0.2]
calibrate = 100
recipe = { epochs = 2, learning_rate = 0.003 }

[rows.uniform]
from = "dense"
parameters = 0.5
uniform = true
recipe = { epochs = 0 }

[rows.plain]
from = "dense"
parameters = 0.5
recipe = { epochs = 0 }

[rows.dense]
model = "trl"
settings = { sizes = [8, 8], outputs = 10, factorization = "dense" }
recipe = { weight_decay = 0.05 }
"""
NAMES = ["small-0.5", "small-0.2", "uniform", "plain", "dense"]


def written(folder: Path, text: str = TEXT) -> Path:
    path = folder / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


def study(folder: Path, task: Path, **changes: Any) -> tuple[list[RunResult], str]:
    console = Console(file=io.StringIO(), width=120)
    results = run_study(folder, task=task, console=console, **{"measure": False, **changes})
    assert isinstance(console.file, io.StringIO)
    return results, console.file.getvalue()


@pytest.fixture(scope="module", autouse=True)
def _no_calibration() -> Any:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TENSORNET_CALIBRATE", "0")
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[RunResult], str]:
    folder = tmp_path_factory.mktemp("compressed")
    return folder / "out", *study(folder / "out", written(folder), measure=True)


def run_of(results: list[RunResult], name: str, seed: int = 0) -> RunResult:
    return next(each for each in results if (each.name, each.seed) == (name, seed))


def trained(folder: Path, name: str, seed: int) -> tuple[tn.Graph, dict[str, Any]]:
    (path,) = (folder / "runs").glob(f"{name}.seed{seed}.*.safetensors")
    graph, parameters = load_trained(path)
    return graph, tn.to_backend(parameters, "numpy")


def logits(folder: Path, name: str, seed: int, images: Any) -> Any:
    """What a kept classifier says of raw images, in float64 by NumPy."""
    graph, parameters = trained(folder, name, seed)
    whole = {key: array.astype(np.float64) for key, array in parameters.items()}
    return np.asarray(tn.compile(graph, backend="numpy")(whole, images.astype(np.float64)))


# ---- what is made


def test_rows_are_made_of_the_run_of_the_same_seed(finished: tuple[Path, list[RunResult], str]) -> None:
    _, results, printed = finished
    assert [(each.name, each.seed) for each in results] == [(name, seed) for name in NAMES for seed in (0, 3)]
    lines = [line for line in printed.splitlines() if "(seed" in line]
    assert [line.partition(":")[0] for line in lines[:5]] == [f"{NAMES[n]} (seed 0)" for n in (4, 0, 1, 2, 3)]
    for each in results:
        made, dense = each.compression, run_of(results, "dense", each.seed)
        if each.name == "dense":
            assert made is None
            continue
        assert made is not None
        assert (made.origin, made.parameters, made.before_top1) == ("dense", 650, dense.test_top1)
        assert each.parameters == each.counted <= float(each.name[-3:] if "-" in each.name else 0.5) * 650
    for seed in (0, 3):
        assert run_of(results, "small-0.5", seed).recipe.epochs == 2
        assert run_of(results, "small-0.5", seed).recipe.weight_decay == 0.05  # that of the row it is made of
        assert run_of(results, "small-0.5", seed).recipe.batch == 64


def test_what_is_kept_is_what_is_told(finished: tuple[Path, list[RunResult], str]) -> None:
    """A row that is not trained on, against a singular value decomposition by NumPy."""
    folder, results, _ = finished
    for seed in (0, 3):
        _, _, images, labels = split_digits(seed)
        before, after = (logits(folder, name, seed, images) for name in ("dense", "plain"))
        run = run_of(results, "plain", seed)
        made = run.compression
        assert made is not None
        assert run.history == ()
        accuracy = 100 * int((after.argmax(1) == labels).sum()) / len(labels)
        assert accuracy == run.test_top1 == made.test_top1
        assert made.error == pytest.approx(np.linalg.norm(after - before) / np.linalg.norm(before), rel=1e-4)
        (weight,) = (each for each in made.weights if each.form != "dense")
        assert (weight.form, weight.shape, weight.output_error) == ("low_rank", (8, 8, 10), None)
        array = trained(folder, "dense", seed)[1][weight.path].astype(np.float64)
        values = np.linalg.svd(array.reshape(8, 80), compute_uv=False)
        (rank,) = weight.ranks
        assert weight.error == pytest.approx(
            np.sqrt((values[rank:] ** 2).sum() / (values**2).sum()), rel=1e-4
        )
        assert weight.parameters == rank * (8 + 80)


def test_training_on_is_better(finished: tuple[Path, list[RunResult], str]) -> None:
    results = finished[1]
    for seed in (0, 3):
        tuned = run_of(results, "small-0.2", seed)
        assert tuned.compression is not None
        assert tuned.test_top1 > tuned.compression.test_top1
        assert tuned.test_top1 == tuned.history[-1].test_top1
        weighed, plain = (run_of(results, name, seed).compression for name in ("small-0.5", "plain"))
        assert weighed is not None
        assert plain is not None
        assert weighed.error < plain.error


@pytest.mark.usefixtures("without_pictures")
def test_a_row_brings_along_what_it_is_made_of(
    finished: tuple[Path, list[RunResult], str], tmp_path: Path
) -> None:
    results, _ = study(tmp_path / "out", written(tmp_path), rows="plain", seeds=[3])
    assert results == [run_of(finished[1], name, 3) for name in ("plain", "dense")]


# ---- stopped, and elsewhere


@pytest.mark.parametrize("damaged", [False, True])
@pytest.mark.usefixtures("without_pictures")
def test_a_run_that_is_stopped_goes_on(
    finished: tuple[Path, list[RunResult], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    damaged: bool,
) -> None:
    save, left = Checkpoints.save, [30]

    def stop(kept: Checkpoints, checkpoint: Checkpoint) -> None:
        save(kept, checkpoint)
        left[0] -= kept.path.match("small*.checkpoint")
        if not left[0]:
            raise KeyboardInterrupt

    task = written(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(Checkpoints, "save", stop)
        patched.setattr(training, "SHARE_OF_WRITING", 1e9)
        patched.setattr(study_jobs, "train", functools.partial(study_jobs.train, every=0.0))
        with pytest.raises(KeyboardInterrupt):
            study(tmp_path / "out", task, rows="small-0.2", seeds=1)
    (kept,) = (tmp_path / "out" / "runs").glob("*.start")
    if damaged:
        kept.write_bytes(kept.read_bytes()[:-100])
    else:
        monkeypatch.setattr(study_jobs, "compressed_start", None)  # it is not compressed anew
    results, printed = study(tmp_path / "out", task, rows="small-0.2", seeds=1)
    assert "kept, finished before: dense" in printed
    assert ("is damaged, set aside and not used" in printed) == damaged
    assert "small-0.2: goes on after step 30 of 44" in printed
    assert results == [run_of(finished[1], name) for name in ("small-0.2", "dense")]
    left_over = {path.suffix for path in (tmp_path / "out" / "runs").iterdir()}
    assert left_over == {".json", ".safetensors"} | ({".damaged"} if damaged else set())


@dataclass
class Two:
    """Workers that call functions here, some time after they are asked."""

    asked: list[str] = field(default_factory=list)

    are_here = True

    def threads(self, cores: int) -> int:
        return 1

    def lost(self) -> tuple[type[BaseException], ...]:
        return (BrokenPipeError,)

    @contextmanager
    def open(self) -> Any:
        yield self

    def submit(self, function: Callable[..., Any], /, job: Any) -> Future[Any]:
        self.asked.append(f"{job.run.name} {job.seed}")
        if self.asked.count("dense 3") == 1 and self.asked[-1] == "dense 3":
            future: Future[Any] = Future()
            future.set_exception(BrokenPipeError("gone"))
            return future
        future = Future()
        future.set_result(function(job))
        return future


@pytest.mark.usefixtures("without_pictures")
def test_workers_train_first_what_others_are_made_of(
    finished: tuple[Path, list[RunResult], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where its worker is lost: what is made of it is asked for when it is there."""
    monkeypatch.setattr(study_workers, "SECONDS_BETWEEN_LOOKS", 0.0)
    workers = Two()
    results, printed = study(tmp_path / "out", written(tmp_path), rows=["plain", "uniform"], workers=workers)
    assert results == [
        run_of(finished[1], name, seed) for name in ("uniform", "plain", "dense") for seed in (0, 3)
    ]
    assert workers.asked[:2] == ["dense 0", "dense 3"]
    assert workers.asked.count("dense 3") == 2
    assert sorted(workers.asked[2:]) == sorted(
        ["dense 3", *(f"{name} {seed}" for name in ("plain", "uniform") for seed in (0, 3))]
    )
    assert max(workers.asked.index(f"{name} 3") for name in ("plain", "uniform")) > workers.asked.index(
        "dense 3", 2
    )
    assert "a worker was lost; of what it did, 1 are asked for again" in printed


@pytest.mark.slow
@pytest.mark.usefixtures("without_pictures")
def test_processes_give_the_numbers_of_one(
    finished: tuple[Path, list[RunResult], str], tmp_path: Path
) -> None:
    results, _ = study(tmp_path / "out", written(tmp_path), workers=Processes(2))
    assert results == finished[1]


# ---- what is reported


def test_the_report_tells_before_compressed_and_tuned(finished: tuple[Path, list[RunResult], str]) -> None:
    folder, results, printed = finished
    told = (folder / "report.md").read_text(encoding="utf-8")
    page = (folder / "report.html").read_text(encoding="utf-8")
    small = [run_of(results, "small-0.2", seed) for seed in (0, 3)]
    made = [each.compression for each in small if each.compression is not None]
    for figures in (
        [each.before_top1 for each in made],
        [each.test_top1 for each in made],
        [each.test_top1 for each in small],
        [100 * each.error for each in made],
    ):
        figure = f"{np.mean(figures):.2f} ± {np.std(figures, ddof=1):.2f} (2)"
        assert figure in told
        assert figure in page
    assert "| small-0.2 | dense |" in told
    assert "| `W` | 8×8×10 |" in told.replace("`head.W`", "`W`")
    assert "com-" in printed
    assert "AdamW, 0.003, 0.05, 2 epochs" in told
    assert "- **dense**: 650 = " in told
    assert "- **small-0.2**" not in told
    assert {f"{COMPRESSION}.{kind}" for kind in FORMATS} <= {path.name for path in folder.iterdir()}
    assert page.count("<figure>") == len(PICTURES) + 1
    with (folder / "results.csv").open(encoding="utf-8", newline="") as file:
        rows = {(row["name"], int(row["seed"])): row for row in csv.DictReader(file)}
    assert rows["small-0.2", 0]["origin"] == "dense"
    assert float(rows["small-0.2", 0]["compressed_top1"]) == made[0].test_top1
    assert rows["dense", 0]["origin"] == ""
    measured = json.loads((folder / "measured.json").read_text(encoding="utf-8"))["appraisals"]
    equations = {each["name"]: each["equations"] for each in measured}
    assert set(equations) == set(NAMES)
    assert ".U[" in equations["plain"]
    assert ".U[" not in equations["dense"]


def test_a_study_without_such_rows_has_no_such_table(tmp_path: Path) -> None:
    _, printed = study(tmp_path / "out", written(tmp_path), rows="dense", seeds=1, epochs=1)
    told = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert "compress" not in told.lower().replace("what is compressed is trained on so", "")
    assert "top-5" in printed
    assert not (tmp_path / "out" / f"{COMPRESSION}.png").exists()


# ---- what can be wrong


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('from = "dense"\nparameters = "budget"', 'from = "dens"\nparameters = "budget"', r"mine.toml: rows.small.from: there is no row 'dens' that is trained from scratch\nfix: choose of dense, or add \[rows.dens\]"),
        ('from = "dense"\nparameters = 0.5\nuniform', 'from = "plain"\nparameters = 0.5\nuniform', r"mine.toml: rows.uniform.from: there is no row 'plain' that is trained from scratch\nfix: choose of dense"),
        ("parameters = 0.5\nuniform", "uniform", r"mine.toml: rows.uniform: there is no budget\nfix: give one of parameters, flops"),
        ("parameters = 0.5\nuniform", "parameters = 0.5\nflops = 0.1\nuniform", r"mine.toml: rows.uniform: there are 2 budgets"),
        ("parameters = 0.5\nuniform", "parameters = 1.5\nuniform", r"mine.toml: rows.uniform.parameters: parameters=1.5 is no budget\nfix: give a part"),
        ("parameters = 0.5\nuniform", 'parameters = "half"\nuniform', r"mine.toml: rows.uniform.parameters: parameters='half' is no budget"),
        ("uniform = true", "uniform = 1", r"mine.toml: rows.uniform.uniform: it is 1\nfix: give true or false"),
        ("budgets = [0.5, 0.2]", "", r"mine.toml: rows.small.parameters: there are no budgets"),
        ("calibrate = 100", "calibrate = -1", r"mine.toml: rows.small.calibrate: it is -1\nfix: give how many"),
        ("calibrate = 100", "calibrated = 1", r"mine.toml: rows.small.calibrated: there is no such key\nfix: did you mean 'calibrate'\?"),
        ("calibrate = 100", 'method = "tuckr"', r"there is no factorization 'tuckr'\nfix: did you mean 'tucker'"),
        ("calibrate = 100", 'include = "body.*"', r"'body.\*'"),
        ("calibrate = 100", 'settings = { rank = 3 }', r"mine.toml: rows.small.settings: there is no such key"),
        ("epochs = 2", "epochs = -1", r"mine.toml: rows.small.recipe: epochs is -1\nfix: give a whole number, 0 or more"),
        ("epochs = 3", "epochs = 0", r"mine.toml: recipe: epochs is 0\nfix: give a whole number, 1 or more"),
    ],
)  # fmt: skip
def test_errors_name_the_file_the_key_and_the_fix(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in TEXT
    with pytest.raises(TensornetError, match=message):
        study(tmp_path / "out", written(tmp_path, TEXT.replace(old, new)))
    assert not list((tmp_path / "out").glob("runs/*.json"))


@pytest.mark.parametrize("fails", [False, True])
def test_the_first_process_compresses_for_all(monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    made, said = object.__new__(study_jobs.Start), list[Any]()

    def compressed(*given: Any) -> Any:
        said.append(None)
        if fails:
            raise TensornetError("too few")
        return made

    monkeypatch.setattr(study_jobs, "_kept_or_made", compressed)

    def started(rank: int) -> Any:
        def agreed(value: Any) -> Any:  # what the first says, to all
            said[-1] = said[-1] if rank else value
            return said[-1]

        job: Any = SimpleNamespace(hardware=SimpleNamespace(rank=rank, agreed=agreed))
        return study_jobs._start(job, *[None] * 4)  # type: ignore[list-item]

    for rank in (0, 1):
        if fails:
            with pytest.raises(TensornetError, match="too few"):
                started(rank)
        else:
            assert started(rank) is made
    assert len(said) == 1
