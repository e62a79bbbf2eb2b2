"""Threads: work in a thread of its own, and what others do meanwhile."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

__all__ = ["apart", "is_busy", "others_at_work", "tells_of_others"]

T = TypeVar("T")

QUIET = 0.75
"""The part of the processors that programs may have on a quiet machine."""


def apart(make: Callable[[], T]) -> T:
    """What is made in a thread of its own, where nothing is on of what is on here, such as autocast, inference
    mode, a transform or a trace; so it serves wherever it is asked for next."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(make).result()


def others_at_work() -> Callable[[], float]:
    """From now on: the part of this machine's processors that other programs had, 0.0 where no system tells."""
    began = _worked()

    def part() -> float:
        now = _worked()
        if began is None or now is None or now[0] <= began[0]:
            return 0.0
        whole, busy, own = (b - a for a, b in zip(began, now, strict=True))
        return max(0.0, busy - own) / whole

    return part


def tells_of_others() -> bool:
    """Whether the system tells what part of the processors other programs had."""
    return _worked() is not None


def is_busy() -> bool:
    """Whether programs had most of this machine's processors in the last minute, as far as the system tells."""
    try:
        return os.getloadavg()[0] > QUIET * (os.cpu_count() or 1)
    except (OSError, AttributeError):
        return False


def _worked() -> tuple[float, float, float] | None:
    """Seconds of all processors so far, those at work, and those at work for this process, as Linux tells them."""
    try:
        user, nice, system, idle, waiting, *more = map(
            int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:8]
        )
        tick = os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError):
        return None
    busy = user + nice + system + sum(more)
    return (busy + idle + waiting) / tick, busy / tick, time.process_time()
