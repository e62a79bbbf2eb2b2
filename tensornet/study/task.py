"""What a study is about: the examples, the classifiers that are compared on them, and the recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import tensornet as tn
from tensornet.language.expression import fresh

from .recipe import Recipe

__all__ = ["Examples", "Published", "Task"]


@dataclass(frozen=True)
class Examples:
    """Inputs of a classifier as tensors, an example along the first axis, and labels (n,) as int64.

    Attributes:
        train_inputs: one tensor for each input of the classifier.
        train_labels: their classes, from 0.
        test_inputs: likewise, held out.
        test_labels: likewise.
        about: where they come from, with numbers; part of what a kept run is known by.
        sizes: what the classifiers need to know of them, such as the size of a vocabulary.
        standard: a layer that makes of images (n, …, H, W), which can be augmented, what the classifier
            takes; a run keeps it in front of the classifier. Without it inputs go in as they are.
        name: what they are called in a heading.
        known: whether they are those that a study's recipe was tried on, and its published figures are of.
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
        """What the run takes of these inputs; images are changed by the augmentation."""
        return inputs if self.standard is None else (change(inputs[0].float()),)

    def behind_standard(self, classifier: tn.Graph) -> tn.Graph:
        """The classifier as the run keeps it, of inputs as they are here."""
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
        name: what it is called.
        title: the heading of its report; `{data}` stands for what the examples are called.
        example: what one example is called.
        rows: name to settings of a classifier, in the order they are trained and shown.
        recipe: how all of them are trained, but for the optimizer.
        load: the examples, from a seed and the place of the data (a name or a folder, or nothing).
        build: the graph of a row for these examples.
        caution: what a reader of the accuracies should know of numbers of the recipe that were tried on the examples.
        tried: the names of these numbers.
        reference: the row that the parameters of the others are compared with.
        changes: what a row changes of the recipe, which the optimizer may change again.
        overrides: name of a row to what it changes whatever the optimizer.
        optimizers: each row is trained by each of them; more than one stand in the names of runs.
        threads: of one process on the CPU; all cores if not given.
        published: what others reported on the same data.
        source: where they did.
        splits: whether the examples depend on the seed.
        labels: name of a row to what it is called in pictures, where that is another.
        controls: the names of the rows that the others are compared with.
        kinds: what the controls are called, and what the others.
        base: the study that this one is a change of.
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
        """What a row is called in pictures."""
        return self.labels.get(row, row)

    def of(self, examples: Examples) -> Task:
        """What is so of these examples: their name in the heading; nothing that was published or tried on others."""
        task = replace(self, title=self.title.replace("{data}", examples.name))
        return task if examples.known else replace(task, published=(), caution="")

    def own_recipe(self, row: str) -> Recipe | None:
        """How the study of that name trains a row, but for the optimizer; nothing for a row that is not its own."""
        own = self.base or self
        settings = own.rows.get(row)
        if settings is None or settings is not self.rows.get(row):
            return None
        return own.recipe.changed(own.changes(settings))
