"""The task of a study: the examples, the classifiers that are compared on them, and the recipe."""

from __future__ import annotations

import functools
import math
import numbers
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from math import prod
from typing import Any

import tensornet as tn
from tensornet.codec import Text, document
from tensornet.errors import TensornetError, checked_number, near
from tensornet.graph.argument_shapes import sizes_from_shapes
from tensornet.language.expression import fresh
from tensornet.sizes import evaluate

from .libraries import library

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw": {},
    "adam": {"weight_decay": 0.0},
    "sgd": {"learning_rate": 0.1, "weight_decay": 5e-4},
}
"""Name → its changes of a recipe for AdamW.

Adam adds the decay to the gradient, where its adaptive step size cancels it (Loshchilov & Hutter 2019), so it
gets no decay. SGD, with Nesterov's momentum, has no adaptive step size for each parameter.
"""

MOMENTUM = 0.9
"""The momentum of SGD."""


@document()
@dataclass(frozen=True)
class Recipe:
    """A linear warm-up and a cosine decay to zero, on the cross-entropy.

    Attributes:
        epochs: passes over the training examples.
        batch: examples in a step.
        optimizer: "adamw", "adam" or "sgd".
        learning_rate: the largest, reached after the warm-up.
        weight_decay: on all parameters; decoupled for AdamW, L2 for the others.
        warmup: the share of all steps in which the learning rate rises.
        smoothing: ε of label smoothing.
        clip: the largest norm of all gradients together; 0 is no limit.
        shift: training images move by up to this many pixels in each direction.
        rotate: they rotate by up to this many degrees in each direction.
        zoom: they grow or shrink by up to this share.
        flip: whether half of them are mirrored, left to right.
    """

    epochs: int = 60
    batch: int = 32
    optimizer: Text = "adamw"
    learning_rate: float = 0.01
    weight_decay: float = 0.1
    warmup: float = 0.05
    smoothing: float = 0.0
    clip: float = 0.0
    shift: float = 0.0
    rotate: float = 0.0
    zoom: float = 0.0
    flip: bool = False

    @property
    def augments(self) -> bool:
        """Whether training images are changed at random."""
        return bool(self.shift or self.rotate or self.zoom or self.flip)

    def rate(self, step: int, steps: int) -> float:
        """The learning rate at a step, counted from 0, of `steps`."""
        rising = max(1, round(self.warmup * steps))
        if step < rising:
            return self.learning_rate * (step + 1) / rising
        return self.learning_rate * 0.5 * (1.0 + math.cos(math.pi * (step - rising) / max(1, steps - rising)))

    def optimized_by(self, name: str) -> Recipe:
        """This recipe, which is for AdamW, adapted to another optimizer."""
        return replace(self, optimizer=name, **OPTIMIZERS[name])

    def changed(self, changes: Mapping[str, Any], epochs: int = 1) -> Recipe:
        """This recipe with other numbers.

        Args:
            changes: name → value.
            epochs: the least number of epochs; 0 if there is a classifier without training.

        Raises:
            TensornetError: a setting is unknown, or its value is out of range.
        """
        known, values = asdict(self), {}
        for name, value in changes.items():
            if name not in known:
                fix = f"{near(name, known)}its settings: {', '.join(known)}"
                raise TensornetError(f"the recipe has no setting '{name}'", fix=fix)
            least = {"epochs": epochs, "batch": 1}.get(name, 0)
            values[name] = _checked(name, value, type(known[name]), least)
        return replace(self, **values)

    def update_rule(self, parameters: Iterable[Any]) -> Any:
        """The torch optimizer for these parameters."""
        optim = library("torch").optim
        sgd = functools.partial(optim.SGD, momentum=MOMENTUM, nesterov=True)
        rule = {"adam": optim.Adam, "adamw": optim.AdamW, "sgd": sgd}[self.optimizer]
        return rule(parameters, lr=self.learning_rate, weight_decay=self.weight_decay)


_BELOW_ONE = ("warmup", "smoothing", "zoom")


def _checked(name: str, value: Any, kind: type, least: int) -> Any:
    """The value as the type of its setting; raises an error if it is out of range."""
    if kind is str and value not in OPTIMIZERS:
        raise TensornetError(f"there is no optimizer '{value}'", fix=f"choose of {', '.join(OPTIMIZERS)}")
    if kind is bool and not isinstance(value, bool):
        raise TensornetError(f"{name} is {value}", fix="give true or false")
    if kind in (int, float):
        most, fix = (math.nextafter(1, 0), "give a share below 1") if name in _BELOW_ONE else (2**31 - 1, "")
        whole = kind is int and not (isinstance(value, float) and value.is_integer())
        checked_number(value, name, least, most, whole, fix)
    return kind(value)


MOST_SEEDS = 1000
"""The most seeds; a larger number was meant as a seed itself."""


def checked_seeds(seeds: Any) -> tuple[int, ...]:
    """The seeds that are given, each once; a number n means 0 to n - 1.

    Raises:
        TensornetError: there is no seed, or one is not a whole number from 0 to 2³² - 1.

    Example:
        >>> checked_seeds(3), checked_seeds([7, 8])
        ((0, 1, 2), (7, 8))
    """
    if isinstance(seeds, numbers.Integral):
        fix = f"give how many, 1 to {MOST_SEEDS}, or a list of them"
        return tuple(range(checked_number(seeds, "the number of seeds", 1, MOST_SEEDS, whole=True, fix=fix)))
    given = seeds if isinstance(seeds, Iterable) and not isinstance(seeds, str) else [seeds]
    found = tuple(dict.fromkeys(checked_number(each, "seed", 0, 2**32 - 1, whole=True) for each in given))
    if not found:
        raise TensornetError("no seed is given", fix="give a list of whole numbers, as [0, 1, 2]")
    return found


@dataclass(frozen=True)
class Examples:
    """Inputs of a classifier as tensors, with examples along the first axis, and labels (n,) as int64.

    Attributes:
        train_inputs: one tensor for each input of the classifier.
        train_labels: their classes, from 0.
        test_inputs: likewise, held out.
        test_labels: likewise.
        about: where they come from, with numbers; part of what identifies a kept run.
        sizes: the sizes that classifiers need, such as that of a vocabulary.
        standard: a layer that turns images (n, …, H, W), which can be augmented, into the input of the
            classifier. A run keeps it in front of the classifier. Without it, inputs are not changed.
        name: their name in a heading.
        known: whether the study's recipe was tried on them, and its published figures are for them.
    """

    train_inputs: tuple[Any, ...]
    train_labels: Any
    test_inputs: tuple[Any, ...]
    test_labels: Any
    about: str
    sizes: Mapping[str, Any]
    standard: tn.Graph | None = None
    name: str = ""
    known: bool = False

    def described(self) -> dict[str, Any]:
        """Where they come from, and the numbers of training and test examples."""
        return {"about": self.about, "train": len(self.train_labels), "test": len(self.test_labels)}

    def batch(self, inputs: tuple[Any, ...], change: Callable[[Any], Any] = lambda images: images) -> Any:
        """These inputs as the run takes them; images become floats and are changed by the augmentation."""
        return inputs if self.standard is None else (change(inputs[0].float()),)

    def behind_standard(self, classifier: tn.Graph) -> tn.Graph:
        """The classifier as the run keeps it, which takes these inputs before standardisation."""
        if self.standard is None:
            return classifier
        standard, (image,) = self.standard, classifier.inputs
        names = [axis.name for dim in image.dims for axis in dim]
        axes = ",".join(fresh("n", set(names)) if name == "..." else name for name in names)
        return tn.model(lambda x: classifier(standard(x)), inputs=f"{image.name}[{axes}]")


@dataclass(frozen=True)
class BuiltRow:
    """A classifier, given by the name of its builder.

    Attributes:
        about: a short description.
        model: one of `tensornet.models.names()`.
        settings: its own settings; those that it takes and the examples know, such as `classes`, come from them.
        recipe: its changes of the recipe, which the optimizer may change again.
    """

    about: str
    model: str
    settings: Mapping[str, Any]
    recipe: Mapping[str, Any] = field(default_factory=dict)


def built(row: BuiltRow, examples: Examples) -> tn.Graph:
    """The classifier of a row, with a logit for each class of these examples."""
    taken = tn.models.settings(row.model)
    known = {name: size for name, size in examples.sizes.items() if name in taken}
    return tn.models.create(row.model, **{**known, **row.settings})


@dataclass(frozen=True)
class Task:
    """A study: `tensornet study NAME`.

    Attributes:
        name: its name.
        title: the heading of its report; `{data}` is replaced by the name of the examples.
        example: the noun for one example.
        rows: name to settings of a classifier, in the order they are trained and shown.
        recipe: how all of them are trained, except for the optimizer.
        load: returns the examples, given a seed.
        build: returns the graph of a row for these examples.
        caution: how the numbers of the recipe were tried on the examples, as a warning to readers of the accuracies.
        tried: the names of these numbers.
        reference: the row that the parameters of the others are compared with.
        overrides: name of a row to its changes for every optimizer; those of a compressed row change the recipe of
            the row that it is made of.
        optimizers: each row is trained by each of them; if there are several, names of runs contain them.
        threads: threads of one process on the CPU; all cores if None.
        published: figures that others reported on the same data: model, optimizer, parameters, and top-1 and top-5
            on train and on test, in percent.
        source: where these figures were published.
        splits: whether the examples depend on the seed.
        labels: name of a row to its name in pictures, if that is different.
        controls: the names of the rows that the others are compared with.
        kinds: the name of the controls, and that of the others.
        places: name of a row to its file and key, if it comes from a file.
    """

    name: str
    title: str
    example: str
    rows: Mapping[str, Any]
    recipe: Recipe
    load: Callable[[int], Examples]
    build: Callable[[Any, Examples], tn.Graph] = built
    caution: str = ""
    tried: tuple[str, ...] = ()
    reference: str = ""
    overrides: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    optimizers: tuple[str, ...] = ("adamw",)
    threads: int | None = 1
    published: tuple[tuple[Any, ...], ...] = ()
    source: str = ""
    splits: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    controls: frozenset[str] = frozenset()
    kinds: tuple[str, str] = ("control", "compared")
    places: Mapping[str, str] = field(default_factory=dict)

    def of(self, examples: Examples) -> Task:
        """The task for these examples: their name in the heading; figures and caution only if they are known."""
        task = replace(self, title=self.title.replace("{data}", examples.name))
        return task if examples.known else replace(task, published=(), caution="")


def check_classifier(graph: tn.Graph, examples: Examples) -> None:
    """Raises an error unless the graph takes these inputs and returns a logit for each class."""
    shapes = [tuple(each.shape) for each in examples.train_inputs]
    if len(graph.inputs) != len(shapes) or len(graph.outputs) != 1:
        takes = f"the model takes {len(graph.inputs)} inputs and gives {len(graph.outputs)} results"
        fix = "choose a model that takes and gives as many"
        raise TensornetError(f"{takes}, and an example has {len(shapes)}, of one class", fix=fix)
    one = ", ".join("×".join(map(str, shape[1:])) or "one" for shape in shapes) + " numbers"
    try:
        sizes = {**graph.bound, **sizes_from_shapes(graph, graph.inputs, shapes)}
    except TensornetError as error:
        message, fix = f"{error.message}; an example is {one}", f"let the model take {one}"
        raise type(error)(message, error.place, fix) from None
    made = [prod(evaluate(axis.size, sizes) for axis in dim) for dim in graph.dims[graph.outputs[0]]]
    classes = int(max(examples.train_labels.max(), examples.test_labels.max())) + 1
    if len(made) != 2 or made[1] != classes:
        told = f"of {shapes[0][0]:,} examples the model makes {'×'.join(map(str, made))} numbers"
        raise TensornetError(told, fix=f"let it give a logit for each of the {classes} classes of an example")
