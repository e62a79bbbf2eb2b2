"""What classifiers cost: times, measured apart from training and in turns, and what is kept for the way back."""

from __future__ import annotations

import hashlib
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tensornet as tn
from tensornet.errors import TensornetError

from .files import BLANK, is_sealed, seal, set_aside, write_whole
from .hardware import Hardware
from .jobs import Run
from .results import Appraisal
from .schema import read
from .subjects import Subject
from .training import TrainingRun, sizes_of_batch

__all__ = ["Wanted", "appraise", "appraise_on_worker", "kept_appraisals", "keep_appraisals"]

FORMAT = "tensornet.study.measured"
FILE = "measured.json"

WARM = 3
"""Rounds that are not counted: in the first everything is planned, compiled and allocated."""

LEAST, MOST, SECONDS = 5, 50, 20.0
"""Rounds that are counted: at least so many, and at most, and no more than fill so many seconds."""


@dataclass(frozen=True)
class Wanted:
    """What is to be appraised.

    Attributes:
        subject: what is studied.
        runs: those whose classifiers are measured, in turns.
        seed: of the examples.
        hardware: on which.
    """

    subject: Subject
    runs: tuple[Run, ...]
    seed: int
    hardware: Hardware


def appraise(wanted: Wanted) -> tuple[Appraisal, ...]:
    """Measures the classifiers of these runs, each in its turn, round after round, and plans their training.

    Whatever slows the machine for a while so slows all of them alike, and the median of the rounds
    leaves it out.
    """
    hardware = wanted.hardware
    with hardware.reproducible():
        measured = [_Measured(wanted, run) for run in wanted.runs]
        for _ in range(WARM - 1):
            for each in measured:
                each.take_turn()
        begun = time.perf_counter()
        for each in measured:
            each.take_turn()
        rounds = int(SECONDS / max(1e-9, time.perf_counter() - begun))
        for each in measured:
            each.forget()
        for _ in range(min(MOST, max(LEAST, rounds))):
            for each in measured:
                each.take_turn()
        return tuple(each.appraisal() for each in measured)


def appraise_on_worker(wanted: Wanted) -> tuple[Appraisal, ...] | TensornetError:
    """`appraise` in another process; errors come back as values."""
    try:
        return appraise(wanted)
    except TensornetError as error:
        return error


class _Measured:
    """The classifier of a run, a mini-batch and an example that lie ready, and the seconds that they took."""

    def __init__(self, wanted: Wanted, run: Run) -> None:
        task, examples = wanted.subject.task(), wanted.subject.examples(wanted.seed)
        graph = task.build(task.rows[run.of], examples)
        self.name, self.hardware = run.name, wanted.hardware
        self.run = TrainingRun(run.name, graph, examples, run.recipe, wanted.seed, wanted.hardware)
        self.batch = self.run.mini_batch(0)
        self.example = examples.batch(tuple(each[:1] for each in self.run.test[:-1]))
        self.steps: list[float] = []
        self.predictions: list[float] = []

    def take_turn(self) -> None:
        """A step of training, and a prediction."""
        self.run.module.train()
        self.steps.append(self._seconds(self._step))
        self.run.module.eval()
        self.predictions.append(self._seconds(self._predict))

    def forget(self) -> None:
        """Drops the seconds so far."""
        self.steps.clear()
        self.predictions.clear()

    def appraisal(self) -> Appraisal:
        """The medians, and the plan of a mini-batch as the module has it."""
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
            step_ms=1e3 * statistics.median(self.steps),
            latency_ms=1e3 * statistics.median(self.predictions),
        )

    def _seconds(self, work: Callable[[], object]) -> float:
        self.hardware.wait()
        begun = time.perf_counter()
        work()
        self.hardware.wait()
        return time.perf_counter() - begun

    def _step(self) -> None:
        self.run.update(*self.batch)

    def _predict(self) -> None:
        with self.run.torch.no_grad(), self.hardware.autocast():
            self.run.module(*self.example)


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
