"""Code generation of numbers and of pointwise expressions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ..errors import BackendError, EquationError
from ..language.affine import reached
from ..language.expression import (
    Call,
    Contraction,
    Expression,
    Literal,
    Ref,
    Size,
    is_scalar,
    scalar_value,
    show,
)
from ..ops.protocols import Left
from ..ops.table import FUNCTIONS, Function
from .context import CodegenContext

__all__ = ["Writing"]


class Writing(CodegenContext):
    """The context, which writes expressions; what the records of functions call is `ops.protocols.Writer`."""

    reached = staticmethod(reached)
    is_number = staticmethod(is_scalar)

    # ---- numbers

    def scalar(self, expression: Expression) -> str:
        """A number as source: its value where all sizes are known, else arithmetic on open sizes."""
        known = scalar_value(expression)
        if known is not None:
            return _number(known)
        match expression:
            case Size(axis):
                self.used_sizes.add(axis)
                return self.size_names[axis]
            case Contraction(factors, ()):
                return f"({product_source(factors, lambda factor: self.scalar(factor))})"
            case Call("add", arguments):
                return "(" + " + ".join(self.scalar(each) for each in arguments) + ")"
            case Call(function, arguments) if FUNCTIONS[function].number:
                return FUNCTIONS[function].number.format(*(self.scalar(each) for each in arguments))
        raise EquationError(
            f"{show(expression)} depends on a size that is open",
            expression.place,
            "give the size when building the layer",
        )

    def options(self, call: Call) -> dict[str, str]:
        """The options of a function: from the call, or else the defaults of its record."""
        given = dict(call.options)
        return {
            name: self.scalar(given[name][0]) if name in given else repr(default)
            for name, default in FUNCTIONS[call.function].options
        }

    def number(self, expression: Expression) -> str:
        """A number as a tensor."""
        like = self.names[self.leaves[0].name] if self.leaves else "None"
        return self.op("scalar", self.scalar(expression), dtype=self.dtype(self.element), like=like)

    @staticmethod
    def value(expression: Expression) -> int | float | complex | None:
        """The value of a number; nothing for a tensor, or if a size in it is open."""
        return scalar_value(expression) if is_scalar(expression) else None

    @staticmethod
    def integer(expression: Expression) -> int:
        """The value of a known whole number. Raises an error for anything else."""
        found = scalar_value(expression)
        if found is None or isinstance(found, complex) or found != int(found):
            raise EquationError(
                f"{show(expression)} is not a known whole number",
                expression.place,
                "give the sizes that occur in it",
            )
        return int(found)

    # ---- pointwise expressions

    def render(self, expression: Expression, left: Left) -> str:
        """A pointwise expression over operands aligned to the result."""

        def inner(part: Expression) -> str:
            return self.render(part, left)

        match expression:
            case Ref():
                return self.aligned(expression, left)
            case _ if is_scalar(expression):
                return self.scalar(expression)
            case Contraction(factors, ()):
                return product_source(factors, inner)
            case Call("add", arguments):
                first, *others = map(inner, arguments)
                return first + "".join(
                    f" - {each[1:]}" if each[0] == "-" else f" + {each}" for each in others
                )
            case Call(function, (Contraction(factors, ()),)) if FUNCTIONS[function].rounds:
                return product_source(factors, inner, by=FUNCTIONS[function].rounds)
            case Call(function) if (spelled := FUNCTIONS[function].spelled) is not None:
                return spelled(self, expression, left)
            case Call(function, arguments):
                operands = list(map(inner, arguments))
                if FUNCTIONS[function].random and is_scalar(
                    arguments[0]
                ):  # a function that draws per element needs a tensor
                    operands[0] = self.number(arguments[0])
                return self._applied(expression, operands)
        raise AssertionError(show(expression))

    def _applied(self, call: Call, operands: list[str]) -> str:
        """A function of operands: the user's own, the backend's, or a Python operator."""
        function = FUNCTIONS[call.function]
        if function.implementations:
            return self.own(function, operands)
        if function.name in self.backend.templates or not function.infix:
            return self.op(function.name, *operands, **self.options(call))
        if len(operands) == 2:
            return f"{_closed(operands[0])} {function.infix} {_closed(operands[1])}"
        return f"{function.infix}{_closed(operands[0])}"

    def own(self, function: Function, given: Sequence[str]) -> str:
        """A call of the user's own implementation."""
        registered, backend = dict(function.implementations), self.backend.name
        if backend not in registered:
            raise BackendError(
                f"'{function.name}' is registered for {', '.join(registered)}, not for {backend}",
                fix=f"tensornet.register('{function.name}', {backend}=...)",
            )
        return f'functions["{function.name}"]({", ".join(given)})'


def _number(value: int | float | complex) -> str:
    if isinstance(value, float) and math.isinf(value):
        return "-math.inf" if value < 0 else "math.inf"
    return "math.nan" if isinstance(value, float) and math.isnan(value) else repr(value)


def product_source(factors: Sequence[Expression], spell: Callable[[Expression], str], by: str = "/") -> str:
    """Factors from left to right; a reciprocal after the first divides."""
    text = spell(factors[0])
    if factors[0] == Literal(-1):
        text, factors = f"-{spell(factors[1])}", factors[1:]
    for factor in factors[1:]:
        match factor:
            case Call("reciprocal", (below,)):
                text += f" {by} {spell(below)}"
            case _:
                text += f" * {spell(factor)}"
    return text


def _closed(text: str) -> str:
    """An operand of an infix operator. A negative number or a compound expression gets parentheses."""
    return f"({text})" if text.startswith("-") or (" " in text and not text.endswith(")")) else text
