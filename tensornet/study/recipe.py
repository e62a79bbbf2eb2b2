"""How a run is trained: the optimizer, its schedule, and the augmentation, as plain numbers."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from tensornet.codec import Text, document
from tensornet.errors import TensornetError, near

from .libraries import library

__all__ = ["OPTIMIZERS", "Recipe", "checked_seeds"]

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
        batch: examples in a step, over all processes together.
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
        known = {field.name: getattr(self, field.name) for field in fields(self)}
        values = {}
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
        settings: dict[str, Any] = {"lr": self.learning_rate, "weight_decay": self.weight_decay}
        if self.optimizer == "sgd":
            return optim.SGD(parameters, **settings, momentum=MOMENTUM, nesterov=True)
        return {"adam": optim.Adam, "adamw": optim.AdamW}[self.optimizer](parameters, **settings)


_MOST = 2**31
_BELOW_ONE = ("warmup", "smoothing", "zoom")


def _checked(name: str, value: Any, kind: type, least: int) -> Any:
    """The value as the type of its setting; raises an error if it is out of range."""
    if kind is str:
        if value not in OPTIMIZERS:
            raise TensornetError(f"there is no optimizer '{value}'", fix=f"choose of {', '.join(OPTIMIZERS)}")
        return value
    if kind is bool:
        if not isinstance(value, bool):
            raise TensornetError(f"{name} is {value}", fix="give true or false")
        return value
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not number or not least <= value < _MOST or (kind is int and value != int(value)):
        what = "a whole number" if kind is int else "a number"
        most = f" and below {_MOST}" if number and value >= _MOST else ""
        raise TensornetError(f"{name} is {value}", fix=f"give {what}, {least} or more{most}")
    if name in _BELOW_ONE and value >= 1:
        raise TensornetError(f"{name} is {value}", fix="give a share below 1")
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
    if _is_whole(seeds):
        if not 1 <= seeds <= MOST_SEEDS:
            raise TensornetError(
                f"there are {seeds} seeds", fix=f"give how many, 1 to {MOST_SEEDS}, or a list of them"
            )
        return tuple(range(int(seeds)))
    given = list(seeds) if isinstance(seeds, Iterable) and not isinstance(seeds, str) else [seeds]
    for seed in given:
        if not _is_whole(seed) or not 0 <= seed < 2**32:
            raise TensornetError(f"seed is {seed}", fix="give a whole number, 0 to 4294967295")
    if not given:
        raise TensornetError("no seed is given", fix="give a list of whole numbers, as [0, 1, 2]")
    return tuple(dict.fromkeys(map(int, given)))


def _is_whole(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)
