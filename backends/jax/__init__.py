"""The JAX backend: pure functions for `jax.jit`, `jax.grad`, `jax.vmap` and `jax.shard_map`.

`jax.jit` compiles the result of `tensornet.compile` as a whole, or a caller traces it. Some behaviour is that of JAX:

- Without `jax_enable_x64` there are no 64-bit elements: arrays of float64 become float32, and positions and counts
  are int32, exact below 2³¹. Set it for the process, by `jax.config.update` or `JAX_ENABLE_X64=1`: constants are
  computed in a separate thread, where a `with` block has no effect.
- Positions are checked if they have values. While a transform traces, and in a loop, they have none. A read at a
  wrong position then gives NaN or the least integer, and an addition at one is dropped.
- Subnormal numbers count as 0.
- A pure function has no random numbers of its own, so dropout raises an error in training: give its mask as an input.
- XLA divides by a number by multiplying with its reciprocal, which may differ in the last bit. Integers are divided
  exactly.
- Arrays stay on the devices where JAX puts them, sharded or not. A device is named by its kind, `cpu` or `gpu`.
"""

from __future__ import annotations

import functools
import importlib
import math
import operator
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from tensornet.errors import BackendError, no_positions
from tensornet.protocol import backend_of

from ..associative_scan import recurrence
from ..integer_division import floor_divide, remainder
from ..scatter import rows_told
from ..slicing import in_pieces
from ..templates import KERNELS, OWN, Plain, functions
from ..top_k import largest
from ..windows import Windows, convolutions, margins, pools
from .jit import as_one, check, looked, unlooked

__all__ = ["JaxBackend", "backend"]

templates: Mapping[str, str] = {
    **OWN,
    **KERNELS,
    "reshape": "jnp.reshape({0}, {shape})",
    "permute": "jnp.transpose({0}, {axes})",
    "contiguous": "{0}",
    "matmul": "jnp.matmul({0}, {1})",
    "linear": "linear({0})",
    "vecdot": "jnp.sum({0} * {1}, axis=-1)",
    "broadcast": "jnp.broadcast_to({0}, {shape})",
    "within": "within({0}, {size}, {name}, {past})",
    "take": 'jnp.take({0}, {1}, axis={axis}, mode="fill")',
    "grouped_matmul": "grouped_matmul({0}, {1}, {2})",
    "grouped_outer": "grouped_outer({0}, {1}, {2}, {size})",
    "scatter_count": "scatter_count({0}, {size}).astype({dtype})",
    "concat": "jnp.concatenate([{0}], axis={axis})",
    "stack": "jnp.concatenate([{0}], axis={axis})",
    "piece": "piece({0}, at, {length}, {axis})",
    "roll": "jnp.roll({0}, {shift}, axis={axes})",
    "pad": "jnp.pad({0}, {pairs}, constant_values={value})",
    "arange": "jnp.arange({0})",
    "arange_alone": "jnp.arange({0})",
    "onehot": "({0}[..., None] == {positions}).astype({dtype})",
    "int64": "whole({0})",
    "cast": "{0}.astype({dtype})",
    "dtype": 'element("{0}")',
    "scalar": "jnp.asarray({0}, dtype={dtype})",
    **functions("jnp"),
    "rsqrt": "jax.lax.rsqrt({0})",
    "erf": "jax.lax.erf({0})",
    "sigmoid": "jax.nn.sigmoid({0})",
    "relu": "jax.nn.relu({0})",
    "gelu": "jax.nn.gelu({0}, approximate=False)",
    "gelu_tanh": "jax.nn.gelu({0}, approximate=True)",
    "silu": "jax.nn.silu({0})",
    "softplus": "jax.nn.softplus({0})",
    "log_sigmoid": "jax.nn.log_sigmoid({0})",
    "leaky_relu": "jax.nn.leaky_relu({0}, {slope})",
    "elu": "jax.nn.elu({0}, {alpha})",
    "selu": "jax.nn.selu({0})",
    "mish": "jax.nn.mish({0})",
    "softsign": "jax.nn.soft_sign({0})",
    "hardsigmoid": "jax.nn.hard_sigmoid({0})",
    "hardswish": "jax.nn.hard_swish({0})",
    "clip": "jnp.minimum(jnp.maximum({0}, {1}), {2})",
    "maximum": "jnp.maximum({0}, {1})",
    "minimum": "jnp.minimum({0}, {1})",
    "where": "jnp.where({0}, {1}, {2})",
    "dropout": "dropout({0}, {1}, training)",
    "hardmax": "(jnp.argmax({0}, axis={axis}, keepdims=True) == {positions}).astype({dtype})",
    "average_hardmax": "average_hardmax({0}, {axis}, {positions}, {dtype})",
    "average_hardmin": "average_hardmax(-{0}, {axis}, {positions}, {dtype})",
    "softmax": "jax.nn.softmax({0}, axis={axis})",
    "log_softmax": "jax.nn.log_softmax({0}, axis={axis})",
    "cumsum": "running(jnp.cumsum, {0}, {axis}, {back})",
    "cumprod": "running(jnp.cumprod, {0}, {axis}, {back})",
    **{name: f"jnp.{name}({{0}}, axis={{axes}})" for name in ("sum", "mean", "var", "std", "max", "min")},
    "norm": "jnp.linalg.vector_norm({0}, axis={axes})",
    "argmax": "jnp.argmax({0}, axis={axis})",
    "argmin": "jnp.argmin({0}, axis={axis})",
    "argsort": "jnp.argsort({0}, axis={axis}, stable=True)",
    "prod": "jnp.prod({0}, axis={axis})",
    "logsumexp": "jax.nn.logsumexp({0}, axis={axes})",
}


def _library() -> Any:
    try:
        import jax
    except ImportError:
        raise BackendError("JAX is not installed", fix="pip install 'jax>=0.6.1'") from None
    return jax


@functools.cache
def _groups() -> Any:
    """The module of grouped products, imported late because it imports JAX."""
    return importlib.import_module("tensornet.backends.jax.grouped_gemm")


def _element(name: str) -> Any:
    """The element type of a name; the 32-bit one if 64-bit types are off."""
    return _library().dtypes.canonicalize_dtype(name)


def _is(array: Any, kind: str) -> bool:
    """Whether the elements are of a kind: `integer`, `floating`, `complexfloating` or another NumPy kind."""
    jnp = _library().numpy
    return bool(jnp.issubdtype(array.dtype, getattr(jnp, kind)))


def _linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """The product of each row of `x` with each row of the weight, plus a bias."""
    y = _library().numpy.matmul(x, weight.T)
    return y if bias is None else y + bias


def _normalize(x: Any, axis: int, eps: float, gain: Any = None, bias: Any = None) -> Any:
    """(x − mean) / √(variance + eps) along one axis, in at least float32: half is too short for squares and long sums.

    An optional gain and bias have one number for each position along the axis.
    """
    jax = _library()
    wide = _widen(x, x.dtype)
    wide = wide - wide.mean(axis=axis, keepdims=True)
    normed = wide * jax.lax.rsqrt(jax.numpy.square(wide).mean(axis=axis, keepdims=True) + eps)
    if gain is not None:
        shape = (-1,) + (1,) * (x.ndim - axis - 1)
        normed = normed * gain.reshape(shape) + bias.reshape(shape)
    return normed.astype(x.dtype)


def _average_hardmax(x: Any, axis: int, positions: Any, element: Any) -> Any:
    """1/k at each of the k largest elements along an axis.

    XLA may compute `x` twice, for the maximum and for the comparison with it, and round differently. So the position
    of the maximum, from `argmax`, always counts as well.
    """
    jnp = _library().numpy
    y = x.max(axis=axis, keepdims=True)
    first = jnp.argmax(x, axis=axis, keepdims=True) == positions
    largest = (first | (x == y)).astype(element)
    return jnp.where(y == y, largest / largest.sum(axis=axis, keepdims=True), jnp.nan)


def _dropped(kept: Any, x: Any, rate: float, training: bool) -> Any:
    """An array with the elements that are not kept set to 0 in training, and the others scaled by 1 / (1 − rate)."""
    jnp = _library().numpy
    if training:
        return jnp.where(kept, x / (1.0 - rate), 0.0)
    return x if x.shape == kept.shape else jnp.where(kept, x, x)


def _recur(a: Any, b: Any, start: float, back: float) -> Any:
    """y[0] = start, y[j] = a[j-1]·y[j-1] + b[j-1] along the last axis, or from its end."""
    jnp = _library().numpy
    if not isinstance(a, int | float) and not isinstance(b, int | float):
        a, b = jnp.broadcast_arrays(a, b)
    return recurrence(a, b, start, back, jnp.concatenate, jnp.flip, jnp.full_like, jnp.cumprod)


def _top(x: Any, axis: int, size: int) -> Any:
    """The positions of the largest elements, the largest first; equal elements keep their order."""
    jnp = _library().numpy
    return largest(x, axis, size, lambda x, axis: jnp.argsort(x, axis=axis, stable=True), jnp.flip)


def _running(function: Any, x: Any, axis: int, back: float) -> Any:
    """A function of the elements up to each position along an axis, or from there to the last."""
    if back:
        flip = _library().numpy.flip
        return flip(function(flip(x, axis), axis=axis), axis)
    return function(x, axis=axis)


def _along(
    function: Any,
    cut: Any,
    states: Any,
    rest: Any,
    size: int,
    axes: Any,
    following: Any,
    results: int,
    back: bool,
    last: bool,
) -> Any:
    """The stacked first results of a function at all positions, and the last states with `last`: one loop of XLA."""
    jax = _library()

    def step(now: Any, pieces: Any) -> Any:
        found = function(*pieces, *now, *rest)
        found = found if isinstance(found, tuple) else (found,)
        return tuple(found[number] for number in following), found[:results]

    moved = tuple(jax.numpy.moveaxis(each, axis, 0) for each, axis in zip(cut, axes, strict=True))
    with unlooked():
        states, made = jax.lax.scan(step, tuple(states), moved, length=size, reverse=back)
    found = (*made, *(states if last else ()))
    return found[0] if len(found) == 1 else found


def _finite(value: float, like: Any) -> float:
    """A number clipped to the finite range of an array's type."""
    if not _is(like, "floating"):
        return value
    info = _library().numpy.finfo(like.dtype)
    return max(float(info.min), min(float(info.max), value))


def _whole(x: Any) -> Any:
    """Numbers as integers; NaN and numbers out of range give the least integer, where JAX gives 0 or the largest."""
    jnp = _library().numpy
    if not _is(x, "floating"):
        return x.astype(int)
    least = jnp.iinfo(int).min
    return jnp.where(jnp.abs(x) < -float(least), x, 0).astype(int) + jnp.where(
        jnp.abs(x) < -float(least), 0, least
    )


def _within(index: Any, size: int, name: str, past: int) -> Any:
    """Positions, after a check that they are integers from 0 to below `size`.

    Traced positions have no values to check. A wrong one is replaced by `past`, which is beyond all that is read, so
    that the read gives NaN instead of a neighbour.
    """
    jax = _library()
    if not _is(index, "integer"):
        raise no_positions(name, str(index.dtype))
    if isinstance(index, jax.core.Tracer):
        looked(index, size, name)
        index = index.astype(int)
        return jax.numpy.where((index >= 0) & (index < size), index, past)
    if index.size:
        with jax.ensure_compile_time_eval():  # the index has values, even inside a trace
            low, high = int(index.min()), int(index.max())
        check(low, high, size, name)
    return index.astype(int)


def _floor_divide(a: Any, b: Any) -> Any:
    """`a // b`; for floats divided by 0 it is a / b, where JAX before 0.7 gives NaN."""
    import jax

    quotient = a // b
    if (isinstance(b, int | float) and b) or not jax.numpy.issubdtype(quotient.dtype, jax.numpy.floating):
        return quotient
    return jax.numpy.where(b == 0, a / b, quotient)


def _scatter_add(positions: Any, x: Any, size: int) -> Any:
    """The sums of rows at given positions: y[b,v,c] = Σ_s x[b,s,c], where positions[b,s] is v.

    Batch and channels may be missing. Rows at positions outside of `size` are dropped.
    """
    jax = _library()
    rows, count = rows_told(jax.numpy, positions.astype(int), size)
    batch, channels = positions.shape[:-1], x.shape[positions.ndim :]
    wide = _widen(x, x.dtype)  # half is too short for long sums
    wide = jax.numpy.broadcast_to(wide, (*positions.shape, *channels)).reshape(*rows.shape, *channels)
    made = jax.ops.segment_sum(wide, rows, num_segments=count)
    return made.reshape(*batch, size, *channels).astype(x.dtype)


SLICES = 32
"""The most slices of an array that are stacked; for more, elements are gathered."""


def _windows(x: Any, axis: int, first: int, by: int, apart: int, outer: int, inner: int) -> Any:
    """y[…,p,u,…] = x[…,first + by·p + apart·u,…], by stacking slices if these are few, else by a gather."""
    jax = _library()
    if not 0 < min(outer, inner) <= SLICES:
        places = first + by * jax.numpy.arange(outer)[:, None] + apart * jax.numpy.arange(inner)
        return jax.numpy.take(x, places, axis=axis)
    (count, length, step, along), at = min(((inner, outer, by, apart), 1), ((outer, inner, apart, by), 0))
    starts = range(first, first + count * along, along)
    parts = [jax.lax.slice_in_dim(x, start, start + (length - 1) * step + 1, step, axis) for start in starts]
    return jax.numpy.stack(parts, axis + at)


def _spaced(x: Any, axis: int, first: int, by: int, size: int) -> Any:
    """y[…,first + by·p,…] = x[…,p,…], and 0 elsewhere along an axis of the given size."""
    jax, rest = _library(), size - first - max(0, (x.shape[axis] - 1) * by + 1)
    amounts = [(first, rest, by - 1) if n == axis else (0, 0, 0) for n in range(x.ndim)]
    return jax.lax.pad(x, jax.numpy.zeros((), dtype=x.dtype), amounts)


def _scatter_count(positions: Any, size: int) -> Any:
    """How often each of `size` positions occurs: y[b,v] = Σ_s (positions[b,s] == v)."""
    jax = _library()
    rows, count = rows_told(jax.numpy, positions.astype(int), size)
    made = jax.ops.segment_sum(jax.numpy.ones_like(rows), rows, num_segments=count)
    return made.reshape(*positions.shape[:-1], size)


def _zeros(like: Any, shape: tuple[int, ...]) -> Any:
    return _library().numpy.zeros(shape, like.dtype)


def _convolution(x: Any, k: Any, groups: int, windows: Windows) -> Any:
    """y[b,go,p] = Σ x[b,gc,first + by·p + apart·u] · k[go,c,u]."""
    by, apart, _, outer = zip(*windows, strict=True)
    amounts = margins(x.shape[2:], windows, outer, k.shape[2:])
    return _library().lax.conv_general_dilated(
        x, k, by, amounts, rhs_dilation=apart, feature_group_count=groups
    )


def _convolution_x(y: Any, k: Any, groups: int, windows: Windows) -> Any:
    """x[b,gc,i] = Σ y[b,go,p] · k[go,c,u] where i is first + by·p + apart·u."""
    jax = _library()
    around = tuple(
        (by, apart, first, size) for (by, apart, first, _), size in zip(windows, y.shape[2:], strict=True)
    )
    like = jax.ShapeDtypeStruct((y.shape[0], groups * k.shape[1], *(size for *_, size in windows)), y.dtype)
    return jax.linear_transpose(lambda x: _convolution(x, k, groups, around), like)(y)[0]


def _convolution_k(x: Any, y: Any, groups: int, windows: Windows) -> Any:
    """k[go,c,u] = Σ x[b,gc,first + by·p + apart·u] · y[b,go,p]."""
    jax = _library()
    around = tuple(
        (by, apart, first, size) for (by, apart, first, _), size in zip(windows, y.shape[2:], strict=True)
    )
    like = jax.ShapeDtypeStruct((y.shape[1], x.shape[1] // groups, *(size for *_, size in windows)), y.dtype)
    return jax.linear_transpose(lambda k: _convolution(x, k, groups, around), like)(y)[0]


def _floating(arrays: Any, otherwise: Any) -> Any:
    """The element type of the first complex array, or else of the first floating one."""
    found = [a.dtype for kind in ("complexfloating", "floating") for a in arrays if _is(a, kind)]
    return found[0] if found else otherwise


def _wide(dtype: Any) -> Any:
    """The type of real numbers for a working type: at least float32."""
    return _element("float64" if dtype in ("float64", "complex128") else "float32")


def _widen(x: Any, dtype: Any) -> Any:
    return x if _is(x, "complexfloating") else x.astype(_wide(dtype))


def _dropout(x: Any, rate: float, training: bool) -> Any:
    if not training or not rate:
        return x
    raise BackendError(
        "dropout draws random numbers, and a pure function of JAX has none",
        fix="give the mask as an input, where(keep[b,i], x[b,i] / (1 - rate), 0), or call without training=True",
    )


def _piece(x: Any, at: Any, length: int, axis: int) -> Any:
    """The piece of an array that begins at a position; if that is traced, the whole piece must be in the array."""
    lax = _library().lax
    if isinstance(at, int):
        return lax.slice_in_dim(x, at, min(at + length, x.shape[axis]), axis=axis)
    return lax.dynamic_slice_in_dim(x, at, length, axis)


def _in_pieces(function: Any, size: int, length: int, axes: tuple[int, ...]) -> Any:
    """Computes a result in pieces. A trace uses a loop, because XLA would otherwise compute all pieces at once.

    Arrays are immutable, so the pieces are concatenated at the end.
    """
    jax = _library()
    whole = size // length
    starts = length * jax.numpy.arange(whole)
    if whole < 2 or not isinstance(starts, jax.core.Tracer):
        return in_pieces(function, size, length, axes, lambda like, shape: None, jax.numpy.concatenate)
    with unlooked(must=True):
        stacked = jax.tree.leaves(jax.lax.map(function, starts))
    parts = [[_merged(one, axis) for one, axis in zip(stacked, axes, strict=True)]]
    if size % length:
        parts.append(jax.tree.leaves(function(whole * length)))
    made = tuple(map(jax.numpy.concatenate, zip(*parts, strict=True), axes))
    return made[0] if len(axes) == 1 else made


def _merged(pieces: Any, axis: int) -> Any:
    """Stacked pieces of equal length as one array along one of their axes."""
    shape = pieces.shape[1:]
    moved = _library().numpy.moveaxis(pieces, 0, axis)
    return moved.reshape(*shape[:axis], len(pieces) * shape[axis], *shape[axis + 1 :])


_DEVICE = re.compile(r"(cpu|gpu|cuda|rocm|tpu)(?::(\d+))?")


class JaxBackend(Plain):
    """Arrays of JAX; the generated code is pure, so every transform of JAX works on it."""

    name = "jax"
    templates = templates

    def signing(self) -> Callable[[Sequence[Any]], Hashable]:
        # a traced array has no device yet
        return lambda arrays: tuple([(type(x), x.shape, x.dtype, getattr(x, "device", None)) for x in arrays])

    def namespace(self) -> Mapping[str, Any]:
        jax = _library()
        return {
            "jax": jax,
            "jnp": jax.numpy,
            "math": math,
            "linear": _linear,
            "normalize": _normalize,
            "average_hardmax": _average_hardmax,
            "recur": _recur,
            "dropped": _dropped,
            "top": _top,
            "within": _within,
            "grouped_matmul": _groups().grouped_matmul,
            "grouped_outer": _groups().grouped_outer,
            "scatter_add": _scatter_add,
            "scatter_count": _scatter_count,
            "windows": _windows,
            "spaced": _spaced,
            **pools(jax.numpy.maximum),
            **convolutions(_convolution, _convolution_x, _convolution_k, _zeros),
            "finite": _finite,
            "whole": _whole,
            "floor_divide": functools.partial(floor_divide, jax.numpy, _floor_divide),
            "remainder": functools.partial(remainder, jax.numpy, operator.mod),
            "floating": _floating,
            "wide": _wide,
            "widen": _widen,
            "element": _element,
            "dropout": _dropout,
            "piece": _piece,
            "in_pieces": _in_pieces,
            "along": _along,
            "running": _running,
        }

    def device(self, array: Any = None) -> str:
        jax = _library()
        if array is None or isinstance(array, jax.core.Tracer):
            return str(jax.default_backend())
        return str(next(iter(array.devices())).platform)

    def check_device(self, device: str) -> None:
        if not isinstance(device, str) or not _DEVICE.fullmatch(device):
            raise BackendError(f"JAX has no device '{device}'", fix="use device='cpu' or 'gpu:0'")

    def version(self, device: str) -> str:
        import os
        import platform

        found = _device(device)
        where = found.device_kind
        if found.platform == "cpu":
            where = f"{platform.processor() or platform.machine()} x{os.cpu_count()}"
        return f"jax {_library().__version__} on {where}"

    def asarray(self, array: Any, dtype: str | None = None, device: str | None = None) -> Any:
        jax = _library()
        kind = None if dtype is None else _asked(dtype)
        put = None if device in (None, self.device()) else _device(str(device))
        if isinstance(array, jax.Array):
            array = array if kind is None else array.astype(kind)
            return array if put is None else jax.device_put(array, put)
        if kind is None and str(getattr(array, "dtype", "")).endswith("bfloat16"):
            kind = _element("bfloat16")
        import numpy

        held = numpy.array(backend_of(array).numpy(array), dtype=kind)  # jax.numpy.array compiles each shape
        with jax.ensure_compile_time_eval():  # the array has values, even inside a trace
            return jax.device_put(held, put)

    def numpy(self, array: Any) -> Any:
        import numpy

        found = numpy.array(array)
        return found if found.dtype.kind in "biufc" else found.astype(numpy.float32)

    def as_one(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return as_one(function)

    def synchronize(self, device: str, *made: Any) -> None:
        _library().block_until_ready(made)


def _asked(dtype: str) -> Any:
    """The element type of a name; raises a BackendError if JAX does not have it."""
    found = _element(dtype)
    if str(found) != dtype:
        raise BackendError(
            f"JAX has no {dtype} unless jax_enable_x64 is on",
            fix="jax.config.update('jax_enable_x64', True) at the start of the program, for all of it",
        )
    return found


def _device(name: str) -> Any:
    """The device of a name; raises a BackendError if it is not available."""
    kind, _, number = name.partition(":")
    try:
        return _library().devices(kind)[int(number or 0)]
    except (RuntimeError, IndexError):
        raise BackendError(f"there is no device '{name}' here", fix="use device='cpu'") from None


backend = JaxBackend()
