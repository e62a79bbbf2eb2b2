"""Threads: work in a separate thread, and the load that other programs cause."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

QUIET = 0.75
"""The share of the processors that programs may use on a quiet machine."""


def apart(make: Callable[[], T]) -> T:
    """The result of a function, called in a new thread, so that it can be used anywhere later.

    Autocast, inference mode, transforms and traces of the calling thread are not active there."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(make).result()


def others_at_work() -> Callable[[], float]:
    """A function that gives the share of processor time that other programs used since now; 0.0 if unknown."""
    began = _worked()

    def part() -> float:
        now = _worked()
        if began is None or now is None or now[0] <= began[0]:
            return 0.0
        whole, busy, own = (b - a for a, b in zip(began, now, strict=True))
        return max(0.0, busy - own) / whole

    return part


def tells_of_others() -> bool:
    """Whether the system reports how much processor time other programs use."""
    return _worked() is not None


def is_busy() -> bool:
    """Whether the load of the last minute exceeded `QUIET` of the processors; False if it is unknown."""
    try:
        return os.getloadavg()[0] > QUIET * (os.cpu_count() or 1)
    except (OSError, AttributeError):
        return False


def _worked() -> tuple[float, float, float] | None:
    """Processor seconds so far, as Linux reports them: in total, busy, and busy for this process."""
    try:
        user, nice, system, idle, waiting, *more = map(
            int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:8]
        )
        tick = os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError):
        return None
    busy = user + nice + system + sum(more)
    return (busy + idle + waiting) / tick, busy / tick, time.process_time()
