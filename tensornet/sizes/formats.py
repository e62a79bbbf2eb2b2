"""Sizes in other formats: source code, parts of documents, and the sympy expressions that users give and see."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..errors import ShapeError
from .polynomial import (
    LARGEST,
    Atom,
    Positive,
    Size,
    denominators,
    factors_of,
    floored,
    fraction,
    is_name,
    name_of,
    positive_part,
    power_of,
    product,
    quotient,
    size_names,
    symbol,
    terms_of,
    to_sympy,
    total,
)

if TYPE_CHECKING:
    from sympy import Expr

__all__ = [
    "as_formula",
    "as_size",
    "read_parts",
    "size_source",
    "write_size",
]

# ---------------------------------------------------------------------------- as source


def size_source(size: Any, names: Mapping[str, str] = {}) -> str:
    """The size as Python source in integer arithmetic. A size is whole, so one division at the end is exact.

    Args:
        size: the size.
        names: the names of sizes in the source; a missing name stays as it is.
    """
    if isinstance(size, int):
        return str(size)
    above, below = fraction(size)
    if below == 1:
        return _source_of_terms(above, names)
    return f"({_source_of_terms(above, names)}) // ({_source_of_terms(below, names)})"


def _source_of_terms(size: Any, names: Mapping[str, str]) -> str:
    """A sum of products of atoms as source."""

    def of(factor: Any) -> str:
        if isinstance(factor, int):
            return str(factor)
        atom, power = factor
        match atom:
            case str():
                text = names.get(atom, atom)
            case Positive():
                if denominators(atom.size):
                    fix = f"give {', '.join(size_names(atom.size))} values"
                    raise ShapeError(f"{atom} is no whole number as long as names are in it", fix=fix)
                text = f"max(0, {size_source(atom.size, names)})"
            case _:
                text = f"({size_source(atom.size, names)})"
        return text if power == 1 else f"{text}**{power}"

    texts = ["*".join(map(of, factors_of(monomial, by)[0])) for monomial, by in terms_of(size)]
    return " + ".join(texts).replace("+ -", "- ") or "0"


# ---------------------------------------------------------------------------- as parts of a document


def write_size(size: Any) -> Any:
    """A size as values of JSON: `4`, `"D"`, or its terms, `[[coefficient, [atom, power], …], …]`."""
    if isinstance(size, int):
        return size
    if name := name_of(size):
        return name
    return [
        [by if isinstance(by, int) else [by.numerator, by.denominator], *map(_written_factor, monomial)]
        for monomial, by in terms_of(size)
    ]


def _written_factor(factor: tuple[Atom, int]) -> list[Any]:
    atom, power = factor
    if isinstance(atom, str):
        return [atom, power]
    return [{type(atom).__name__.lower(): write_size(atom.size)}, power]


def read_parts(value: Any) -> Any:
    """The size that `write_size` wrote.

    Raises:
        ValueError: the value is not a size.
    """
    match value:
        case bool():
            pass
        case int():
            return value
        case str() if is_name(value):
            return symbol(value)
        case [_, *_]:
            return total(map(_read_term, value))
    raise ValueError(repr(value))


def _read_term(value: Any) -> Any:
    match value:
        case [int(above), *factors]:
            return above * product(map(_read_factor, factors))
        case [[int(above), int(below)], *factors] if below > 0:
            return quotient(above * product(map(_read_factor, factors)), below)
    raise ValueError(repr(value))


_ROUNDED: dict[str, Callable[[Any], Any]] = {
    "floor": floored,
    "positive": positive_part,
    "divisor": lambda size: size,
}
"""The atoms other than names, by the word that `write_size` has for them."""


def _read_factor(value: Any) -> Any:
    match value:
        case [str(atom), int(power)]:
            found = read_parts(atom)
        case [dict(atom), int(power)] if len(atom) == 1 and _ROUNDED.keys() & atom:
            ((kind, inner),) = atom.items()
            found = _ROUNDED[kind](read_parts(inner))
        case _:
            raise ValueError(repr(value))
    raised = power_of(found, power) if power else None
    if raised is None:
        raise ValueError(repr(value))
    return raised


# ---------------------------------------------------------------------------- what users give and see


def as_size(value: Any, name: str) -> Any:
    """`value` as a size: a positive integer, or a formula.

    Raises:
        ShapeError: it is neither.
    """
    if isinstance(value, Size):
        return value
    is_truth = isinstance(value, bool) or str(getattr(value, "dtype", "")) == "bool"
    try:
        size = 0 if is_truth else operator.index(value)
    except TypeError:
        size = 0
    if not 1 <= size <= LARGEST:
        fix = f"give {name}= a positive integer or a sympy expression"
        raise ShapeError(f"the size of '{name}' is {value!r}", fix=fix)
    return size


def as_formula(size: Any) -> int | Expr:
    """A size as users see it: an integer, or a sympy expression."""
    return size if isinstance(size, int) else to_sympy(size)
