"""The array API backend: what NumPy, CuPy and other array libraries share.

Its templates use only functions of the standard and of this folder. A library's own module overrides the rows
for which it has something better. `of(namespace)` creates a backend for any library that follows the standard
of 2024.12 or later. A template is the source text of an operation; most libraries share some.
"""

from __future__ import annotations

import functools
import importlib
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tensornet.ops.pointwise import SELU_ALPHA, SELU_SCALE
from tensornet.protocol import Argument, CallCache, Kept

from .array_functions import Functions, namespace_of

COMMON: Mapping[str, str] = {
    "index": "{positions}",
    "reciprocal": "1 / {0}",
    "select": "{0}[{index}]",
    "within": "within({0}, {size}, {name})",
    "max_pool": "max_pool({0}, {windows})",
    "mean_pool": "mean_pool({0}, {windows})",
    "along": "along({0}, {1}, {2}, {3}, {size}, {axes}, {states}, {results}, {back}{last})",
    "in_pieces": "in_pieces({0}, {size}, {length}, {axes})",
    "widen": "widen({0}, {dtype})",
    "finite": "finite({0}, {1})",
    "floating": "floating({0}, {1})",
    "wide": "wide({dtype})",
    "dropped": "dropped({0}, {1}, {2}, training)",
    "normalize": "normalize({0}, {axis}, {eps})",
    "normalize_affine": "normalize({0}, {axis}, {eps}, {1}, {2})",
    "recur": "recur({0}, {1}, {start}, {back})",
    "cumsum": "cumsum({0}, {axis}, {back})",
    "cumprod": "cumprod({0}, {axis}, {back})",
    "grouped_matmul": "grouped_matmul({0}, {1}, {2})",
    "grouped_outer": "grouped_outer({0}, {1}, {2}, {size})",
    "top": "top({0}, {axis}, {size})",
    "floor_divide": "floor_divide({0}, {1})",
    "remainder": "remainder({0}, {1})",
}
"""Templates that are the same for every backend: arithmetic, and functions in the backend's namespace."""

KERNELS: Mapping[str, str] = {
    "scatter_add": "scatter_add({0}, {1}, {size}, {axis}{inside})",
    "scatter_count": "scatter_count({0}, {size}{inside}).astype({dtype})",
    "spaced": "spaced({0}, {axis}, {first}, {by}, {size})",
    "windows": "windows({0}, {axis}, {first}, {by}, {apart}, {outer}, {inner})",
}
"""Functions that some backends have in their namespaces; the array API standard does not suffice for them."""

CONVOLUTIONS: Mapping[str, str] = {
    name: f"{name}({{0}}, {{1}}, {{groups}}, {{windows}})"
    for name in ("convolution", "convolution_x", "convolution_k")
}
"""The convolution and its vjps by each operand, of libraries with kernels for them."""

PLAIN = (
    *("exp", "expm1", "log", "log1p", "sqrt", "square", "abs", "sign"),
    *("floor", "ceil", "round", "sin", "cos", "tanh"),
)
"""The pointwise functions that every library calls by the language's name."""


def standard(library: str) -> dict[str, str]:
    """The templates for a library that follows the array API standard, given by its name in the code.

    Example:
        >>> standard("np")["sum"]
        'np.sum({0}, axis={axes})'
    """
    return {name: re.sub(r"\bxp\b", library, text) for name, text in _STANDARD.items()}


_STANDARD: Mapping[str, str] = {
    **COMMON,
    **{name: f"xp.{name}({{0}})" for name in PLAIN},
    **{name: f"xp.{name}({{0}}, {{1}})" for name in ("matmul", "maximum", "minimum")},
    **{name: f"xp.{name}({{0}}, axis={{axes}})" for name in ("sum", "mean", "max", "min")},
    **{name: f"xp.{name}({{0}}, axis={{axis}})" for name in ("argmax", "argmin", "prod")},
    **{name: f"{name}({{0}}, {{axes}})" for name in ("var", "std", "norm", "logsumexp")},
    **{name: f"{name}({{0}}, {{axis}})" for name in ("softmax", "log_softmax")},
    **{name: f"{name}({{0}})" for name in ("linear", "erf", "sigmoid", "gelu", "gelu_tanh")},
    "silu": "{0} * sigmoid({0})",
    "mish": "{0} * xp.tanh(xp.logaddexp({0}, 0.0))",
    "hardsigmoid": "xp.clip({0} + 3.0, 0.0, 6.0) / 6.0",
    "hardswish": "{0} * (xp.clip({0} + 3.0, 0.0, 6.0) / 6.0)",
    "softsign": "{0} / (1.0 + xp.abs({0}))",
    "leaky_relu": "xp.where({0} > 0, {0}, {slope} * {0})",
    "elu": "xp.where({0} > 0, {0}, {alpha} * xp.expm1(xp.minimum({0}, 0.0)))",
    "selu": f"{SELU_SCALE} * xp.where({{0}} > 0, {{0}}, {SELU_ALPHA} * xp.expm1(xp.minimum({{0}}, 0.0)))",
    "reshape": "xp.reshape({0}, {shape})",
    "permute": "xp.permute_dims({0}, {axes})",
    "contiguous": "{0}",
    "copy": "xp.asarray({0}, copy=True)",
    "vecdot": "xp.sum({0} * {1}, axis=-1)",
    "broadcast": "xp.broadcast_to({0}, {shape})",
    "piece": "piece({0}, at, length, {axis})",
    "take": "xp.take({0}, {1}, axis={axis})",
    "diagonal": "xp.linalg.diagonal(xp.moveaxis({0}, ({first}, {second}), (-2, -1)))",
    "flip": "xp.asarray(xp.flip({0}, axis={axes}), copy=True)",
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
    "rsqrt": "1 / xp.sqrt({0})",
    "relu": "xp.maximum({0}, xp.zeros_like({0}))",
    "softplus": "xp.logaddexp({0}, 0.0)",
    "log_sigmoid": "-xp.logaddexp(-{0}, 0.0)",
    "clip": "xp.minimum(xp.maximum({0}, {1}), {2})",
    "where": "xp.where({0}, {1}, {2})",
    "dropout": "dropout({0}, {1}, training)",
    "hardmax": "xp.astype(xp.argmax({0}, axis={axis}, keepdims=True) == {positions}, {dtype}, copy=False)",
    "argsort": "xp.argsort({0}, axis={axis}, stable=True)",
}


templates = standard("xp")


# ---------------------------------------------------------------------------- the backend


def processor(threads: int | None) -> str:
    """The processor and its threads, for the version of a library."""
    return f"{platform.processor() or platform.machine()} x{threads}"


class Plain:
    """A backend of a library without autograd: arrays have one type, and no intermediates are kept for gradients."""

    def dtype(self, array: Any) -> str:
        return str(array.dtype).split(".")[-1]

    def call_cache(self, most: int) -> CallCache:
        return CallCache(most)

    def autocasts(self, array: Any) -> bool:
        return False

    def changing(self, arrays: Sequence[Any]) -> tuple[int, ...]:
        return ()

    def kept(self, make: Callable[..., Any], given: Sequence[Argument], device: str) -> Kept | None:
        return None

    def as_one(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return function

    def synchronize(self, device: str, *made: Any) -> None:
        return None


@dataclass(frozen=True, eq=False)
class ArrayBackend(Plain):
    """A backend of a library that follows the standard."""

    name: str
    xp: Any
    templates: Mapping[str, str] = field(default_factory=lambda: templates)

    def __reduce__(self) -> tuple[Any, ...]:
        return _named, (self.xp.__name__,)

    def namespace(self) -> Mapping[str, Any]:
        return namespace_of(Functions(self.xp, self._erf))

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
        given = array if hasattr(array, "__array_namespace__") else numpy.asarray(array)
        return self.xp.asarray(given, dtype=kind)

    def numpy(self, array: Any) -> Any:
        import numpy

        try:
            return numpy.from_dlpack(array).copy()
        except BufferError:  # NumPy 2.0 does not export read-only arrays
            return numpy.from_dlpack(self.xp.asarray(array, copy=True))


def _named(library: str) -> ArrayBackend:
    """The backend of an array library, by the name it is imported under."""
    return of(importlib.import_module(library))


@functools.cache
def of(library: Any) -> ArrayBackend:
    """A backend for an array library, given its namespace."""
    return ArrayBackend(library.__name__.split(".")[0], library)
