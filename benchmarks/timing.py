"""What the benchmarks tell of times: medians of interleaved runs, means of ratios."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping

from tensornet.device.timing import timings

__all__ = ["geometric_mean", "interleaved"]


def interleaved(
    contestants: Mapping[str, Callable[[], object]], rounds: int = 15, warmup: int = 2
) -> dict[str, float]:
    """Median seconds of each contestant."""
    return {name: each.median for name, each in timings(contestants, rounds, warmup).items()}


def geometric_mean(values: list[float]) -> float:
    """The mean of ratios."""
    return statistics.geometric_mean(values)
