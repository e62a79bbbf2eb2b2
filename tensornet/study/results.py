"""What a run comes to: an entry for each epoch, the result, and the trained classifier. Data only."""

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
    """How a run stands after an epoch: loss in nats, accuracies in percent; checked when it is made.

    On the training examples they are those of the mini-batches as they were trained on, augmented and
    with dropout, while the parameters changed.
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
    """What a weight was given, and what it lost; its numbers are checked when it is made.

    Attributes:
        path, shape: the weight.
        form: what it became, "dense" where it stays as it was.
        ranks: of the form.
        parameters: of its factors.
        error: ‖W − Ŵ‖ / ‖W‖.
        output_error: ‖(W − Ŵ)·x‖ / ‖W·x‖ over the examples that weighed it, if any did.
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
    """How a trained classifier was made smaller, before it was trained on; its numbers are checked when it is made.

    Attributes:
        origin: the name of the run that trained it.
        parameters: its own, before.
        before_top1, before_top5: percent of test examples that it had right.
        test_top1, test_top5: likewise, with factors in the place of weights and nothing trained.
        error: ‖y − ŷ‖ / ‖y‖ over the logits y of the test examples.
        weights: what each weight was given.
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
        """That of all weights together: (Σ e² / count)^½."""
        squares = [each.error**2 for each in self.weights]
        return math.sqrt(statistics.fmean(squares)) if squares else 0.0


@dataclass(frozen=True)
class RunResult:
    """A finished run; its numbers are checked when it is made.

    Attributes:
        name: that of the run: the row, and the optimizer where there are several.
        row: that of its row in the task.
        seed: that of all that is random in it.
        about: what the classifier is.
        recipe: how it was trained.
        formula: its number of parameters, in the sizes of axes.
        sizes: those sizes, as "i=8, j=8".
        parameters: the formula evaluated.
        counted: the elements of `module.parameters()`.
        flops: FLOPs of the contractions for one example, forward.
        history: one entry an epoch.
        train_top1: percent of training examples whose most likely class is right, after the last epoch,
            evaluated as the test examples are.
        train_top5: percent whose five most likely classes hold the right one.
        test_top1: likewise, of the test examples.
        test_top5: likewise.
        compression: what it starts from, where that is a trained classifier made smaller.
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
    """The runs of one row by one optimizer, one for each seed; what the seed decides is told by mean and deviation."""

    runs: tuple[RunResult, ...]

    @property
    def first(self) -> RunResult:
        """The first run: for all that is the same in each."""
        return self.runs[0]

    @property
    def name(self) -> str:
        """That of the runs."""
        return self.first.name

    @property
    def parameters(self) -> int:
        """Those of the classifier; the mean over the seeds where ranks depend on what was trained."""
        return round(self.mean("parameters"))

    @property
    def flops(self) -> int:
        """Those of the contractions for one example, forward; the mean over the seeds likewise."""
        return round(self.mean("flops"))

    @property
    def compressions(self) -> tuple[Compression, ...]:
        """What each run starts from, where that is a trained classifier made smaller."""
        return tuple(each.compression for each in self.runs if each.compression is not None)

    @property
    def test_top1(self) -> float:
        """The mean over the seeds."""
        return self.mean("test_top1")

    def mean(self, figure: str) -> float:
        """The mean over the seeds of a field of `RunResult`."""
        return statistics.fmean(getattr(each, figure) for each in self.runs)

    def deviation(self, figure: str) -> float:
        """Its standard deviation over the seeds (divided by n - 1); 0 for one run."""
        return _deviation([getattr(each, figure) for each in self.runs])

    def told(self, figure: str) -> str:
        """`97.20`, or over several seeds `97.20 ± 0.31 (3)`."""
        return told([getattr(each, figure) for each in self.runs])

    def curve(self, figure: str) -> tuple[tuple[float, float], ...]:
        """Mean and deviation over the seeds of a field of `Epoch`, by epoch."""
        epochs = zip(*(each.history for each in self.runs), strict=True)
        values = ([getattr(each, figure) for each in epoch] for epoch in epochs)
        return tuple((statistics.fmean(each), _deviation(each)) for each in values)


def _deviation(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def told(values: Sequence[float]) -> str:
    """A figure of each seed: `97.20`, or of several `97.20 ± 0.31 (3)`.

    Example:
        >>> told([97.2]), told([97.0, 98.0])
        ('97.20', '97.50 ± 0.71 (2)')
    """
    mean = f"{statistics.fmean(values):.2f}"
    return mean if len(values) == 1 else f"{mean} ± {_deviation(values):.2f} ({len(values)})"


def summaries(results: Iterable[RunResult]) -> list[Summary]:
    """The results of the same name together, in the order in which the names come first."""
    grouped: dict[str, list[RunResult]] = {}
    for each in results:
        grouped.setdefault(each.name, []).append(each)
    return [Summary(tuple(runs)) for runs in grouped.values()]


@dataclass(frozen=True)
class Appraisal:
    """What the classifier of a run costs where it was measured; its numbers are checked when it is made.

    Attributes:
        name: that of the run.
        equations: the classifier, as it prints.
        plan: how a mini-batch of training is computed, as it prints.
        kept: bytes kept from the forward pass to the backward pass, for a mini-batch.
        step_ms: milliseconds of a training step (forward, backward, update) of one mini-batch that lies
            ready, the median over rounds in which each classifier takes its turn.
        latency_ms: milliseconds of a prediction for one example, likewise.
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
    """The result of a run, the classifier, and the parameters it ended with, by name."""

    result: RunResult
    graph: tn.Graph
    parameters: Mapping[str, Any]
