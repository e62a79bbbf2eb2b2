"""Top-k by stable sorting, for every library."""

from __future__ import annotations

from typing import Any

from tensornet.errors import ShapeError

__all__ = ["largest"]


def largest(xp: Any, x: Any, axis: int, size: int) -> Any:
    """The positions of the largest elements along an axis, the largest first; equal elements keep their order.

    Args:
        xp: the library.
        x: the elements.
        axis: the dimension, counted from the first.
        size: the number of elements.
    """
    count = x.shape[axis]
    if size > count:
        raise ShapeError(
            f"the axis has {count} elements, fewer than the {size} largest to take",
            fix=f"take at most {count}",
        )
    rising = xp.argsort(
        xp.flip(x, axis=axis), axis=axis, stable=True
    )  # reversed: of equal elements, the last in `x` come first
    last = rising[(slice(None),) * axis + (slice(count - size, count), ...)]
    return count - 1 - xp.flip(last, axis=axis)
