"""The results of runs: an entry for each epoch, the result, and the trained classifier. Data only."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import tensornet as tn
from tensornet.codec import Text, document

from .libraries import library
from .task import Recipe


@document()
@dataclass(frozen=True)
class Epoch:
    """The figures of a run after an epoch: loss in nats, accuracies in percent.

    The training figures are those of the mini-batches during training: augmented, with dropout, and
    while the parameters changed.
    """

    train_loss: float
    train_top1: float
    train_top5: float
    test_top1: float
    test_top5: float


@document()
@dataclass(frozen=True)
class CompressedWeight:
    """The form and ranks that a weight was given, and its errors.

    Attributes:
        path, shape: the name and the shape of the weight.
        form: its new form; "dense" if it is unchanged.
        ranks: the ranks of the form.
        parameters: the number of elements of its factors.
        error: ‖W − Ŵ‖ / ‖W‖.
        output_error: ‖(W − Ŵ)·x‖ / ‖W·x‖ over the calibration examples, if there were any.
    """

    path: Text
    shape: tuple[int, ...]
    form: Text
    ranks: tuple[int, ...]
    parameters: int
    error: float
    output_error: float | None


@document()
@dataclass(frozen=True)
class Compression:
    """How a trained classifier was compressed, before fine-tuning.

    Attributes:
        origin: the name of the run that trained it.
        parameters: its number of parameters before compression.
        before_top1, before_top5: its test accuracies before compression, in percent.
        test_top1, test_top5: the same with factors in place of weights, without further training.
        error: ‖y − ŷ‖ / ‖y‖ over the logits y of the test examples.
        weights: one entry for each weight.
    """

    origin: Text
    parameters: int
    before_top1: float
    before_top5: float
    test_top1: float
    test_top5: float
    error: float
    weights: tuple[CompressedWeight, ...]

    @property
    def weight_error(self) -> float:
        """The error of all weights together: (Σ e² / count)^½."""
        squares = [each.error**2 for each in self.weights]
        return math.sqrt(sum(squares) / max(1, len(squares)))


@document()
@dataclass(frozen=True)
class RunResult:
    """A finished run.

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
        test_top1, test_top5: the same for the test examples.
        compression: how the classifier that it starts from was compressed, if it was.
    """

    name: Text
    row: Text
    seed: int
    about: Text
    recipe: Recipe
    formula: Text
    sizes: Text
    parameters: int
    counted: int
    flops: int
    history: tuple[Epoch, ...]
    train_top1: float
    train_top5: float
    test_top1: float
    test_top5: float
    compression: Compression | None = None


@document()
@dataclass(frozen=True)
class Appraisal:
    """The measured costs of the classifier of a run.

    Attributes:
        name: the name of the run.
        equations: the classifier as text.
        plan: the plan of a training step on a mini-batch, as text.
        kept: bytes kept from the forward pass to the backward pass, for a mini-batch.
        step_ms: milliseconds of a training step (forward, backward, update) on one prepared mini-batch,
            the median over rounds in which the classifiers take turns.
        latency_ms: milliseconds of a prediction for one example, measured in the same way.
    """

    name: Text
    equations: Text
    plan: Text
    kept: int
    step_ms: float
    latency_ms: float


@dataclass(frozen=True)
class Trained:
    """The result of a run, the classifier, and the final parameters, by name."""

    result: RunResult
    graph: tn.Graph
    parameters: Mapping[str, Any]


SHARES = ("train_top1", "train_top5", "test_top1", "test_top5")
"""The accuracies of a result."""

COLUMNS: tuple[str, ...] = ("name", "seed", "about", "optimizer", "learning_rate", "weight_decay", "formula")
COLUMNS += ("sizes", "parameters", "counted", "flops", *SHARES, "step_ms", "latency_ms", "kept")
COLUMNS += ("origin", "before_top1", "compressed_top1", "error", "weight_error")
"""The columns of results.csv: those of a result, its recipe, its measured costs, and its compression."""


def runs_of(results: Sequence[RunResult], costs: Mapping[str, Appraisal]) -> Any:
    """A line for each run, with `COLUMNS`, and `row` and `result`."""
    lines = []
    for each in results:
        line = {**asdict(each.recipe), **asdict(each), "result": each}
        line |= asdict(costs[each.name]) if each.name in costs else {}
        if (made := each.compression) is not None:
            line |= {name: getattr(made, name) for name in ("origin", "before_top1", "error", "weight_error")}
            line |= {"compressed_top1": made.test_top1}
        lines.append(line)
    return library("pandas").DataFrame(lines).reindex(columns=[*COLUMNS, "row", "result"])


def pareto_front(points: Any, cost: str = "parameters") -> Any:
    """The Pareto front: the lines that are more accurate than all others that cost no more."""
    ordered = points.sort_values([cost, "test_top1"], ascending=[True, False], kind="stable")
    best = ordered.test_top1.cummax().shift(fill_value=-1.0)
    return ordered[ordered.test_top1 > best]


def told(values: Any) -> str:
    """The text of a figure, which has a value for each seed: `97.20`, or for several `97.20 ± 0.31 (3)`.

    Example:
        >>> import pandas
        >>> told(pandas.Series([97.2])), told(pandas.Series([97.0, 98.0]))
        ('97.20', '97.50 ± 0.71 (2)')
    """
    mean = f"{values.mean():.2f}" if len(values) else ""
    return mean if len(values) < 2 else f"{mean} ± {values.std():.2f} ({len(values)})"
