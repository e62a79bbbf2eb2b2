"""CuPy, on CUDA, through the array API standard that it shares with NumPy."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from typing import Any

from tensornet.errors import BackendError

from .array_api import helpers
from .array_api import templates as generic
from .torch import as_numpy

__all__ = ["CupyBackend", "backend"]


def _library() -> Any:
    try:
        import array_api_compat.cupy as xp
    except ImportError:
        raise BackendError(
            "CuPy is not installed",
            fix="pip install cupy-cuda12x (or cupy-cuda13x), on a machine with CUDA",
        ) from None
    return xp


class CupyBackend:
    """Arrays of CuPy; the generated code is the generic one that every array library runs."""

    name = "cupy"
    templates = generic
    kind = operator.attrgetter("__class__", "shape", "dtype", "device.id")  # a device has no hash

    def namespace(self) -> Mapping[str, Any]:
        xp = _library()
        from cupyx.scipy import special

        return {**helpers(xp, special.erf, special.expit), "xp": xp}

    def device(self, array: Any = None) -> str:
        return f"cuda:{array.device.id if array is not None else 0}"

    def check_device(self, device: str) -> None:
        if not re.fullmatch(r"cuda(:\d+)?", device):
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

    def dtype(self, array: Any) -> str:
        return str(array.dtype)

    def autocasts(self, array: Any) -> bool:
        return False

    def synchronize(self, device: str) -> None:
        import cupy

        cupy.cuda.get_current_stream().synchronize()


backend = CupyBackend()
