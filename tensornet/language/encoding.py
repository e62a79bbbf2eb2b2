"""Sizes, expressions and equations as values of JSON, exactly: what is read back is equal.

    expression := 2, 0.5, "inf", "2j"                       a number; as text where JSON has none such
                | {"size": "d"}
                | {"read": "x", "under": ["b", ["h", "d"], 0, {"read": …}, {"call": "add", …}]}
                | {"product": [expression, …], "summed": ["i"]}
                | {"call": "pad", "of": [expression, …], "over": [], "with": [["i", [expression, …]]]}
    size       := 4 | "D + 1" | {"Mul": [size, …]}

The text of an equation stands beside, for whoever reads the document; of a size, text is enough
wherever it reads back as the same.
"""

from __future__ import annotations

import functools
import math
from typing import Any

from ..documents import Part
from ..errors import EquationError, TensornetError
from ..operations.functions import FUNCTIONS
from ..sizes import LARGEST_POWER, show_size
from .equation import Equation
from .expression import Call, Contraction, Expression, Index, Literal, Ref, Size, is_told
from .reading import parse_size

__all__ = ["read_equation", "read_index", "read_left", "read_ref", "read_size", "write_equation", "write_index",
           "write_ref", "write_size"]  # fmt: skip

# ---------------------------------------------------------------------------- sizes


def write_size(size: Any) -> Any:
    """A size, or a formula of FLOPs, as a value of JSON."""
    return size if isinstance(size, int) else _written(size)


@functools.lru_cache(maxsize=1 << 14)
def _written(size: Any) -> Any:
    """As text where that reads back as the same, and not only as an equal one, as of 2*(a + 1)*(b + 1)."""
    if size.is_Integer:
        return int(size)
    text = show_size(size)
    if _of_text(text) == size:
        return text
    if size.is_Rational:
        return {"Rational": [size.p, size.q]}
    return {type(size).__name__: [_written(part) for part in size.args]}


@functools.lru_cache(maxsize=1 << 14)
def _of_text(text: str) -> Any:
    """The size that a text says; nothing if it says none."""
    try:
        return parse_size(text)
    except TensornetError:
        return None


def read_size(part: Part) -> Any:
    """What `write_size` gave.

    Raises:
        EquationError: it is no size.
    """
    if isinstance(part.value, dict):
        return _composed(part)
    if not isinstance(part.value, str):
        return part.whole()
    size = _of_text(part.value)
    if size is None:
        raise part.fail(f"is {part.value!r} where a size must be")
    return size


def _composed(part: Part) -> Any:
    """A size put together of its parts as they are: sympy would write some of its own formulas anew."""
    import sympy

    known = {each.__name__: each for each in (sympy.Add, sympy.Mul, sympy.Max, sympy.Min)}
    named = [(name, [sympy.sympify(read_size(each)) for each in parts]) for name, parts in part.items()]
    match named:
        case [("floor" | "ceiling" as name, [inner])]:
            return getattr(sympy, name)(inner, evaluate=False)
        case [("Rational", [sympy.Integer() as above, sympy.Integer() as below])] if below > 0:
            return sympy.Rational(above, below)
        case [("Pow", [base, sympy.Integer() as power])] if (
            abs(power) <= LARGEST_POWER and not base.is_number
        ):
            return sympy.Pow(base, power, evaluate=False)
        case [(name, [_, _, *_] as sizes)] if name in known:
            return known[name](*sizes, evaluate=False)
    raise part.fail("is no size")


# ---------------------------------------------------------------------------- expressions


def write_equation(equation: Equation) -> dict[str, Any]:
    """An equation as a value of JSON, its text first."""
    return {
        "equation": str(equation),
        "name": equation.name,
        "left": write_index(equation.left),
        "right": write_expression(equation.right),
    }


def read_equation(part: Part) -> Equation:
    """What `write_equation` gave.

    Raises:
        EquationError: it is no equation, or its text says another.
    """
    equation = Equation(part["name"].name(), read_left(part["left"]), read_expression(part["right"]))
    if part["equation"].value != str(equation):
        raise part["equation"].fail(f"is not the text of {equation}")
    return equation


def write_index(index: tuple[Index, ...]) -> list[Any]:
    """What stands in brackets as a list."""
    return [write_expression(entry) if is_told(entry) else _plain(entry) for entry in index]


def _plain(entry: Any) -> Any:
    return list(entry) if isinstance(entry, tuple) else entry


def read_index(part: Part) -> tuple[Index, ...]:
    """What `write_index` gave."""
    return tuple(_entry(each) for each in part)


def _entry(part: Part) -> Index:
    match part.value:
        case str():
            return part.name()
        case list():
            return part.names()
        case dict():
            found = read_expression(part)
            if is_told(found):
                return found
            raise part.fail("tells no positions")
    return part.whole()


def read_left(part: Part) -> tuple[str | tuple[str, ...], ...]:
    """What stands in brackets on the left: axes and composites of them."""
    return tuple(each.names() if isinstance(each.value, list) else each.name() for each in part)


def write_ref(ref: Ref) -> dict[str, Any]:
    """A tensor as it is read."""
    return {"read": ref.name, "under": write_index(ref.index)}


def read_ref(part: Part) -> Ref:
    """What `write_ref` gave."""
    return Ref(part["read"].name(), read_index(part["under"]))


def write_expression(expression: Expression) -> Any:
    """An expression as a value of JSON."""
    match expression:
        case Literal(value):
            exact = isinstance(value, int | float) and math.isfinite(value)
            return value if exact else repr(value)
        case Size(axis):
            return {"size": axis}
        case Ref():
            return write_ref(expression)
        case Contraction(factors, summed):
            return {"product": [write_expression(each) for each in factors], "summed": list(summed)}
        case Call(function, arguments, axes, options):
            return {
                "call": function,
                "of": [write_expression(each) for each in arguments],
                "over": list(axes),
                "with": [[name, [write_expression(each) for each in values]] for name, values in options],
            }


def read_expression(part: Part) -> Expression:
    """What `write_expression` gave.

    Raises:
        EquationError: it is no expression, or calls a function that is not registered here.
    """
    match part.value:
        case {"read": _}:
            return read_ref(part)
        case {"call": _}:
            return _read_call(part)
        case {"product": _}:
            factors = tuple(read_expression(each) for each in part["product"])
            return Contraction(factors, part["summed"].names())
        case {"size": _}:
            return Size(part["size"].name())
        case str():
            return Literal(_number(part))
        case int() | float():
            return Literal(part.value)
    raise part.fail("is no expression")


def _read_call(part: Part) -> Call:
    function = part["call"].text()
    if function not in FUNCTIONS:
        fix = "tensornet.register adds one of your own"
        raise EquationError(f"{part.where} calls '{function}', which is no function here", fix=fix)
    options = tuple(
        (name.name(), tuple(read_expression(each) for each in values))
        for name, values in (each.pair() for each in part["with"])
    )
    arguments = tuple(read_expression(each) for each in part["of"])
    return Call(function, arguments, part["over"].names(), options)


def _number(part: Part) -> float | complex:
    """A number that JSON has not, such as inf and 2j."""
    try:
        return complex(part.text()) if "j" in part.text() else float(part.text())
    except ValueError:
        raise part.fail(f"is {part.value!r} where a number must be") from None
