"""One run as a value: this process or another, on any machine, trains it to the same numbers."""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tensornet.errors import TensornetError

from .checkpoint import Checkpoint
from .compressing import Start, classifier, compressed_start
from .hardware import Hardware
from .libraries import versions
from .progress import Noted
from .recipe import Recipe
from .results import Compression, RunResult
from .schema import read
from .store import SECONDS_OF_WAITING, RunStore, check_parameters, load_trained
from .subjects import Subject
from .task import Examples, Task
from .training import Progress, train

__all__ = ["Job", "Run", "counts", "settings_of", "train_job", "train_on_worker"]


@dataclass(frozen=True)
class Run:
    """A row of a task, and how it is trained.

    Attributes:
        name: the row, and the optimizer if there are several.
        of: the row.
        recipe: how it is trained.
        origin: the run whose classifier it compresses, if any.
    """

    name: str
    of: str
    recipe: Recipe
    origin: Run | None = None


@dataclass(frozen=True)
class Job:
    """A run with one seed, and everything that is needed to train it.

    Attributes:
        folder: the folder of the study, which all processes share.
        subject: the subject of the study.
        run: the run.
        seed: the seed of everything that is random.
        hardware: the hardware that computes it.
        settings: everything that its numbers depend on; a process that finds other settings does not train it.
    """

    folder: Path
    subject: Subject
    run: Run
    seed: int
    hardware: Hardware
    settings: Mapping[str, Any]

    @property
    def progress(self) -> Path:
        """The file in which another process reports its progress."""
        return RunStore(self.folder).progress(self.run.name, self.settings)


def settings_of(
    subject: Subject, task: Task, run: Run, seed: int, examples: Examples, hardware: Hardware
) -> dict[str, Any]:
    """Everything that the numbers of a run depend on."""
    found = {
        "name": run.name,
        "row": asdict(task.rows[run.of]),
        "trained": asdict(run.recipe),
        "task": subject.name,
        "seed": seed,
        "data": {"about": examples.about, **counts(examples)},
        "hardware": hardware.described(),
        "versions": versions(),
    }
    if run.origin is not None:
        found["from"] = settings_of(subject, task, run.origin, seed, examples, hardware)
    return found


def counts(examples: Examples) -> dict[str, int]:
    """The numbers of training and test examples."""
    return {"train": len(examples.train_labels), "test": len(examples.test_labels)}


def train_job(job: Job, store: RunStore, progress: Progress, wait: float = 0.0) -> RunResult:
    """Trains a run, or resumes it from its checkpoint, and keeps the result in the folder.

    Args:
        job: the run.
        store: its folder.
        progress: receives the progress after every step.
        wait: the most seconds to wait for another process that trains it.

    Raises:
        TensornetError: the run fails, or another process trains it.
    """
    run, settings, first = job.run, job.settings, not job.hardware.rank
    task, examples = job.subject.task(), job.subject.examples(job.seed)
    row = task.rows[run.of]
    checkpoints = store.checkpoints(run.name, settings)
    with store.training(run.name, settings, wait) if first else nullcontext():
        found = store.load(run.name, settings) if wait else None
        if found is not None:  # trained by the other process
            return found
        start = None if run.origin is None else _start(job, run.origin, task, examples, store)
        trained = train(
            run.name,
            run.of,
            row.about,
            task.build(row, examples) if start is None else start.classifier,
            examples,
            recipe=run.recipe,
            seed=job.seed,
            hardware=job.hardware,
            parameters=None if start is None else start.parameters,
            checkpoints=checkpoints,
            progress=progress,
        )
        if start is not None:
            trained = replace(trained, result=replace(trained.result, compression=start.compression))
        if first:
            store.save(trained, settings)
            checkpoints.remove()
            store.start(run.name, settings).remove()
    return trained.result


def _start(job: Job, origin: Run, task: Task, examples: Examples, store: RunStore) -> Start:
    """The compressed classifier of another run; the first process computes it for all processes.

    Raises:
        TensornetError: that run is not finished, or the budget cannot be met.
    """
    found: Start | TensornetError | None = None
    if not job.hardware.rank:
        try:
            found = _kept_or_made(job, origin, task, examples, store)
        except TensornetError as error:  # the others wait for an answer
            found = error
    found = job.hardware.agreed(found)
    if isinstance(found, TensornetError):
        raise found
    assert found is not None
    return found


def _kept_or_made(job: Job, origin: Run, task: Task, examples: Examples, store: RunStore) -> Start:
    """The compressed classifier: loaded if it was kept before, else computed, and kept if it will be trained."""
    kept, row = store.start(job.run.name, job.settings), task.rows[job.run.of]
    before = kept.load(functools.partial(_check_start, task, row, examples))
    if before is not None:
        return _started(task, row, examples, before)
    start = _made(job, origin, task, examples, store)
    if job.run.recipe.epochs:
        tensors = {name: each.contiguous() for name, each in start.parameters.items()}
        kept.save(Checkpoint(tensors, asdict(start.compression)))
    return start


def _started(task: Task, row: Any, examples: Examples, found: Checkpoint) -> Start:
    """The compressed classifier of a checkpoint."""
    compression = read(Compression, found.state)
    return Start(classifier(task, row, examples, compression), dict(found.tensors), compression)


def _check_start(task: Task, row: Any, examples: Examples, found: Checkpoint) -> None:
    """Raises ValueError unless the checkpoint holds the compressed classifier of this row."""
    start = _started(task, row, examples, found)
    check_parameters(start.classifier, start.parameters)


def _made(job: Job, origin: Run, task: Task, examples: Examples, store: RunStore) -> Start:
    """Compresses the classifier of another run."""
    settings = job.settings["from"]
    found = store.load(origin.name, settings)
    if found is None:
        raise TensornetError(
            f"{job.run.name} is made of {origin.name}, which is not finished", fix="give the command again"
        )
    trained = load_trained(store.path(origin.name, settings).with_suffix(".safetensors"))
    return compressed_start(
        task,
        task.rows[job.run.of],
        examples,
        found,
        trained,
        recipe=job.run.recipe,
        seed=job.seed,
        hardware=job.hardware,
    )


_ALONE = threading.Lock()
"""Thread counts and seeds are global to a process: a worker with several threads trains one run at a time."""


def train_on_worker(job: Job) -> RunResult | TensornetError:
    """`train_job` in another process, which writes its progress to a file; errors are returned as values."""
    with _ALONE:
        try:
            _check_settings(job)
            noted = Noted(job.progress)
            result = train_job(job, RunStore(job.folder), noted, SECONDS_OF_WAITING)
            noted.end()
            return result
        except TensornetError as error:
            return error


def _check_settings(job: Job) -> None:
    """Raises an error unless this process finds the same data and versions as the process that submitted the job."""
    examples = job.subject.examples(job.seed)
    found = settings_of(job.subject, job.subject.task(), job.run, job.seed, examples, job.hardware)
    for name, value in job.settings.items():
        if found[name] != value:
            raise TensornetError(
                f"a worker would train {job.run.name} with other {name}: {found[name]}, not {value}",
                fix="install the same versions on every machine, and let them see the same data",
            )
