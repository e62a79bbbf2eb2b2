"""What a study is about: the examples, the classifiers that are compared on them, and the recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .training import Recipe

if TYPE_CHECKING:
    import tensornet as tn

__all__ = ["Examples", "Task"]


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
    """

    train_inputs: tuple[Any, ...]
    train_labels: Any
    test_inputs: tuple[Any, ...]
    test_labels: Any
    about: str
    sizes: Mapping[str, int]


@dataclass(frozen=True)
class Task:
    """A study: `tensornet study NAME`.

    Attributes:
        name: what it is called.
        title: the heading of its report.
        example: what one example is called.
        rows: name to settings of a classifier, in the order they are trained and shown.
        recipe: how all of them are trained.
        load: the examples, from a seed and the place of the data (a name or a folder, or nothing).
        build: the graph of a row for these examples.
        caution: what a reader of the accuracies should know.
    """

    name: str
    title: str
    example: str
    rows: Mapping[str, Any]
    recipe: Recipe
    load: Callable[[int, str | None], Examples]
    build: Callable[[Any, Examples], tn.Graph]
    caution: str = ""
