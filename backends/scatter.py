"""Scatter positions: where added rows go."""

from __future__ import annotations

from typing import Any

__all__ = ["rows_told"]


def rows_told(xp: Any, positions: Any, size: int) -> tuple[Any, int]:
    """The row for each position told, of a batch one after another, and how many there are; that after the last
    for what is told outside.

    Args:
        xp: NumPy, CuPy, PyTorch or JAX.
        positions: integers of 64 bits, with a batch or none before them.
        size: how many positions there are.
    """
    inside, count = (positions >= 0) & (positions < size), size
    if positions.ndim == 2:
        count = len(positions) * size
        before = xp.cumsum(xp.ones_like(positions[:, :1]), 0) - 1
        positions = positions + size * before
    return xp.where(inside, positions, count).reshape(-1), count
