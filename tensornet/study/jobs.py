"""One run as a value: this process or another, on any machine, trains it to the same numbers."""

from __future__ import annotations

import json
from collections import ChainMap
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import tensornet as tn
from tensornet.codec import Part, read, write
from tensornet.errors import TensornetError

from .compressing import Start, classifier, compressed_start
from .configuration import Subject
from .hardware import Hardware
from .libraries import versions
from .results import Appraisal, Compression, RunResult
from .store import RunStore, load_trained
from .task import Examples, Recipe
from .training import Progress, sizes_of_batch, train

__all__ = ["Job", "Run", "appraisals", "counts", "settings_of", "train_job", "train_on_worker"]

SECONDS_OF_WAITING = 30.0
"""The seconds to wait until a stopped process releases a run that another process resumes."""

ROUNDS = 9
"""Measured turns of each classifier."""


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


def settings_of(subject: Subject, run: Run, seed: int, hardware: Hardware) -> dict[str, Any]:
    """Everything that the numbers of a run depend on."""
    examples = subject.examples(seed)
    return {
        "name": run.name,
        "row": asdict(subject.task.rows[run.of]),
        "trained": asdict(run.recipe),
        "task": subject.name,
        "seed": seed,
        "data": {"about": examples.about, **counts(examples)},
        "hardware": hardware.described(),
        "versions": versions(),
    } | ({"from": settings_of(subject, run.origin, seed, hardware)} if run.origin else {})


def counts(examples: Examples) -> dict[str, int]:
    """The numbers of training and test examples."""
    return {"train": len(examples.train_labels), "test": len(examples.test_labels)}


def train_job(
    job: Job, say: Callable[[str], None], progress: Progress | None, wait: float = 0.0
) -> RunResult:
    """Trains a run, or resumes it from its checkpoint, and keeps the result in the folder.

    Args:
        job: the run.
        say: receives a message if a file is set aside, or the run resumes.
        progress: receives the progress before every step.
        wait: the most seconds to wait for another process that trains it.

    Raises:
        TensornetError: the run fails, or another process trains it.
    """
    run, settings, first, store = job.run, job.settings, not job.hardware.rank, RunStore(job.folder, say)
    task, examples = job.subject.task, job.subject.examples(job.seed)
    with store.training(run.name, settings, wait) if first else nullcontext():
        found = store.load(run.name, settings) if wait else None
        if found is not None:  # trained by the other process
            return found
        start = None
        if run.origin is not None:  # the first process compresses for all processes
            start = job.hardware.agreed(_start(job, run.origin, store) if first else None)
        row = task.rows[run.of]
        trained = train(
            run.name,
            run.of,
            row.about,
            start.classifier if start else task.build(row, examples),
            examples,
            recipe=run.recipe,
            seed=job.seed,
            hardware=job.hardware,
            parameters=start and start.parameters,
            checkpoint=store.file(run.name, settings, "checkpoint"),
            progress=progress,
        )
        if start is not None:
            trained = replace(trained, result=replace(trained.result, compression=start.compression))
        if first:
            store.save(trained, settings)
    return trained.result


def _start(job: Job, origin: Run, store: RunStore) -> Start:
    """The compressed classifier of another run: loaded if it was kept before, else computed and kept.

    Raises:
        TensornetError: that run is not finished, or the budget cannot be met.
    """
    task, examples = job.subject.task, job.subject.examples(job.seed)
    kept, row = store.file(job.run.name, job.settings, "start"), task.rows[job.run.of]

    def started(parameters: Mapping[str, Any], texts: Mapping[str, str]) -> Start:
        compression = read(Compression, Part.of(texts["compression"], "compression"))
        return Start(classifier(task, row, examples, compression), dict(parameters), compression)

    if (before := kept.load(started)) is not None:
        return before
    found = store.load(origin.name, job.settings["from"])
    if found is None:
        fix = "give the command again"
        raise TensornetError(f"{job.run.name} is made of {origin.name}, which is not finished", fix=fix)
    trained = load_trained(store.file(origin.name, job.settings["from"]).path)
    start = compressed_start(task, row, examples, found, trained, job.run.recipe, job.seed, job.hardware)
    kept.save(start.parameters, {"compression": json.dumps(write(start.compression))})
    return start


def train_on_worker(job: Job) -> RunResult:
    """`train_job` in another process.

    Raises:
        TensornetError: this process finds other data or versions than the process that submitted the job.
    """
    found = settings_of(job.subject, job.run, job.seed, job.hardware)
    for name, value in job.settings.items():
        if found[name] != value:
            told = f"a worker would train {job.run.name} with other {name}: {found[name]}, not {value}"
            fix = "install the same versions on every machine, and let them see the same data"
            raise TensornetError(told, fix=fix)
    return train_job(job, lambda text: None, None, SECONDS_OF_WAITING)


# ---------------------------------------------------------------------------- costs


def appraisals(made: tuple[tuple[Job, Compression | None], ...]) -> tuple[Appraisal, ...]:
    """The costs of classifiers: times, measured in turns by `tensornet.sweep`, and the bytes that training keeps.

    Args:
        made: the job of each classifier, and how it was compressed, if it was.
    """
    graphs, (first, _) = dict[str, tn.Graph](), made[0]
    examples, hardware = first.subject.examples(first.seed), first.hardware
    for job, compression in made:
        task = job.subject.task
        graphs[job.run.name] = classifier(task, task.rows[job.run.of], examples, compression)

    def sizes(batch: int) -> dict[str, Any]:
        return dict(ChainMap(*(sizes_of_batch(graph, examples, batch) for graph in graphs.values())))

    batch, where = first.run.recipe.batch, {"backend": "torch", "device": hardware.device}
    how: dict[str, Any] = {**where, "dtype": hardware.precision, "rounds": ROUNDS}
    with hardware.reproducible():
        steps = tn.sweep(graphs, training=True, **how, **sizes(batch))
        single = tn.sweep(graphs, **how, **sizes(1))
        found = []
        for (name, graph), step, one in zip(graphs.items(), steps, single, strict=True):
            plan: Any = tn.plan(graph, training=True, **where, **sizes_of_batch(graph, examples, batch))
            seconds = (1e3 * (step.training_seconds or 0.0), 1e3 * (one.seconds or 0.0))
            found.append(Appraisal(name, str(graph), str(plan), sum(n for _, n in plan.kept), *seconds))
    return tuple(found)
