"""Rematerialisation and saved tensors: calls for which autograd saves only the arguments, and what it saves for others.

Results that are cheap to make again are made again. The memory that autograd keeps for the backward pass of a function
is found with fake tensors.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.checkpoint import checkpoint

from tensornet.protocol import Argument, Kept

from ..loops import scan
from .functions import SHARED
from .products import is_differentiated

__all__ = ["along_recomputed", "recomputed", "without_cheap"]


def recomputed(function: Callable[..., Any], *given: torch.Tensor, **options: Any) -> Any:
    """A call for which autograd saves only the arguments; with dropout also the state of the random generator."""
    draws = "training" in options
    return checkpoint(
        function, *given, use_reentrant=False, preserve_rng_state=draws, determinism_check="none", **options
    )


def along_recomputed(
    function: Any,
    cut: Sequence[Any],
    states: Sequence[Any],
    rest: Sequence[Any],
    size: int,
    axes: Sequence[int],
    following: Sequence[int],
    results: int,
    back: bool,
    segment: int,
    recomputed: Any,
    **options: Any,
) -> Any:
    """A function called along an axis, in segments of `segment` positions. Each segment is one recomputed call."""
    count = len(cut)

    def positions(*given: Any, length: int, **options: Any) -> tuple[Any, ...]:
        called = functools.partial(function, **options) if options else function
        pieces, now, others = given[:count], given[count : count + len(states)], given[count + len(states) :]
        repetition = (length, axes, following, results, back)
        wholes, left = scan(SHARED, called, pieces, now, others, *repetition)
        return (*wholes, *left)

    made: list[Any] = []
    now = states
    for done in range(0, max(size, 1), segment):
        length = min(segment, size - done)
        first = size - done - length if back else done
        pieces = [x.narrow(axis, first, length) for x, axis in zip(cut, axes, strict=True)]
        found = recomputed(positions, *pieces, *now, *rest, length=length, **options)
        made.append(found[:results])
        now = found[results:]
    wholes = [torch.cat(each) for each in zip(*(made[::-1] if back else made), strict=True)]
    return wholes[0] if len(wholes) == 1 else tuple(wholes)


# ---------------------------------------------------------------------------- cheap results

_CHEAP = tuple(
    getattr(torch.nn.functional, name)
    for name in ("gelu", "silu", "mish", "softplus", "layer_norm", "rms_norm")
)
_PRODUCTS = (torch.Tensor.mul, torch.Tensor.div)
"""Functions of elements and rows whose gradients read their operands, so that autograd saves these in any case."""


def without_cheap(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, for which autograd saves no result of a cheap function: the backward pass recomputes it."""

    @functools.wraps(function)
    def called(*given: Any, **options: Any) -> Any:
        if not is_differentiated(*(each for each in given if isinstance(each, torch.Tensor))):
            return function(*given, **options)
        cheap = _Cheap()
        try:
            with cheap, torch.autograd.graph.saved_tensors_hooks(cheap.pack, cheap.unpack):
                return function(*given, **options)
        finally:
            cheap.made.clear()

    return called


class _Made(NamedTuple):
    """How a cheap result was made, with the versions of its operands and of itself then."""

    again: _Recomputation
    operands: Any
    versions: list[int]
    result: weakref.ref[torch.Tensor]


@dataclass(eq=False)
class _Recomputation:
    """How a cheap result is made again, once for all operations that saved it.

    Attributes:
        saved: by how many operations.
        operands: of the function, packed.
        unread: how many of the operations have yet to read the result.
        result: kept until all have.
    """

    function: Callable[..., Any]
    autocast: tuple[str, torch.dtype, bool]
    strides: tuple[int, ...]
    saved: int = 0
    operands: Any = None
    unread: int = 0
    result: torch.Tensor | None = None


@dataclass(frozen=True)
class _Recipe:
    """Stands for a saved tensor, a view of a cheap result."""

    again: _Recomputation
    view: tuple[Any, ...]


class _Cheap(TorchFunctionMode):
    """Remembers how cheap results are made, and saves a recipe in the place of such a result.

    The operands in a recipe are packed too. Without a recipe, the hooks around these pack a tensor. A result has none
    if it or an operand was written to since.
    """

    def __init__(self) -> None:
        super().__init__()
        around = torch._C._autograd._top_saved_tensors_default_hooks(True)
        self._pack, self._unpack = around or (lambda packed: packed,) * 2
        self.made: dict[int, _Made] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result, operands = func(*args, **(kwargs or {})), (args, kwargs or {})
        if func in _CHEAP or func in _PRODUCTS:
            changing = [each.requires_grad for each in _tensors(operands)]
            if any(changing) if func in _CHEAP else changing == [True, True]:
                number, kind = result.untyped_storage()._cdata, result.device.type
                autocast = (kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
                gone = weakref.ref(result, lambda _: self.made.pop(number, None))
                again = _Recomputation(func, autocast, result.stride())
                self.made[number] = _Made(again, operands, _versions(operands, result), gone)
        return result

    def pack(self, tensor: torch.Tensor) -> _Recipe | _Packed:
        """A recipe, or what the hooks around these make of a tensor."""
        made = self.made.get(tensor.untyped_storage()._cdata)
        result = None if made is None else made.result()
        if made is None or result is None or made.versions != _versions(made.operands, result):
            return _Packed(self._pack(tensor), tensor._version)
        again = made.again
        if not again.saved:
            again.operands = tree_map_only(torch.Tensor, lambda each: self.pack(each.detach()), made.operands)
        again.saved += 1
        return _Recipe(again, (tensor.shape, tensor.stride(), tensor.storage_offset()))

    def unpack(self, packed: _Recipe | _Packed) -> Any:
        """The tensor.

        Raises:
            RuntimeError: it was written to since it was saved. Without hooks, torch checks this itself.
        """
        if isinstance(packed, _Packed):
            found = self._unpack(packed.value)
            if found is packed.value and found._version != packed.version:
                raise RuntimeError("a tensor that a gradient needs was modified by an inplace operation")
            return found
        again = packed.again
        result = self._computed(again) if again.result is None else again.result
        again.unread = (again.unread or again.saved) - 1
        again.result = result if again.unread else None
        return result.as_strided(*packed.view)

    def _computed(self, again: _Recomputation) -> torch.Tensor:
        operands, options = tree_map_only((_Recipe, _Packed), self.unpack, again.operands)
        kind, dtype, enabled = again.autocast
        with torch.no_grad(), torch.autocast(kind, dtype, enabled):
            result: torch.Tensor = again.function(*operands, **options)
        if result.stride() != again.strides:  # hooks may lay an operand out otherwise
            result = result.new_empty_strided(result.shape, again.strides).copy_(result)
        return result


@dataclass(frozen=True)
class _Packed:
    """What hooks make of a tensor, and its version then."""

    value: Any
    version: int


def _tensors(operands: Any) -> list[torch.Tensor]:
    return [each for each in tree_leaves(operands) if isinstance(each, torch.Tensor)]


def _versions(operands: Any, result: torch.Tensor) -> list[int]:
    return [each._version for each in (*_tensors(operands), result)]


# ---------------------------------------------------------------------------- saved tensors


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
