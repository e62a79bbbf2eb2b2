"""Training one row: the same recipe for every classifier, reproducible by itself."""

from __future__ import annotations

import hashlib
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tensornet as tn
from tensornet.executable import sizes_from_shapes

from .libraries import library

if TYPE_CHECKING:
    from .task import Examples

__all__ = ["RECIPE", "Epoch", "Recipe", "RunResult", "train"]


@dataclass(frozen=True)
class Recipe:
    """AdamW with a linear warm-up and a cosine decay to zero, on the cross-entropy.

    Attributes:
        epochs: passes over the training images.
        batch: images in a step.
        learning_rate: the largest, reached after the warm-up.
        weight_decay: that of AdamW, on all parameters.
        warmup: the share of all steps in which the learning rate rises.
        smoothing: ε of label smoothing.
    """

    epochs: int = 60
    batch: int = 32
    learning_rate: float = 0.01
    weight_decay: float = 0.1
    warmup: float = 0.05
    smoothing: float = 0.0

    def rate(self, step: int, steps: int) -> float:
        """The learning rate at a step, from 0, of `steps`."""
        rising = max(1, round(self.warmup * steps))
        if step < rising:
            return self.learning_rate * (step + 1) / rising
        return self.learning_rate * 0.5 * (1.0 + math.cos(math.pi * (step - rising) / max(1, steps - rising)))


RECIPE = Recipe()
"""What every row of the digits is trained by, unless the number of epochs is changed."""


@dataclass(frozen=True)
class Epoch:
    """How a run stands after an epoch: the mean loss of its steps in nats, accuracies in percent."""

    train_loss: float
    train_top1: float
    test_top1: float
    test_top5: float


@dataclass(frozen=True)
class RunResult:
    """A finished run.

    Attributes:
        name: the row of `STUDY`.
        about: what the classifier is.
        formula: its number of parameters, in the sizes of axes.
        sizes: those sizes, as "i=8, j=8".
        parameters: the formula evaluated.
        counted: the elements of `module.parameters()`.
        flops: FLOPs of the contractions for one example, forward.
        history: one entry an epoch.
        test_top1: percent of test examples whose most likely class is right, after the last epoch.
        test_top5: percent whose five most likely classes hold the right one.
        step_ms: median milliseconds of a training step (forward, backward, update).
    """

    name: str
    about: str
    formula: str
    sizes: str
    parameters: int
    counted: int
    flops: int
    history: tuple[Epoch, ...]
    test_top1: float
    test_top5: float
    step_ms: float


def train(
    name: str,
    about: str,
    graph: tn.Graph,
    examples: Examples,
    *,
    recipe: Recipe = RECIPE,
    seed: int = 0,
    on_epoch: Callable[[], None] = lambda: None,
) -> RunResult:
    """Trains the classifier that `graph` describes, inputs to logits y[b,o].

    The same seed gives the same numbers (all but the time), whatever ran before.

    Args:
        name: that of the row; with the seed it decides the order of the mini-batches.
        about: what the classifier is.
        graph: the classifier.
        examples: what it learns and is tested on.
        recipe: how it is trained.
        seed: for initial values and mini-batches.
        on_epoch: called after each epoch.
    """
    with _reproducible():
        run = _Run(name, graph, examples, recipe, seed)
        history: list[Epoch] = []
        for number in range(recipe.epochs):
            history.append(run.epoch(number))
            on_epoch()
    formula = tn.parameter_formula(graph)
    sizes = sorted(str(size) for size in formula.free_symbols)
    return RunResult(
        name=name,
        about=about,
        formula=str(formula),
        sizes=", ".join(f"{size}={graph.bound[size]}" for size in sizes if size in graph.bound),
        parameters=int(tn.parameter_count(graph)),
        counted=sum(parameter.numel() for parameter in run.module.parameters()),
        flops=round(tn.flop_count(graph, naive=False, **run.sizes) / recipe.batch),
        history=tuple(history),
        test_top1=history[-1].test_top1,
        test_top5=history[-1].test_top5,
        step_ms=1e3 * statistics.median(run.seconds),
    )


EVALUATED = 2048
"""Examples that are classified at once."""


class _Run:
    """A module, its optimizer and its order of examples, during training."""

    def __init__(self, name: str, graph: tn.Graph, examples: Examples, recipe: Recipe, seed: int) -> None:
        self.torch = library("torch")
        self.examples, self.recipe = examples, recipe
        self.torch.manual_seed(_seed_of(seed, name))  # dropout draws from it
        shapes = [(recipe.batch, *each.shape[1:]) for each in examples.train_inputs]
        self.sizes = sizes_from_shapes(graph, graph.inputs, shapes)
        self.module = tn.module(graph, seed=seed)
        self.optimizer = self.torch.optim.AdamW(
            self.module.parameters(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay
        )
        self.order = self.torch.Generator().manual_seed(_seed_of(seed, name))
        self.seconds: list[float] = []

    def epoch(self, number: int) -> Epoch:
        """One pass over the training images, then accuracies on all of both parts."""
        count = len(self.examples.train_labels)
        batches = self.torch.randperm(count, generator=self.order).split(self.recipe.batch)
        loss = 0.0
        for step, chosen in enumerate(batches, number * len(batches)):
            rate = self.recipe.rate(step, self.recipe.epochs * len(batches))
            loss += self._step(chosen, rate) * len(chosen) / count
        (train_top1,) = self._accuracy(self.examples.train_inputs, self.examples.train_labels, (1,))
        test_top1, test_top5 = self._accuracy(self.examples.test_inputs, self.examples.test_labels, (1, 5))
        return Epoch(loss, train_top1, test_top1, test_top5)

    def _step(self, chosen: Any, rate: float) -> float:
        """One update on the chosen examples; returns their mean loss."""
        inputs = [each[chosen] for each in self.examples.train_inputs]
        labels = self.examples.train_labels[chosen]
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        start = time.perf_counter()
        loss = self.torch.nn.functional.cross_entropy(
            self.module(*inputs), labels, label_smoothing=self.recipe.smoothing
        )
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.seconds.append(time.perf_counter() - start)
        return float(loss.item())

    def _accuracy(self, inputs: tuple[Any, ...], labels: Any, depths: tuple[int, ...]) -> tuple[float, ...]:
        """For each depth k, the percent of examples whose k most likely classes hold the right one."""
        self.module.eval()
        with self.torch.no_grad():
            parts = zip(*[each.split(EVALUATED) for each in inputs], strict=True)
            logits = self.torch.cat([self.module(*part) for part in parts])
        self.module.train()
        likely = logits.topk(min(max(depths), logits.shape[1]), dim=1).indices
        right = likely == labels[:, None]
        return tuple(100.0 * int(right[:, :depth].any(dim=1).sum()) / len(labels) for depth in depths)


def _seed_of(seed: int, name: str) -> int:
    """A seed for each row, so that its numbers do not depend on which rows ran before."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:7], "big")


@contextmanager
def _reproducible() -> Iterator[None]:
    """One thread, deterministic algorithms and plans by built-in constants; then all as before.

    Sums split over threads, or in the order that suits a measured device, round differently. At
    these sizes more threads would only wait for each other.
    """
    torch = library("torch")
    threads, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    calibrate = os.environ.get("TENSORNET_CALIBRATE")
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    os.environ["TENSORNET_CALIBRATE"] = "0"
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.use_deterministic_algorithms(strict, warn_only=warn_only)
        torch.set_num_threads(threads)
        if calibrate is None:
            del os.environ["TENSORNET_CALIBRATE"]
        else:
            os.environ["TENSORNET_CALIBRATE"] = calibrate
