"""What classifiers cost: times, measured apart from training and in turns, and what is kept for the backward pass."""

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
"""Turns of each classifier, and those before that do not count: in the first all is planned and allocated."""


@dataclass(frozen=True)
class Wanted:
    """What is to be appraised.

    Attributes:
        subject: what is studied.
        runs: those whose classifiers are measured, in turns.
        compressions: name of a run → what its classifier was compressed to, if it was.
        seed: of the examples.
        hardware: on which.
    """

    subject: Subject
    runs: tuple[Run, ...]
    compressions: Mapping[str, Compression | None]
    seed: int
    hardware: Hardware


def appraise(wanted: Wanted) -> tuple[Appraisal, ...]:
    """Measures the classifiers of these runs, each in its turn, round after round, and plans their training.

    Whatever slows the machine for a while so slows all of them alike, and the median of the rounds
    leaves it out.
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
    """`appraise` in another process; errors come back as values."""
    try:
        return appraise(wanted)
    except TensornetError as error:
        return error


class _Measured:
    """The classifier of a run, with a mini-batch and an example that lie ready."""

    def __init__(self, wanted: Wanted, run: Run) -> None:
        task, examples = wanted.subject.task(), wanted.subject.examples(wanted.seed)
        graph = classifier(task, task.rows[run.of], examples, wanted.compressions[run.name])
        self.name, self.hardware = run.name, wanted.hardware
        self.run = TrainingRun(run.name, graph, examples, run.recipe, wanted.seed, wanted.hardware)
        self.batch = self.run.mini_batch(0)
        self.example = examples.batch(tuple(each[:1] for each in self.run.test[:-1]))
        self.run.train = self.run.test = ()  # on a device each classifier would have all examples for itself

    def step(self) -> None:
        """A step of training."""
        self.run.update(*self.batch)

    def predict(self) -> None:
        """A prediction for one example."""
        with self.run.torch.no_grad(), self.hardware.autocast():
            self.run.module(*self.example)

    def appraisal(self, step: float, prediction: float) -> Appraisal:
        """These seconds, and the plan of a mini-batch as the module has it."""
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
    """What the file holds."""

    format: str
    seal: str
    fingerprint: str
    appraisals: tuple[Appraisal, ...]


def keep_appraisals(folder: Path, appraisals: Sequence[Appraisal], settings: Mapping[str, Any]) -> None:
    """Keeps what was measured, for these settings.

    Raises:
        TensornetError: the folder cannot be written.
    """
    kept = _Kept(FORMAT, BLANK, _digest(settings), tuple(appraisals))
    write_whole(folder / FILE, seal((json.dumps(asdict(kept), indent=1) + "\n").encode()))


def kept_appraisals(
    folder: Path, settings: Mapping[str, Any], say: Callable[[str], None]
) -> tuple[Appraisal, ...]:
    """What was measured before with these settings; nothing if there is none, or it was damaged and is set aside."""
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
