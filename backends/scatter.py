"""Scatter: sums and counts of rows at given positions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["rows_told", "scatters"]


def rows_told(xp: Any, positions: Any, size: int) -> tuple[Any, int]:
    """The flat row index of each position, with batches one after another, and the number of rows. Positions
    outside get the index after the last row.

    Args:
        xp: NumPy, CuPy, PyTorch or JAX.
        positions: integers, along one axis or along a batch and an axis; of 64 bits where the library has them.
        size: the number of positions.
    """
    inside, count = (positions >= 0) & (positions < size), size
    if positions.ndim == 2:
        count = len(positions) * size
        before = xp.cumsum(xp.ones_like(positions[:, :1]), 0) - 1
        positions = positions + size * before
    return xp.where(inside, positions, count).reshape(-1), count


def scatters(
    xp: Any, summed: Callable[[Any, Any, int], Any], counted: Callable[[Any, int], Any]
) -> dict[str, Callable[..., Any]]:
    """The functions that add up and count rows, for the namespace of a backend.

    Args:
        xp: NumPy, CuPy or JAX.
        summed: takes an index for each row, the rows and the number of indices, and returns the sums.
        counted: takes indices and their number, and returns how often each occurs.
    """

    def scatter_add(positions: Any, x: Any, size: int) -> Any:
        """The sums of rows at given positions: y[b,v,c] = Σ_s x[b,s,c], where positions[b,s] is v.

        Batch and channels may be missing. Rows at positions outside of `size` are dropped.
        """
        rows, count = rows_told(xp, positions.astype(int), size)
        batch, channels = positions.shape[:-1], x.shape[positions.ndim :]
        wide = x.astype(xp.float32) if x.dtype.itemsize == 2 else x  # half is too short for long sums
        wide = xp.broadcast_to(wide, (*positions.shape, *channels)).reshape(*rows.shape, *channels)
        made = summed(rows, wide, count + 1)[:-1]
        return made.reshape(*batch, size, *channels).astype(x.dtype, copy=False)

    def scatter_count(positions: Any, size: int) -> Any:
        """How often each of `size` positions occurs: y[b,v] = Σ_s (positions[b,s] == v)."""
        rows, count = rows_told(xp, positions.astype(int), size)
        return counted(rows, count + 1)[:-1].reshape(*positions.shape[:-1], size)

    return {"scatter_add": scatter_add, "scatter_count": scatter_count}
