"""Results that calls without gradients keep, while the tensors that they were made of are as they were."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import torch

T = TypeVar("T")

ALL, SOME = 1 << 14, 64
"""The most elements of a tensor that are all compared; and about how many of a larger one are, at equal distances."""

WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integers of so many bytes: NumPy reads bits of types that it does not have."""


class Kept(Generic[T]):
    """A result, and the state of the tensors that it was made of.

    Fused optimizers and writes to `.data` raise no version. On the CPU, therefore, values are compared as well: of
    large tensors some. Elsewhere this would wait for the device: nothing is kept there in training mode. Copies have
    kept nothing yet.
    """

    def __init__(self) -> None:
        self._found: tuple[Any, list[Any], list[bytes], T, Any] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Kept, ()

    def clear(self) -> None:
        """Forgets the result."""
        self._found = None

    def read(self, tensors: Sequence[torch.Tensor], is_training: bool, make: Callable[[], T]) -> T:
        """The result of the last call, or a new one if a tensor, or the result itself, has changed.

        Args:
            tensors: those that it is made of.
            is_training: whether their module is in training mode.
            make: makes it.
        """
        key = state_of(tensors)
        if key is None or (is_training and not is_on_cpu(tensors)):
            return make()
        if (found := self._found) is not None:
            former, views, values, made, version = found
            same = former == key and values == [each.tobytes() for each in views]
            if same and version == _version(made):
                return made
        views = [_elements(each) for each in tensors if each.is_cpu]
        values = [each.tobytes() for each in views]  # before, as other threads may write
        made = make()
        self._found = key, views, values, made, _version(made)
        return made


def state_of(tensors: Sequence[torch.Tensor]) -> Any:
    """A key of some tensors and their versions; None if they have none, as those made in inference mode."""
    if True in [each.is_inference() for each in tensors]:
        return None
    return torch.is_inference_mode_enabled(), [(id(each), each._version, each.data_ptr()) for each in tensors]


def _version(made: Any) -> int | None:
    """How often a tensor was written to, where this is counted."""
    is_counted = isinstance(made, torch.Tensor) and not made.is_inference()
    return made._version if is_counted else None


def is_on_cpu(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether all of some tensors are on the CPU."""
    return False not in [each.is_cpu for each in tensors]


def _elements(tensor: torch.Tensor) -> Any:
    """A view of all elements of a tensor, or of some, as integers."""
    is_small = tensor.numel() <= ALL
    step = 1 if is_small else math.ceil((tensor.numel() / SOME) ** (1 / tensor.ndim))
    some = tensor.detach()[tuple(slice(None, None, step) for _ in tensor.shape)]
    return some.view(WORDS[tensor.element_size()]).numpy()
