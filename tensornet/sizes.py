"""Sizes of axes: integers, or sympy expressions in the names of axes. sympy loads when first used."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from .errors import ShapeError

if TYPE_CHECKING:
    from sympy import Expr, Symbol

__all__ = [
    "as_size",
    "evaluate",
    "plain",
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


def as_size(value: Any, name: str) -> int | Expr:
    """`value` as a size: a positive integer, or a sympy expression.

    Raises:
        ShapeError: it is neither.
    """
    import sympy

    if isinstance(value, sympy.Expr) and not value.is_Integer:
        return value
    try:
        size = operator.index(int(value) if isinstance(value, sympy.Integer) else value)
    except TypeError:
        size = 0
    if isinstance(value, bool) or size < 1:
        fix = f"give {name}= a positive integer or a sympy expression"
        raise ShapeError(f"the size of '{name}' is {value!r}", fix=fix)
    return size


def plain(size: int | Expr) -> int | Expr:
    """The size in plain symbols, known by their names alone, whatever is assumed of a caller's."""
    if isinstance(size, int):
        return size
    moved = {name: symbol(name.name) for name in size.free_symbols if name != symbol(name.name)}
    return size.subs(moved, simultaneous=True) if moved else size


def product(sizes: Iterable[Any]) -> Any:
    """The product of sizes, 1 for none."""
    return functools.reduce(operator.mul, sizes, 1)


def evaluate(size: Any, values: Mapping[str, Any]) -> Any:
    """The size with every axis name replaced by its value: an `int` when nothing is left open."""
    if isinstance(size, int):
        return size
    result = put_in(size, values)
    return result if isinstance(result, int) or result == size else evaluate(result, values)


def put_in(size: Any, values: Mapping[str, Any]) -> Any:
    """The size with names replaced by their values, once and all at the same time."""
    if isinstance(size, int):
        return size
    known = tuple((name, values[name]) for name in _names(size) if name in values)
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
    """A plan asks for the same few sizes thousands of times, and sympy takes its time."""
    result = size.subs({symbol(name): value for name, value in known}, simultaneous=True)
    return int(result) if result.is_Integer else result


def show_size(size: Any) -> str:
    """The size as an equation block would write it."""
    return str(size)


def size_source(size: Any) -> str:
    """The size as Python source over the names of the open axes, in integer arithmetic."""
    text = str(size)
    return text.replace("/", "//")


def solve_size(size: Any, observed: int) -> tuple[str, int] | None:
    """The one open name in `size` and the value that makes it `observed`, if there is just one."""
    import sympy

    names = list(getattr(size, "free_symbols", ()))
    if len(names) != 1:
        return None
    solutions = sympy.solve(size - observed, names[0])
    whole = [int(value) for value in solutions if value.is_Integer and value >= 0]
    return (names[0].name, whole[0]) if whole else None
