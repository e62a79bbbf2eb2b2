"""Saved tensors: the memory that autograd keeps for the backward pass of a function, found with fake tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)

from tensornet.protocol import Argument, Kept

UNTOLD = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
"""The errors of a function that reads values, or calls an operation without shape inference in torch."""


def kept(
    make: Callable[[Callable[..., Any]], Callable[..., Any]], given: Sequence[Argument], device: str
) -> Kept | None:
    """The memory that autograd keeps for a function, and for each call in it. None if shapes do not determine it.

    Args:
        make: builds the function, given the function by which it makes its calls.
        given: the tensors that the function would take.
        device: the device of these tensors.
    """
    with FakeTensorMode(allow_non_fake_inputs=True), torch.enable_grad():
        tensors = [_tensor(each, device) for each in given]
        recording = _Recording(tensors)
        try:
            with torch.autograd.graph.saved_tensors_hooks(recording.pack, lambda tensor: tensor):
                result = make(recording.call)(*tensors)
        except UNTOLD:
            return None
        del result
    return Kept(
        recording.sizes,
        frozenset(recording.around),
        tuple((frozenset(found), frozenset(operands)) for found, operands in recording.calls),
    )


def _tensor(argument: Argument, device: str) -> torch.Tensor:
    shape, dtype, changes = argument
    return torch.empty(shape, dtype=getattr(torch, dtype), device=device, requires_grad=changes)


class _Recording:
    """The pieces of memory seen so far, numbered in the order in which they appear.

    Attributes:
        sizes: the bytes of each piece, by number.
        around, calls: the numbers of the pieces that are kept, as in `Kept`.
    """

    def __init__(self, given: Sequence[torch.Tensor]) -> None:
        self._numbers: dict[int, int] = {}
        self._alive: list[torch.UntypedStorage] = []  # so that no address is reused
        self.sizes: dict[int, int] = {}
        self.around: set[int] = set()
        self.calls: list[tuple[set[int], set[int]]] = []
        self._now = self.around
        self._own = {self._number(each) for each in given}
        for number in self._own:
            del self.sizes[number]

    def call(self, function: Callable[..., Any], *given: torch.Tensor, **options: Any) -> Any:
        """Calls a function, and records separately what autograd keeps for it."""
        operands = {self._number(each) for each in given} - self._own
        before, self._now = self._now, set()
        self.calls.append((self._now, operands))
        try:
            return function(*given, **options)
        finally:
            self._now = before

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        """Records the memory of a tensor that autograd keeps."""
        self._now.update({self._number(tensor)} - self._own)
        return tensor

    def _number(self, tensor: torch.Tensor) -> int:
        """The number of a tensor's memory."""
        storage = tensor.untyped_storage()
        number = self._numbers.setdefault(storage._cdata, len(self._alive))
        if number == len(self._alive):
            self._alive.append(storage)
            self.sizes[number] = storage.nbytes()
        return number
