"""Grouped GEMM for array API libraries.

Rows are sorted by their positions, so that the rows of each matrix are contiguous.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

__all__ = ["grouped_matmul", "grouped_outer"]


def grouped_matmul(xp: Any, x: Any, positions: Any, matrices: Any) -> Any:
    """y[n,m,r,f] = Σ_c x[n,r,c]·W[p[n,m],f,c], with one product for all rows of a matrix.

    Args:
        xp: the library.
        x: the rows.
        positions: the matrix that each row is multiplied by.
        matrices: all matrices.
    """
    count, alone = positions.shape
    order, bounds = _groups(xp, positions, matrices.shape[0])
    parts = [
        xp.matmul(xp.take(x, order[start:stop] // alone, axis=0), matrices[number, ...].T)
        for number, start, stop in _each(bounds)
    ]
    shape = (count, alone, x.shape[1], matrices.shape[1])
    if not parts:
        return xp.reshape(xp.matmul(x, matrices[0, ...].T) if matrices.shape[0] else xp.zeros(shape), shape)
    made = xp.concat(parts, axis=0)
    return xp.reshape(xp.take(made, xp.argsort(order), axis=0), shape)


def grouped_outer(xp: Any, positions: Any, a: Any, b: Any, size: int) -> Any:
    """y[v,a,b] = Σ a[n,m,r,a]·b[n,m,r,b] over the rows where p[n,m] is v; rows at positions outside are dropped.

    Args:
        xp: the library.
        positions: the position of each row.
        a, b: the factors; one of them may be the same for all m.
        size: the number of positions.
    """
    order, bounds = _groups(xp, positions, size)
    empty = xp.zeros((a.shape[-1], b.shape[-1]), dtype=a.dtype)
    parts = [empty] * size
    for number, start, stop in _each(bounds):
        one, other = (_rows(xp, each, order[start:stop], positions.shape[1]) for each in (a, b))
        parts[number] = xp.matmul(one.T, other)
    return xp.stack(parts, axis=0)


def _groups(xp: Any, positions: Any, size: int) -> tuple[Any, list[int]]:
    """The order that sorts rows by position, where the rows of each position begin, and where the last ones end."""
    flat = xp.reshape(positions, (-1,))
    order = xp.argsort(flat, stable=True)
    bounds = xp.searchsorted(xp.take(flat, order, axis=0), xp.arange(size + 1, dtype=flat.dtype))
    return order, [int(bounds[number]) for number in range(size + 1)]


def _each(bounds: list[int]) -> Iterator[tuple[int, int, int]]:
    """Each position that occurs, with the start and the end of its rows."""
    for number, (start, stop) in enumerate(itertools.pairwise(bounds)):
        if start < stop:
            yield number, start, stop


def _rows(xp: Any, x: Any, order: Any, alone: int) -> Any:
    """The rows of a factor in some order, as a matrix."""
    count, each, _, columns = x.shape
    flat = xp.reshape(x, (count * each, -1, columns))
    return xp.reshape(xp.take(flat, order if each == alone else order // alone, axis=0), (-1, columns))
