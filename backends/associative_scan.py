"""Associative scans in array operations, for every library."""

from __future__ import annotations

from typing import Any

__all__ = ["recurrence"]


def recurrence(xp: Any, a: Any, b: Any, start: float, back: float) -> Any:
    """y with y[0] = start and y[j] = a[j-1]·y[j-1] + b[j-1], along the last axis.

    Two steps compose to one: a'·(a·y + b) + b' = (a'·a)·y + (a'·b + b'). So each round doubles the number of steps that
    an element combines. (G. Blelloch, Prefix Sums and Their Applications, 1990.)

    Args:
        xp: the library.
        a, b: the factor of the previous value and the addend; one of them may be a number.
        start: the first value.
        back: nonzero to run from the last position to the first.
    """
    is_product = isinstance(b, int | float) and not b and hasattr(xp, "cumulative_prod")
    a = xp.full_like(b, a) if isinstance(a, int | float) else a
    if not is_product:
        b = xp.full_like(a, b) if isinstance(b, int | float) else b
        a, b = xp.broadcast_arrays(a, b)
    if not a.shape[-1]:
        return a
    if back:
        a, b = xp.flip(a, axis=-1), b if is_product else xp.flip(b, axis=-1)
    first = a[..., :1]
    begin = xp.full_like(first, start)
    if is_product:
        found = xp.cumulative_prod(xp.concat([begin, a[..., :-1]], axis=-1), axis=-1)
    else:
        total = xp.concat([begin, b[..., :-1]], axis=-1)
        found = _doubled(xp, total, xp.concat([xp.full_like(first, 1), a[..., :-1]], axis=-1))
    return xp.flip(found, axis=-1) if back else found


def _doubled(xp: Any, total: Any, factor: Any) -> Any:
    """Composes each step `y -> factor·y + total` with all steps before it, twice as many in each round."""
    behind = 1
    while behind < total.shape[-1]:
        reached = total[..., behind:] + factor[..., behind:] * total[..., :-behind]
        total = xp.concat([total[..., :behind], reached], axis=-1)
        factor = xp.concat([factor[..., :behind], factor[..., behind:] * factor[..., :-behind]], axis=-1)
        behind *= 2
    return total
