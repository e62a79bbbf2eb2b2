"""Symbolic sizes of axes: integers, or sympy expressions in axis names. sympy loads when first used."""

from __future__ import annotations

import functools
import keyword
import math
import operator
import unicodedata
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from .errors import ShapeError

if TYPE_CHECKING:
    from sympy import Expr, Symbol

__all__ = [
    "DOT",
    "LARGEST",
    "LARGEST_POWER",
    "are_equal",
    "as_size",
    "evaluate",
    "floored",
    "invert_size",
    "is_name",
    "plain",
    "power_of",
    "powers_in",
    "product",
    "put_in",
    "show_size",
    "size_names",
    "size_source",
    "solve_size",
    "symbol",
]


def symbol(name: str) -> Symbol:
    """The open size of the axis `name`. Plain symbols, so that `formula.subs({"b": 4})` works.

    The size of `...`, all leading axes together, is called `lead`.
    """
    import sympy

    return sympy.Symbol("lead" if name == "..." else name)


LARGEST = 2**63 - 1
"""What a dimension of an array can hold at most."""

LARGEST_POWER = 63
"""The largest exponent in a size: beyond it, only powers of 1 are below `LARGEST`."""


def power_of(base: Any, exponent: int) -> Any:
    """A power of a size; nothing where it, or a power of powers that it comes to, is beyond `LARGEST_POWER`."""
    import sympy

    large = isinstance(base, int) and abs(base) > LARGEST
    if large or abs(exponent) * powers_in(base) > LARGEST_POWER:
        return None
    return base**exponent if isinstance(base, int) and exponent >= 0 else sympy.sympify(base) ** exponent


def powers_in(size: Any) -> int:
    """The largest power of powers in a size."""
    inner = max(map(powers_in, getattr(size, "args", ())), default=1)
    raised = getattr(size, "is_Pow", False) and size.exp.is_Integer
    return int(inner * max(1, abs(size.exp))) if raised else inner


DOT = "·"  # a letter to Python: stands for the dots of scoped names while `ast` reads a text


def is_name(text: str) -> bool:
    """Whether the text is one plain name, which comes back from source code as it went in."""
    stable = unicodedata.normalize("NFKC", text) == text
    return text.isidentifier() and stable and not keyword.iskeyword(text) and DOT not in text


def as_size(value: Any, name: str) -> int | Expr:
    """`value` as a size: a positive integer, or a sympy expression that a block of text can hold.

    Raises:
        ShapeError: it is neither.
    """
    import sympy

    if isinstance(value, sympy.Expr) and not value.is_number:
        _check_formula(value, name)
        return value
    is_truth = isinstance(value, bool) or str(getattr(value, "dtype", "")) == "bool"
    try:
        size = 0 if is_truth else operator.index(int(value) if isinstance(value, sympy.Integer) else value)
    except TypeError:
        size = 0
    if not 1 <= size <= LARGEST:
        fix = f"give {name}= a positive integer or a sympy expression"
        raise ShapeError(f"the size of '{name}' is {value!r}", fix=fix)
    return size


def _check_formula(formula: Expr, name: str) -> None:
    """Refuses what no text of a size says: it would be lost, or run, where the formula is written out."""
    import sympy

    for part in sympy.preorder_traversal(formula):
        match part:
            case sympy.Symbol():
                if not is_name(part.name):
                    raise ShapeError(
                        f"the size of '{name}' holds the symbol {part.name!r}",
                        fix="call symbols by plain names, such as D",
                    )
            case sympy.Pow() if isinstance(part.exp, sympy.Integer) and powers_in(part) <= LARGEST_POWER:
                pass
            case sympy.Rational() | sympy.Add() | sympy.Mul():
                pass
            case sympy.floor() | sympy.ceiling() | sympy.Max() | sympy.Min():
                pass
            case _:
                raise ShapeError(
                    f"the size of '{name}' is {formula}, and sizes have no {part}",
                    fix="use integers, symbols, + - * /, whole powers, floor, ceiling, Max and Min",
                )


def plain(size: int | Expr) -> int | Expr:
    """The size in plain symbols, known by their names alone, whatever is assumed of a caller's."""
    if isinstance(size, int):
        return size
    moved = {name: symbol(name.name) for name in size.free_symbols if name != symbol(name.name)}
    return _alike(size.subs(moved, simultaneous=True) if moved else size)


def are_equal(a: Any, b: Any, known: Mapping[str, Any]) -> bool:
    """Whether two sizes are equal, whatever those are that have no value among the known ones."""
    if a == b or evaluate(a, known) == evaluate(b, known):
        return True
    difference = evaluate(a - b, known)
    return bool(difference == 0 or getattr(difference, "expand", lambda: 1)() == 0)


def product(sizes: Iterable[Any]) -> Any:
    """The product of sizes, 1 for none."""
    factors = tuple(sizes)
    return math.prod(factors) if all(isinstance(each, int) for each in factors) else _product(*factors)


@functools.lru_cache(maxsize=1 << 14, typed=True)
def _product(*factors: Any) -> Any:
    return math.prod(factors)


def evaluate(size: Any, values: Mapping[str, Any]) -> Any:
    """The size with every axis name replaced by its value: an `int` when nothing is left open."""
    if isinstance(size, int):
        return size
    result = put_in(size, values)
    return result if isinstance(result, int) or result is size or result == size else evaluate(result, values)


def put_in(size: Any, values: Mapping[str, Any]) -> Any:
    """The size with names replaced by their values, once and all at the same time."""
    if isinstance(size, int):
        return size
    known = tuple([(name, values[name]) for name in _names(size) if name in values])
    if not known:
        return int(size) if size.is_Integer else size
    return _put_in(size, known)


def size_names(size: Any) -> tuple[str, ...]:
    """The names in a size, sorted; none in an integer."""
    return () if isinstance(size, int) else _names(size)


@functools.lru_cache(maxsize=1 << 16)
def _names(size: Expr) -> tuple[str, ...]:
    return tuple(sorted(name.name for name in size.free_symbols))


@functools.lru_cache(maxsize=1 << 16)
def _put_in(size: Expr, known: tuple[tuple[str, Any], ...]) -> int | Expr:
    """A plan asks for the same few sizes thousands of times, and sympy takes its time.

    `xreplace` puts in what `subs` does, all at the same time, and is some 10 to 90 times as fast: only whole
    symbols are looked for.
    """
    import sympy

    result = _alike(size.xreplace({symbol(name): sympy.sympify(value) for name, value in known}))
    return int(result) if result.is_Integer else result


def floored(size: Any, by: Any = 1) -> Any:
    """A size divided by another, rounded down; what is whole in it stands apart, so that equal sizes look alike."""
    if isinstance(size, int) and isinstance(by, int):
        return size // by
    import sympy

    return size if by == 1 and _is_whole(size) else _floor(sympy.sympify(size) / by)


def _alike(size: Expr) -> Expr:
    """The size, in which every `floor` is as `floored` makes it."""
    import sympy

    return size.replace(sympy.floor, _floor) if size.has(sympy.floor) else size


def _floor(size: Expr) -> Expr:
    """⌊size⌋, what is whole outside."""
    import sympy

    number, rest = size.as_coeff_Add()
    outside = [term for term in sympy.Add.make_args(rest) if _is_whole(term)]
    whole, inside = sympy.Add(*outside), sympy.Add(rest, *(-term for term in outside))
    return sympy.floor(inside + number - sympy.floor(number)) + sympy.floor(number) + whole


def _is_whole(size: Any) -> bool:
    """Whether a product of sizes is an integer whatever these are."""
    import sympy

    match size:
        case int() | sympy.Integer() | sympy.Symbol() | sympy.floor() | sympy.ceiling():
            return True
        case sympy.Pow():
            return bool(size.exp.is_Integer and size.exp > 0) and _is_whole(size.base)
        case sympy.Mul() | sympy.Add() | sympy.Max() | sympy.Min():
            return all(map(_is_whole, size.args))
    return False


def show_size(size: Any) -> str:
    """The size as an equation block would write it."""
    return str(size)


@functools.lru_cache(maxsize=1 << 14)
def size_source(size: Any) -> str:
    """The size as Python source in integer arithmetic: a size is whole, so one division at the end is exact."""
    if isinstance(size, int):
        return str(size)
    import sympy

    def spelled(text: str) -> Symbol:
        return sympy.Symbol(text)

    def joined(function: str, sizes: Iterable[Any]) -> Symbol:
        return spelled(f"{function}({', '.join(size_source(each) for each in sizes)})")

    size = size.replace(sympy.floor, lambda inner: spelled(f"({size_source(inner)})"))
    size = size.replace(sympy.ceiling, lambda inner: spelled(f"(-({size_source(-inner)}))"))
    size = size.replace(sympy.Max, lambda *sizes: joined("max", sizes))
    size = size.replace(sympy.Min, lambda *sizes: joined("min", sizes))
    numerator, denominator = sympy.fraction(sympy.together(size))
    return str(numerator) if denominator == 1 else f"({numerator}) // ({denominator})"


def invert_size(size: Any, name: str, whole: Symbol) -> Any:
    """What `name` is where the size is `whole`, as a formula; nothing if the size is not linear in it."""
    import sympy

    numerator, _ = sympy.fraction(sympy.together(size - whole))
    if not numerator.is_polynomial(symbol(name)) or sympy.degree(numerator, symbol(name)) != 1:
        return None
    return sympy.solve(numerator, symbol(name))[0]


def solve_size(size: Any, observed: int) -> tuple[str, int] | None:
    """The one open name in `size` and the value that makes it `observed`, if there is just one."""
    names = list(getattr(size, "free_symbols", ()))
    if len(names) != 1:
        return None
    import sympy

    numerator, _ = sympy.fraction(sympy.together(size - observed))
    try:
        roots = sympy.Poly(numerator, names[0]).ground_roots()
    except sympy.PolynomialError:  # floor(D/2) and Max(3, D) do not tell what D is
        return None
    whole = [int(root) for root in roots if root.is_Integer and root >= 0]
    found = [root for root in whole if root > 0] or whole
    return (names[0].name, found[0]) if len(found) == 1 else None
