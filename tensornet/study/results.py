"""The results of runs: an entry for each epoch, the result, and the trained classifier. Data only."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .recipe import Recipe

if TYPE_CHECKING:
    import tensornet as tn

__all__ = [
    "Appraisal",
    "CompressedWeight",
    "Compression",
    "Epoch",
    "RunResult",
    "Summary",
    "Trained",
    "summaries",
    "told",
]


@dataclass(frozen=True)
class Epoch:
    """The figures of a run after an epoch: loss in nats, accuracies in percent; checked on creation.

    The training figures are those of the mini-batches during training: augmented, with dropout, and
    while the parameters changed.
    """

    train_loss: float
    train_top1: float
    train_top5: float
    test_top1: float
    test_top5: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.train_loss < math.inf:
            raise ValueError(f"the loss is {self.train_loss}")
        _check_shares(self.train_top1, self.train_top5)
        _check_shares(self.test_top1, self.test_top5)


def _check_shares(top1: float, top5: float) -> None:
    if not 0.0 <= top1 <= top5 <= 100.0:
        raise ValueError(f"of 100 examples {top1} have their class first, and {top5} among the first five")


@dataclass(frozen=True)
class CompressedWeight:
    """The form and ranks that a weight was given, and its errors; its numbers are checked on creation.

    Attributes:
        path, shape: the name and the shape of the weight.
        form: its new form; "dense" if it is unchanged.
        ranks: the ranks of the form.
        parameters: the number of elements of its factors.
        error: ‖W − Ŵ‖ / ‖W‖.
        output_error: ‖(W − Ŵ)·x‖ / ‖W·x‖ over the calibration examples, if there were any.
    """

    path: str
    shape: tuple[int, ...]
    form: str
    ranks: tuple[int, ...]
    parameters: int
    error: float
    output_error: float | None

    def __post_init__(self) -> None:
        if self.parameters < 0:
            raise ValueError(f"parameters is {self.parameters}")
        _check_losses(self.error, self.output_error or 0.0)


def _check_losses(*errors: float) -> None:
    for error in errors:
        if not 0.0 <= error < math.inf:
            raise ValueError(f"an error is {error}")


@dataclass(frozen=True)
class Compression:
    """How a trained classifier was compressed, before fine-tuning; its numbers are checked on creation.

    Attributes:
        origin: the name of the run that trained it.
        parameters: its number of parameters before compression.
        before_top1, before_top5: its test accuracies before compression, in percent.
        test_top1, test_top5: the same with factors in place of weights, without further training.
        error: ‖y − ŷ‖ / ‖y‖ over the logits y of the test examples.
        weights: one entry for each weight.
    """

    origin: str
    parameters: int
    before_top1: float
    before_top5: float
    test_top1: float
    test_top5: float
    error: float
    weights: tuple[CompressedWeight, ...]

    def __post_init__(self) -> None:
        _check_shares(self.before_top1, self.before_top5)
        _check_shares(self.test_top1, self.test_top5)
        _check_losses(self.error)

    @property
    def weight_error(self) -> float:
        """The error of all weights together: (Σ e² / count)^½."""
        squares = [each.error**2 for each in self.weights]
        return math.sqrt(statistics.fmean(squares)) if squares else 0.0


@dataclass(frozen=True)
class RunResult:
    """A finished run; its numbers are checked on creation.

    Attributes:
        name: the name of the run: the row, and the optimizer if there are several.
        row: the name of its row in the task.
        seed: the seed of everything that is random in it.
        about: a description of the classifier.
        recipe: how it was trained.
        formula: its number of parameters, in the sizes of axes.
        sizes: those sizes, as "i=8, j=8".
        parameters: the value of the formula.
        counted: the number of elements of `module.parameters()`.
        flops: FLOPs of the contractions for one example, forward.
        history: one entry for each epoch.
        train_top1: percent of training examples whose most likely class is right, after the last epoch,
            evaluated as the test examples are.
        train_top5: percent whose five most likely classes contain the right one.
        test_top1: the same for the test examples.
        test_top5: the same for the test examples.
        compression: how the classifier that it starts from was compressed, if it was.
    """

    name: str
    row: str
    seed: int
    about: str
    recipe: Recipe
    formula: str
    sizes: str
    parameters: int
    counted: int
    flops: int
    history: tuple[Epoch, ...]
    train_top1: float
    train_top5: float
    test_top1: float
    test_top5: float
    compression: Compression | None = None

    def __post_init__(self) -> None:
        for name in ("seed", "parameters", "counted", "flops"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}")
        if len(self.history) != self.recipe.epochs:
            raise ValueError(f"there are {len(self.history)} epochs of {self.recipe.epochs}")
        _check_shares(self.train_top1, self.train_top5)
        _check_shares(self.test_top1, self.test_top5)


@dataclass(frozen=True)
class Summary:
    """The runs of one row with one optimizer, one for each seed; figures are means and deviations over the seeds."""

    runs: tuple[RunResult, ...]

    @property
    def first(self) -> RunResult:
        """The first run, for values that are the same in all runs."""
        return self.runs[0]

    @property
    def name(self) -> str:
        """The name of the runs."""
        return self.first.name

    @property
    def parameters(self) -> int:
        """The number of parameters; the mean over the seeds, as ranks may depend on the trained weights."""
        return round(self.mean("parameters"))

    @property
    def flops(self) -> int:
        """FLOPs of the contractions for one example, forward; likewise the mean over the seeds."""
        return round(self.mean("flops"))

    @property
    def compressions(self) -> tuple[Compression, ...]:
        """The compressions of the runs that start from a compressed classifier."""
        return tuple(each.compression for each in self.runs if each.compression is not None)

    @property
    def test_top1(self) -> float:
        """The mean over the seeds of the top-1 test accuracy."""
        return self.mean("test_top1")

    def mean(self, figure: str) -> float:
        """The mean over the seeds of a field of `RunResult`."""
        return statistics.fmean(getattr(each, figure) for each in self.runs)

    def deviation(self, figure: str) -> float:
        """The standard deviation over the seeds of a field of `RunResult` (divided by n - 1); 0 for one run."""
        return _deviation([getattr(each, figure) for each in self.runs])

    def told(self, figure: str) -> str:
        """A field of `RunResult` as text: `97.20`, or over several seeds `97.20 ± 0.31 (3)`."""
        return told([getattr(each, figure) for each in self.runs])

    def curve(self, figure: str) -> tuple[tuple[float, float], ...]:
        """Mean and deviation over the seeds of a field of `Epoch`, by epoch."""
        epochs = zip(*(each.history for each in self.runs), strict=True)
        values = ([getattr(each, figure) for each in epoch] for epoch in epochs)
        return tuple((statistics.fmean(each), _deviation(each)) for each in values)


def _deviation(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def told(values: Sequence[float]) -> str:
    """The text of a figure, which has a value for each seed: `97.20`, or for several `97.20 ± 0.31 (3)`.

    Example:
        >>> told([97.2]), told([97.0, 98.0])
        ('97.20', '97.50 ± 0.71 (2)')
    """
    mean = f"{statistics.fmean(values):.2f}"
    return mean if len(values) == 1 else f"{mean} ± {_deviation(values):.2f} ({len(values)})"


def summaries(results: Iterable[RunResult]) -> list[Summary]:
    """The results grouped by name, in the order in which the names first occur."""
    grouped: dict[str, list[RunResult]] = {}
    for each in results:
        grouped.setdefault(each.name, []).append(each)
    return [Summary(tuple(runs)) for runs in grouped.values()]


@dataclass(frozen=True)
class Appraisal:
    """The measured costs of the classifier of a run; its numbers are checked on creation.

    Attributes:
        name: the name of the run.
        equations: the classifier as text.
        plan: the plan of a training step on a mini-batch, as text.
        kept: bytes kept from the forward pass to the backward pass, for a mini-batch.
        step_ms: milliseconds of a training step (forward, backward, update) on one prepared mini-batch,
            the median over rounds in which the classifiers take turns.
        latency_ms: milliseconds of a prediction for one example, measured in the same way.
    """

    name: str
    equations: str
    plan: str
    kept: int
    step_ms: float
    latency_ms: float

    def __post_init__(self) -> None:
        if self.kept < 0:
            raise ValueError(f"{self.kept} bytes are kept")
        for name in ("step_ms", "latency_ms"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}")


@dataclass(frozen=True)
class Trained:
    """The result of a run, the classifier, and the final parameters, by name."""

    result: RunResult
    graph: tn.Graph
    parameters: Mapping[str, Any]
