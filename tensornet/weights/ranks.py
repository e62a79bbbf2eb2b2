"""Ranks: 'same', a fraction of the parameters, an int, or a tuple."""

from __future__ import annotations

import bisect
import itertools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from numbers import Real

import numpy as np

from ..errors import ShapeError, TensornetWarning, warn

Rank = str | int | float | Sequence[int]
Ranks = tuple[int, ...]

LARGEST = 2**62
"""Element counts from here on are computed as Python integers, not as int64."""

SEARCHED = 20_000
"""Up to this many choices of ranks, all are compared; of more, at most this many."""

WIDE = 0.25
"""Of many choices, ranks within this share of the proportional one are compared."""

CLOSE = 0.01
"""Counts within this share of the requested count are treated as equal to it."""

FAR = 0.1
"""A count that is off by more than this share gives a warning."""


def choose_ranks(
    rank: Rank, full: Sequence[int], parameters: Callable[[Ranks], int], dense: int | None = None
) -> Ranks:
    """The ranks that the argument `rank` stands for.

    A float is a fraction of the dense parameters. It gives the ranks with the nearest number of
    parameters. Among those within one per cent, it gives the ranks that are nearest to
    proportional to the full ones.

    Args:
        rank: `'same'` for full rank, a float for a fraction of the dense parameters, an int for
            every rank, or a rank for each mode. `1` is rank one and `1.0` is as many parameters
            as the dense form has.
        full: the largest useful rank of each mode.
        parameters: the number of elements at given ranks, a sum of products of them.
        dense: the number of elements of the dense form; by default that at full rank.

    Raises:
        ShapeError: `rank` is none of these, or has the wrong length.

    Warns:
        TensornetWarning: the nearest number of parameters is more than 10 % off, or more than dense.

    Example:
        >>> choose_ranks(0.5, (8, 8), lambda r: 8 * r[0] + 8 * r[1])
        (4, 4)
    """
    if isinstance(rank, str) and rank.lower() == "same":
        return tuple(full)
    number = _whole(rank)
    if (
        number is None
        and isinstance(rank, Real)
        and not isinstance(rank, bool)
        and 0 < float(rank) < math.inf
    ):
        return _fraction(
            float(rank), tuple(full), parameters, parameters(tuple(full)) if dense is None else dense
        )
    return _one_for_each(rank, full)


def _one_for_each(rank: Rank, full: Sequence[int]) -> Ranks:
    """A rank for each mode, of one for all or of as many as there are modes."""
    number = _whole(rank)
    given: Ranks | None = None
    if number is not None:
        given = (number,) * len(full)
    elif isinstance(rank, Sequence) and not isinstance(rank, str | bytes):
        given = tuple(_whole(each) or 0 for each in rank)
    if given is None or len(given) != len(full) or any(each < 1 for each in given):
        one_each = f"{len(full)} of them (full rank: {tuple(full)})"
        raise ShapeError(
            f"rank={rank!r} is not a rank for {len(full)} mode(s)",
            fix=f"give 'same', a fraction such as 0.1, a positive int, or {one_each}",
        )
    return given


def _whole(value: object) -> int | None:
    """An integer of any type as an int; None for anything else."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def _fraction(fraction: float, full: Ranks, parameters: Callable[[Ranks], int], dense: int) -> Ranks:
    """The ranks whose number of parameters is nearest to a fraction of the dense number."""
    target = fraction * dense
    ideal = _proportional(target, full, parameters)
    choices: list[Ranks] = [*_choices(ideal, full)]
    columns = np.array(choices, np.int64 if parameters(full) < LARGEST else object).T
    counts = np.broadcast_to(parameters(tuple(columns)), len(choices))  # `parameters` works on arrays too
    off = abs(counts - target)
    near = np.flatnonzero(off <= max(off.min(), CLOSE * target))
    apart = (np.log(columns[:, near].astype(float) / np.array(ideal)[:, None]) ** 2).sum(0)
    best = int(near[np.lexsort((apart, counts[near] > dense))[0]])
    _tell(fraction, target, int(counts[best]), choices[best], dense)
    return choices[best]


def _choices(ideal: Sequence[float], full: Ranks) -> Iterator[Ranks]:
    """The ranks that are compared: all, or those near the ideal ones."""
    few, left, tried = math.prod(full) <= SEARCHED, SEARCHED, dict[int, list[int]]()
    for n, k in enumerate(sorted(range(len(full)), key=full.__getitem__)):
        most, wide = int(left ** (1 / (len(full) - n)) + 1e-9), full[k] if few else max(1.5, WIDE * ideal[k])
        first, last = max(1, math.ceil(ideal[k] - wide)), min(full[k], math.floor(ideal[k] + wide))
        values = range(first, last + 1, max(1, (last - first) // (most + 1)))
        tried[k] = sorted(sorted(values, key=lambda each, best=ideal[k]: abs(each - best))[:most])  # type: ignore[misc]
        left //= len(tried[k])
    return itertools.product(*(tried[k] for k in range(len(full))))


def _proportional(target: float, full: Ranks, parameters: Callable[[Ranks], int]) -> tuple[float, ...]:
    """The real-valued ranks, proportional to the full ones and at least 1, that have `target` parameters."""
    steps = 2**52

    def at(share: float) -> tuple[float, ...]:
        return tuple(max(1.0, share * each) for each in full)

    return at(bisect.bisect(range(steps), target, key=lambda step: parameters(at(step / steps))) / steps)  # type: ignore[arg-type]


def _tell(fraction: float, target: float, count: int, ranks: Ranks, dense: int) -> None:
    """Warns if the nearest count is far from the target, or exceeds the dense count."""
    if abs(count - target) <= FAR * target and count <= dense:
        return
    shown = ranks[0] if len(ranks) == 1 else ranks
    warn(
        TensornetWarning(
            f"rank={fraction} asks for {target:.10g} of {dense} parameters; the nearest is {count}, at rank {shown}"
            + (", more than dense" if count > dense else ""),
            fix=f"say rank={shown} if that is meant, or choose another factorization or sizes with more factors",
        )
    )


def check_sizes(sizes: int | Sequence[int], what: str) -> Ranks:
    """Sizes as a tuple of 1 to 12 positive integers.

    Raises:
        ShapeError: they are anything else.
    """
    one = _whole(sizes)
    given = (one,) if one is not None else tuple(sizes) if isinstance(sizes, Sequence) else ()
    found = tuple(_whole(size) or 0 for size in given)
    if not 1 <= len(found) <= 12 or min(found) < 1:
        raise ShapeError(f"{what} is {sizes!r}", fix="give 1 to 12 positive integers")
    return found
