"""Timing side by side in one process: interleaved runs, medians, quartiles."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

SHORTEST = 2e-3
"""The least seconds of a sample: a quicker run is repeated within it."""


@dataclass(frozen=True)
class Timing:
    """Seconds of a run: the median, and the lower and upper quartiles."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Clock:
    """How the time of a run is read.

    Attributes:
        now: seconds since a fixed moment.
        wait: returns once all started work is done, as on a GPU; takes the result of a run, if there is one.
    """

    now: Callable[[], float] = time.perf_counter
    wait: Callable[..., object] = lambda *made: None

    def sample(self, run: Callable[[], object], repeats: int) -> float:
        """Seconds of a run, averaged over `repeats` runs."""
        self.wait()
        start = self.now()
        for _ in range(repeats - 1):
            run()
        self.wait(run())
        return (self.now() - start) / repeats


def timings(
    contestants: Mapping[str, Callable[[], object]], rounds: int = 15, warmup: int = 2, clock: Clock = Clock()
) -> dict[str, Timing]:
    """The time of each contestant; they take turns, so that drift of the machine affects all alike.

    Args:
        contestants: the functions to run, by name.
        rounds: samples of each.
        warmup: runs of each before the samples; the last one decides how often a sample repeats it.
        clock: how time is read.
    """
    repeats = {}
    for name, run in contestants.items():
        seconds = [clock.sample(run, 1) for _ in range(warmup)]
        repeats[name] = max(1, round(SHORTEST / seconds[-1]))
    samples: dict[str, list[float]] = {name: [] for name in contestants}
    names = list(contestants)
    for turn in range(rounds):
        for offset in range(len(names)):
            name = names[(turn + offset) % len(names)]
            samples[name].append(clock.sample(contestants[name], repeats[name]))
    return {name: _timing(each) for name, each in samples.items()}


def _timing(samples: list[float]) -> Timing:
    if len(samples) == 1:
        return Timing(samples[0], samples[0], samples[0])
    low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
    return Timing(median, low, high)
