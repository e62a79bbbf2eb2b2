"""Lazy tensors: weights that factors make where their values are read."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from tensornet.errors import EquationError

_TENSOR = torch.Tensor

_SHAPE = frozenset(
    [
        *(getattr(_TENSOR, name).__get__ for name in ("shape", "ndim")),
        *(_TENSOR.size, _TENSOR.dim, _TENSOR.numel, _TENSOR.__len__),
        *(_TENSOR.is_floating_point, _TENSOR.is_complex),
    ]
)
"""What tells the shape, or that numbers are real."""

_LIKE = frozenset(getattr(_TENSOR, name).__get__ for name in ("dtype", "device"))

_READS = frozenset(["requires_grad_", "__invert__", "__int__", "__index__"])
"""Methods with names like those that write."""


class Lazy(_TENSOR):
    """A weight of factors. Its shape, type and device multiply no factors, and nothing may write to it."""

    _make: Callable[[], torch.Tensor]
    _like: Callable[[], torch.Tensor]

    @staticmethod
    def of(blank: torch.Tensor, make: Callable[[], torch.Tensor], like: Callable[[], torch.Tensor]) -> Lazy:
        """A lazy tensor.

        Args:
            blank: a tensor of the same shape on the device "meta", so that what reads no values by `make` fails.
            make: makes its values.
            like: gives a tensor of its type on its device.
        """
        found = blank.as_subclass(Lazy)
        found._make, found._like = make, like
        return found

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if kwargs:
            if isinstance(kwargs.get("out"), Lazy) or (not args and _writes(func)):
                raise _unwritten(func)
            kwargs = {key: _made(each) for key, each in kwargs.items()}
        if args and type(first := args[0]) is Lazy:
            if func in _SHAPE:
                with torch._C.DisableTorchFunctionSubclass():
                    return func(*args)
            if func in _LIKE:
                return func(first._like())
            if func == _TENSOR.data.__get__:  # type: ignore[attr-defined]
                return cls.of(first.as_subclass(_TENSOR), lambda: first._make().detach(), first._like)
            if _writes(func):
                raise _unwritten(func)
        return func(*[_made(each) for each in args], **(kwargs or {}))


@functools.lru_cache(maxsize=256)
def _writes(func: Any) -> bool:
    """Whether a method writes to its tensor."""
    name = getattr(func, "__name__", "")
    is_special = name.startswith("__")
    return name not in _READS and (name.startswith(("__set", "__i")) if is_special else name.endswith("_"))


def _unwritten(func: Any) -> EquationError:
    return EquationError(
        f"'{func.__name__}' writes to a weight that factors make, which would be lost",
        fix="write to its factors, or compress with exclude= the name of this weight",
    )


def _made(found: Any) -> Any:
    """An argument with values in the place of lazy tensors."""
    if type(found) is Lazy:
        return found._make()
    if type(found) in (tuple, list) and Lazy in map(type, found):
        return type(found)(map(_made, found))
    return found
