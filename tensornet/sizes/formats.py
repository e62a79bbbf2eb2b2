"""Sizes in other formats: Python's grammar, source code, and the numbers and sympy expressions of users."""

from __future__ import annotations

import ast
import functools
import operator
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..errors import ShapeError
from .polynomial import (
    FUNCTIONS_OF_SIZES,
    LARGEST,
    Part,
    Size,
    denominators,
    floored,
    fraction,
    is_name,
    power_of,
    quotient,
    size_names,
    symbol,
    to_sympy,
    written,
)

if TYPE_CHECKING:
    from sympy import Expr


class NoSizeError(ValueError):
    """A part of an expression is not a size."""

    def __init__(self, node: ast.expr) -> None:
        super().__init__(ast.unparse(node))
        self.node = node


_ARITHMETIC: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: quotient,
    ast.FloorDiv: floored,
    ast.Pow: lambda base, power: power_of(base, power) if isinstance(power, int) else None,
}


def read_expression(node: ast.expr) -> Any:
    """The size that an expression of Python's grammar writes.

    Raises:
        NoSizeError: it is none; the error has the part that is at fault.
    """
    found: Any = None
    match node:
        case ast.Constant(value=bool()):
            pass
        case ast.Constant(value=int(value)):
            return value
        case ast.Name(id=name) if is_name(name):
            return symbol(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -read_expression(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            a, b = read_expression(left), read_expression(right)
            if b != 0 or not isinstance(op, ast.Div | ast.FloorDiv):
                found = _ARITHMETIC[type(op)](a, b)
        case ast.Call(func=ast.Name(id=name), args=[_, *others] as arguments, keywords=[]):
            if name in FUNCTIONS_OF_SIZES and (name in ("Max", "Min") or not others):
                found = FUNCTIONS_OF_SIZES[name](*map(read_expression, arguments))
    if found is None:
        raise NoSizeError(node)
    return found


def write_size(size: Any) -> int | str:
    """A size as a value of JSON: a whole number, or text, `"2*D + 1"`."""
    return size if isinstance(size, int) else str(size)


def read_written(value: Any) -> Any:
    """The size that `write_size` wrote.

    Raises:
        ValueError: the value is not a size.
    """
    try:
        return value if type(value) is int else _read_text(value)
    except (TypeError, ValueError, SyntaxError, RecursionError, MemoryError, ShapeError):
        raise ValueError(repr(value)) from None


@functools.lru_cache(maxsize=1 << 12)
def _read_text(text: str) -> Any:
    return read_expression(ast.parse(text, mode="eval").body)


def size_source(size: Any, names: Mapping[str, str] = {}) -> str:
    """The size as Python source in integer arithmetic. A size is whole, so one division at the end is exact.

    Args:
        size: the size.
        names: the names of sizes in the source; a missing name stays as it is.
    """

    def of(atom: str | Part) -> str:
        if isinstance(atom, str):
            return names.get(atom, atom)
        if atom.kind == "Max" and denominators(atom.size):
            fix = f"give {', '.join(size_names(atom.size))} values"
            raise ShapeError(f"{atom} is no whole number as long as names are in it", fix=fix)
        inner = size_source(atom.size, names)
        return f"max(0, {inner})" if atom.kind == "Max" else f"({inner})"

    if isinstance(size, int):
        return str(size)
    above, below = fraction(size)
    return written(above, of) if below == 1 else f"({written(above, of)}) // ({written(below, of)})"


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
