"""The NumPy backend: in float64, the reference for all others."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from tensornet.errors import BackendError
from tensornet.protocol import backend_of

from .array_api import templates as generic
from .array_functions import helpers
from .scatter import rows_told
from .templates import KERNELS, Plain, functions
from .torch import as_numpy
from .windows import Unfolding

__all__ = ["NumpyBackend", "backend"]

templates: Mapping[str, str] = {
    **generic,
    **KERNELS,
    "reshape": "{0}.reshape({shape})",
    "permute": "{0}.transpose({axes})",
    "contiguous": "np.ascontiguousarray({0})",
    "matmul": "np.matmul({0}, {1})",
    "vecdot": 'np.einsum("...k,...k->...", {0}, {1})',
    "added": "added({0}, {1})",
    "subtracted": "subtracted({0}, {1})",
    "take": "np.take({0}, {1}, axis={axis})",
    "broadcast": "np.broadcast_to({0}, {shape})",
    "grouped_matmul": "grouped_matmul(np, {0}, {1}, {2})",
    "grouped_outer": "grouped_outer(np, {0}, {1}, {2}, {size})",
    "scatter_count": "scatter_count({0}, {size}).astype({dtype})",
    "concat": "np.concatenate([{0}], axis={axis})",
    "stack": "np.concatenate([{0}], axis={axis})",
    "argsort": 'np.argsort({0}, axis={axis}, kind="stable")',
    "roll": "np.roll({0}, {shift}, axis={axes})",
    "pad": "np.pad({0}, {pairs}, constant_values={value})",
    "arange": "np.arange({0})",
    "arange_alone": "np.arange({0})",
    "hardmax": "(np.argmax({0}, axis={axis}, keepdims=True) == {positions}).astype({dtype}, copy=False)",
    "onehot": "({0}[..., None] == {positions}).astype({dtype}, copy=False)",
    "int64": "{0}.astype(np.int64)",
    "cast": "{0}.astype({dtype}, copy=False)",
    "dtype": "np.{0}",
    "scalar": "np.asarray({0}, dtype={dtype})",
    "softplus": "np.logaddexp({0}, 0)",
    "log_sigmoid": "-np.logaddexp(-{0}, 0)",
    "clip": "np.minimum(np.maximum({0}, {1}), {2})",
    "maximum": "np.maximum({0}, {1})",
    "minimum": "np.minimum({0}, {1})",
    "where": "np.where({0}, {1}, {2})",
    **functions("np"),
    "rsqrt": "1 / np.sqrt({0})",
    **{name: f"np.{name}({{0}}, axis={{axes}})" for name in ("sum", "mean", "max", "min")},
    **{name: f"np.{name}({{0}}, axis={{axis}})" for name in ("argmax", "argmin")},
    "prod": "np.prod({0}, axis={axis})",
}


def special(name: str) -> Callable[[Any], Any]:
    """A function of `scipy.special` that returns the type of its argument and imports SciPy at its first call."""

    def function(x: Any) -> Any:
        import scipy.special

        return getattr(scipy.special, name)(x).astype(x.dtype, copy=False)

    return function


def scatter_add(positions: Any, x: Any, size: int) -> Any:
    """The sums of rows at given positions: y[b,v,c] = Σ_s x[b,s,c], where positions[b,s] is v.

    Batch and channels may be missing. Rows at positions outside of `size` are dropped. The sum is a product with a
    sparse matrix of ones, which takes a tenth of the time of `np.add.at`. If rows are single numbers, `np.add.at` is
    faster and used instead.
    """
    import numpy
    import scipy.sparse

    rows, count = rows_told(numpy, positions.astype(numpy.int64), size)
    batch, channels = positions.shape[:-1], x.shape[positions.ndim :]
    wide = x.astype(numpy.float32) if x.dtype == numpy.float16 else x  # half is too short for long sums
    wide = numpy.broadcast_to(wide, (*positions.shape, *channels)).reshape(rows.size, math.prod(channels))
    if math.prod(channels) == 1:
        made = numpy.zeros(count + 1, dtype=wide.dtype)
        numpy.add.at(made, rows, wide[:, 0])
        return made[:-1].reshape(*batch, size, *channels).astype(x.dtype, copy=False)
    ones = numpy.ones(rows.size, dtype=wide.dtype)
    chosen = scipy.sparse.csc_array((ones, rows, numpy.arange(rows.size + 1)), shape=(count + 1, rows.size))
    return (chosen @ wide)[:-1].reshape(*batch, size, *channels).astype(x.dtype, copy=False)


def scatter_count(positions: Any, size: int) -> Any:
    """How often each of `size` positions occurs: y[b,v] = Σ_s (positions[b,s] == v)."""
    import numpy

    rows, count = rows_told(numpy, positions.astype(numpy.int64), size)
    return numpy.bincount(rows, minlength=count + 1)[:-1].reshape(*positions.shape[:-1], size)


def added(made: Any, other: Any) -> Any:
    """made + other, written into `made` if both have the same type."""
    import numpy

    return numpy.add(made, other, out=made if made.dtype == other.dtype else None)


def subtracted(made: Any, other: Any) -> Any:
    """made − other, written into `made` if both have the same type."""
    import numpy

    return numpy.subtract(made, other, out=made if made.dtype == other.dtype else None)


class NumpyBackend(Plain):
    """Arrays of NumPy, on the CPU."""

    name = "numpy"
    templates = templates

    def namespace(self) -> Mapping[str, Any]:
        import numpy

        own = {
            "np": numpy,
            "added": added,
            "subtracted": subtracted,
            "scatter_add": scatter_add,
            "scatter_count": scatter_count,
            **Unfolding(numpy, numpy.lib.stride_tricks.as_strided).functions(),
        }
        return {**helpers(numpy, special("erf"), special("expit")), **own}

    def device(self, array: Any = None) -> str:
        return "cpu"

    def check_device(self, device: str) -> None:
        if device != "cpu":
            raise BackendError(f"NumPy has no device '{device}'", fix="use device='cpu'")

    def version(self, device: str) -> str:
        import os
        import platform

        import numpy

        return f"numpy {numpy.__version__} on {platform.processor() or platform.machine()} x{os.cpu_count()}"

    def asarray(self, array: Any, dtype: str | None = None, device: str | None = None) -> Any:
        import numpy

        if dtype == "bfloat16":
            from tensornet.errors import BackendError

            raise BackendError("NumPy has no bfloat16", fix="use float32, or the torch backend")
        if hasattr(array, "detach"):
            array = as_numpy(array)
        elif hasattr(array, "__array_namespace__") and not isinstance(array, numpy.ndarray | numpy.generic):
            array = backend_of(array).numpy(array)
        return numpy.asarray(array, dtype=dtype)

    def numpy(self, array: Any) -> Any:
        import numpy

        return numpy.array(array)


backend = NumpyBackend()
