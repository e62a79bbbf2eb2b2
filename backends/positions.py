"""Functions of positions, for all libraries: the largest elements, grouped GEMM, scatter, and integer division.

Each takes the functions of a library first.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from tensornet.errors import ShapeError


def top(library: Any, x: Any, axis: int, size: int) -> Any:
    """The positions of the largest elements along an axis, the largest first; equal elements keep their order.

    Args:
        library: the functions of the library.
        x: the elements.
        axis: the dimension, counted from the first.
        size: the number of elements.
    """
    xp, count = library.xp, x.shape[axis]
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


# ---------------------------------------------------------------------------- grouped GEMM


def grouped_matmul(library: Any, x: Any, positions: Any, matrices: Any) -> Any:
    """y[n,m,r,f] = Σ_c x[n,r,c]·W[p[n,m],f,c], with one product for all rows of a matrix.

    Args:
        library: the functions of the library.
        x: the rows.
        positions: the matrix that each row is multiplied by.
        matrices: all matrices.
    """
    xp, (count, alone) = library.xp, positions.shape
    order, bounds = _groups(library, positions, matrices.shape[0])
    rows, each = xp.take(x, order // alone, axis=0), library.unbind(matrices, 0)
    parts = [xp.matmul(rows[start:stop, ...], each[number].T) for number, start, stop in _each(bounds)]
    shape = (count, alone, x.shape[1], matrices.shape[1])
    if not parts:
        return library.zeros(x, shape)
    return xp.reshape(xp.take(xp.concat(parts, axis=0), xp.argsort(order), axis=0), shape)


def grouped_outer(library: Any, positions: Any, a: Any, b: Any, size: int) -> Any:
    """y[v,a,b] = Σ a[n,m,r,a]·b[n,m,r,b] over the rows where p[n,m] is v; rows at positions outside are dropped.

    Args:
        library: the functions of the library.
        positions: the position of each row.
        a, b: the factors; one of them may be the same for all m.
        size: the number of positions.
    """
    xp, alone = library.xp, positions.shape[1]
    order, bounds = _groups(library, positions, size)
    parts = [library.zeros(a, (a.shape[-1], b.shape[-1]))] * size
    for number, start, stop in _each(bounds):
        one, other = (_rows(xp, each, order[start:stop], alone) for each in (a, b))
        parts[number] = xp.matmul(one.T, other)
    return xp.stack(parts, axis=0)


def _groups(library: Any, positions: Any, size: int) -> tuple[Any, list[int]]:
    """The order that sorts rows by position, where the rows of each position begin, and where the last ones end."""
    xp, flat = library.xp, library.xp.reshape(positions, (-1,))
    order = xp.argsort(flat, stable=True)
    starts = xp.arange(size + 1, dtype=flat.dtype, device=library.device(flat))
    bounds = xp.searchsorted(xp.take(flat, order, axis=0), starts)
    return order, [int(bounds[number]) for number in range(size + 1)]


def _each(bounds: list[int]) -> Iterator[tuple[int, int, int]]:
    """Each position that occurs, with the start and the end of its rows."""
    for number, (start, stop) in enumerate(itertools.pairwise(bounds)):
        if start < stop:
            yield number, start, stop


def _rows(xp: Any, x: Any, order: Any, alone: int) -> Any:
    """The rows of a factor in some order, as a matrix."""
    count, each, rows, columns = x.shape
    chosen = order if each == alone else order // alone
    found = xp.take(xp.reshape(x, (count * each, rows, columns)), chosen, axis=0)
    return xp.reshape(found, (chosen.shape[0] * rows, columns))


# ---------------------------------------------------------------------------- scatter


def scatters(
    xp: Any,
    integer: Any,
    summed: Callable[[Any, Any, int], Any],
    is_checked: Callable[[Any], bool] = lambda positions: False,
    counted: Callable[[Any, int], Any] | None = None,
) -> dict[str, Callable[..., Any]]:
    """The functions that add up and count rows, for the namespace of a backend.

    Args:
        xp: the library.
        integer: the element type of positions; of 64 bits where the library has it.
        summed: takes an index for each row, the rows and the number of indices, and returns the sums.
        is_checked: whether `within` has read these positions, where it is called.
        counted: takes indices and their number, and returns how often each occurs.
    """

    def scatter_add(positions: Any, x: Any, size: int, axis: int = 0, inside: bool = False) -> Any:
        """The sums of rows at given positions: y[b,v,c] = Σ_s x[b,s,c], where positions[b,s] is v.

        Rows outside of `size` are dropped, unless `inside` says there are none. Along an axis: y[c,v] = Σ_s x[c,s].
        """
        if axis:
            rows = xp.moveaxis(x, (axis,), (0,))  # of torch, those of tuples alone run under vmap
            return xp.moveaxis(scatter_add(positions, rows, size, 0, inside), (0,), (axis,))
        rows, count, all_rows = _rows_of(xp, positions, integer, size, inside and is_checked(positions))
        batch, channels = positions.shape[:-1], x.shape[positions.ndim :]
        wide = xp.astype(x, xp.float32) if x.dtype.itemsize == 2 else x  # half is too short for long sums
        if wide.shape != (*rows.shape, *channels):
            wide = xp.broadcast_to(wide, (*positions.shape, *channels)).reshape(*rows.shape, *channels)
        made = summed(rows, wide, all_rows)[:count]
        return xp.astype(made.reshape(*batch, size, *channels), x.dtype, copy=False)

    def scatter_count(positions: Any, size: int, inside: bool = False) -> Any:
        """How often each of `size` positions occurs: y[b,v] = Σ_s (positions[b,s] == v)."""
        rows, count, all_rows = _rows_of(xp, positions, integer, size, inside and is_checked(positions))
        found = counted(rows, all_rows) if counted else xp.bincount(rows, minlength=all_rows)
        return found[:count].reshape(*positions.shape[:-1], size)

    return {"scatter_add": scatter_add, "scatter_count": scatter_count}


def _rows_of(xp: Any, positions: Any, integer: Any, size: int, inside: bool) -> tuple[Any, int, int]:
    """The flat index of each position, with batches one after another, or after the last if it may be outside; the
    number of those inside, and of all."""
    found = positions = xp.astype(positions, integer, copy=False)
    count = size
    if positions.ndim == 2:
        count = len(positions) * size
        found = found + size * (xp.cumsum(xp.ones_like(found[:, :1]), 0) - 1)
    if inside:
        return found.reshape(-1), count, count
    found = xp.where((positions >= 0) & (positions < size), found, count)
    return found.reshape(-1), count, count + 1


# ---------------------------------------------------------------------------- integer division


def floor_divide(library: Any, a: Any, b: Any) -> Any:
    """⌊a / b⌋ of arrays, or of one and a number; for integers 0 where b is 0.

    Libraries return 0 or −1, raise an error, or end the process. Some also end it when the least integer is divided
    by −1.
    """
    if not _is_unsafe(a, b):
        return a // b
    xp, b = library.xp, library.xp.asarray(b)
    quotient = a // _safe(xp, b)
    return xp.where(b == 0, xp.zeros_like(quotient), xp.where(b == -1, -quotient, quotient))


def remainder(library: Any, a: Any, b: Any) -> Any:
    """a − b·⌊a / b⌋; for integers 0 where b is 0."""
    return a % (_safe(library.xp, library.xp.asarray(b)) if _is_unsafe(a, b) else b)


def _is_unsafe(a: Any, b: Any) -> bool:
    """Whether these are integers, and the divisor may be 0 or −1, by which libraries do not divide alike."""
    whole = all(isinstance(each, int) or "int" in str(getattr(each, "dtype", "")) for each in (a, b))
    return whole and not (isinstance(b, int) and b not in (0, -1))


def _safe(xp: Any, b: Any) -> Any:
    """The divisor with 0 and −1 replaced by 1: the remainder is then 0, and the quotient the dividend."""
    return xp.where((b == 0) | (b == -1), xp.ones_like(b), b)
