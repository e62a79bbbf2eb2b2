"""What is done in a thread of its own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

__all__ = ["apart"]

T = TypeVar("T")


def apart(make: Callable[[], T]) -> T:
    """What is made in a thread of its own, where nothing is on of what is on here, such as autocast, inference
    mode, a transform or a trace; so it serves wherever it is asked for next."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(make).result()
