"""What NumPy, CuPy and other array libraries share: the Python array API standard.

`templates` uses the standard's functions alone; a library's own module overrides the few rows
for which it has something better. `of(namespace)` makes a backend of any library that follows
the standard.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tensornet.errors import no_positions, outside
from tensornet.operations.pointwise import SELU_ALPHA, SELU_SCALE

from .choosing import largest
from .groups import grouped_matmul, grouped_outer
from .loops import along as repeated
from .pieces import in_pieces as put_together
from .pooling import pools
from .recurrences import recurrence
from .shared import OWN, Plain, functions

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


def helpers(xp: Any, erf: Any, expit: Any = None) -> dict[str, Any]:
    """The functions that the standard does not have, written with those it has, or the library's own.

    What one of them makes on the way it changes in place, which saves a pass through fresh memory.
    """
    import array_api_compat

    device = array_api_compat.device
    half = getattr(xp, "float16", None)

    def in_float32(function: Any) -> Any:
        """Half precision is too short for squares and long sums: they are taken in float32, rounded once."""

        @functools.wraps(function)
        def wider(x: Any, *options: Any) -> Any:
            if half is None or x.dtype != half:
                return function(x, *options)
            return xp.astype(function(xp.astype(x, xp.float32), *options), half)

        return wider

    def linear(x: Any, weight: Any, bias: Any = None) -> Any:
        """The product of rows with each row of a matrix, and what is added to all of them."""
        *rows, summed = x.shape
        flat = x if len(rows) == 1 else xp.reshape(x, (math.prod(rows), summed))
        y = xp.matmul(flat, weight.T)
        if bias is not None:
            y += bias
        return y if len(rows) == 1 else xp.reshape(y, (*rows, weight.shape[0]))

    def wide(dtype: Any) -> Any:
        """The type of reals beside the working type: at least float32."""
        return xp.float64 if dtype in (xp.float64, xp.complex128) else xp.float32

    def widen(x: Any, dtype: Any) -> Any:
        if xp.isdtype(x.dtype, "complex floating"):
            return x
        return xp.astype(x, wide(dtype), copy=False)

    def sigmoid(x: Any) -> Any:
        if xp.isdtype(x.dtype, "complex floating"):
            return 0.5 * (1.0 + xp.tanh(0.5 * x))
        if expit is not None:
            return expit(x)
        power = xp.exp(-xp.abs(x))
        return xp.where(x < 0, power, xp.ones_like(x)) / (1.0 + power)

    def relu(x: Any) -> Any:
        return xp.maximum(x, xp.zeros_like(x))

    def gelu(x: Any) -> Any:
        y = erf(x * math.sqrt(0.5))
        y += 1.0
        y *= 0.5  # before it meets x, which may be near the largest number
        y *= x
        return y

    @in_float32
    def gelu_tanh(x: Any) -> Any:
        return 0.5 * x * (1.0 + xp.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))

    def silu(x: Any) -> Any:
        y = sigmoid(x)
        y *= x
        return y

    def leaky_relu(x: Any, slope: float) -> Any:
        return xp.where(x > 0, x, slope * x)

    def elu(x: Any, alpha: float) -> Any:
        return xp.where(x > 0, x, alpha * xp.expm1(xp.minimum(x, xp.zeros_like(x))))

    def selu(x: Any) -> Any:
        y = elu(x, SELU_ALPHA)
        y *= SELU_SCALE
        return y

    def mish(x: Any) -> Any:
        y = xp.tanh(xp.logaddexp(x, xp.zeros_like(x)))
        y *= x
        return y

    def softsign(x: Any) -> Any:
        return x / (1.0 + xp.abs(x))

    def hardsigmoid(x: Any) -> Any:
        y = xp.minimum(relu(x + 3.0), xp.full_like(x, 6.0))
        y /= 6.0
        return y

    @in_float32
    def softmax(x: Any, axis: int) -> Any:
        if 0 in x.shape:
            return x
        powers = xp.exp(x - xp.max(x, axis=axis, keepdims=True))
        powers /= xp.sum(powers, axis=axis, keepdims=True)
        return powers

    @in_float32
    def log_softmax(x: Any, axis: int) -> Any:
        if 0 in x.shape:
            return x
        shifted = x - xp.max(x, axis=axis, keepdims=True)
        return shifted - xp.log(xp.sum(xp.exp(shifted), axis=axis, keepdims=True))

    @in_float32
    def logsumexp(x: Any, axes: tuple[int, ...]) -> Any:
        if any(x.shape[axis] == 0 for axis in axes):
            rest = tuple(size for axis, size in enumerate(x.shape) if axis not in axes)
            return xp.full(rest, -math.inf, dtype=x.dtype, device=device(x))
        top = xp.max(x, axis=axes, keepdims=True)
        base = xp.where(xp.isfinite(top), top, xp.zeros_like(top))
        shifted = xp.minimum(x - base, xp.zeros_like(x))  # of an infinite row: nothing beside it overflows
        total = xp.sum(xp.exp(shifted), axis=axes, keepdims=True)
        total = xp.where(total == 0, xp.ones_like(total), total)  # all -inf, as the largest then is
        return xp.squeeze(xp.log(total) + top, axis=axes)

    @in_float32
    def var(x: Any, axes: tuple[int, ...]) -> Any:
        return xp.var(x, axis=axes)

    @in_float32
    def std(x: Any, axes: tuple[int, ...]) -> Any:
        return xp.std(x, axis=axes)

    @in_float32
    def norm(x: Any, axes: tuple[int, ...]) -> Any:
        return xp.sqrt(xp.sum(xp.square(xp.abs(x)), axis=axes))

    def top(x: Any, axis: int, size: int) -> Any:
        def argsort(x: Any, axis: int) -> Any:
            return xp.argsort(x, axis=axis, stable=True)

        return largest(x, axis, size, argsort, lambda x, axis: xp.flip(x, axis=axis))

    @in_float32
    def normalize(x: Any, axis: int, eps: float, gain: Any = None, bias: Any = None) -> Any:
        if 0 in x.shape:
            return x
        y = x - xp.mean(x, axis=axis, keepdims=True)
        y /= xp.sqrt(xp.mean(xp.square(y), axis=axis, keepdims=True) + eps)
        if gain is not None:
            shape = (-1,) + (1,) * (x.ndim - axis - 1)
            y *= xp.reshape(gain, shape)
            y += xp.reshape(bias, shape)
        return y

    def recur(a: Any, b: Any, start: float, back: float) -> Any:
        if not isinstance(a, int | float) and not isinstance(b, int | float):
            a, b = xp.broadcast_arrays(a, b)

        def multiplied(x: Any, axis: int) -> Any:
            return xp.cumulative_prod(x, axis=axis)

        def joined(parts: list[Any], axis: int) -> Any:
            return xp.concat(parts, axis=axis)

        def flipped(x: Any, axes: tuple[int, ...]) -> Any:
            return xp.flip(x, axis=axes)

        has = hasattr(xp, "cumulative_prod")
        return recurrence(a, b, start, back, joined, flipped, xp.full_like, multiplied if has else None)

    def finite(value: float, like: Any) -> float:
        if not xp.isdtype(like.dtype, "real floating"):
            return value
        info = xp.finfo(like.dtype)
        return max(float(info.min), min(float(info.max), value))

    def within(index: Any, size: int, name: str) -> Any:
        if not xp.isdtype(index.dtype, "integral"):
            raise no_positions(name, str(index.dtype))
        if 0 not in index.shape:
            low, high = int(xp.min(index)), int(xp.max(index))
            if low < 0 or high >= size:
                raise outside(name, low if low < 0 else high, size)
        return xp.astype(index, xp.int64, copy=False)

    def as_arrays(a: Any, b: Any) -> tuple[Any, Any]:
        """Both as arrays: a number takes the type of the other."""
        if isinstance(a, int | float | complex):
            return as_arrays(b, a)[::-1]
        if isinstance(b, int | float | complex):
            return a, xp.asarray(b, dtype=a.dtype, device=device(a))
        return a, b

    def where(condition: Any, a: Any, b: Any) -> Any:
        return xp.where(condition, *as_arrays(a, b))

    def binary(function: Any, a: Any, b: Any) -> Any:
        return function(*as_arrays(a, b))

    def floating(arrays: Any, otherwise: Any) -> Any:
        """The element type of the first complex array, or else of the first floating one."""
        found = [
            a.dtype for kind in ("complex", "real") for a in arrays if xp.isdtype(a.dtype, f"{kind} floating")
        ]
        return found[0] if found else otherwise

    def pad(x: Any, pairs: tuple[tuple[int, int], ...], value: float) -> Any:
        import array_api_extra

        return array_api_extra.pad(x, pairs, constant_values=value, xp=xp)

    def in_pieces(function: Any, size: int, length: int, axes: tuple[int, ...]) -> Any:
        def empty(like: Any, shape: tuple[int, ...]) -> Any:
            return xp.empty(shape, dtype=like.dtype, device=device(like))

        return put_together(function, size, length, axes, empty)

    def along(*call: Any) -> Any:
        def parts(x: Any, axis: int) -> Any:
            first = xp.moveaxis(x, axis, 0) if axis else x
            return [first[at, ...] for at in range(x.shape[axis])]

        def blank(x: Any, axis: int) -> Any:
            return xp.zeros(x.shape[:axis] + x.shape[axis + 1 :], dtype=x.dtype, device=device(x))

        def empty(like: Any, size: int) -> Any:
            return xp.empty((size, *like.shape), dtype=like.dtype, device=device(like))

        def stacked(each: Any) -> Any:
            return xp.stack(each, axis=0)

        return repeated(*call, parts=parts, blank=blank, empty=empty, stacked=stacked)

    def cumsum(x: Any, axis: int, back: float) -> Any:
        if back:
            return xp.flip(cumsum(xp.flip(x, axis=axis), axis, 0), axis=axis)
        if hasattr(xp, "cumulative_sum"):
            return xp.cumulative_sum(x, axis=axis)
        last = xp.moveaxis(x, axis, -1)
        return xp.moveaxis(recur(1, last, 0, 0) + last, -1, axis)

    def cumprod(x: Any, axis: int, back: float) -> Any:
        if back:
            return xp.flip(cumprod(xp.flip(x, axis=axis), axis, 0), axis=axis)
        if hasattr(xp, "cumulative_prod"):
            return xp.cumulative_prod(x, axis=axis)
        last = xp.moveaxis(x, axis, -1)
        return xp.moveaxis(recur(last, 0, 1, 0) * last, -1, axis)

    def dropout(x: Any, rate: float, training: bool) -> Any:
        if not training or not rate:
            return x
        import numpy

        kept = numpy.random.default_rng().random(x.shape) >= rate
        return xp.where(xp.asarray(kept, device=device(x)), x / (1.0 - rate), xp.zeros_like(x))

    def dropped(kept: Any, x: Any, rate: float, training: bool) -> Any:
        if training:
            return xp.where(kept, x / (1.0 - rate), xp.zeros((), dtype=x.dtype, device=device(x)))
        return x if x.shape == kept.shape else xp.where(kept, x, x)

    found = dict(locals())
    del found["array_api_compat"], found["as_arrays"], found["in_float32"], found["half"]
    found |= pools(xp.maximum)
    return found | {"math": math, "grouped_matmul": grouped_matmul, "grouped_outer": grouped_outer}


@dataclass(frozen=True, eq=False)
class ArrayBackend(Plain):
    """A backend of a library that follows the standard."""

    name: str
    xp: Any
    templates: Mapping[str, str] = field(default_factory=lambda: templates)

    def __reduce__(self) -> tuple[Any, ...]:
        return _named, (self.xp.__name__,)

    def namespace(self) -> Mapping[str, Any]:
        return {**helpers(self.xp, self._erf), "xp": self.xp}

    def _erf(self, x: Any) -> Any:
        """By way of NumPy and SciPy; a library with its own overrides this."""
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

        return numpy.from_dlpack(array).copy()

    def dtype(self, array: Any) -> str:
        return str(array.dtype).split(".")[-1]


def _named(library: str) -> ArrayBackend:
    """The backend of an array library, by the name it is imported under."""
    return of(importlib.import_module(library))


@functools.cache
def of(library: Any) -> ArrayBackend:
    """A backend for the array library whose namespace this is."""
    return ArrayBackend(library.__name__.split(".")[0], library)
