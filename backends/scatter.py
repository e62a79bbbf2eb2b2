"""Scatter positions: the flat index of each added row."""

from __future__ import annotations

from typing import Any

__all__ = ["rows_told"]


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
