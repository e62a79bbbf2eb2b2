"""Pools of libraries that have none, by elementwise functions of what each element of a window meets."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["Pools", "elements", "pools"]

Pools = tuple[tuple[int, int, int, int, int], ...]
"""By, apart, first, the size of the result, and the elements of a window, for each dimension but the first."""


def elements(x: Any, windows: Pools) -> Iterator[Any]:
    """What each element of a window meets."""
    for at in itertools.product(*(range(inner) for *_, inner in windows)):
        places = tuple(
            slice(start := first + u * apart, start + (size - 1) * by + 1, by)
            for u, (by, apart, first, size, _) in zip(at, windows, strict=True)
        )
        whole: Any = (slice(None), *places)
        yield x[whole]


def pools(maximum: Callable[[Any, Any], Any]) -> dict[str, Callable[[Any, Pools], Any]]:
    """The two pools of a library.

    Args:
        maximum: its larger of two.
    """

    def max_pool(x: Any, windows: Pools) -> Any:
        first, *others = elements(x, windows)
        for each in others:
            first = maximum(first, each)
        return first + 0 if not others else first

    def mean_pool(x: Any, windows: Pools) -> Any:
        first, *others = elements(x, windows)
        for each in others:
            first = first + each
        return first / (1 + len(others))

    return {"max_pool": max_pool, "mean_pool": mean_pool}
