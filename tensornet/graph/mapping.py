"""Expressions that map the elements of one part of them."""

from __future__ import annotations

from ..language.expression import (
    Call,
    Contraction,
    Expression,
    Literal,
    Ref,
    Size,
    references,
    subexpressions,
    transform,
)
from ..operations.functions import FUNCTIONS

__all__ = ["function_of_one", "put"]


def function_of_one(expression: Expression) -> Ref | None:
    """The tensor that an expression maps element by element, if there is one and no other."""
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
    """The expression with another for a part of it."""
    if expression is one or expression == one:
        return other
    return transform(expression, lambda part: put(part, one, other))
