"""Costs of classifiers: times, measured in turns and apart from training, and bytes kept for the backward pass."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tensornet as tn
from tensornet.device.timing import Clock, timings
from tensornet.errors import TensornetError

from .compressing import classifier
from .files import BLANK, is_sealed, seal, set_aside, write_whole
from .hardware import Hardware
from .jobs import Run
from .results import Appraisal, Compression
from .schema import read
from .subjects import Subject
from .training import TrainingRun, sizes_of_batch

__all__ = ["Wanted", "appraise", "appraise_on_worker", "kept_appraisals", "keep_appraisals"]

FORMAT = "tensornet.study.measured"
FILE = "measured.json"

ROUNDS, WARM = 9, 3
"""Measured turns of each classifier, and warm-up turns before them: the first one plans and allocates."""


@dataclass(frozen=True)
class Wanted:
    """The classifiers that are to be measured.

    Attributes:
        subject: the subject of the study.
        runs: the runs whose classifiers are measured, in turns.
        compressions: name of a run → how its classifier was compressed; None if it was not.
        seed: the seed of the examples and the parameters.
        hardware: the hardware that is measured.
    """

    subject: Subject
    runs: tuple[Run, ...]
    compressions: Mapping[str, Compression | None]
    seed: int
    hardware: Hardware


def appraise(wanted: Wanted) -> tuple[Appraisal, ...]:
    """Measures the classifiers of these runs in turns, round after round, and plans their training.

    So a temporary slowdown of the machine affects all classifiers alike, and the median over the rounds
    excludes it.
    """
    hardware = wanted.hardware
    clock = Clock(wait=lambda *made: hardware.wait())
    with hardware.reproducible():
        measured = {run.name: _Measured(wanted, run) for run in wanted.runs}
        steps = timings({name: each.step for name, each in measured.items()}, ROUNDS, WARM, clock)
        for each in measured.values():
            each.run.module.eval()
        predictions = timings({name: each.predict for name, each in measured.items()}, ROUNDS, WARM, clock)
        return tuple(
            each.appraisal(steps[name].median, predictions[name].median) for name, each in measured.items()
        )


def appraise_on_worker(wanted: Wanted) -> tuple[Appraisal, ...] | TensornetError:
    """`appraise` in another process; errors are returned as values."""
    try:
        return appraise(wanted)
    except TensornetError as error:
        return error


class _Measured:
    """The classifier of a run, with a prepared mini-batch and a prepared example."""

    def __init__(self, wanted: Wanted, run: Run) -> None:
        task, examples = wanted.subject.task(), wanted.subject.examples(wanted.seed)
        graph = classifier(task, task.rows[run.of], examples, wanted.compressions[run.name])
        self.name, self.hardware = run.name, wanted.hardware
        self.run = TrainingRun(run.name, graph, examples, run.recipe, wanted.seed, wanted.hardware)
        self.batch = self.run.mini_batch(0)
        self.example = examples.batch(tuple(each[:1] for each in self.run.test[:-1]))
        self.run.train = self.run.test = ()  # else each would keep all examples on the device

    def step(self) -> None:
        """Computes a training step."""
        self.run.update(*self.batch)

    def predict(self) -> None:
        """Computes a prediction for one example."""
        with self.run.torch.no_grad(), self.hardware.autocast():
            self.run.module(*self.example)

    def appraisal(self, step: float, prediction: float) -> Appraisal:
        """The appraisal with these seconds, and the plan by which the module trains on a mini-batch."""
        graph = self.run.classifier
        sizes: dict[str, Any] = sizes_of_batch(graph, self.run.examples, self.run.recipe.batch)
        plan = tn.plan(
            graph, backend="torch", device=self.hardware.device, training=True, compare=False, **sizes
        )
        return Appraisal(
            name=self.name,
            equations=str(graph),
            plan=str(plan),
            kept=sum(size for _, size in plan.kept),
            step_ms=1e3 * step,
            latency_ms=1e3 * prediction,
        )


# ---------------------------------------------------------------------------- kept in the folder


def _digest(settings: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class _Kept:
    """The content of the file."""

    format: str
    seal: str
    fingerprint: str
    appraisals: tuple[Appraisal, ...]


def keep_appraisals(folder: Path, appraisals: Sequence[Appraisal], settings: Mapping[str, Any]) -> None:
    """Keeps the measurements for these settings.

    Raises:
        TensornetError: the folder cannot be written.
    """
    kept = _Kept(FORMAT, BLANK, _digest(settings), tuple(appraisals))
    write_whole(folder / FILE, seal((json.dumps(asdict(kept), indent=1) + "\n").encode()))


def kept_appraisals(
    folder: Path, settings: Mapping[str, Any], say: Callable[[str], None]
) -> tuple[Appraisal, ...]:
    """Earlier measurements with these settings; empty if there are none, or if they are damaged and set aside."""
    path = folder / FILE
    if not path.exists():
        return ()
    try:
        content = path.read_bytes()
        if not is_sealed(content):
            raise ValueError("its content is not what was written")
        kept = read(_Kept, json.loads(content))
    except (OSError, ValueError, RecursionError) as error:
        say(f"{path} is damaged, set aside and not used: {error}")
        set_aside(path)
        return ()
    return kept.appraisals if (kept.format, kept.fingerprint) == (FORMAT, _digest(settings)) else ()
