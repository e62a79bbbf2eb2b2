"""Associative scans in array operations, for every library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["recurrence"]


def recurrence(
    a: Any,
    b: Any,
    start: float,
    back: float,
    joined: Callable[[list[Any], int], Any],
    flipped: Callable[[Any, tuple[int, ...]], Any],
    full: Callable[[Any, float], Any],
    multiplied: Callable[[Any, int], Any] | None = None,
) -> Any:
    """y with y[0] = start and y[j] = a[j-1]·y[j-1] + b[j-1], along the last axis.

    Two steps compose to one: a'·(a·y + b) + b' = (a'·a)·y + (a'·b + b'). So each round doubles the number of steps that
    an element combines. (G. Blelloch, Prefix Sums and Their Applications, 1990.)

    Args:
        a, b: the factor of the previous value and the addend; of the same shape, or one of them a number.
        start: the first value.
        back: nonzero to run from the last position to the first.
        joined, flipped, full: functions of the library: concatenation along an axis, reversal along axes, and an array
            filled with a number in the shape of another.
        multiplied: its cumulative product along an axis, if it has one.
    """
    if isinstance(a, int | float):
        a = full(b, a)
    if not a.shape[-1]:
        return a
    if back:
        others = b if isinstance(b, int | float) else flipped(b, (-1,))
        found = recurrence(flipped(a, (-1,)), others, start, 0, joined, flipped, full, multiplied)
        return flipped(found, (-1,))
    first = a[..., :1]
    if multiplied is not None and isinstance(b, int | float) and not b:
        return multiplied(joined([full(first, start), a[..., :-1]], -1), -1)
    added = full(a, b) if isinstance(b, int | float) else b
    factor = joined([full(first, 1), a[..., :-1]], -1)
    total = joined([full(first, start), added[..., :-1]], -1)
    return _doubled(total, factor, joined)


def _doubled(total: Any, factor: Any, joined: Callable[[list[Any], int], Any]) -> Any:
    """Composes each step `y -> factor·y + total` with all steps before it, twice as many in each round."""
    behind = 1
    while behind < total.shape[-1]:
        reached = total[..., behind:] + factor[..., behind:] * total[..., :-behind]
        total = joined([total[..., :behind], reached], -1)
        factor = joined([factor[..., :behind], factor[..., behind:] * factor[..., :-behind]], -1)
        behind *= 2
    return total
