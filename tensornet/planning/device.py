"""How long work takes on a device: a few measured constants, and formulas in seconds.

The model: a step takes the larger of its arithmetic time and its memory time, plus a launch.
Small matrices reach only part of the peak, d / (d + half) for each of the three sizes; on some
systems memory that is asked for anew in large pieces is slow at first touch.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DeviceProfile", "default_profile"]


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
