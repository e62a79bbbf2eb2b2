"""Training one run: the same numbers every time, whatever ran before and wherever it was interrupted.

Every random draw depends only on the seed, the name of the run and the number of the step or epoch. So a
checkpoint only has to keep the parameters, the state of the optimizer, and the progress of the run.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import tensornet as tn
from tensornet.errors import TensornetError
from tensornet.graph.argument_shapes import sizes_from_shapes

from .hardware import Hardware
from .libraries import library
from .results import Epoch, RunResult, Trained
from .store import RunFile
from .task import Examples, Recipe

__all__ = ["augmented", "CHECKPOINT_SECONDS", "Progress", "predictions", "right_ones", "sizes_of_batch"]
__all__ += ["train", "TrainingRun"]


def augmented(images: Any, recipe: Recipe, seed: int) -> Any:
    """Images (n, …, H, W) shifted, rotated, zoomed and mirrored at random, as the recipe allows.

    Pixels from outside an image are 0; values between pixels are interpolated bilinearly. Random numbers
    are drawn on the CPU, so that they are the same on every device.
    """
    if not recipe.augments:
        return images
    torch = library("torch")
    draw = torch.Generator().manual_seed(seed)
    count, *_, height, width = images.shape
    planes = images.reshape(count, -1, height, width)

    def uniform(limit: float) -> Any:
        return limit * (2.0 * torch.rand(count, generator=draw) - 1.0)

    angle = uniform(math.radians(recipe.rotate))
    size = 1.0 / (1.0 + uniform(recipe.zoom))
    right, down = 2.0 * uniform(recipe.shift) / width, 2.0 * uniform(recipe.shift) / height
    side = 1.0 - 2.0 * (torch.rand(count, generator=draw) < (0.5 if recipe.flip else 0.0))
    cosine, sine = size * angle.cos(), size * angle.sin()
    # maps of coordinates in [-1, 1]; the sides may differ, so the rotation depends on their ratio
    rows = [side * cosine, -sine * height / width, right, side * sine * width / height, cosine, down]
    maps = torch.stack(rows, dim=1).reshape(count, 2, 3).to(images.device, images.dtype)
    functional = torch.nn.functional
    places = functional.affine_grid(maps, list(planes.shape), align_corners=False)
    return functional.grid_sample(planes, places, align_corners=False).reshape(images.shape)


CHECKPOINT_SECONDS = 30.0
"""The time between two checkpoints."""


Progress = Callable[[int, int, "float | None"], None]
"""Receives the steps done, all steps, and the newest test accuracy in percent."""


def train(
    name: str,
    row: str,
    about: str,
    graph: tn.Graph,
    examples: Examples,
    *,
    recipe: Recipe,
    seed: int = 0,
    hardware: Hardware | None = None,
    parameters: Mapping[str, Any] | None = None,
    checkpoint: RunFile | None = None,
    every: float = CHECKPOINT_SECONDS,
    progress: Progress | None = None,
) -> Trained:
    """Trains the classifier that `graph` describes, inputs to logits y[b,o].

    The same seed gives the same numbers, whatever ran before, even if the run is stopped at any
    moment and resumes from its checkpoint. Several processes give the same numbers as one, up to
    rounding, unless there is dropout: each process draws its own masks.

    Args:
        name: the name of the run; with the seed it determines every random draw.
        row: the name of its row in the task.
        about: a description of the classifier.
        graph: the classifier, which takes standardised inputs.
        examples: the training and test examples.
        recipe: how it is trained.
        seed: for initial values, mini-batches, augmentation and dropout.
        hardware: the hardware that computes it; one thread of the CPU if not given.
        parameters: the initial values, by name; drawn by the seed if not given.
        checkpoint: the file in which checkpoints are kept, and from which the run resumes.
        every: the number of seconds between two checkpoints.
        progress: receives the progress before every step.

    Raises:
        TensornetError: the loss is not finite, or a checkpoint cannot be written.
    """
    hardware = hardware or Hardware()
    with hardware.reproducible():
        run = TrainingRun(name, graph, examples, recipe, seed, hardware, parameters)
        run.resume(checkpoint)
        saved = time.monotonic()
        while run.step < run.steps:
            if progress is not None:
                progress(run.step, run.steps, run.history[-1].test_top1 if run.history else None)
            run.advance()
            if checkpoint is not None and hardware.rank == 0 and time.monotonic() - saved >= every:
                checkpoint.save(*run.state())
                saved = time.monotonic()
        return Trained(run.result(row, about), run.graph, run.parameters())


@dataclass(eq=False)
class TrainingRun:
    """A module, its optimizer and its examples, during training. The attributes are arguments of `train`."""

    name: str
    classifier: tn.Graph
    examples: Examples
    recipe: Recipe
    seed: int
    hardware: Hardware
    start: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        self.torch, hardware, examples, recipe = library("torch"), self.hardware, self.examples, self.recipe
        self.graph = examples.behind_standard(self.classifier)
        parts = (*examples.train_inputs, examples.train_labels), (*examples.test_inputs, examples.test_labels)
        self.train, self.test = (tuple(each.to(hardware.device) for each in part) for part in parts)
        self.steps_of_epoch = -(-len(examples.train_labels) // recipe.batch)
        self.steps = recipe.epochs * self.steps_of_epoch
        # initial values are derived for inputs of variance 1, as the classifier gets them
        parameters = self.start or tn.init(self.classifier, seed=self.seed, backend="torch")
        starts = {name: each.clone() for name, each in parameters.items()}
        self.module = tn.module(self.graph, params=starts, dtype="float32").to(hardware.device)
        alone = hardware.processes == 1
        parallel = self.torch.nn.parallel.DistributedDataParallel
        self.wrapped = self.module if alone else parallel(self.module)
        self.optimizer = recipe.update_rule(self.module.parameters())
        self.order: tuple[int, Any] = (-1, None)
        self.sums = self.torch.zeros(3, dtype=self.torch.float64, device=hardware.device)
        self.step, self.history = 0, list[Epoch]()

    def advance(self) -> None:
        """Makes one update, on this process's share of the mini-batch; after an epoch, takes the accuracies."""
        self.torch.manual_seed(self._seed("step", self.step, self.hardware.rank))  # dropout draws from it
        taken, labels, count = self.mini_batch(self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.rate(self.step, self.steps)
        loss, logits = self.update(taken, labels, count)
        right = right_ones(logits.detach(), labels)
        self.sums += self.hardware.total(self.torch.stack([loss.detach().double(), *right]))
        self.step += 1
        if self.step % self.steps_of_epoch == 0:
            self._end_epoch()

    def mini_batch(self, step: int) -> tuple[tuple[Any, ...], Any, int]:
        """Augmented inputs and labels of this process's share of a step, and the number of examples of the step."""
        epoch, place = divmod(step, self.steps_of_epoch)
        chosen = self._shuffled(epoch)[place * self.recipe.batch : (place + 1) * self.recipe.batch]
        *inputs, labels = (each[chosen] for each in self.train)
        seed = self._seed("augment", step)
        taken = self.examples.batch(tuple(inputs), lambda images: augmented(images, self.recipe, seed))
        mine = slice(self.hardware.rank, None, self.hardware.processes)
        return tuple(each[mine] for each in taken), labels[mine], len(chosen)

    def update(self, taken: tuple[Any, ...], labels: Any, count: int) -> tuple[Any, Any]:
        """Computes one update on a mini-batch of `count` examples over all processes; the loss and the logits."""
        hardware, recipe = self.hardware, self.recipe
        with hardware.autocast():
            logits = self.wrapped(*taken).float()
        entropy = functools.partial(self.torch.nn.functional.cross_entropy, reduction="sum")
        loss = entropy(logits, labels, label_smoothing=recipe.smoothing)
        self.optimizer.zero_grad()
        # gradients are averaged over the processes, so each loss is multiplied by their number
        (loss * (hardware.processes / count)).backward()
        if recipe.clip:
            self.torch.nn.utils.clip_grad_norm_(self.module.parameters(), recipe.clip)
        self.optimizer.step()
        return loss, logits

    def _end_epoch(self) -> None:
        loss, *right = (self.sums / len(self.examples.train_labels)).tolist()
        self.sums.zero_()
        if not math.isfinite(loss):
            told = f"the loss of {self.name} is {loss} in epoch {len(self.history) + 1}"
            raise TensornetError(told, fix="lower the learning rate, or limit the gradients: clip=1")
        top1, top5 = (100.0 * share for share in right)
        self.history.append(Epoch(loss, top1, top5, *self.accuracies(self.test)))

    def accuracies(self, part: tuple[Any, ...]) -> tuple[float, float]:
        """Top-1 and top-5 accuracy in percent: the likeliest class, or one of the likeliest five, is right."""
        mine = tuple(each[self.hardware.rank :: self.hardware.processes] for each in part)
        right = self.torch.zeros(2, dtype=self.torch.float64, device=self.hardware.device)
        for logits, labels in predictions(self.module, self.examples, mine, self.recipe.batch, self.hardware):
            right += self.torch.stack(right_ones(logits, labels))
        self.module.train()
        top1, top5 = (100.0 * self.hardware.total(right) / len(part[-1])).tolist()
        return top1, top5

    def result(self, row: str, about: str) -> RunResult:
        """The result of the finished run."""
        graph, formula = self.classifier, tn.parameter_formula(self.classifier)
        names = sorted({str(size) for size in formula.free_symbols} & graph.bound.keys())
        sizes = ", ".join(f"{size}={graph.bound[size]}" for size in names)
        counted = sum(parameter.numel() for parameter in self.module.parameters())
        flops = tn.flop_count(graph, naive=False, **sizes_of_batch(graph, self.examples, self.recipe.batch))
        counts = (int(tn.parameter_count(graph)), counted, round(flops / self.recipe.batch))
        last, trained = self.history[-1:], self.accuracies(self.train)
        tested = (last[0].test_top1, last[0].test_top5) if last else self.accuracies(self.test)
        told = (self.name, row, self.seed, about, self.recipe, str(formula), sizes)
        return RunResult(*told, *counts, tuple(self.history), *trained, *tested)

    # ------------------------------------------------------------------------ interruption

    def parameters(self) -> dict[str, Any]:
        """The parameters, by name, on the CPU."""
        return {name: each.detach().cpu().clone() for name, each in self.module.state_dict().items()}

    def state(self) -> tuple[dict[str, Any], dict[str, str]]:
        """All tensors and texts that the rest of the run depends on."""
        tensors = {f"module.{name}": each for name, each in self.parameters().items()}
        for number, state in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{number}.{name}": each.cpu() for name, each in state.items()}
        place = {"step": self.step, "history": [asdict(epoch) for epoch in self.history]}
        return {**tensors, "sums": self.sums.cpu()}, {"place": json.dumps(place)}

    def resume(self, checkpoint: RunFile | None) -> None:
        """Restores the newest checkpoint, if there is one, in all processes."""
        first = checkpoint if self.hardware.rank == 0 else None
        read = first and first.load(lambda tensors, texts: (tensors, json.loads(texts["place"])))
        if (found := self.hardware.agreed(read)) is None:
            return
        tensors, place = found
        names = self.module.state_dict()
        self.module.load_state_dict({name: tensors[f"module.{name}"] for name in names})
        states: dict[int, dict[str, Any]] = {}
        for key, each in tensors.items():
            match key.split("."):
                case ["optimizer", number, name]:
                    states.setdefault(int(number), {})[name] = each
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": states, "param_groups": groups})
        self.sums.copy_(tensors["sums"])
        self.step, self.history = place["step"], [Epoch(**each) for each in place["history"]]
        if first is not None:
            first.say(f"{self.name}: goes on after step {self.step:,} of {self.steps:,}")

    def _shuffled(self, epoch: int) -> Any:
        """The order of the examples in an epoch, the same on every device and in every process."""
        if self.order[0] != epoch:
            draw = self.torch.Generator().manual_seed(self._seed("order", epoch))
            order = self.torch.randperm(len(self.examples.train_labels), generator=draw)
            self.order = (epoch, order.to(self.hardware.device))
        return self.order[1]

    def _seed(self, *use: object) -> int:
        """A seed for each use, so that no draw depends on earlier draws."""
        text = ":".join(map(str, (self.seed, self.name, *use)))
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")


def sizes_of_batch(graph: tn.Graph, examples: Examples, batch: int) -> dict[str, int]:
    """The sizes of the input axes of a classifier for a mini-batch of `batch` examples."""
    shapes = [(batch, *each.shape[1:]) for each in examples.test_inputs]
    return dict(sizes_from_shapes(graph, graph.inputs, shapes))


def predictions(
    module: Any, examples: Examples, part: tuple[Any, ...], batch: int, hardware: Hardware
) -> Iterator[tuple[Any, Any]]:
    """The logits of a module, and the labels, for a part of the examples, some mini-batches at a time."""
    module.eval()
    with library("torch").no_grad(), hardware.autocast():
        for each in zip(*(each.split(4 * batch) for each in part), strict=True):
            *inputs, labels = (tensor.to(hardware.device) for tensor in each)
            yield module(*examples.batch(tuple(inputs))), labels


def right_ones(logits: Any, labels: Any) -> list[Any]:
    """The number of examples whose class has the largest logit, and one of the five largest."""
    likely = logits.topk(min(5, logits.shape[1]), dim=1).indices == labels[:, None]
    return [likely[:, :1].sum().double(), likely.sum().double()]
