"""One run as a value: this process or another, on any machine, trains it to the same numbers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import tensornet as tn
from tensornet.codec import Part, read, write
from tensornet.device.timing import Clock, timings
from tensornet.errors import TensornetError

from .compressing import Start, classifier, compressed_start
from .hardware import Hardware
from .libraries import versions
from .progress import noted
from .results import Appraisal, Compression, RunResult
from .store import BLANK, RunStore, is_sealed, load_trained, read_or_set_aside, remove, seal, write_whole
from .task import Examples, Recipe
from .training import Progress, TrainingRun, sizes_of_batch, train
from .written import Subject

__all__ = ["Job", "Run", "Timed", "counts", "measured", "settings_of", "train_job", "train_on_worker"]

SECONDS_OF_WAITING = 30.0
"""The seconds to wait until a stopped process releases a run that another process resumes."""

ROUNDS, WARM = 9, 3
"""Measured turns of each classifier, and warm-up turns before them: the first one plans and allocates."""


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
        return RunStore(self.folder).path(self.run.name, self.settings, "progress")


def settings_of(subject: Subject, run: Run, seed: int, hardware: Hardware) -> dict[str, Any]:
    """Everything that the numbers of a run depend on."""
    examples = subject.examples(seed)
    found: dict[str, Any] = {
        "name": run.name,
        "row": asdict(subject.task.rows[run.of]),
        "trained": asdict(run.recipe),
    }
    found |= {"task": subject.name, "seed": seed, "data": {"about": examples.about, **counts(examples)}}
    found |= {"hardware": hardware.described(), "versions": versions()}
    return found | ({"from": settings_of(subject, run.origin, seed, hardware)} if run.origin else {})


def counts(examples: Examples) -> dict[str, int]:
    """The numbers of training and test examples."""
    return {"train": len(examples.train_labels), "test": len(examples.test_labels)}


def train_job(job: Job, store: RunStore, progress: Progress | None, wait: float = 0.0) -> RunResult:
    """Trains a run, or resumes it from its checkpoint, and keeps the result in the folder.

    Args:
        job: the run.
        store: its folder.
        progress: receives the progress before every step.
        wait: the most seconds to wait for another process that trains it.

    Raises:
        TensornetError: the run fails, or another process trains it.
    """
    run, settings, first = job.run, job.settings, not job.hardware.rank
    task, examples = job.subject.task, job.subject.examples(job.seed)
    with store.training(run.name, settings, wait) if first else nullcontext():
        found = store.load(run.name, settings) if wait else None
        if found is not None:  # trained by the other process
            return found
        start = None if run.origin is None else _start(job, run.origin, store)
        row, how = task.rows[run.of], dict[str, Any](recipe=run.recipe, seed=job.seed, hardware=job.hardware)
        graph = task.build(row, examples) if start is None else start.classifier
        how |= {
            "parameters": start and start.parameters,
            "checkpoints": store.checkpoints(run.name, settings),
        }
        trained = train(run.name, run.of, row.about, graph, examples, progress=progress, **how)
        if start is not None:
            trained = replace(trained, result=replace(trained.result, compression=start.compression))
        if first:
            store.save(trained, settings)
            for end in ("checkpoint", "start"):
                store.checkpoints(run.name, settings, end).remove()
    return trained.result


def _start(job: Job, origin: Run, store: RunStore) -> Start:
    """The compressed classifier of another run; the first process computes it for all processes.

    Raises:
        TensornetError: that run is not finished, or the budget cannot be met.
    """
    found: Any = None
    try:
        found = None if job.hardware.rank else _kept_or_made(job, origin, store)
    except TensornetError as error:  # the others wait for an answer
        found = error
    found = job.hardware.agreed(found)
    if isinstance(found, TensornetError):
        raise found
    return found  # type: ignore[no-any-return]


def _kept_or_made(job: Job, origin: Run, store: RunStore) -> Start:
    """The compressed classifier: loaded if it was kept before, else computed, and kept if it will be trained."""
    task, examples = job.subject.task, job.subject.examples(job.seed)
    kept, row = store.checkpoints(job.run.name, job.settings, "start"), task.rows[job.run.of]
    before = kept.load()
    if before is not None:
        compression = read(Compression, Part.of(before["compression"], "compression"))
        return Start(classifier(task, row, examples, compression), before["parameters"], compression)
    found = store.load(origin.name, job.settings["from"])
    if found is None:
        fix = "give the command again"
        raise TensornetError(f"{job.run.name} is made of {origin.name}, which is not finished", fix=fix)
    trained = load_trained(store.path(origin.name, job.settings["from"]))
    start = compressed_start(task, row, examples, found, trained, job.run.recipe, job.seed, job.hardware)
    if job.run.recipe.epochs:
        kept.save({"parameters": start.parameters, "compression": json.dumps(write(start.compression))})
    return start


def train_on_worker(job: Job) -> RunResult:
    """`train_job` in another process, which writes its progress to a file.

    Raises:
        TensornetError: this process finds other data or versions than the process that submitted the job.
    """
    found = settings_of(job.subject, job.run, job.seed, job.hardware)
    for name, value in job.settings.items():
        if found[name] != value:
            told = f"a worker would train {job.run.name} with other {name}: {found[name]}, not {value}"
            fix = "install the same versions on every machine, and let them see the same data"
            raise TensornetError(told, fix=fix)
    result = train_job(job, RunStore(job.folder), noted(job.progress), SECONDS_OF_WAITING)
    remove(job.progress)
    return result


# ---------------------------------------------------------------------------- costs


@dataclass(frozen=True)
class Timed:
    """The classifiers that are to be measured in turns: a job for each, and how it was compressed, if it was."""

    jobs: tuple[Job, ...]
    compressions: tuple[Compression | None, ...]

    def appraisals(self) -> tuple[Appraisal, ...]:
        """Their costs: times, measured round after round, and the bytes that the plan of a step keeps.

        So a temporary slowdown of the machine affects all classifiers alike, and the median over the rounds
        excludes it.
        """
        hardware = self.jobs[0].hardware
        clock = Clock(wait=lambda *made: hardware.wait())
        with hardware.reproducible():
            all_of_them = list(map(_Measured, self.jobs, self.compressions))
            steps = timings({each.name: each.step for each in all_of_them}, ROUNDS, WARM, clock)
            for each in all_of_them:
                each.run.module.eval()
            predictions = timings({each.name: each.predict for each in all_of_them}, ROUNDS, WARM, clock)
            medians = ((steps[each.name].median, predictions[each.name].median) for each in all_of_them)
            return tuple(each.appraisal(*both) for each, both in zip(all_of_them, medians, strict=True))


class _Measured:
    """The classifier of a run, with a prepared mini-batch and a prepared example."""

    def __init__(self, job: Job, compression: Compression | None) -> None:
        task, examples = job.subject.task, job.subject.examples(job.seed)
        graph = classifier(task, task.rows[job.run.of], examples, compression)
        self.name = job.run.name
        self.run = TrainingRun(job.run.name, graph, examples, job.run.recipe, job.seed, job.hardware)
        self.batch = self.run.mini_batch(0)
        self.example = examples.batch(tuple(each[:1] for each in self.run.test[:-1]))
        self.run.train = self.run.test = ()  # else each would keep all examples on the device

    def step(self) -> None:
        """Computes a training step."""
        self.run.update(*self.batch)

    def predict(self) -> None:
        """Computes a prediction for one example."""
        with self.run.torch.no_grad(), self.run.hardware.autocast():
            self.run.module(*self.example)

    def appraisal(self, step: float, prediction: float) -> Appraisal:
        """The appraisal with these seconds, and the plan by which the module trains on a mini-batch."""
        graph, device = self.run.classifier, self.run.hardware.device
        sizes: dict[str, Any] = sizes_of_batch(graph, self.run.examples, self.run.recipe.batch)
        plan = tn.plan(graph, backend="torch", device=device, training=True, compare=False, **sizes)
        kept = sum(size for _, size in plan.kept)
        return Appraisal(self.name, str(graph), str(plan), kept, 1e3 * step, 1e3 * prediction)


def measured(
    folder: Path,
    settings: Mapping[str, Any],
    measure: Callable[[], tuple[Appraisal, ...]],
    say: Callable[[str], None],
) -> dict[str, Appraisal]:
    """The costs by name of a run: those in `measured.json`, if they are of these settings; else measured and kept.

    Raises:
        TensornetError: the folder cannot be written.
    """
    path = folder / "measured.json"
    key = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()

    def kept(path: Path) -> tuple[Appraisal, ...]:
        content = path.read_bytes()
        if not is_sealed(content):
            raise ValueError("its content is not what was written")
        document = Part.of(content.decode(), "measurement")
        settings = document.get("settings")  # an earlier version called it otherwise
        same = settings is not None and settings.value == key
        return tuple(read(Appraisal, each) for each in document["appraisals"]) if same else ()

    found = read_or_set_aside(path, kept, say)
    if not found:
        found = measure()
        document = {"seal": BLANK, "settings": key, "appraisals": [write(each) for each in found]}
        write_whole(path, seal((json.dumps(document, indent=1) + "\n").encode()))
    return {each.name: each for each in found}
