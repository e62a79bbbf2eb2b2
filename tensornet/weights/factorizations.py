"""The table of factorizations, each form of a weight as one equation; and the choice of ranks.

    tucker     G[r*] * U*[m*,r*]        a core, and a matrix for each mode
    tt         G*[r<,m*,r>]             a train of cores

`*` is the number of a mode. A factor with `*` in its name occurs once for each mode, and `*` inside it means that
mode. In a factor without it, `*` inside stands for all modes.

    m*         the modes, one by one: every part of every dimension of the weight
    p*         the parts at the same place of all dimensions, together: o1,i1 and o2,i2
    o, i       all of the first dimension; all of the others
    o2, i1     a part of the first dimension, of the second
    r          the one rank
    r*, r*+1   the rank of each mode, and that of the next one; the first follows the last
    r<, r>     the rank before a mode and after it; none before the first or after the last
    r1, r2     ranks by their numbers
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
import operator
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real

import numpy as np

from ..errors import ShapeError, TensornetWarning, checked_number, near, warn

Parts = Sequence[Sequence[str]]
"""The axes of each dimension of a weight."""

Sizes = Sequence[Sequence[int]]
"""The sizes of these axes."""

Rank = str | int | float | Sequence[int]
"""'same', a fraction of the parameters, an int, or one for each."""

Ranks = tuple[int, ...]


@dataclass(frozen=True)
class Factor:
    """A factor of a weight, and its axes."""

    name: str
    axes: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name}[{','.join(self.axes)}]"


@dataclass(frozen=True)
class Factorization:
    """A form of a weight.

    Attributes:
        equation: its factors, in the short notation above.
        largest: gives the largest useful value of each rank from the sizes of the modes. If factors are shared, the
            number of weights that share them comes last among these sizes.
        parts: the number of parts that each dimension must have, if the form requires it.
        shared: the factors that several weights share.
    """

    equation: str
    largest: Callable[[tuple[int, ...]], tuple[int, ...]] = lambda sizes: ()
    parts: tuple[int, ...] = ()
    shared: tuple[str, ...] = ()

    @property
    def pairs(self) -> bool:
        """Whether it pairs the parts at the same place, so that all dimensions must have equally many."""
        return "p*" in self.equation

    @property
    def halves(self) -> bool:
        """Whether it treats the weight as a matrix: its first dimension by all others."""
        return not re.search(r"[mp]\*|[oi]\d", self.equation)

    def modes(self, parts: Parts) -> tuple[tuple[str, ...], ...]:
        """The axes of each mode."""
        if self.pairs:
            return tuple(zip(*parts, strict=True))
        if self.halves:
            return tuple(parts[0]), tuple(axis for dim in parts[1:] for axis in dim)
        return tuple((axis,) for dim in parts for axis in dim)

    def factors(self, parts: Parts) -> tuple[Factor, ...]:
        """The factors of a weight whose dimensions have these parts."""
        modes = self.modes(parts)
        every = range(1, len(modes) + 1)
        found: list[Factor] = []
        for name, inside in re.findall(r"(\w+\*?)\[([^\]]*)\]", self.equation):
            for numbers in [[n] for n in every] if name.endswith("*") else [every]:
                axes = (axis for each in inside.split(",") for axis in _axes(each, numbers, modes, parts))
                found.append(Factor(name.replace("*", str(*numbers[:1])), tuple(axes)))
        return tuple(found)

    def check(self, name: str, parts: Sequence[int]) -> None:
        """Raises an error for a weight that has no such form.

        Args:
            name: the name of the form, for the error.
            parts: the number of parts of each dimension.

        Raises:
            ShapeError: the weight has too few dimensions, or numbers of parts that do not fit.
        """
        shown = (
            f"'{name}' of {len(parts)} dimension(s) in {' and '.join(str(each) for each in parts)} part(s)"
        )
        if self.parts and tuple(parts) != self.parts:
            fix = f"it is made for {len(self.parts)} dimensions in {' and '.join(map(str, self.parts))} parts"
            raise ShapeError(f"there is no {shown}", fix=fix)
        if self.pairs and len(set(parts)) > 1:
            raise ShapeError(f"there is no {shown}", fix="give as many of each")
        if (self.halves and len(parts) < 2) or ("r*+1" in self.equation and sum(parts) < 2):
            raise ShapeError(f"there is no {shown}", fix="it needs two at least: choose another form")


def _axes(
    entry: str, numbers: Sequence[int], modes: Sequence[tuple[str, ...]], parts: Parts
) -> tuple[str, ...]:
    """The axes that an entry in the short notation stands for, at the given modes."""
    match entry:
        case "m*" | "p*":
            return tuple(axis for n in numbers for axis in modes[n - 1])
        case "o" | "i":
            return modes["oi".index(entry)]
        case "r" | "r1" | "r2" | "r3":
            return (entry,)
        case "r*":
            return tuple(f"r{n}" for n in numbers)
        case "r*+1":
            return tuple(f"r{n % len(modes) + 1}" for n in numbers)
        case "r<":
            return tuple(f"r{n - 1}" for n in numbers if n > 1)
        case "r>":
            return tuple(f"r{n}" for n in numbers if n < len(modes))
    return (parts["oi".index(entry[0])][int(entry[1:]) - 1],)


# ---------------------------------------------------------------------------- the largest useful ranks


def _each(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """One rank for each mode: at most the size of the mode, and the product of all others."""
    return tuple(min(size, math.prod(sizes) // size) for size in sizes) if len(sizes) > 1 else sizes


def _terms(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The number of terms that suffices for any tensor: the product of all modes but the longest."""
    return (math.prod(sizes) // max(sizes),)


def _cuts(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The ranks of the matrices at the cuts of a train: at most the size on each side of a cut."""
    return tuple(min(math.prod(sizes[:n]), math.prod(sizes[n:])) for n in range(1, len(sizes)))


def _ring(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The rank that links the ends, and then the ranks of a train."""
    return (min(sizes[0], sizes[-1]), *_cuts(sizes))


def _blocks(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The rank of a block, of o1 rows and i2 columns."""
    return (min(sizes[0], sizes[-1]),)


FACTORIZATIONS: dict[str, Factorization] = {
    "dense": Factorization("W[m*]"),
    "tucker": Factorization("G[r*] * U*[m*,r*]", _each),
    "cp": Factorization("U*[m*,r]", _terms),
    "tt": Factorization("G*[r<,m*,r>]", _cuts),
    "blocktt": Factorization("G*[r<,p*,r>]", _cuts),
    "kronecker": Factorization("A*[r,p*]", _terms),
    "low_rank": Factorization("U[o,r] * V[r,i]", _cuts),
    "tr": Factorization("G*[r*,m*,r*+1]", _ring),
    "btt": Factorization("L[o1,o2,i1,r] * R[o2,i1,r,i2]", _blocks, (2, 2)),
    "monarch": Factorization("L[o1,o2,i1] * R[o2,i1,i2]", parts=(2, 2)),
}
"""The forms by name, each with its equation and its largest useful ranks.

| form | W[o₁…,i₁…] = | source |
|---|---|---|
| tucker | Σ G[r₁…]·∏ Uₖ[mₖ,rₖ] | Tucker (1966) |
| cp | Σ_r ∏ Uₖ[mₖ,r] | Hitchcock (1927) |
| tt | Σ ∏ Gₖ[rₖ₋₁,mₖ,rₖ] | Oseledets (2011), tensor train |
| blocktt | Σ ∏ Gₖ[rₖ₋₁,oₖ,iₖ,rₖ] | Novikov et al. (2015), the tensor train of a matrix |
| kronecker | Σ_r ∏ Aₖ[r,oₖ,iₖ] | Van Loan and Pitsianis (1993) |
| low_rank | Σ_r U[o,r]·V[r,i] | Eckart and Young (1936) |
| tr | Σ ∏ Gₖ[rₖ,mₖ,rₖ₊₁], r_{M+1} = r₁ | Zhao et al. (2016), tensor ring |
| btt | Σ_r L[o₁,o₂,i₁,r]·R[o₂,i₁,r,i₂] | Qiu et al. (2024), block tensor train |
| monarch | L[o₁,o₂,i₁]·R[o₂,i₁,i₂] | Dao et al. (2022); btt is a sum of these |
"""

SHARING: dict[str, Factorization] = {
    "fact_tt": Factorization("U[o,r1] * S[r1,r2] * V[r2,i]", lambda sizes: sizes[:2], shared=("U", "V")),
    "fact_tk": Factorization("U[o,r1] * C[r1,r2,r3] * P[r3] * V[r2,i]", _each, shared=("U", "C", "V")),
}
"""The forms of several weights that share factors: their stack W[l,o,i] is one tensor.

| form | W_l[o,i] = | shared | source |
|---|---|---|---|
| fact_tt | Σ U[o,r₁]·S_l[r₁,r₂]·V[r₂,i] | U, V | Jie and Deng (2023), FacT-TT; Bershatsky et al. (2024), LoTR |
| fact_tk | Σ U[o,r₁]·C[r₁,r₂,r₃]·P_l[r₃]·V[r₂,i] | U, C, V | Jie and Deng (2023), FacT-TK |
"""


def form_named(name: str, among: Sequence[str] = tuple(FACTORIZATIONS)) -> str:
    """The name of a factorization in the table, from a name in upper or lower case.

    Args:
        name: the name from the user.
        among: the names to choose from.

    Raises:
        ShapeError: no factorization has this name.
    """
    kind = f"{name}".lower()
    if kind not in among:
        hint = (
            "write an equation with its left side, W = A[o,r] * B[r,i]; else "
            if "[" in kind
            else near(kind, among)
        )
        fix = f"{hint}choose of {', '.join(among)}"
        raise ShapeError(f"there is no factorization '{name}'", fix=fix)
    return kind


@dataclass(frozen=True)
class Factored:
    """A weight as a product of factors, with its ranks.

    Attributes:
        factors: the factors of the product.
        ranks: the name and the value of each rank.
    """

    factors: tuple[Factor, ...]
    ranks: Mapping[str, int]

    def __str__(self) -> str:
        return " * ".join(map(self._shown, self.factors))

    def renamed(self, names: Mapping[str, str]) -> Factored:
        """A copy with other names for some factors and ranks."""
        factors = tuple(
            Factor(names.get(each.name, each.name), tuple(names.get(axis, axis) for axis in each.axes))
            for each in self.factors
        )
        return Factored(factors, {names.get(name, name): size for name, size in self.ranks.items()})

    def _shown(self, factor: Factor) -> str:
        """A factor, summed over ranks that no other factor has: with one mode there is only one factor."""
        axes = [axis for each in self.factors for axis in each.axes]
        alone = [axis for axis in factor.axes if axis in self.ranks and axes.count(axis) == 1]
        return f"sum[{','.join(alone)}]({factor})" if alone else str(factor)


def factored(
    name: str,
    parts: Parts,
    sizes: Sizes,
    rank: Rank = "same",
    called: Mapping[str, str] | None = None,
    shared: Collection[str] = (),
    times: int = 1,
) -> Factored:
    """A weight in one of the forms of the table.

    Args:
        name: the form.
        parts: the axes of each dimension of the weight.
        sizes: the sizes of these axes.
        rank: 'same' for full rank, a float for a fraction of the dense parameters, an int, or one for each rank.
        called: other names for factors and ranks.
        shared: the factors that several weights share.
        times: the number of these weights. A fraction refers to the parameters of all of them.

    Raises:
        ShapeError: the weight has no such form, or the rank does not fit.

    Warns:
        TensornetWarning: no ranks come within 10 % of the fraction, or the nearest ones need more than dense.

    Example:
        >>> print(factored("blocktt", (("o1", "o2"), ("i1", "i2")), ((4, 8), (8, 4)), rank=2))
        G1[o1,i1,r1] * G2[r1,o2,i2]
    """
    form = (FACTORIZATIONS | SHARING)[name]
    form.check(name, [len(dim) for dim in parts])
    known = dict(zip(itertools.chain(*parts), itertools.chain(*sizes), strict=True))
    factors = form.factors(parts)
    modes = [math.prod(known[axis] for axis in mode) for mode in form.modes(parts)]
    ranks = tuple(dict.fromkeys(axis for factor in factors for axis in factor.axes if axis not in known))
    count = functools.partial(_parameters, factors, known, ranks, shared, times)
    full = form.largest((*modes, times) if form.shared else tuple(modes))
    chosen = () if name == "dense" else choose_ranks(rank, full, count, times * math.prod(known.values()))
    return Factored(factors, dict(zip(ranks, chosen, strict=True))).renamed(called or {})


def _parameters(
    factors: Iterable[Factor],
    known: Mapping[str, int],
    ranks: Sequence[str],
    shared: Collection[str],
    times: int,
    values: Sequence[int],
) -> int:
    """The number of parameters of so many weights, at some values of their ranks. Shared factors count once."""
    sizes = {**known, **dict(zip(ranks, values, strict=True))}
    counts = ((factor.name, math.prod(sizes[axis] for axis in factor.axes)) for factor in factors)
    return sum(count * (1 if name in shared else times) for name, count in counts)


# ---------------------------------------------------------------------------- parts of a dimension


@functools.lru_cache(maxsize=1024, typed=True)  # 2.0 is refused
def tensorize(size: int, modes: int) -> tuple[int, ...]:
    """The factors of a size that are as nearly equal as possible (with the least sum), the smallest first.

    Args:
        size: the size to split, at most 2⁴⁰.
        modes: the number of factors, 1 to 12.

    Raises:
        ShapeError: one of these is no positive integer, or is too large.

    Example:
        >>> tensorize(768, 3), tensorize(3072, 2), tensorize(7, 2)
        ((8, 8, 12), (48, 64), (1, 7))
    """
    size = checked_number(size, "size", 1, 2**40, whole=True)
    modes = checked_number(modes, "modes", 1, 12, whole=True)
    divisors = _divisors(size)

    @functools.cache
    def best(rest: int, count: int, least: int) -> tuple[int, ...] | None:
        """The factors with the least sum, none of them below `least`; None if there are none."""
        if count == 1:
            return (rest,) if rest >= least else None
        firsts = itertools.takewhile(lambda first: first**count <= rest, divisors)
        tried = (each for each in firsts if each >= least and rest % each == 0)
        found = ((first, *others) for first in tried if (others := best(rest // first, count - 1, first)))
        return min(found, key=sum, default=None)

    chosen = best(size, modes, 1)
    assert chosen is not None
    return chosen


def _divisors(size: int) -> list[int]:
    small = [each for each in range(1, math.isqrt(size) + 1) if size % each == 0]
    return sorted({*small, *(size // each for each in small)})


# ---------------------------------------------------------------------------- ranks

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
    close = np.flatnonzero(off <= max(off.min(), CLOSE * target))
    apart = (np.log(columns[:, close].astype(float) / np.array(ideal)[:, None]) ** 2).sum(0)
    best = int(close[np.lexsort((apart, counts[close] > dense))[0]])
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
