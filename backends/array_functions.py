"""Functions that the array API standard lacks, for all libraries that follow it."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tensornet.device.cost_model import SHORT_LOOP
from tensornet.errors import check_inside, no_positions

from .loops import along, in_pieces, recur
from .positions import floor_divide, grouped_matmul, grouped_outer, remainder, top
from .windows import Pools, elements


def namespace_of(functions: Functions) -> dict[str, Any]:
    """The functions of a library, and those that all libraries share, by the names that templates use."""
    own = {name: getattr(functions, name) for name in dir(functions) if not name.startswith("_")}
    return {**{each.__name__: functools.partial(each, functions) for each in SHARED}, **own, "math": math}


SHARED = (along, in_pieces, recur, floor_divide, remainder, grouped_matmul, grouped_outer, top)


def in_turn(function: Callable[..., Any], x: Any, axes: tuple[int, ...]) -> Any:
    """A reduction, over the innermost axes last if these are few positions."""
    last = next(axis for axis in range(x.ndim, -1, -1) if axis - 1 not in axes)
    first = tuple(axis for axis in axes if axis < last)
    if not first or last == x.ndim or math.prod(x.shape[last:]) > SHORT_LOOP:
        return function(x, axes)
    return function(function(x, first), tuple(range(last - len(first), x.ndim - len(first))))


def in_float32(function: Callable[..., Any]) -> Callable[..., Any]:
    """Computes a function of half-precision arrays in float32 and rounds once: half is too short for long sums."""

    @functools.wraps(function)
    def wider(self: Functions, x: Any, *options: Any) -> Any:
        xp = self.xp
        if not str(x.dtype).endswith("float16"):
            return function(self, x, *options)
        return _astype(xp, function(self, _astype(xp, x, xp.float32), *options), x.dtype)

    return wider


def _astype(xp: Any, x: Any, dtype: Any) -> Any:
    """An array converted to another type. A single number is allowed, which `astype` of NumPy 2.0 does not take."""
    return xp.astype(xp.asarray(x), dtype, copy=False)


@dataclass(frozen=True, eq=False)
class Functions:
    """The functions as methods, so that each can call the others.

    They change their own intermediates in place, which saves a pass through new memory.

    Attributes:
        xp: the library.
        erf: its error function.
        expit: its sigmoid, if it has one.
    """

    xp: Any
    erf: Callable[[Any], Any] | None = None
    expit: Callable[[Any], Any] | None = None

    def device(self, x: Any) -> Any:
        """The device of an array."""
        import array_api_compat

        return array_api_compat.device(x)

    def unbind(self, x: Any, axis: int) -> Any:
        """The slices of an array at the positions along an axis."""
        first = self.xp.moveaxis(x, axis, 0) if axis else x
        return [first[at, ...] for at in range(x.shape[axis])]

    def empty(self, like: Any, shape: tuple[int, ...]) -> Any:
        """An array of a shape, with the type and the device of another, to be written into."""
        return self.xp.empty(shape, dtype=like.dtype, device=self.device(like))

    def positions_apart(self, x: Any) -> Any:
        """An array, copied where it would be slow to read all elements of one position along the last axis."""
        return x

    def next_state(self, a: Any, y: Any, b: Any, room: Any) -> None:
        """a · y + b, written into an array."""
        room[...] = a * y + b

    def zeros(self, like: Any, shape: tuple[int, ...]) -> Any:
        return self.xp.zeros(shape, dtype=like.dtype, device=self.device(like))

    def joins(self, x: Any) -> bool:
        """Whether parts such as this one are joined at the end, and not written into a whole array."""
        return False

    def overwrites(self, *arrays: Any) -> bool:
        """Whether what is computed of arrays may be written into other arrays."""
        return not any(map(self.joins, arrays))

    def linear(self, x: Any, weight: Any, bias: Any = None) -> Any:
        """The product of each row of `x` with each row of the weight, plus a bias."""
        xp = self.xp
        *rows, summed = x.shape
        flat = x if len(rows) == 1 else xp.reshape(x, (math.prod(rows), summed))
        y = xp.matmul(flat, weight.T)
        if bias is not None:
            y += bias
        return y if len(rows) == 1 else xp.reshape(y, (*rows, weight.shape[0]))

    def wide(self, dtype: Any) -> Any:
        """The type of real numbers for a working type: at least float32."""
        xp = self.xp
        return xp.float64 if dtype in (xp.float64, xp.complex128) else xp.float32

    def widen(self, x: Any, dtype: Any) -> Any:
        if self.xp.isdtype(x.dtype, "complex floating"):
            return x
        return _astype(self.xp, x, self.wide(dtype))

    def sigmoid(self, x: Any) -> Any:
        xp = self.xp
        if xp.isdtype(x.dtype, "complex floating"):
            return 0.5 * (1.0 + xp.tanh(0.5 * x))
        if self.expit is not None:
            return self.expit(x)
        power = xp.exp(-xp.abs(x))
        return xp.where(x < 0, power, xp.ones_like(x)) / (1.0 + power)

    def gelu(self, x: Any) -> Any:
        assert self.erf is not None
        y = self.erf(x * math.sqrt(0.5))
        y += 1.0
        y *= 0.5  # before the product with x, which may be near the largest number
        y *= x
        return y

    @in_float32
    def gelu_tanh(self, x: Any) -> Any:
        return 0.5 * x * (1.0 + self.xp.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))

    @in_float32
    def softmax(self, x: Any, axis: int) -> Any:
        xp = self.xp
        if 0 in x.shape:
            return x
        powers = xp.exp(x - xp.max(x, axis=axis, keepdims=True))
        powers /= xp.sum(powers, axis=axis, keepdims=True)
        return powers

    @in_float32
    def log_softmax(self, x: Any, axis: int) -> Any:
        xp = self.xp
        if 0 in x.shape:
            return x
        shifted = x - xp.max(x, axis=axis, keepdims=True)
        return shifted - xp.log(xp.sum(xp.exp(shifted), axis=axis, keepdims=True))

    @in_float32
    def logsumexp(self, x: Any, axes: tuple[int, ...]) -> Any:
        xp = self.xp
        if any(x.shape[axis] == 0 for axis in axes):
            rest = tuple(size for axis, size in enumerate(x.shape) if axis not in axes)
            return xp.full(rest, -math.inf, dtype=x.dtype, device=self.device(x))
        top = xp.max(x, axis=axes, keepdims=True)
        base = xp.where(xp.isfinite(top), top, 0.0)
        shifted = xp.minimum(x - base, 0.0)  # no overflow in exp where `top` is infinite
        total = xp.sum(xp.exp(shifted), axis=axes, keepdims=True)
        total = xp.where(total == 0, 1.0, total)  # all are -inf, and so is `top`
        return xp.squeeze(xp.log(total) + top, axis=axes)

    @in_float32
    def var(self, x: Any, axes: tuple[int, ...]) -> Any:
        return self.xp.var(x, axis=axes)

    @in_float32
    def std(self, x: Any, axes: tuple[int, ...]) -> Any:
        return self.xp.std(x, axis=axes)

    @in_float32
    def norm(self, x: Any, axes: tuple[int, ...]) -> Any:
        xp = self.xp
        return xp.sqrt(xp.sum(xp.square(xp.abs(x)), axis=axes))

    @in_float32
    def normalize(self, x: Any, axis: int, eps: float, gain: Any = None, bias: Any = None) -> Any:
        xp = self.xp
        if 0 in x.shape:
            return x
        y = x - xp.mean(x, axis=axis, keepdims=True)
        y /= xp.sqrt(xp.mean(xp.square(y), axis=axis, keepdims=True) + eps)
        if gain is not None:
            shape = (-1,) + (1,) * (x.ndim - axis - 1)
            y *= xp.reshape(gain, shape)
            y += xp.reshape(bias, shape)
        return y

    def finite(self, value: float, like: Any) -> float:
        if not self.xp.isdtype(like.dtype, "real floating"):
            return value
        info = self.xp.finfo(like.dtype)
        return max(float(info.min), min(float(info.max), value))

    def within(self, index: Any, size: int, name: str) -> Any:
        xp = self.xp
        if not xp.isdtype(index.dtype, "integral"):
            raise no_positions(name, str(index.dtype))
        if 0 not in index.shape:
            check_inside(name, int(xp.min(index)), int(xp.max(index)), size)
        return _astype(xp, index, xp.int64)

    def floating(self, arrays: Any, otherwise: Any) -> Any:
        """The element type of the first complex array, or else of the first floating one."""
        for kind in ("complex floating", "real floating"):
            for each in arrays:
                if self.xp.isdtype(each.dtype, kind):
                    return each.dtype
        return otherwise

    def pad(self, x: Any, pairs: tuple[tuple[int, int], ...], value: float) -> Any:
        import array_api_extra

        return array_api_extra.pad(x, pairs, constant_values=value, xp=self.xp)

    def piece(self, x: Any, at: int, length: int, axis: int) -> Any:
        """A slice with bounds inside the array; the standard leaves other bounds undefined."""
        return x[(slice(None),) * axis + (slice(at, min(at + length, x.shape[axis])), ...)]

    def cumsum(self, x: Any, axis: int, back: float) -> Any:
        return self._running("cumulative_sum", x, axis, back)

    def cumprod(self, x: Any, axis: int, back: float) -> Any:
        return self._running("cumulative_prod", x, axis, back)

    def _running(self, name: str, x: Any, axis: int, back: float) -> Any:
        """A cumulative sum or product, with `back` from the last position to the first."""
        xp = self.xp
        if back:
            return xp.flip(self._running(name, xp.flip(x, axis=axis), axis, 0), axis=axis)
        older = name.replace("ulative_", "")  # its name in NumPy 2.0
        return getattr(xp, name if hasattr(xp, name) else older)(x, axis=axis)

    def dropout(self, x: Any, rate: float, training: bool) -> Any:
        xp = self.xp
        if not training or not rate:
            return x
        import numpy

        kept = numpy.random.default_rng().random(x.shape) >= rate
        return xp.where(xp.asarray(kept, device=self.device(x)), x / (1.0 - rate), 0.0)

    def dropped(self, kept: Any, x: Any, rate: float, training: bool) -> Any:
        """Dropout with a mask: x / (1 − rate) where it is kept, else 0. In evaluation, x in the shape of the mask."""
        xp = self.xp
        if training:
            return xp.where(kept, x / (1.0 - rate), 0.0)
        return x if x.shape == kept.shape else xp.where(kept, x, x)

    def max_pool(self, x: Any, windows: Pools) -> Any:
        first, *others = elements(x, windows)
        return functools.reduce(self.xp.maximum, others, first) if others else first + 0

    def mean_pool(self, x: Any, windows: Pools) -> Any:
        first, *others = elements(x, windows)
        return sum(others, first) / (1 + len(others))
