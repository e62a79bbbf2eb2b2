"""Runs trained at once, here and elsewhere: the numbers of one process, whoever is killed meanwhile."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from tensornet.cli.study import workers_of
from tensornet.errors import TensornetError
from tensornet.study import Dask, Processes
from tensornet.study.jobs import TRIES, on_workers
from tensornet.study.store import read_tensors

from .conftest import needs
from .studies import Unsteady, study

needs("sklearn", "matplotlib")

pytestmark = pytest.mark.usefixtures("without_pictures", "users_plans")

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


def test_two_at_once_give_the_numbers_of_one(tmp_path: Path) -> None:
    chosen: dict[str, Any] = {"rows": ROWS[:1], "seeds": 2, "epochs": 1}
    study(tmp_path / "one", **chosen)
    _, printed = study(tmp_path / "two", **chosen, workers=Processes(2))
    assert results(tmp_path / "two") == results(tmp_path / "one")
    assert "dense-6 (seed 1): 502 parameters" in printed
    weights = sorted((tmp_path / "one" / "runs").glob("*.safetensors"))
    assert len(weights) == 2
    for path in weights:  # to the last bit
        alone, beside = (read_tensors(tmp_path / name / "runs" / path.name)[0] for name in ("one", "two"))
        assert all(torch.equal(alone[name], beside[name]) for name in alone)
    _, printed = study(tmp_path / "two", **chosen, workers=Processes(2))
    assert "kept, finished before: dense-6 (seed 0)" in printed


@pytest.mark.slow
def test_killed_processes_are_replaced(tmp_path: Path) -> None:
    chosen: dict[str, Any] = {"rows": ROWS[:2], "seeds": 2, "epochs": 15}
    study(tmp_path / "one", **chosen)
    runs, killed, over = tmp_path / "two" / "runs", [], threading.Event()

    def kill() -> None:
        """A process whenever another run is finished."""
        seen = set[Path]()
        while not over.wait(0.05) and len(killed) < 3:
            found = set(runs.glob("*.safetensors")) - seen
            seen |= found
            for each in multiprocessing.active_children()[: len(found)]:
                each.kill()
                killed.append(each.pid)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        study(tmp_path / "two", **chosen, workers=Processes(2))
    finally:
        over.set()
        killer.join()
    assert killed
    assert results(tmp_path / "two") == results(tmp_path / "one")
    assert {path.suffix for path in (tmp_path / "two" / "runs").iterdir()} == {".safetensors"}


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


# ---- elsewhere


@contextmanager
def process(command: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A Python process, ended with the block."""
    started = [sys.executable, "-m", *command.split()]
    with log.open("wb") as file, subprocess.Popen(started, stdout=file, stderr=file) as running:
        try:
            yield running
        finally:
            running.terminate()
            try:
                running.wait(30)
            except subprocess.TimeoutExpired:
                running.kill()


def waited(found: Callable[[], Any], seconds: float = 120.0) -> Any:
    """What is found, as soon as it is."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        result = found()
        if result:
            return result
        time.sleep(0.2)
    raise AssertionError(f"nothing within {seconds} s")


@pytest.mark.slow
def test_dask_workers_killed_at_random_give_the_numbers_of_one_process(tmp_path: Path) -> None:
    """Four rows by three seeds under two workers, each killed now and then, and started anew by its nanny."""
    pytest.importorskip("distributed")
    psutil = pytest.importorskip("psutil")
    study(tmp_path / "one", rows=ROWS, seeds=3, epochs=8)
    file, killed, rng = tmp_path / "scheduler.json", [], random.Random(0)
    here = f"--no-dashboard --scheduler-file {file}"
    scheduler = f"distributed.cli.dask_scheduler --host 127.0.0.1 --port 0 {here}"
    worker = f"distributed.cli.dask_worker --nworkers 2 --nthreads 1 --local-directory {tmp_path} {here}"
    with process(scheduler, tmp_path / "scheduler.log"):
        waited(file.exists)
        rows = " ".join(f"--row={row}" for row in ROWS)
        address = json.loads(file.read_text())["address"]
        command = f"tensornet study digits --seeds 3 --epochs 8 --no-measure {rows} --dask {address}"
        with (
            process(worker, tmp_path / "worker.log") as nannies,
            process(f"{command} --out {tmp_path / 'two'}", tmp_path / "log") as run,
        ):
            began = time.monotonic()
            waited((tmp_path / "two" / "runs").is_dir)
            while run.poll() is None:
                assert time.monotonic() - began < 900, (tmp_path / "log").read_text()
                time.sleep(rng.uniform(3.0, 8.0))
                trained = [
                    each for each in psutil.Process(nannies.pid).children(recursive=True) if _computes(each)
                ]
                if trained and len(killed) < 5 and run.poll() is None:
                    victim = rng.choice(trained)
                    with contextlib.suppress(psutil.NoSuchProcess):
                        victim.kill()
                        killed.append(victim.pid)
            assert run.wait() == 0, (tmp_path / "log").read_text()
    assert killed
    assert results(tmp_path / "two") == results(tmp_path / "one")
    assert {path.suffix for path in (tmp_path / "two" / "runs").iterdir()} == {".safetensors"}


def _computes(process: Any) -> bool:
    """Whether it is a worker: the process with the memory of torch, not a nanny's helper."""
    try:
        return bool(process.memory_info().rss > 150e6)
    except Exception:  # it ended meanwhile
        return False


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
