"""Algebra of expressions: sums and products without ones and zeros, and elementwise maps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..language.expression import (
    Call,
    Contraction,
    Expression,
    Literal,
    Ref,
    Size,
    contraction,
    free_axes,
    is_scalar,
    references,
    rewrite,
    scalar_value,
    subexpressions,
    sum_of,
    transform,
)
from ..ops.structure import REPEAT
from ..ops.table import FUNCTIONS

ONE, ZERO = Literal(1), Literal(0)


def spread(expression: Expression, axes: Iterable[str]) -> Expression:
    """The expression with all of the given axes, repeated along those that it lacks."""
    for axis in axes:
        if axis not in free_axes(expression):
            expression = Call(REPEAT.name, (expression,), (axis,))
    return expression


def without_ones(factors: Sequence[Expression]) -> tuple[Expression, ...]:
    """The factors that are not 1, or a single 1 if there are none."""
    return tuple(each for each in factors if each not in (ONE, Literal(1.0))) or (ONE,)


def folded(expression: Expression) -> Expression:
    """The expression with numbers computed, ones and zeros dropped, and nested products flattened."""
    expression = transform(expression, folded)
    value = scalar_value(expression) if is_scalar(expression) else None
    if value is not None and not isinstance(value, bool):
        return Literal(value)
    match expression:
        case Contraction(factors, summed):
            factors = tuple(
                each
                for factor in factors
                for each in (
                    factor.factors if isinstance(factor, Contraction) and not factor.summed else (factor,)
                )
            )
            if ZERO in factors or Literal(0.0) in factors:
                return ZERO
            return contraction(without_ones(factors), summed, expression.place)
        case Call("add", terms):
            return sum_of([term for term in terms if term != ZERO] or [ZERO], expression.place)
        case Call("power", (base, exponent)) if exponent in (ONE, Literal(1.0)):
            return base
    return expression


def function_of_one(expression: Expression) -> Ref | None:
    """The tensor that an expression maps element by element; None unless it is the only one."""
    refs = set(references(expression))
    if len(refs) != 1:
        return None
    for part in subexpressions(expression):
        match part:
            case Ref() | Literal() | Size() | Contraction(summed=()):
                pass
            case Call(function) if FUNCTIONS[function].kind == "pointwise" and FUNCTIONS[function].scalar:
                pass
            case _:
                return None
    return refs.pop()


def put(expression: Expression, one: Expression, other: Expression) -> Expression:
    """The expression with its part `one` replaced by `other`."""
    return rewrite(expression, lambda part: other if part is one or part == one else part)
