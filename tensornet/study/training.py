"""Training one run on a device: the same numbers every time, whatever ran before and wherever it was interrupted.

Every random draw depends only on the seed, the name of the run and the number of the step or epoch. So a
checkpoint only has to keep the parameters, the state of the optimizer, and the progress of the run.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any
from unittest.mock import patch

import tensornet as tn
from tensornet.errors import BackendError, TensornetError, checked_number
from tensornet.graph.argument_shapes import sizes_from_shapes

from .libraries import library
from .mesh import divided, first, is_first, part_like, whole
from .results import Compression, Epoch, RunFile, RunResult, Trained
from .task import Examples, Recipe

PRECISIONS = ("auto", "float32", "bfloat16")
"""The precisions for the contractions of a step; parameters stay in float32."""

MOST_THREADS = 1024
"""The most threads of one process; a system that cannot start them kills the process during an import."""


@dataclass(frozen=True)
class Hardware:
    """A device, and how it is used.

    Attributes:
        device: the torch device name, such as "cpu" or "cuda:0".
        threads: threads of one process on the CPU.
        precision: "float32", or the type in which autocast computes contractions.
        machine: a description of the machine for readers.
        mesh: the names and sizes of the axes of a mesh of processes, if several train each run together.
        shard: what is divided along its axes, as for `tensornet.module`.
    """

    device: str = "cpu"
    threads: int = 1
    precision: str = "float32"
    machine: str = field(default="", compare=False)
    mesh: Mapping[str, int] = field(default_factory=dict)
    shard: Any = "auto"

    @classmethod
    def chosen(
        cls, device: str | None = None, threads: int | None = None, precision: str = "auto"
    ) -> Hardware:
        """The required hardware; by default the first CUDA device if there is one, else the CPU, and all cores.

        Raises:
            BackendError: the device does not exist.
            TensornetError: the precision or the number of threads is invalid.
        """
        torch = library("torch")
        device = str(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        try:
            torch.zeros(1, device=device).item()
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise BackendError(f"there is no device '{device}': {reason}", fix="give --device cpu") from None
        if threads is not None:
            checked_number(threads, "threads", 1, MOST_THREADS, whole=True)
        if precision not in PRECISIONS:
            fix = f"choose of {', '.join(PRECISIONS)}"
            raise TensornetError(f"there is no precision '{precision}'", fix=fix)
        on_cuda = device.startswith("cuda")
        if precision == "auto":
            precision = "bfloat16" if on_cuda and torch.cuda.is_bf16_supported() else "float32"
        machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
        if on_cuda:
            machine = f"{torch.cuda.get_device_name(device)}, {machine}"
        return cls(device, threads or torch.get_num_threads(), precision, machine)

    @property
    def kind(self) -> str:
        """The kind of device: "cpu" or "cuda"."""
        return self.device.partition(":")[0]

    def described(self) -> dict[str, Any]:
        """The properties that numbers depend on. On a mesh, sums are rounded as its sizes ask for: all count as one."""
        how = {"mesh": "any"} if self.mesh else {"threads": self.threads}
        return {"device": self.kind, **how, "precision": self.precision}

    def autocast(self) -> Any:
        """The context in which the forward pass runs."""
        torch = library("torch")
        reduced = self.precision != "float32"
        return torch.autocast(self.kind, getattr(torch, self.precision), enabled=reduced)

    @contextmanager
    def reproducible(self) -> Iterator[None]:
        """Sets deterministic algorithms, this number of threads, plans by built-in constants; restores all at the end.

        Sums split over another number of threads, or in an order chosen for a measured device, round differently.
        """
        torch = library("torch")
        strict, on_cpu = torch.are_deterministic_algorithms_enabled(), self.kind == "cpu"
        warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
        fixed = {"TENSORNET_CALIBRATE": "0", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
        with ExitStack() as restored:
            restored.callback(torch.set_num_threads, torch.get_num_threads())
            restored.callback(torch.use_deterministic_algorithms, strict, warn_only=warn_only)
            restored.enter_context(patch.dict(os.environ, fixed))
            torch.set_num_threads(self.threads)
            torch.use_deterministic_algorithms(True, warn_only=not on_cpu)
            restored.enter_context(torch.random.fork_rng(devices=[] if on_cpu else None))
            yield


# ---------------------------------------------------------------------------- training


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


@dataclass(eq=False)
class TrainingRun:
    """The training of one classifier, and its module, optimizer and progress once it is prepared.

    Attributes:
        name: the name of the run; with the seed it determines every random draw.
        row: the name of its row in the task.
        about: a description of the classifier.
        classifier: the graph, standardised inputs to logits y[b,o].
        examples: the training and test examples.
        recipe: how it is trained.
        seed: for initial values, mini-batches, augmentation and dropout.
        hardware: the hardware that computes it.
        start: the initial values, by name; drawn by the seed if not given.
        compression: how the classifier was compressed, if it was.
    """

    name: str
    row: str
    about: str
    classifier: tn.Graph
    examples: Examples
    recipe: Recipe
    seed: int = 0
    hardware: Hardware = Hardware()
    start: Mapping[str, Any] | None = None
    compression: Compression | None = None

    def prepare(self) -> None:
        """Makes the module, the optimizer, and the tensors on the device."""
        self.torch, hardware, examples, recipe = library("torch"), self.hardware, self.examples, self.recipe
        self.graph = examples.behind_standard(self.classifier)
        parts = (*examples.train_inputs, examples.train_labels), (*examples.test_inputs, examples.test_labels)
        self.train, self.test = (tuple(each.to(hardware.device) for each in part) for part in parts)
        self.steps_of_epoch = -(-len(examples.train_labels) // recipe.batch)
        self.steps = recipe.epochs * self.steps_of_epoch
        # initial values are derived for inputs of variance 1, as the classifier gets them
        parameters = self.start or tn.init(self.classifier, seed=self.seed, backend="torch")
        starts = {name: each.clone() for name, each in parameters.items()}
        module = tn.module(self.graph, params=starts, dtype="float32", **divided(hardware.shard))
        self.module = module.to(hardware.device)
        self.optimizer = recipe.update_rule(self.module.parameters())
        self.order: tuple[int, Any] = (-1, None)
        self.sums = self.torch.zeros(3, dtype=self.torch.float64, device=hardware.device)
        self.step, self.history = 0, list[Epoch]()

    def advance(self) -> None:
        """Makes one update on a mini-batch; after an epoch, takes the accuracies."""
        recipe, functional = self.recipe, self.torch.nn.functional
        self.torch.manual_seed(self._seed("step", self.step, 0))  # dropout draws from it
        inputs, labels = self.mini_batch()
        for group in self.optimizer.param_groups:
            group["lr"] = recipe.rate(self.step, self.steps)
        with self.hardware.autocast():
            logits = whole(self.module(*inputs)).float()
        smoothing = recipe.smoothing
        loss = functional.cross_entropy(logits, labels, reduction="sum", label_smoothing=smoothing)
        self.optimizer.zero_grad()
        (loss * (1 / len(labels))).backward()
        if recipe.clip:
            self.torch.nn.utils.clip_grad_norm_(self.module.parameters(), recipe.clip)
        self.optimizer.step()
        self.sums += self.torch.stack([loss.detach().double(), *right_ones(logits.detach(), labels)])
        self.step += 1
        if self.step % self.steps_of_epoch == 0:
            self._end_epoch()

    def mini_batch(self) -> tuple[tuple[Any, ...], Any]:
        """Augmented inputs and labels of the next step."""
        epoch, place = divmod(self.step, self.steps_of_epoch)
        chosen = self._shuffled(epoch)[place * self.recipe.batch : (place + 1) * self.recipe.batch]
        *inputs, labels = (each[chosen] for each in self.train)
        seed = self._seed("augment", self.step)
        return self.examples.batch(tuple(inputs), lambda each: augmented(each, self.recipe, seed)), labels

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
        logits = logits_of(self.module, self, part[:-1])
        self.module.train()
        top1, top5 = (100.0 * float(right) / len(logits) for right in right_ones(logits, part[-1].cpu()))
        return top1, top5

    def result(self) -> RunResult:
        """The result of the finished run."""
        graph, formula = self.classifier, tn.parameter_formula(self.classifier)
        names = sorted({str(size) for size in formula.free_symbols} & graph.bound.keys())
        sizes = ", ".join(f"{size}={graph.bound[size]}" for size in names)
        counted = sum(parameter.numel() for parameter in self.module.parameters())
        flops = tn.flop_count(graph, naive=False, **sizes_of_batch(graph, self.examples, self.recipe.batch))
        counts = (int(tn.parameter_count(graph)), counted, round(flops / self.recipe.batch))
        last, trained = self.history[-1:], self.accuracies(self.train)
        tested = (last[0].test_top1, last[0].test_top5) if last else self.accuracies(self.test)
        told = (self.name, self.row, self.seed, self.about, self.recipe, str(formula), sizes)
        return RunResult(*told, *counts, tuple(self.history), *trained, *tested, self.compression)

    # ------------------------------------------------------------------------ interruption

    def parameters(self) -> dict[str, Any]:
        """The parameters, by name, whole and on the CPU."""
        return {name: whole(each.detach()).cpu().clone() for name, each in self.module.state_dict().items()}

    def state(self) -> tuple[dict[str, Any], dict[str, str]]:
        """All tensors and texts that the rest of the run depends on."""
        tensors = {f"module.{name}": each for name, each in self.parameters().items()}
        for number, state in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{number}.{name}": whole(each).cpu() for name, each in state.items()}
        place = {"step": self.step, "history": [asdict(epoch) for epoch in self.history]}
        return {**tensors, "sums": self.sums.cpu()}, {"place": json.dumps(place)}

    def resume(self, checkpoint: RunFile | None) -> None:
        """Restores the newest checkpoint, if there is one."""
        read = None if checkpoint is None else first(checkpoint.load, lambda *found: found)
        if checkpoint is None or read is None:
            return
        tensors, place = read[0], json.loads(read[1]["place"])
        names = self.module.state_dict()
        self.module.load_state_dict({name: tensors[f"module.{name}"] for name in names})
        held, states = [*self.module.parameters()], dict[int, dict[str, Any]]()
        for key, each in tensors.items():
            match key.split("."):
                case ["optimizer", number, name]:
                    states.setdefault(int(number), {})[name] = part_like(each, held[int(number)])
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": states, "param_groups": groups})
        self.sums.copy_(tensors["sums"])
        self.step, self.history = place["step"], [Epoch(**each) for each in place["history"]]
        checkpoint.say(f"{self.name}: goes on after step {self.step:,} of {self.steps:,}")

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


def train(
    run: TrainingRun,
    checkpoint: RunFile | None = None,
    progress: Progress | None = None,
    every: float = CHECKPOINT_SECONDS,
) -> Trained:
    """Trains a classifier.

    The same seed gives the same numbers, whatever ran before, even if the run is stopped at any
    moment and resumes from its checkpoint.

    Args:
        run: what is trained, and how.
        checkpoint: the file in which checkpoints are kept, and from which the run resumes.
        progress: receives the progress before every step.
        every: the number of seconds between two checkpoints.

    Raises:
        TensornetError: the loss is not finite, or a checkpoint cannot be written.
    """
    with run.hardware.reproducible():
        run.prepare()
        run.resume(checkpoint)
        saved = time.monotonic()
        while run.step < run.steps:
            if progress is not None:
                progress(run.step, run.steps, run.history[-1].test_top1 if run.history else None)
            run.advance()
            if checkpoint is not None and first(lambda last: time.monotonic() - last >= every, saved):
                state = run.state()
                if is_first():
                    checkpoint.save(*state)
                saved = time.monotonic()
        return Trained(run.result(), run.graph, run.parameters())


def sizes_of_batch(graph: tn.Graph, examples: Examples, batch: int) -> dict[str, int]:
    """The sizes of the input axes of a classifier for a mini-batch of `batch` examples."""
    shapes = [(batch, *each.shape[1:]) for each in examples.test_inputs]
    return dict(sizes_from_shapes(graph, graph.inputs, shapes))


def logits_of(module: Any, run: TrainingRun, inputs: tuple[Any, ...]) -> Any:
    """The logits of a module for some of the examples of a run, on the CPU, computed some mini-batches at a time."""
    torch, hardware = library("torch"), run.hardware
    module.eval()
    with torch.no_grad(), hardware.autocast():
        parts = zip(*(each.split(4 * run.recipe.batch) for each in inputs), strict=True)
        moved = (tuple(each.to(hardware.device) for each in part) for part in parts)
        made = [whole(module(*run.examples.batch(part))) for part in moved]
    return torch.cat(made).float().cpu()


def right_ones(logits: Any, labels: Any) -> list[Any]:
    """The number of examples whose class has the largest logit, and one of the five largest."""
    likely = logits.topk(min(5, logits.shape[1]), dim=1).indices == labels[:, None]
    return [likely[:, :1].sum().double(), likely.sum().double()]
