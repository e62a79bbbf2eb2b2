"""The CuPy backend, on CUDA, through the array API standard."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from tensornet.errors import BackendError

from .array_api import templates as generic
from .array_functions import helpers
from .scatter import rows_told
from .templates import KERNELS, Plain
from .torch import as_numpy
from .windows import Unfolding

__all__ = ["CupyBackend", "backend"]

templates: Mapping[str, str] = {
    **generic,
    **KERNELS,
    "scatter_count": "scatter_count({0}, {size}).astype({dtype})",
}


def _library() -> Any:
    try:
        import array_api_compat.cupy as xp
    except ImportError:
        raise BackendError(
            "CuPy is not installed",
            fix="pip install cupy-cuda12x (or cupy-cuda13x), on a machine with CUDA",
        ) from None
    return xp


def scatter_add(positions: Any, x: Any, size: int) -> Any:
    """The sums of rows at given positions: y[b,v,c] = Σ_s x[b,s,c], where positions[b,s] is v.

    Batch and channels may be missing. Rows at positions outside of `size` are dropped.
    """
    import cupy

    rows, count = rows_told(cupy, positions.astype(cupy.int64), size)
    batch, channels = positions.shape[:-1], x.shape[positions.ndim :]
    wide = x.astype(cupy.float32) if x.dtype == cupy.float16 else x  # half is too short for long sums
    made = cupy.zeros((count + 1, *channels), dtype=wide.dtype)
    wide = cupy.broadcast_to(wide, (*positions.shape, *channels)).reshape(*rows.shape, *channels)
    cupy.add.at(made, rows, wide)
    return made[:-1].reshape(*batch, size, *channels).astype(x.dtype, copy=False)


def scatter_count(positions: Any, size: int) -> Any:
    """How often each of `size` positions occurs: y[b,v] = Σ_s (positions[b,s] == v)."""
    import cupy

    rows, count = rows_told(cupy, positions.astype(cupy.int64), size)
    return cupy.bincount(rows, minlength=count + 1)[:-1].reshape(*positions.shape[:-1], size)


class CupyBackend(Plain):
    """Arrays of CuPy; the generated code is the generic code for all array libraries."""

    name = "cupy"
    templates = templates

    def namespace(self) -> Mapping[str, Any]:
        xp = _library()
        import cupy
        from cupyx.scipy import special

        own = {
            "xp": xp,
            "scatter_add": scatter_add,
            "scatter_count": scatter_count,
            **Unfolding(xp, cupy.lib.stride_tricks.as_strided).functions(),
        }
        return {**helpers(xp, special.erf, special.expit), **own}

    def signing(self) -> Callable[[Sequence[Any]], Hashable]:
        # a device is not hashable
        return lambda arrays: tuple([(type(x), x.shape, x.dtype, x.device.id) for x in arrays])

    def device(self, array: Any = None) -> str:
        return f"cuda:{array.device.id if array is not None else 0}"

    def check_device(self, device: str) -> None:
        if not isinstance(device, str) or not re.fullmatch(r"cuda(:\d+)?", device):
            raise BackendError(f"CuPy has no device '{device}'", fix="use device='cuda:0'")

    def version(self, device: str) -> str:
        _library()
        import cupy

        number = int(device.partition(":")[2] or 0)
        name = cupy.cuda.runtime.getDeviceProperties(number)["name"].decode()
        return f"cupy {cupy.__version__} on {name}"

    def asarray(self, array: Any, dtype: str | None = None, device: str | None = None) -> Any:
        _library()
        import cupy

        if hasattr(array, "__dlpack__") and getattr(getattr(array, "device", None), "type", "") == "cuda":
            array = cupy.from_dlpack(array)
        return cupy.asarray(as_numpy(array) if hasattr(array, "detach") else array, dtype=dtype)

    def numpy(self, array: Any) -> Any:
        import cupy

        return cupy.asnumpy(array)

    def synchronize(self, device: str, *made: Any) -> None:
        import cupy

        cupy.cuda.get_current_stream().synchronize()


backend = CupyBackend()
