"""How long work takes on a device: a few measured constants, and formulas in seconds.

The model: a step takes the larger of its arithmetic time and its memory time, plus a launch.
Small matrices reach only part of the peak, d / (d + half) for each of the three sizes; on some
systems memory that is asked for anew in large pieces is slow at first touch.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from .errors import BackendError

__all__ = [
    "DeviceProfile",
    "cache_folder",
    "default_profile",
    "element_type",
    "itemsize",
    "load_profile",
    "save_profile",
]


@dataclass(frozen=True)
class DeviceProfile:
    """Device constants; units in the names' comments. `key` tells device, library and version."""

    key: str
    flops: float  # FLOP/s of a large float32 matrix product
    half: float  # summed positions at which a product reaches half of that
    half_rows: float  # the same for rows
    half_columns: float  # the same for columns
    bandwidth: float  # bytes/s, read plus written, in order
    permute_bandwidth: float  # bytes/s, read plus written, across an axis permutation
    launch: float  # seconds a step costs whatever its size
    batch: float  # seconds each matrix of a batched product costs
    fresh_bytes: float  # results larger than this are touched for the first time
    fresh_bandwidth: float  # bytes/s at first touch

    def matmul(self, batch: float, m: float, n: float, k: float, size: int) -> float:
        """Seconds of `batch` products (m×k)·(k×n) with elements of `size` bytes."""
        share = (m / (m + self.half_rows)) * (n / (n + self.half_columns)) * (k / (k + self.half))
        rate = self.flops * share * min(1.0, 4.0 / size)
        arithmetic = 2.0 * batch * m * n * k / rate if rate else 0.0
        moved = size * batch * (m * k + k * n + m * n)
        each = self.batch * batch if batch > 1 else 0.0
        return max(arithmetic, self.stream(moved)) + each + self.fresh(size * batch * m * n) + self.launch

    def stream(self, moved: float) -> float:
        """Seconds to move bytes in order."""
        return moved / self.bandwidth

    def permute(self, elements: float, size: int) -> float:
        """Seconds to copy a tensor into another order of axes."""
        return 2.0 * elements * size / self.permute_bandwidth + self.fresh(elements * size) + self.launch

    def pointwise(self, moved: float, written: float) -> float:
        """Seconds of an element-by-element step."""
        return self.stream(moved) + self.fresh(written) + self.launch

    def fresh(self, written: float) -> float:
        """Seconds that first touch adds to a result of so many bytes."""
        return written / self.fresh_bandwidth if written > self.fresh_bytes else 0.0


_CPU = DeviceProfile("default-cpu", 1.6e11, 10.0, 3.0, 10.0, 4.0e10, 1.8e10, 4e-6, 2e-8, 32 * 2**20, 4.0e9)
_GPU = DeviceProfile("default-gpu", 5.0e13, 96.0, 96.0, 96.0, 1.5e12, 7.0e11, 6e-6, 1e-9, 1e18, 1e18)


def default_profile(device: str) -> DeviceProfile:
    """Built-in constants: those of a two-core server, or of a data-centre GPU."""
    return _CPU if device.startswith("cpu") else _GPU


def element_type(dtype: object, *, exact: bool = False) -> str:
    """The name of an element type, `float32` for `torch.float32` and the like.

    Args:
        dtype: a name, or the type of a library.
        exact: whether integers and truth values will do, which parameters cannot have.

    Raises:
        BackendError: there is no such type.
    """
    name = str(getattr(dtype, "name", getattr(dtype, "__name__", dtype))).split(".")[-1]
    known = (*_ITEM_SIZES, *(_EXACT if exact else ()))
    if name not in known:
        raise BackendError(f"there is no element type '{dtype}'", fix=f"choose one of {', '.join(known)}")
    return name


def real_type(dtype: str) -> str:
    """The type of the real part: that of complex64 is float32."""
    return {"complex64": "float32", "complex128": "float64"}.get(dtype, dtype)


def itemsize(dtype: str) -> int:
    """Bytes of one element."""
    return _ITEM_SIZES.get(dtype, 8)


_EXACT = ("bool", "uint8", "int8", "int16", "int32", "int64")
_ITEM_SIZES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "complex64": 8, "complex128": 16}


def cache_folder() -> Path:
    """Where measured constants are kept: `TENSORNET_CACHE`, else the user's cache folder."""
    chosen = os.environ.get("TENSORNET_CACHE")
    if chosen:
        return Path(chosen)
    import platformdirs

    return Path(platformdirs.user_cache_dir("tensornet"))


def _path(key: str) -> Path:
    import hashlib

    return cache_folder() / f"device-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"


_PLAUSIBLE = {
    "flops": (1e7, 1e18),
    "half": (1e-3, 1e5),
    "half_rows": (1e-3, 1e5),
    "half_columns": (1e-3, 1e5),
    "bandwidth": (1e6, 1e15),
    "permute_bandwidth": (1e5, 1e15),
    "launch": (1e-9, 1.0),
    "batch": (1e-12, 1.0),
    "fresh_bytes": (1.0, 1e18),
    "fresh_bandwidth": (1e5, 1e18),
}
"""The least and the largest that each constant of any device, slow or to come, may be."""


def load_profile(key: str) -> DeviceProfile | None:
    """The constants measured under `key`, if they are there, as they were written, and plausible."""
    try:
        document = json.loads(_path(key).read_text(encoding="utf-8"))
        profile = DeviceProfile(**{name: document[name] for name in DeviceProfile.__dataclass_fields__})
        believed = profile.key == key and document["seal"] == _seal(profile) and _plausible(profile)
        return profile if believed else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def save_profile(profile: DeviceProfile) -> Path | None:
    """Keeps the constants; returns where, or nothing if the folder cannot be written."""
    path, temporary = _path(profile.key), None
    text = json.dumps({**asdict(profile), "seal": _seal(profile)}, indent=1)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        number, temporary = tempfile.mkstemp(dir=path.parent, prefix=f"{path.stem}.")
        with open(number, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except OSError:
        return None
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
    return path


def _seal(profile: DeviceProfile) -> str:
    """A digest of all the constants: a file of which a digit was lost is not believed."""
    import hashlib

    return hashlib.sha256(repr(asdict(profile)).encode()).hexdigest()


def _plausible(profile: DeviceProfile) -> bool:
    return all(
        type(value) in (int, float) and least <= value <= largest
        for name, (least, largest) in _PLAUSIBLE.items()
        for value in [getattr(profile, name)]
    )
