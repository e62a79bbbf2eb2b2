"""Side-by-side timing in one process: interleaved runs, medians, quartiles."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

__all__ = ["Timing", "geometric_mean", "interleaved", "timings"]

SHORTEST = 2e-3
"""Seconds that a sample takes at least: a quicker run is repeated within it."""


@dataclass(frozen=True)
class Timing:
    """Seconds of a run: the median, and between which half of the samples lie."""

    median: float
    low: float
    high: float


def timings(
    contestants: Mapping[str, Callable[[], object]],
    rounds: int = 15,
    warmup: int = 2,
    wait: Callable[[], object] = lambda: None,
) -> dict[str, Timing]:
    """The time of each contestant; they take turns, so that drift of the machine hits all alike.

    Args:
        contestants: what is run, by name.
        rounds: samples of each.
        warmup: runs of each before them.
        wait: returns when what was started is done, as on a GPU.
    """
    repeats = {name: _repeats(run, warmup, wait) for name, run in contestants.items()}
    samples: dict[str, list[float]] = {name: [] for name in contestants}
    names = list(contestants)
    for turn in range(rounds):
        for offset in range(len(names)):
            name = names[(turn + offset) % len(names)]
            samples[name].append(_sample(contestants[name], repeats[name], wait))
    return {name: _timing(each) for name, each in samples.items()}


def interleaved(
    contestants: Mapping[str, Callable[[], object]], rounds: int = 15, warmup: int = 2
) -> dict[str, float]:
    """Median seconds of each contestant."""
    return {name: each.median for name, each in timings(contestants, rounds, warmup).items()}


def _repeats(run: Callable[[], object], warmup: int, wait: Callable[[], object]) -> int:
    """How often a sample runs it, after so many runs to warm up; the last of them says how long one takes."""
    seconds = SHORTEST
    for _ in range(warmup):
        seconds = _sample(run, 1, wait)
    return max(1, round(SHORTEST / seconds))


def _sample(run: Callable[[], object], repeats: int, wait: Callable[[], object]) -> float:
    wait()
    start = time.perf_counter()
    for _ in range(repeats):
        run()
    wait()
    return (time.perf_counter() - start) / repeats


def _timing(samples: list[float]) -> Timing:
    if len(samples) == 1:
        return Timing(samples[0], samples[0], samples[0])
    low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
    return Timing(median, low, high)


def geometric_mean(values: list[float]) -> float:
    """The mean of ratios."""
    return statistics.geometric_mean(values)
