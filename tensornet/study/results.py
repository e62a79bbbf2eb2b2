"""What a run comes to: an entry for each epoch, the result, and the trained classifier. Data only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .recipe import Recipe

if TYPE_CHECKING:
    import tensornet as tn

__all__ = ["Epoch", "RunResult", "Trained"]


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
class RunResult:
    """A finished run; its numbers are checked when it is made.

    Attributes:
        name: that of the run: the row, and the optimizer where there are several.
        row: that of its row in the task.
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
        step_ms: milliseconds of a training step (mini-batch, forward, backward, update), the mean over
            an epoch, the median over epochs.
    """

    name: str
    row: str
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
    step_ms: float

    def __post_init__(self) -> None:
        for name in ("parameters", "counted", "flops"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}")
        if len(self.history) != self.recipe.epochs:
            raise ValueError(f"there are {len(self.history)} epochs of {self.recipe.epochs}")
        if not 0.0 <= self.step_ms < math.inf:
            raise ValueError(f"a step takes {self.step_ms} ms")
        _check_shares(self.train_top1, self.train_top5)
        _check_shares(self.test_top1, self.test_top5)


@dataclass(frozen=True)
class Trained:
    """The result of a run, the classifier, and the parameters it ended with, by name."""

    result: RunResult
    graph: tn.Graph
    parameters: Mapping[str, Any]
