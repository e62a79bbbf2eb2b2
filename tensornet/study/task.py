"""The task of a study: the examples, the classifiers that are compared on them, and the recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import tensornet as tn
from tensornet.errors import TensornetError
from tensornet.graph.argument_shapes import sizes_from_shapes
from tensornet.language.expression import fresh
from tensornet.sizes import evaluate

from .recipe import Recipe

__all__ = ["Examples", "Published", "Task", "check_classifier"]


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
class Published:
    """A row of a published table: accuracies in percent, top-1 and top-5 on train and test."""

    name: str
    optimizer: str
    parameters: int
    train_top1: float
    train_top5: float
    test_top1: float
    test_top5: float


@dataclass(frozen=True)
class Task:
    """A study: `tensornet study NAME`.

    Attributes:
        name: its name.
        title: the heading of its report; `{data}` is replaced by the name of the examples.
        example: the noun for one example.
        rows: name to settings of a classifier, in the order they are trained and shown.
        recipe: how all of them are trained, except for the optimizer.
        load: returns the examples, given a seed and the source of the data (a name, a folder, arrays, or None).
        build: returns the graph of a row for these examples.
        caution: how the numbers of the recipe were tried on the examples, as a warning to readers of the accuracies.
        tried: the names of these numbers.
        reference: the row that the parameters of the others are compared with.
        changes: a row's changes of the recipe, which the optimizer may change again.
        overrides: name of a row to its changes for every optimizer.
        optimizers: each row is trained by each of them; if there are several, names of runs contain them.
        threads: threads of one process on the CPU; all cores if None.
        published: figures that others reported on the same data.
        source: where these figures were published.
        splits: whether the examples depend on the seed.
        labels: name of a row to its name in pictures, if that is different.
        controls: the names of the rows that the others are compared with.
        kinds: the name of the controls, and that of the others.
        base: the study that this one changes.
    """

    name: str
    title: str
    example: str
    rows: Mapping[str, Any]
    recipe: Recipe
    load: Callable[[int, Any], Examples]
    build: Callable[[Any, Examples], tn.Graph]
    caution: str = ""
    tried: tuple[str, ...] = ()
    reference: str = ""
    changes: Callable[[Any], Mapping[str, Any]] = lambda row: {}
    overrides: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    optimizers: tuple[str, ...] = ("adamw",)
    threads: int | None = 1
    published: tuple[Published, ...] = ()
    source: str = ""
    splits: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    controls: frozenset[str] = frozenset()
    kinds: tuple[str, str] = ("control", "compared")
    base: Task | None = None

    def label(self, row: str) -> str:
        """The name of a row in pictures."""
        return self.labels.get(row, row)

    def of(self, examples: Examples) -> Task:
        """The task for these examples: their name in the heading; figures and caution only if they are known."""
        task = replace(self, title=self.title.replace("{data}", examples.name))
        return task if examples.known else replace(task, published=(), caution="")

    def own_recipe(self, row: str) -> Recipe | None:
        """The study's own recipe for a row, except for the optimizer; None for a row that is not its own."""
        own = self.base or self
        settings = own.rows.get(row)
        if settings is None or settings is not self.rows.get(row):
            return None
        return own.recipe.changed(own.changes(settings))


def check_classifier(graph: tn.Graph, examples: Examples) -> None:
    """Raises an error unless the graph takes these inputs and returns a logit for each class."""
    shapes = [tuple(each.shape) for each in examples.train_inputs]
    if len(graph.inputs) != len(shapes) or len(graph.outputs) != 1:
        raise TensornetError(
            f"the model takes {len(graph.inputs)} inputs and gives {len(graph.outputs)} results,"
            f" and an example has {len(shapes)}, of one class",
            fix="choose a model that takes and gives as many",
        )
    one = ", ".join("×".join(map(str, shape[1:])) or "one" for shape in shapes)
    try:
        sizes = {**graph.bound, **sizes_from_shapes(graph, graph.inputs, shapes)}
    except TensornetError as error:
        message = f"{error.message}; an example is {one} numbers"
        raise type(error)(message, error.place, f"let the model take {one} numbers") from None
    dims = graph.dims[graph.outputs[0]]
    shape = tuple(prod(evaluate(axis.size, sizes) for axis in dim) for dim in dims)
    classes = int(max(examples.train_labels.max(), examples.test_labels.max())) + 1
    if len(shape) != 2 or shape[1] != classes:
        told = "×".join(map(str, shape))
        raise TensornetError(
            f"of {shapes[0][0]:,} examples the model makes {told} numbers",
            fix=f"let it give a logit for each of the {classes} classes of an example",
        )
