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
    """The positions of the largest elements along an axis, the largest first; equal elements keep their order.

    Args:
        x: the elements.
        axis: the dimension, counted from the first.
        size: the number of elements.
        argsort: returns positions in ascending order; equal elements keep their order.
        flip: reverses an array along an axis.
    """
    count = x.shape[axis]
    if size > count:
        raise ShapeError(
            f"the axis has {count} elements, fewer than the {size} largest to take",
            fix=f"take at most {count}",
        )
    rising = argsort(flip(x, axis), axis)  # reversed: of equal elements, the last in `x` come first
    last = rising[(slice(None),) * axis + (slice(count - size, count), ...)]
    return count - 1 - flip(last, axis)
