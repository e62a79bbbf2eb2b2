"""Symbolic sizes: polynomials in the sizes of axes, with floor division, in a normal form.

    size = Σ coefficient · Π atom ** power      coefficients are rational, powers whole
    atom = a name | ⌊size⌋ | max(0, size) | a sum in a denominator

A name stands for a whole number that is not negative. Whole terms stand outside of a floor, so that
`floor(h/2 + 1/2) - 1` and `floor(h/2 - 3/2) + 1` are one; `max`, `min` and `ceil` are written with these atoms.
Equal sizes are equal values as far as this form can tell. sympy stays at the border: `of_sympy`, `to_sympy`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeAlias

from ..sizes import symbol

if TYPE_CHECKING:
    from sympy import Expr

__all__ = ["ONE", "ZERO", "Size", "floor", "of_sympy", "product"]

Number: TypeAlias = "int | Fraction"


@dataclass(frozen=True)
class Floor:
    """⌊size⌋ of what is not whole: its coefficients are between 0 and 1."""

    size: Size

    def __str__(self) -> str:
        return f"floor({self.size})"


@dataclass(frozen=True)
class Positive:
    """max(0, size) of what may be negative or not; its first coefficient is positive."""

    size: Size

    def __str__(self) -> str:
        return f"max(0, {self.size})"


@dataclass(frozen=True)
class Total:
    """A sum that something is divided by: its powers are negative."""

    size: Size

    def __str__(self) -> str:
        return f"({self.size})"


Atom: TypeAlias = "str | Floor | Positive | Total"
Monomial: TypeAlias = "tuple[tuple[Atom, int], ...]"


class Size:
    """A size in normal form: terms with a coefficient other than 0, in one order.

    Attributes:
        terms: coefficients by monomial, sorted, the constant last.
    """

    __slots__ = ("_hash", "_names", "terms")
    terms: tuple[tuple[Monomial, Number], ...]

    def __init__(self, terms: Mapping[Monomial, Number]) -> None:
        found = [(each, by) for each, by in terms.items() if by]
        self.terms = tuple(sorted(found, key=_place) if len(found) > 1 else found)
        self._hash = hash(self.terms)
        self._names: frozenset[str] | None = None

    @staticmethod
    def of(value: SizeLike) -> Size:
        """A whole number, the name of a size, or a size."""
        if isinstance(value, Size):
            return value
        return Size({((value, 1),): 1}) if isinstance(value, str) else Size({(): value})

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Size) and self._hash == other._hash and self.terms == other.terms
        )

    def __hash__(self) -> int:
        return self._hash

    # ---- arithmetic

    def __add__(self, other: SizeLike) -> Size:
        terms = Size.of(other).terms
        if not terms or not self.terms:
            return self if not terms else Size.of(other)
        found = dict(self.terms)
        for monomial, by in terms:
            found[monomial] = found.get(monomial, 0) + by
        return Size(found)

    def __sub__(self, other: SizeLike) -> Size:
        return self + Size.of(other) * -1

    def __neg__(self) -> Size:
        return self * -1

    def __mul__(self, other: SizeLike | Fraction) -> Size:
        if other == 1 or self.terms == _UNIT:
            return self if other == 1 else Size.of(other)  # type: ignore[arg-type]
        factor = Size({(): other}) if isinstance(other, int | Fraction) else Size.of(other)
        found: dict[Monomial, Number] = {}
        for one, a in self.terms:
            for two, b in factor.terms:
                monomial = _times(one, two)
                found[monomial] = found.get(monomial, 0) + a * b
        return Size(found)

    def __truediv__(self, other: SizeLike) -> Size:
        below = Size.of(other)
        if not below.terms:
            raise ZeroDivisionError(f"{self} / 0")
        if len(below.terms) > 1:
            return self * Size({((Total(below), -1),): 1})
        ((monomial, by),) = below.terms
        return self * Size({tuple((atom, -power) for atom, power in monomial): Fraction(1) / by})

    def __pow__(self, power: int) -> Size:
        if power < 0:
            return ONE / self**-power
        return self if power == 1 else product([self] * power)

    def __floordiv__(self, other: SizeLike) -> Size:
        return floor(self / other)

    def maximum(self, other: SizeLike) -> Size:
        """The larger of two: a + max(0, b - a)."""
        return self + _positive(Size.of(other) - self)

    def minimum(self, other: SizeLike) -> Size:
        """The smaller of two: a - max(0, a - b)."""
        return self - _positive(self - other)

    # ---- what it is

    @property
    def value(self) -> int | None:
        """The whole number that it is; nothing while a name is in it."""
        if not self.terms:
            return 0
        ((monomial, by), *more) = self.terms
        return int(by) if not monomial and not more and by.denominator == 1 else None

    @property
    def name(self) -> str | None:
        """The name that it is, and no more."""
        if len(self.terms) == 1 and self.terms[0][1] == 1 and len(self.terms[0][0]) == 1:
            ((atom, power),) = self.terms[0][0]
            return atom if isinstance(atom, str) and power == 1 else None
        return None

    @property
    def names(self) -> frozenset[str]:
        """The names in it."""
        if self._names is None:
            atoms = [atom for monomial, _ in self.terms for atom, _ in monomial]
            inner = [frozenset({each}) if isinstance(each, str) else each.size.names for each in atoms]
            self._names = frozenset[str]().union(*inner)
        return self._names

    @property
    def is_never_negative(self) -> bool:
        """Whether no coefficient is negative: atoms are not."""
        return all(by > 0 and all(map(_is_never_negative, monomial)) for monomial, by in self.terms)

    # ---- other sizes in the place of names

    def at(self, sizes: Mapping[str, SizeLike]) -> Size:
        """The size with others in the place of names."""
        if not self.names.intersection(sizes):
            return self
        return sum((product(_put_in(each, sizes) for each in one) * by for one, by in self.terms), ZERO)

    # ---- at the border

    def to_sympy(self) -> int | Expr:
        """The size as an integer or a sympy expression."""
        return self.value if self.value is not None else _to_sympy(self)

    def __str__(self) -> str:
        texts = [_shown(monomial, by) for monomial, by in self.terms]
        return " + ".join(texts).replace("+ -", "- ") or "0"

    __repr__ = __str__


_UNIT = (((), 1),)
SizeLike: TypeAlias = "Size | int | str"
ZERO, ONE = Size({}), Size({(): 1})


def product(sizes: Iterable[Size]) -> Size:
    """The product of sizes, 1 for none."""
    factors = [*sizes]
    return functools.reduce(Size.__mul__, factors) if factors else ONE


# ---------------------------------------------------------------------------- the normal form


def floor(size: Size) -> Size:
    """⌊size⌋: whole terms, and the floor of what is left of the others."""
    whole: dict[Monomial, Number] = {}
    rest: dict[Monomial, Number] = {}
    for monomial, by in size.terms:
        outside = math.floor(by) if _is_whole(monomial) else 0
        whole[monomial], rest[monomial] = outside, by - outside
    inside = _without_inner_floor(_in_steps(Size(rest)))
    if set(dict(inside.terms)) <= {()}:
        return Size(whole)
    if inside != Size(rest):
        return Size(whole) + floor(inside)
    return Size(whole) + Size({((Floor(inside), 1),): 1})


def _in_steps(size: Size) -> Size:
    """What has the same floor, the constant rounded down to the steps in which the other terms move."""
    others = [(monomial, by) for monomial, by in size.terms if monomial]
    constant = dict(size.terms).get((), 0)
    if not constant or not all(_is_whole(monomial) for monomial, _ in others):
        return size
    step = math.lcm(*(by.denominator for _, by in others))
    return Size({**dict(others), (): Fraction(math.floor(constant * step), step)})


def _without_inner_floor(size: Size) -> Size:
    """⌊(⌊a⌋ + b) / n⌋ is ⌊(a + b) / n⌋ where b is whole and n a whole number above 0."""
    for monomial, by in size.terms:
        match monomial:
            case ((Floor(inner), 1),) if by > 0 and Fraction(by).numerator == 1:
                times = Fraction(by).denominator
                others = {each: a * times for each, a in size.terms if each != monomial}
                if all(_is_whole(each) and a.denominator == 1 for each, a in others.items()):
                    return (inner + Size(others)) * Fraction(1, times)
    return size


def _positive(size: Size) -> Size:
    """max(0, size), of a size and less it the one with a first term that is positive."""
    if size.is_never_negative:
        return size
    if (-size).is_never_negative:
        return ZERO
    if size.terms[0][1] < 0:
        return size + _positive(-size)
    return Size({((Positive(size), 1),): 1})


def _is_whole(monomial: Monomial) -> bool:
    """Whether a product of atoms is a whole number whatever the names stand for."""
    return all(power > 0 and _is_whole_atom(atom) for atom, power in monomial)


def _is_whole_atom(atom: Atom) -> bool:
    if isinstance(atom, Positive):
        return all(_is_whole(each) and by.denominator == 1 for each, by in atom.size.terms)
    return not isinstance(atom, Total)


def _is_never_negative(factor: tuple[Atom, int]) -> bool:
    atom, _ = factor
    return not isinstance(atom, Total) or atom.size.is_never_negative


def _times(one: Monomial, two: Monomial) -> Monomial:
    if not one or not two:
        return one or two
    powers = dict(one)
    for atom, power in two:
        powers[atom] = powers.get(atom, 0) + power
    return tuple(sorted(((atom, power) for atom, power in powers.items() if power), key=lambda e: str(e[0])))


def _place(term: tuple[Monomial, Number]) -> tuple[bool, str]:
    """Where a term stands: by its text, the constant last."""
    return not term[0], _text(term[0])


def _put_in(factor: tuple[Atom, int], sizes: Mapping[str, SizeLike]) -> Size:
    atom, power = factor
    match atom:
        case str():
            return Size.of(sizes.get(atom, atom)) ** power
        case Floor():
            return floor(atom.size.at(sizes)) ** power
        case Positive():
            return _positive(atom.size.at(sizes)) ** power
        case Total():
            return atom.size.at(sizes) ** power


# ---------------------------------------------------------------------------- text and sympy


@functools.lru_cache(maxsize=1 << 14)
def _text(monomial: Monomial) -> str:
    return "*".join(str(atom) if power == 1 else f"{atom}**{power}" for atom, power in monomial)


def _shown(monomial: Monomial, by: Number) -> str:
    if not monomial or by not in (1, -1):
        return f"{by}*{_text(monomial)}" if monomial else str(by)
    return f"{'-' if by < 0 else ''}{_text(monomial)}"


@functools.lru_cache(maxsize=1 << 14)
def _to_sympy(size: Size) -> Any:
    import sympy

    def of(atom: Atom) -> Any:
        match atom:
            case str():
                return symbol(atom)
            case Floor():
                return sympy.floor(_to_sympy(atom.size))
            case Positive():
                return sympy.Max(0, _to_sympy(atom.size))
        return _to_sympy(atom.size)

    terms = [
        sympy.Mul(sympy.Rational(by.numerator, by.denominator), *(of(atom) ** power for atom, power in each))
        for each, by in size.terms
    ]
    return sympy.Add(*terms)


def of_sympy(size: int | Expr) -> Size:
    """An integer or a sympy expression as a size.

    Raises:
        ValueError: it holds what sizes have not.
    """
    return Size({(): size}) if isinstance(size, int) else _of_sympy(size)


@functools.lru_cache(maxsize=1 << 14)
def _of_sympy(size: Expr) -> Size:
    import sympy

    match size:
        case sympy.Symbol():
            return Size.of(size.name)
        case sympy.Rational():
            return Size({(): Fraction(int(size.p), int(size.q))})
        case sympy.Pow() if size.exp.is_Integer:
            return _of_sympy(size.base) ** int(size.exp)
        case sympy.floor():
            return floor(_of_sympy(size.args[0]))
        case sympy.ceiling():
            return -floor(-_of_sympy(size.args[0]))
        case sympy.Add() | sympy.Mul() | sympy.Max() | sympy.Min():
            first, *others = map(_of_sympy, sorted(size.args, key=str))
            return functools.reduce(_JOINED[type(size).__name__], others, first)
    raise ValueError(f"{size} is no size")


_JOINED = {"Add": Size.__add__, "Mul": Size.__mul__, "Max": Size.maximum, "Min": Size.minimum}
