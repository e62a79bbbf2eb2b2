"""Workers of a study, and rows that compress the classifier of another."""

from __future__ import annotations

import contextlib
import csv
import json
import multiprocessing
import os
import signal
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tensornet as tn
from tensornet.cli.study import workers_of
from tensornet.errors import TensornetError
from tensornet.study import Dask, Processes, RunResult, load_trained
from tensornet.study.digits import split_digits
from tensornet.study.jobs import TRIES, on_workers
from tensornet.study.pictures import PICTURES
from tensornet.study.results import read_tensors

from .conftest import needs
from .studies import COMPRESSED, Finished, Unsteady, kept, stopped_after, study, toml

pytestmark = pytest.mark.usefixtures("without_pictures", "users_plans")

# ---------------------------------------------------------------------------- Runs trained at once, here and elsewhere


needs("sklearn", "matplotlib")


ROWS = ("dense-6", "tcl8-cp", "tcl8-tt", "tcl4-cp")


def results(folder: Path) -> Any:
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))["results"]


# ---- asked again


def test_what_is_lost_is_asked_for_again() -> None:
    workers, said = Unsteady(lambda asked: len(asked) <= 4), []
    done: dict[int, int] = {}
    on_workers(workers, lambda each: each**2, [1, 2, 3], done.__setitem__, say=said.append)
    assert said == [f"a worker was lost; of what it did, {left} are asked for again" for left in (3, 1)]
    assert done == {1: 1, 2: 4, 3: 9}
    assert workers.asked == [1, 2, 3, 1, 2, 3, 1]


def test_who_is_lost_again_and_again_is_told() -> None:
    workers = Unsteady(lambda asked: True)
    with pytest.raises(
        TensornetError, match=r"workers end again and again .*: gone\nfix: look at what ends them"
    ):
        on_workers(workers, abs, [1], lambda item, result: None)
    assert len(workers.asked) == TRIES


def test_an_error_of_a_worker_is_that_of_the_study() -> None:
    def wrong(item: int) -> None:
        raise TensornetError("the loss is nan", fix="lower the learning rate")

    with pytest.raises(TensornetError, match=r"the loss is nan\nfix: lower"):
        on_workers(Unsteady(lambda asked: False), wrong, [1, 2], lambda item, result: None)


# ---- here


@pytest.mark.slow
@pytest.mark.parametrize("where", ["here", "Dask"])
def test_killed_processes_are_replaced(where: str, tmp_path: Path) -> None:
    """By those of this one, and by the nannies of a cluster."""
    chosen: dict[str, Any] = {"rows": ROWS[:2], "seeds": 2, "epochs": 15}
    study(tmp_path / "one", **chosen)
    runs, killed, over = tmp_path / "two" / "runs", [], threading.Event()
    with contextlib.ExitStack() as stack:
        workers: Any = Processes(2)
        if where == "Dask":
            distributed = pytest.importorskip("distributed")
            cluster = distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)
            workers = Dask(stack.enter_context(cluster).scheduler_address)

        def alive() -> list[int]:
            own = multiprocessing.active_children() if where == "here" else cluster.workers.values()
            return [each.pid for each in own if each.pid]

        def kill() -> None:
            """A process whenever another run is finished."""
            seen = set[Path]()
            while not over.wait(0.05) and len(killed) < 3:
                found = set(runs.glob("*.safetensors")) - seen
                seen |= found
                for each in alive()[: len(found)]:
                    os.kill(each, signal.SIGKILL)
                    killed.append(each)

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            _, printed = study(tmp_path / "two", **chosen, workers=workers)
        finally:
            over.set()
            killer.join()
    assert killed
    assert "dense-6 (seed 1): 502 parameters" in printed
    assert results(tmp_path / "two") == results(tmp_path / "one")
    weights = sorted((tmp_path / "one" / "runs").iterdir())
    assert sorted(path.name for path in runs.iterdir()) == [path.name for path in weights]
    assert {path.suffix for path in weights} == {".safetensors"}
    for path in weights:  # to the last bit
        alone, beside = (read_tensors(folder / path.name)[0] for folder in (path.parent, runs))
        assert all(torch.equal(alone[name], beside[name]) for name in alone)
    _, printed = study(tmp_path / "two", **chosen, workers=Processes(2))
    assert f"kept, finished before: {ROWS[0]} (seed 0)" in printed


# ---- together


def test_a_mesh_of_one_process_gives_the_numbers_of_none(tmp_path: Path) -> None:
    """`test_sharding.py` has meshes of several."""
    chosen: dict[str, Any] = {"rows": ROWS[:1], "epochs": 1}
    study(tmp_path / "one", **chosen)
    study(tmp_path / "mesh", **chosen, mesh={"data": 1}, shard={"b": "data"})
    losses = [results(tmp_path / name)[0]["history"][0]["train_loss"] for name in ("one", "mesh")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    text = (tmp_path / "mesh" / "report.md").read_text(encoding="utf-8")
    assert "--mesh data=1" in text


# ---- what can be wrong


def test_workers_as_they_are_asked_for() -> None:
    assert workers_of(2, None) == Processes(2)
    assert workers_of(None, "tcp://h:1") == Dask("tcp://h:1")
    assert workers_of(None, None) is None
    assert (Processes(4).threads(8), Processes(4).threads(2)) == (2, 1)


def test_a_library_of_workers_that_is_missing_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(TensornetError, match=r"(?s)cannot be imported.*pip install '.\[dask\]'"):
        study(tmp_path, epochs=1, workers=Dask("tcp://127.0.0.1:1"))


def test_other_data_elsewhere_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that would train something else does not."""
    from tensornet.study import jobs

    versions = jobs.versions()
    monkeypatch.setattr(jobs, "versions", lambda: {**versions, "torch": os.urandom(4).hex()})
    with pytest.raises(TensornetError, match=r"a worker would train dense-6 with other versions"):
        study(tmp_path, rows="dense-6", epochs=1, workers=Unsteady(lambda asked: False))
    assert not list((tmp_path / "runs").glob("*.safetensors"))
    monkeypatch.setattr(jobs, "versions", lambda: versions)
    study(tmp_path, rows="dense-6", epochs=1, workers=Unsteady(lambda asked: len(asked) <= 2))
    assert [each["name"] for each in results(tmp_path)] == ["dense-6"]
    assert asdict(Processes(2)) == {"number": 2}


# ---------------------------------------------------------------------------- Rows of a study that compress the trained classifier of another


needs("sklearn", "matplotlib")

NAMES = ["small-0.5", "small-0.2", "uniform", "plain", "dense"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, users_plans: None, without_pictures: None) -> Finished:
    folder = tmp_path_factory.mktemp("compressed")
    return folder / "out", *study(folder / "out", 120, task=toml(folder, COMPRESSED), measure=True)


def run_of(results: list[RunResult], name: str, seed: int = 0) -> RunResult:
    return next(each for each in results if (each.name, each.seed) == (name, seed))


def trained(folder: Path, name: str, seed: int) -> tuple[tn.Graph, dict[str, Any]]:
    graph, parameters = load_trained(kept(folder, f"{name}.seed{seed}.*.safetensors"))
    return graph, tn.to_backend(parameters, "numpy")


def logits(folder: Path, name: str, seed: int, images: Any) -> Any:
    """What a kept classifier says of raw images, in float64 by NumPy."""
    graph, parameters = trained(folder, name, seed)
    whole = {key: array.astype(np.float64) for key, array in parameters.items()}
    return np.asarray(tn.compile(graph, backend="numpy")(whole, images.astype(np.float64)))


# ---- what is made


def test_rows_are_made_of_the_run_of_the_same_seed(finished: Finished) -> None:
    _, results, printed = finished
    assert [(each.name, each.seed) for each in results] == [(name, seed) for name in NAMES for seed in (0, 3)]
    lines = [line for line in printed.splitlines() if "(seed" in line]
    assert [line.partition(":")[0] for line in lines[:5]] == [f"{NAMES[n]} (seed 0)" for n in (4, 0, 1, 2, 3)]
    for each in results:
        made, dense = each.compression, run_of(results, "dense", each.seed)
        if each.name == "dense":
            assert made is None
            continue
        assert (made.origin, made.parameters, made.before_top1) == ("dense", 650, dense.test_top1)
        assert each.parameters == each.counted <= float(each.name[-3:] if "-" in each.name else 0.5) * 650
    for seed in (0, 3):
        assert run_of(results, "small-0.5", seed).recipe.epochs == 2
        assert run_of(results, "small-0.5", seed).recipe.weight_decay == 0.05  # that of the row it is made of
        assert run_of(results, "small-0.5", seed).recipe.batch == 64


def test_what_is_kept_is_what_is_told(finished: Finished) -> None:
    """A row that is not trained on, against a singular value decomposition by NumPy."""
    folder, results, _ = finished
    for seed in (0, 3):
        _, _, images, labels = split_digits(seed).values()
        before, after = (logits(folder, name, seed, images) for name in ("dense", "plain"))
        run = run_of(results, "plain", seed)
        made = run.compression
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


def test_training_on_is_better(finished: Finished) -> None:
    results = finished[1]
    for seed in (0, 3):
        tuned = run_of(results, "small-0.2", seed)
        assert tuned.test_top1 > tuned.compression.test_top1
        assert tuned.test_top1 == tuned.history[-1].test_top1
        weighed, plain = (run_of(results, name, seed).compression for name in ("small-0.5", "plain"))
        assert weighed.error < plain.error


def test_a_row_brings_along_what_it_is_made_of(finished: Finished, tmp_path: Path) -> None:
    results, _ = study(tmp_path / "out", 120, task=toml(tmp_path, COMPRESSED), rows="plain", seeds=[3])
    assert results == [run_of(finished[1], name, 3) for name in ("plain", "dense")]


# ---- stopped, and elsewhere


def test_a_run_that_is_stopped_goes_on(finished: Finished, tmp_path: Path) -> None:
    task = toml(tmp_path, COMPRESSED)
    with stopped_after(30, "small*.checkpoint"):
        study(tmp_path / "out", 120, task=task, rows="small-0.2", seeds=1)
    results, printed = study(tmp_path / "out", 120, task=task, rows="small-0.2", seeds=1)
    assert "kept, finished before: dense" in printed
    assert "small-0.2: goes on after step 30 of 44" in printed
    assert results == [run_of(finished[1], name) for name in ("small-0.2", "dense")]
    assert {path.suffix for path in (tmp_path / "out" / "runs").iterdir()} == {".safetensors"}


def test_workers_train_first_what_others_are_made_of(finished: Finished, tmp_path: Path) -> None:
    """Also where its worker is lost: what is made of it is asked for when it is there."""

    def names(asked: list[Any]) -> list[str]:
        return [f"{job.run.name} {job.seed}" for job in asked]

    workers = Unsteady(lambda asked: names(asked)[-1] == "dense 3" and names(asked).count("dense 3") == 1)
    task = toml(tmp_path, COMPRESSED)
    results, printed = study(tmp_path / "out", 120, task=task, rows=["plain", "uniform"], workers=workers)
    assert results == [
        run_of(finished[1], name, seed) for name in ("uniform", "plain", "dense") for seed in (0, 3)
    ]
    asked, others = (
        names(workers.asked),
        [f"{name} {seed}" for name in ("plain", "uniform") for seed in (0, 3)],
    )
    assert asked[:2] == ["dense 0", "dense 3"]
    assert sorted(asked[2:]) == sorted(["dense 3", *others])
    assert all(asked.index(f"{name} 3") > asked.index("dense 3", 2) for name in ("plain", "uniform"))
    assert "a worker was lost; of what it did, 1 are asked for again" in printed


@pytest.mark.slow
def test_processes_give_the_numbers_of_one(finished: Finished, tmp_path: Path) -> None:
    results, _ = study(tmp_path / "out", 120, task=toml(tmp_path, COMPRESSED), workers=Processes(2))
    assert results == finished[1]


# ---- what is reported


def test_the_report_tells_before_compressed_and_tuned(finished: Finished) -> None:
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
    assert "compressed" in printed
    assert "AdamW, 0.003, 0.05, 2 epochs" in told
    assert "- **dense**: 650 = " in told
    assert "- **small-0.2**" not in told
    assert page.count("<img ") == len(PICTURES)
    with (folder / "results.csv").open(encoding="utf-8", newline="") as file:
        rows = {(row["name"], int(row["seed"])): row for row in csv.DictReader(file)}
    assert rows["small-0.2", 0]["origin"] == "dense"
    assert float(rows["small-0.2", 0]["compressed_top1"]) == made[0].test_top1
    assert rows["dense", 0]["origin"] == ""
    document = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    equations = {each["name"]: each["equations"] for each in document["measured"]}
    assert set(equations) == set(NAMES)
    assert ".U[" in equations["plain"]
    assert ".U[" not in equations["dense"]


def test_a_study_without_such_rows_has_no_such_table(tmp_path: Path) -> None:
    _, printed = study(
        tmp_path / "out", 120, task=toml(tmp_path, COMPRESSED), rows="dense", seeds=1, epochs=1
    )
    told = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert "compress" not in told.lower().replace("what is compressed is trained on so", "")
    assert "top-5" in printed
