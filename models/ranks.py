"""How a rank may be said, and what it means: 'same', a fraction of the parameters, an int, a tuple."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Integral

from tensornet.errors import ShapeError

__all__ = ["Rank", "check_sizes", "choose_ranks"]

Rank = str | int | float | Sequence[int]


def choose_ranks(
    rank: Rank, full: Sequence[int], parameters: Callable[[tuple[int, ...]], int]
) -> tuple[int, ...]:
    """The ranks that a user's `rank` stands for.

    Args:
        rank: `'same'` for full rank, a float for a fraction of the parameters at full rank, an
            int for every rank, or a rank for each mode. `1` is rank one and `1.0` is full rank.
        full: the largest useful rank of each mode.
        parameters: the number of elements at given ranks.

    Raises:
        ShapeError: it is none of these, or of the wrong length.

    Example:
        >>> choose_ranks(0.5, (8, 8), lambda r: 8 * r[0] + 8 * r[1])
        (4, 4)
    """
    if isinstance(rank, str):
        if rank.lower() != "same":
            raise _bad(rank, full)
        return tuple(full)
    if isinstance(rank, bool):
        raise _bad(rank, full)
    if isinstance(rank, Integral):
        return _checked((int(rank),) * len(full), rank, full)
    if isinstance(rank, float):
        return _fraction(rank, full, parameters)
    ranks = tuple(rank)  # type: ignore[arg-type]
    if len(ranks) != len(full) or not all(isinstance(each, Integral) for each in ranks):
        raise _bad(rank, full)
    return _checked(tuple(int(each) for each in ranks), rank, full)


def _checked(ranks: tuple[int, ...], rank: Rank, full: Sequence[int]) -> tuple[int, ...]:
    if any(each < 1 for each in ranks):
        raise _bad(rank, full)
    return ranks


def _bad(rank: Rank, full: Sequence[int]) -> ShapeError:
    return ShapeError(
        f"rank={rank!r} is not a rank for {len(full)} mode(s)",
        fix=f"give 'same', a fraction such as 0.1, a positive int, or {len(full)} of them (full rank: {tuple(full)})",
    )


def _fraction(
    fraction: float, full: Sequence[int], parameters: Callable[[tuple[int, ...]], int]
) -> tuple[int, ...]:
    """The ranks, in proportion to the full ones, whose parameters come nearest to the fraction."""
    if not fraction > 0:
        raise _bad(fraction, full)
    if fraction == 1.0:
        return tuple(full)
    target = fraction * parameters(tuple(full))

    def at(share: float) -> tuple[int, ...]:
        return tuple(max(1, round(share * each)) for each in full)

    shares = {0.0, *(step / each for each in full for step in _steps(each))}
    return min((at(share) for share in sorted(shares)), key=lambda ranks: abs(parameters(ranks) - target))


def _steps(size: int) -> Sequence[float]:
    """Where rounding changes: all half steps of a small rank, 512 of a large one."""
    if size <= 512:
        return [step + 0.5 for step in range(size)]
    return [size * step / 512 for step in range(1, 513)]


def check_sizes(sizes: int | Sequence[int], what: str) -> tuple[int, ...]:
    """Sizes as a tuple of positive integers, one at least.

    Raises:
        ShapeError: they are not.
    """
    found: tuple[int, ...] = (sizes,) if isinstance(sizes, int) else tuple(sizes)
    whole = all(isinstance(size, Integral) and not isinstance(size, bool) for size in found)
    if not 1 <= len(found) <= 12 or not whole or min(found) < 1:
        raise ShapeError(f"{what} is {sizes!r}", fix="give 1 to 12 positive integers")
    return tuple(int(size) for size in found)
