"""Sums and products as derivatives make them: without ones, zeros, and numbers that can be computed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..language.expression import (
    Call,
    Contraction,
    Expression,
    Literal,
    contraction,
    free_axes,
    is_scalar,
    product_of,
    scalar_value,
    sum_of,
    transform,
)
from ..operations.functions import CONVERSIONS, Element
from ..operations.structure import REPEAT

__all__ = ["ONE", "ZERO", "as_numbers", "folded", "multiplied", "spread", "summed_over", "without_ones"]

ONE, ZERO = Literal(1), Literal(0)


def as_numbers(expression: Expression) -> Expression:
    """The expression in the working type."""
    return Call(CONVERSIONS[Element.NUMBER], (expression,))


def spread(expression: Expression, axes: Iterable[str]) -> Expression:
    """The expression with all of some axes: the same along those that it lacks."""
    for axis in axes:
        if axis not in free_axes(expression):
            expression = Call(REPEAT.name, (expression,), (axis,))
    return expression


def multiplied(factors: Sequence[Expression]) -> Expression:
    """The product of some factors, without ones."""
    return product_of(list(without_ones(factors)))


def without_ones(factors: Sequence[Expression]) -> tuple[Expression, ...]:
    """The factors that are not 1; one at least."""
    return tuple(each for each in factors if each not in (ONE, Literal(1.0))) or (ONE,)


def summed_over(expression: Expression, axes: Sequence[str]) -> Expression:
    """The sum over some axes, of the factors where it is a product."""
    plain = isinstance(expression, Contraction) and not expression.summed
    factors = expression.factors if plain else (expression,)  # type: ignore[union-attr]
    return contraction(factors, tuple(axes), None)


def folded(expression: Expression) -> Expression:
    """The expression with numbers computed, ones and zeros gone, and products in products one."""
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
