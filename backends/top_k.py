"""Top-k by stable sorting, for every library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensornet.errors import ShapeError

__all__ = ["largest"]


def largest(
    x: Any,
    axis: int,
    size: int,
    argsort: Callable[[Any, int], Any],
    flip: Callable[[Any, int], Any],
) -> Any:
    """The positions of the largest elements along an axis, the largest first; of equal ones those that stand first.

    Args:
        x: the elements.
        axis: the dimension, counted from the first.
        size: how many.
        argsort: positions in rising order, equal elements as they stand.
        flip: the elements the other way round.
    """
    count = x.shape[axis]
    if size > count:
        raise ShapeError(
            f"the {size} largest elements are asked for of {count}", fix=f"ask for no more than {count}"
        )
    rising = argsort(flip(x, axis), axis)  # of what is turned round, the last of equal ones come first
    last = rising[(slice(None),) * axis + (slice(count - size, count), ...)]
    return count - 1 - flip(last, axis)
