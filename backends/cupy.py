"""The CuPy backend, on CUDA, through the array API standard."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tensornet.errors import BackendError
from tensornet.protocol import CallCache

from .array_api import KERNELS, Plain, standard
from .array_functions import Functions, namespace_of
from .positions import scatters
from .torch import as_numpy
from .windows import strided_windows

templates: Mapping[str, str] = {**standard("xp"), **KERNELS}


def _library() -> Any:
    try:
        import array_api_compat.cupy as xp
    except ImportError:
        raise BackendError(
            "CuPy is not installed", fix="pip install cupy-cuda12x (or cupy-cuda13x), on a machine with CUDA"
        ) from None
    return xp


def _summed(rows: Any, x: Any, count: int) -> Any:
    """The sums of rows with the same index."""
    import cupy

    made = cupy.zeros((count, *x.shape[1:]), dtype=x.dtype)
    cupy.add.at(made, rows, x)
    return made


def _signature(arrays: Sequence[Any]) -> tuple[Any, ...]:
    """The signature of a call; a device is not hashable."""
    return tuple([(type(x), x.shape, x.dtype, x.device.id) for x in arrays])


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
            **scatters(xp, xp.int64, _summed),
            **strided_windows(xp, cupy.lib.stride_tricks.as_strided),
        }
        return {**namespace_of(Functions(xp, special.erf, special.expit)), **own}

    def call_cache(self, most: int) -> CallCache:
        return CallCache(most, _signature)

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
