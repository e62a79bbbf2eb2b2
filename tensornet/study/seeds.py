"""Seeds: several of them, each checked."""

from __future__ import annotations

import numbers
from collections.abc import Iterable
from typing import Any

from tensornet.errors import TensornetError

__all__ = ["checked_seeds"]

MOST = 1000
"""The most seeds; a larger number was meant as a seed itself."""


def checked_seeds(seeds: Any) -> tuple[int, ...]:
    """The seeds that are given, each once; a number n means 0 to n - 1.

    Raises:
        TensornetError: there is no seed, or one is not a whole number from 0 to 2³² - 1.

    Example:
        >>> checked_seeds(3), checked_seeds([7, 8])
        ((0, 1, 2), (7, 8))
    """
    if _is_whole(seeds):
        if not 1 <= seeds <= MOST:
            raise TensornetError(
                f"there are {seeds} seeds", fix=f"give how many, 1 to {MOST}, or a list of them"
            )
        return tuple(range(int(seeds)))
    given = list(seeds) if isinstance(seeds, Iterable) and not isinstance(seeds, str) else [seeds]
    for seed in given:
        if not _is_whole(seed) or not 0 <= seed < 2**32:
            raise TensornetError(f"seed is {seed}", fix="give a whole number, 0 to 4294967295")
    if not given:
        raise TensornetError("no seed is given", fix="give a list of whole numbers, as [0, 1, 2]")
    return tuple(dict.fromkeys(map(int, given)))


def _is_whole(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)
