"""Lowering of pointwise functions: operands are converted as each function requires, and broadcast."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..contraction.pairs import Layout, ordered
from ..graph.element_types import of_number
from ..language.expression import (
    Call,
    Contraction,
    Expression,
    Literal,
    axes_of_index,
    is_scalar,
    product_of,
    scalar_value,
)
from ..ops.protocols import Left, Value
from ..ops.table import CONVERSIONS, FUNCTIONS, Element, Function
from .context import LoweringContext

__all__ = ["Operand", "applied", "combine", "exact_together", "is_reciprocal", "order_of", "operand"]


@dataclass(frozen=True)
class Operand:
    """An operand of a pointwise step: a tensor with numeric factors before and after it, or a number alone."""

    value: Value | None
    before: tuple[Expression, ...] = ()
    after: tuple[Expression, ...] = ()

    @property
    def expression(self) -> Expression:
        middle = () if self.value is None else (self.value.ref,)
        return product_of([*self.before, *middle, *self.after])

    @property
    def numbers(self) -> tuple[Element, ...]:
        """The element types of the numbers."""
        return tuple(of_number(each) for each in (*self.before, *self.after))

    @property
    def is_whole(self) -> bool:
        """Whether all its parts are integers or truth values."""
        tensors = () if self.value is None else (self.value.element,)
        return all(each <= Element.WHOLE for each in (*self.numbers, *tensors))


def applied(context: LoweringContext, function: str, values: Sequence[Value]) -> Value:
    """Emits a pointwise function of tensors that are lowered already."""
    operands = [Operand(each) for each in values]
    return combine(context, FUNCTIONS[function], lambda *each: Call(function, each), operands)


def operand(
    context: LoweringContext, expression: Expression, wanted: Layout | None, scaled: bool = False
) -> Operand:
    """Lowers an operand of a pointwise step; `scaled`: whether the step may multiply it by numbers too."""
    if is_scalar(expression):
        return Operand(None, (context.scalar(expression),))
    if scaled and isinstance(expression, Contraction) and not expression.summed:
        factors = expression.factors
        tensors = [n for n, factor in enumerate(factors) if not is_scalar(factor)]
        if len(tensors) == 1 and not (tensors[0] and is_reciprocal(factors[tensors[0]])):
            (at,) = tensors
            before, after = (
                tuple(context.scalar(each) for each in part) for part in (factors[:at], factors[at + 1 :])
            )
            return Operand(context.lower(factors[at], wanted), before, after)
    return Operand(context.lower(expression, wanted))


def combine(
    context: LoweringContext,
    rule: Function,
    written: Callable[..., Expression],
    operands: Sequence[Operand],
    first: Sequence[Operand] = (),
    wanted: Layout | None = None,
) -> Value:
    """Emits a pointwise step over `first`, unchanged, and `operands`, converted as `rule` requires."""
    tensors = [each.value.element for each in operands if each.value is not None]
    if rule.takes == "truths":
        operands = [replace(each, before=tuple(map(_truth, each.before))) for each in operands]
    element, result = rule.meeting(tensors, [number for each in operands for number in each.numbers])
    brought = [*first, *(_changed(each, lambda value: context.convert(value, element)) for each in operands)]
    values = _tensors(brought)
    left = _common_order(context, values, wanted) if values else ()
    if not all(each.ref.name in context.invariant for each in values):
        order = axes_of_index(left)
        brought = [_changed(each, lambda value: _lying(context, value, order)) for each in brought]
    right = written(*(each.expression for each in brought))
    return context.emit(left, right, _tensors(brought), result)


def _truth(number: Expression) -> Expression:
    """A number as a truth value; one that depends on an open size is compared with 0."""
    value = scalar_value(number)
    return Call(CONVERSIONS[Element.TRUTH], (number, Literal(0))) if value is None else Literal(value != 0)


def _changed(operand: Operand, change: Callable[[Value], Value]) -> Operand:
    return operand if operand.value is None else replace(operand, value=change(operand.value))


def _tensors(operands: Sequence[Operand]) -> list[Value]:
    return [each.value for each in operands if each.value is not None]


def _lying(context: LoweringContext, value: Value, order: Layout) -> Value:
    """The value. An invariant one is brought into the layout of the result, which happens only once."""
    asked = tuple(axis for axis in order if axis in value.layout)
    if value.ref.name not in context.invariant or asked == value.layout:
        return value
    return context.reorder(value, asked)


def exact_together(context: LoweringContext, terms: list[Operand]) -> list[Operand]:
    """The terms of a sum. Exact ones are added up first, before they meet numbers of the working type."""
    exact = [each for each in terms if each.value is None or each.value.element.is_exact]
    if not 1 < len(exact) < len(terms) or not _tensors(exact):
        return terms
    total = combine(context, FUNCTIONS["add"], lambda *each: Call("add", each), exact)
    return [*(each for each in terms if each not in exact), Operand(total)]


def is_reciprocal(factor: Expression) -> bool:
    return isinstance(factor, Call) and factor.function == "reciprocal"


# ---------------------------------------------------------------------------- the order of the result


def _common_order(context: LoweringContext, values: Sequence[Value], wanted: Layout | None) -> Left:
    """The layout of a result of some operands. If they all have the same layout, it is theirs, with composites.

    Otherwise it is the wanted layout, if each operand is invariant or has its axes in that order: libraries lay a
    result out as its operands are. Otherwise `order_of` decides.
    """
    if len({each.left for each in values}) == 1:
        return values[0].left
    axes = {axis for each in values for axis in each.layout}
    asked = tuple(axis for axis in wanted or () if axis in axes)
    moving = (each.layout for each in values if each.ref.name not in context.invariant)
    if len(asked) == len(axes) and all(each == tuple(a for a in asked if a in each) for each in moving):
        return asked
    return order_of(context, axes, values)


def order_of(context: LoweringContext, axes: set[str], values: Sequence[Value]) -> Layout:
    """The layout of a result with these axes: that of an operand that has all of them, preferably in the written
    order. If no operand has all of them, it is the written order."""
    whole = [each.layout for each in values if set(each.layout) == axes]
    written = tuple(axis for axis in context.written if axis in axes)
    if set(written) == axes and (not whole or written in whole):
        return written
    by_size = sorted(values, key=lambda each: -context.positions(each.sizes, each.layout))
    return ordered(axes, *whole, *(each.layout for each in by_size))
