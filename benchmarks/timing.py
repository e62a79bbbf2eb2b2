"""Side-by-side timing in one process: interleaved runs, medians, ratios."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

__all__ = ["geometric_mean", "interleaved"]


def interleaved(
    contestants: Mapping[str, Callable[[], object]], rounds: int = 15, warmup: int = 2
) -> dict[str, float]:
    """Median seconds of each contestant; they take turns, so drift of the machine hits all alike."""
    for _ in range(warmup):
        for run in contestants.values():
            run()
    times: dict[str, list[float]] = {name: [] for name in contestants}
    names = list(contestants)
    for turn in range(rounds):
        for offset in range(len(names)):
            name = names[(turn + offset) % len(names)]
            start = time.perf_counter()
            contestants[name]()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(each) for name, each in times.items()}


def geometric_mean(values: list[float]) -> float:
    """The mean of ratios."""
    return statistics.geometric_mean(values)
