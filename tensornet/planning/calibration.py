"""Measuring the constants of a device, once per machine."""

from __future__ import annotations

import functools
import math
import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..errors import BackendError
from ..protocol import Backend, is_offered
from .device import DeviceProfile, default_profile
from .profiles import load_profile, save_profile

__all__ = ["measure", "profile_of"]

MAPPED = 32 * 2**20
"""Bytes from which the C library maps a new allocation afresh (glibc's largest threshold)."""


def profile_of(backend: Backend, device: str) -> DeviceProfile:
    """The constants of a device: measured before, or measured now and kept.

    With `TENSORNET_CALIBRATE=0` in the environment, or where the library or the device is
    missing, the built-in constants.
    """
    if os.environ.get("TENSORNET_CALIBRATE", "1") == "0" or not is_offered(backend.name):
        return default_profile(device)
    return _profile_of(backend, device)


@functools.cache
def _profile_of(backend: Backend, device: str) -> DeviceProfile:
    try:
        key = backend.version(device)
    except BackendError:
        return default_profile(device)
    known = load_profile(key)
    if known is None:
        known = measure(backend, device)
        save_profile(known)
    return known


def measure(backend: Backend, device: str, rounds: int = 3) -> DeviceProfile:
    """Times a few operations on the device, in a second or two.

    The rounds are spread over that time and the least of each kind counts, so that a passing load
    on the machine does not become a constant; what lies far from anything plausible is cut off.

    Raises:
        BackendError: the library or the device is missing.
    """
    backend.check_device(device)
    backend.version(device)  # before anything is timed: is it here?
    probe = _Probe(backend, device)
    found = [_constants(probe, device) for _ in range(rounds)][-1]
    usual = default_profile(device)

    def plausible(name: str, factor: float) -> float:
        middle, measured = float(getattr(usual, name)), float(getattr(found, name))
        return min(middle * factor, max(middle / factor, measured))

    return replace(
        found,
        half=plausible("half", 4.0),
        half_rows=plausible("half_rows", 8.0),
        half_columns=plausible("half_columns", 8.0),
        batch=plausible("batch", 8.0),
        launch=plausible("launch", 16.0),
    )


def _constants(probe: _Probe, device: str) -> DeviceProfile:
    """The constants that the least times so far imply."""
    launch = probe.seconds("{0} + {0}", (8,), repeats=100, typical=True)
    large = 768 if device.startswith("cpu") else 4096
    peak = 2.0 * large**3 / probe.matmul((large, large), (large, large))
    side, tall = (16, 2**18) if device.startswith("cpu") else (64, 2**20)
    share = min(1.0, 2.0 * tall * side * side / probe.matmul((tall, side), (side, side)) / peak)
    half = max(1.0, side * (1.0 / math.sqrt(share) - 1.0))
    turned = probe.backend.templates["permute"].format("{0}", axes="(0, 2, 1)")
    tall_time = probe.seconds(
        probe.backend.templates["matmul"].format(turned, "{1}"), (4096, 8, 96), (4096, 8, 8)
    )
    lean = min(4.0, max(0.25, tall_time / probe.matmul((4096, 8, 8), (4096, 8, 96))))
    # (8 + columns) / (8 + rows) = lean, with columns · rows = half²
    half_columns = 4.0 * (lean - 1.0) + math.sqrt(16.0 * (lean - 1.0) ** 2 + lean * half**2)
    half_rows = half**2 / half_columns
    elements = 6 * 2**20
    bandwidth = 2.0 * 4 * elements / probe.seconds("{0} + 1", (elements,))
    permute = 2.0 * 4 * 512 * 96 * 128 / probe.seconds(probe.permutation(), (512, 96, 128))
    small = (8 / (8 + half)) * (8 / (8 + half_rows)) * (8 / (8 + half_columns))
    arithmetic = 2.0 * 4096 * 8**3 / (peak * small)
    batch = max(1e-10, (probe.matmul((4096, 8, 8), (4096, 8, 8)) - launch - arithmetic) / 4096)
    fresh = _fresh(probe, bandwidth) or (1e18, bandwidth)
    key = probe.backend.version(device)
    return DeviceProfile(
        key, peak, half, half_rows, half_columns, bandwidth, min(permute, bandwidth), launch, batch, *fresh
    )


def _fresh(probe: _Probe, bandwidth: float) -> tuple[float, float] | None:
    """Threshold and bandwidth of first touch, where it costs anything."""
    size = 2 * MAPPED
    excess = probe.seconds("{0} + 1", (size // 4,)) - 2.0 * size / bandwidth
    return (float(MAPPED), size / excess) if excess > size / bandwidth else None


class _Probe:
    """Times operations of one backend, spelled as in generated code."""

    def __init__(self, backend: Backend, device: str) -> None:
        self.backend, self.device = backend, device
        self.names = dict(backend.namespace())
        self.least: dict[tuple[object, ...], float] = {}

    def permutation(self) -> str:
        permuted = self.backend.templates["permute"].format("{0}", axes="(0, 2, 1)")
        return self.backend.templates["reshape"].format(permuted, shape="(-1,)")

    def matmul(self, *shapes: tuple[int, ...]) -> float:
        return self.seconds(self.backend.templates["matmul"], *shapes)

    def seconds(
        self, source: str, *shapes: tuple[int, ...], repeats: int = 6, typical: bool = False
    ) -> float:
        """The least time of all runs so far (the least median if `typical`), one to warm up not counted."""
        import numpy

        arrays = [
            self.backend.asarray(numpy.ones(shape, dtype=numpy.float32), device=self.device)
            for shape in shapes
        ]
        names = [f"a{n}" for n in range(len(arrays))]
        run: Callable[..., Any] = eval(f"lambda {', '.join(names)}: {source.format(*names)}", self.names)
        times: list[float] = []
        for _ in range(repeats + 1):
            self.backend.synchronize(self.device)
            start = time.perf_counter()
            run(*arrays)
            self.backend.synchronize(self.device)
            times.append(time.perf_counter() - start)
        ranked = sorted(times[1:])
        key = (source, shapes)
        self.least[key] = min(
            ranked[len(ranked) // 2] if typical else ranked[0], self.least.get(key, math.inf)
        )
        return self.least[key]
