"""The array API backend: what NumPy, CuPy and other array libraries share.

`templates` uses only functions of the standard and of this folder. A library's own module overrides the rows
for which it has something better. `of(namespace)` creates a backend for any library that follows the standard.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .array_functions import helpers
from .templates import OWN, Plain, functions

__all__ = ["ArrayBackend", "of", "templates"]

templates: Mapping[str, str] = {
    **OWN,
    "reshape": "xp.reshape({0}, {shape})",
    "permute": "xp.permute_dims({0}, {axes})",
    "contiguous": "{0}",
    "matmul": "xp.matmul({0}, {1})",
    "linear": "linear({0})",
    "vecdot": "xp.sum({0} * {1}, axis=-1)",
    "broadcast": "xp.broadcast_to({0}, {shape})",
    "piece": "piece({0}, at, {length}, {axis})",
    "within": "within({0}, {size}, {name})",
    "take": "xp.take({0}, {1}, axis={axis})",
    "grouped_matmul": "grouped_matmul(xp, {0}, {1}, {2})",
    "grouped_outer": "grouped_outer(xp, {0}, {1}, {2}, {size})",
    "concat": "xp.concat([{0}], axis={axis})",
    "stack": "xp.concat([{0}], axis={axis})",
    "roll": "xp.roll({0}, {shift}, axis={axes})",
    "pad": "pad({0}, {pairs}, {value})",
    "arange": "xp.arange({0}, device=device({like}))",
    "arange_alone": "xp.arange({0})",
    "onehot": "xp.astype({0}[..., None] == {positions}, {dtype}, copy=False)",
    "int64": "xp.astype({0}, xp.int64)",
    "cast": "xp.astype({0}, {dtype}, copy=False)",
    "dtype": "xp.{0}",
    "scalar": "xp.asarray({0}, dtype={dtype})",
    **functions("xp"),
    "rsqrt": "1 / xp.sqrt({0})",
    "erf": "erf({0})",
    "sigmoid": "sigmoid({0})",
    "relu": "relu({0})",
    "gelu": "gelu({0})",
    "gelu_tanh": "gelu_tanh({0})",
    "silu": "silu({0})",
    "softplus": "xp.logaddexp({0}, xp.zeros_like({0}))",
    "log_sigmoid": "-xp.logaddexp(-{0}, xp.zeros_like({0}))",
    "leaky_relu": "leaky_relu({0}, {slope})",
    "elu": "elu({0}, {alpha})",
    "selu": "selu({0})",
    "mish": "mish({0})",
    "softsign": "softsign({0})",
    "hardsigmoid": "hardsigmoid({0})",
    "hardswish": "{0} * hardsigmoid({0})",
    "clip": "binary(xp.minimum, binary(xp.maximum, {0}, {1}), {2})",
    "maximum": "binary(xp.maximum, {0}, {1})",
    "minimum": "binary(xp.minimum, {0}, {1})",
    "where": "where({0}, {1}, {2})",
    "dropout": "dropout({0}, {1}, training)",
    "hardmax": "xp.astype(xp.argmax({0}, axis={axis}, keepdims=True) == {positions}, {dtype}, copy=False)",
    "softmax": "softmax({0}, {axis})",
    "log_softmax": "log_softmax({0}, {axis})",
    "cumsum": "cumsum({0}, {axis}, {back})",
    "cumprod": "cumprod({0}, {axis}, {back})",
    "sum": "xp.sum({0}, axis={axes})",
    "mean": "xp.mean({0}, axis={axes})",
    "var": "var({0}, {axes})",
    "std": "std({0}, {axes})",
    "norm": "norm({0}, {axes})",
    "argmax": "xp.argmax({0}, axis={axis})",
    "argmin": "xp.argmin({0}, axis={axis})",
    "argsort": "xp.argsort({0}, axis={axis}, stable=True)",
    "max": "xp.max({0}, axis={axes})",
    "min": "xp.min({0}, axis={axes})",
    "prod": "xp.prod({0}, axis={axis})",
    "logsumexp": "logsumexp({0}, {axes})",
}


@dataclass(frozen=True, eq=False)
class ArrayBackend(Plain):
    """A backend of a library that follows the standard."""

    name: str
    xp: Any
    templates: Mapping[str, str] = field(default_factory=lambda: templates)

    def __reduce__(self) -> tuple[Any, ...]:
        return _named, (self.xp.__name__,)

    def namespace(self) -> Mapping[str, Any]:
        return helpers(self.xp, self._erf)

    def _erf(self, x: Any) -> Any:
        """The error function by NumPy and SciPy; libraries with their own override this."""
        import scipy.special

        return self.xp.asarray(scipy.special.erf(self.numpy(x)), dtype=x.dtype)

    def device(self, array: Any = None) -> str:
        return "cpu"

    def check_device(self, device: str) -> None:
        return None

    def version(self, device: str) -> str:
        return f"{self.name} {getattr(self.xp, '__version__', '')} on {device}"

    def asarray(self, array: Any, dtype: str | None = None, device: str | None = None) -> Any:
        import numpy

        kind = None if dtype is None else getattr(self.xp, dtype)
        return self.xp.asarray(
            array if hasattr(array, "__array_namespace__") else numpy.asarray(array), dtype=kind
        )

    def numpy(self, array: Any) -> Any:
        import numpy

        try:
            return numpy.from_dlpack(array).copy()
        except BufferError:  # NumPy 2.0 does not export read-only arrays
            return numpy.from_dlpack(self.xp.asarray(array, copy=True))

    def dtype(self, array: Any) -> str:
        return str(array.dtype).split(".")[-1]


def _named(library: str) -> ArrayBackend:
    """The backend of an array library, by the name it is imported under."""
    return of(importlib.import_module(library))


@functools.cache
def of(library: Any) -> ArrayBackend:
    """A backend for an array library, given its namespace."""
    return ArrayBackend(library.__name__.split(".")[0], library)
