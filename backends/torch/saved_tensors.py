"""Saved tensors: what autograd keeps of a function, found on meta tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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

__all__ = ["kept"]

UNTOLD = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
"""What a function raises that looks at values, or calls what torch knows no shapes of."""


def kept(
    make: Callable[[Callable[..., Any]], Callable[..., Any]], given: Sequence[Argument], device: str
) -> Kept | None:
    """The memory that autograd keeps of a function, and of each call in it; nothing where shapes do not tell it.

    Args:
        make: gives the function, of what makes its calls.
        given: the tensors that it is to be given.
        device: where these would be.
    """
    with FakeTensorMode(allow_non_fake_inputs=True), torch.enable_grad():
        tensors = [_tensor(each, device) for each in given]
        recording = _Recording(tensors)
        try:
            with recording.into(recording.around):
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
    """Memory that was seen, in the order in which it was.

    Attributes:
        sizes: bytes, by number.
        around, calls: the numbers of what is kept, as in `Kept`.
    """

    def __init__(self, given: Sequence[torch.Tensor]) -> None:
        self._numbers: dict[int, int] = {}
        self._alive: list[torch.UntypedStorage] = []  # so that no other takes its place
        self.sizes: dict[int, int] = {}
        self.around: set[int] = set()
        self.calls: list[tuple[set[int], set[int]]] = []
        self._own = {self._number(each) for each in given}
        for number in self._own:
            del self.sizes[number]

    def call(self, function: Callable[..., Any], *given: torch.Tensor, **options: Any) -> Any:
        """Calls a function, and records what is kept of it by itself."""
        operands = {self._number(each) for each in given} - self._own
        found: set[int] = set()
        self.calls.append((found, operands))
        with self.into(found):
            return function(*given, **options)

    @contextmanager
    def into(self, found: set[int]) -> Iterator[None]:
        """Records there what autograd keeps."""

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            found.update({self._number(tensor)} - self._own)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            yield

    def _number(self, tensor: torch.Tensor) -> int:
        """The number of a tensor's memory."""
        storage = tensor.untyped_storage()
        number = self._numbers.setdefault(storage._cdata, len(self._alive))
        if number == len(self._alive):
            self._alive.append(storage)
            self.sizes[number] = storage.nbytes()
        return number
