"""The NumPy backend: in float64, the reference for all others."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from tensornet.errors import BackendError
from tensornet.protocol import backend_of

from .array_api import KERNELS, Plain, processor, standard
from .array_functions import Functions, in_turn, namespace_of
from .positions import scatters
from .torch import as_numpy
from .windows import strided_windows

templates: Mapping[str, str] = {
    **standard("np"),
    **KERNELS,
    "reshape": "{0}.reshape({shape})",
    "permute": "{0}.transpose({axes})",
    "contiguous": "np.ascontiguousarray({0})",
    "vecdot": 'np.einsum("...k,...k->...", {0}, {1})',
    # np.linalg.diagonal cannot be written to
    "diagonal": 'np.einsum("...ii->...i", np.moveaxis({0}, ({first}, {second}), (-2, -1)))',
    "pad": "np.pad({0}, {pairs}, constant_values={value})",
    "arange": "np.arange({0})",
    "int64": "{0}.astype(np.int64)",
    "cast": "{0}.astype({dtype}, copy=False)",
    # the innermost axes last: over few positions there, NumPy takes twenty times as long
    **{name: f"in_turn(np.{name}, {{0}}, {{axes}})" for name in ("max", "min")},
}


def special(name: str) -> Callable[[Any], Any]:
    """A function of `scipy.special` that returns the type of its argument and imports SciPy at its first call."""

    def function(x: Any) -> Any:
        import scipy.special

        return getattr(scipy.special, name)(x).astype(x.dtype, copy=False)

    return function


def _summed(rows: Any, x: Any, count: int) -> Any:
    """The sums of rows with the same index: a product with a sparse matrix of ones.

    This takes a tenth of the time of `np.add.at`, which is faster only if rows are single numbers.
    """
    import numpy
    import scipy.sparse

    made = numpy.zeros((count, *x.shape[1:]), dtype=x.dtype)
    if x.size == len(x):
        numpy.add.at(made, rows, x)
        return made
    ones = numpy.ones(rows.size, dtype=x.dtype)
    chosen = scipy.sparse.csc_array((ones, rows, numpy.arange(rows.size + 1)), shape=(count, rows.size))
    return (chosen @ x.reshape(rows.size, math.prod(x.shape[1:]))).reshape(made.shape)


class NumpyBackend(Plain):
    """Arrays of NumPy, on the CPU."""

    name = "numpy"
    templates = templates

    def namespace(self) -> Mapping[str, Any]:
        import numpy

        own = {
            "np": numpy,
            "in_turn": in_turn,
            **scatters(numpy, numpy.int64, _summed, lambda positions: True),
            **strided_windows(numpy, numpy.lib.stride_tricks.as_strided),
        }
        return {**namespace_of(Functions(numpy, special("erf"), special("expit"))), **own}

    def device(self, array: Any = None) -> str:
        return "cpu"

    def check_device(self, device: str) -> None:
        if device != "cpu":
            raise BackendError(f"NumPy has no device '{device}'", fix="use device='cpu'")

    def version(self, device: str) -> str:
        import os

        import numpy

        return f"numpy {numpy.__version__} on {processor(os.cpu_count())}"

    def asarray(self, array: Any, dtype: str | None = None, device: str | None = None) -> Any:
        import numpy

        if dtype == "bfloat16":
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
