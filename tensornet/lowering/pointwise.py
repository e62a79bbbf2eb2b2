"""Lowering of pointwise functions: operands are broadcast as each function asks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ..contraction.pairs import Layout, ordered
from ..graph.shape_inference import Scope
from ..language.expression import Call, Contraction, Expression, axes_of_index, is_scalar
from ..ops.table import FUNCTIONS, Element, Function
from .values import Entry, Operand, Value
from .windows import Opening

__all__ = ["Pointwise", "is_reciprocal"]


class Pointwise(Opening):
    """Makes a step of operands, numbers among them, element by element."""

    def applied(self, function: str, values: Sequence[Value]) -> Value:
        """A pointwise step of tensors at hand."""
        operands = [Operand(each) for each in values]
        return self.combine(FUNCTIONS[function], lambda *each: Call(function, each), operands)

    def operand(
        self, expression: Expression, scope: Scope, wanted: Layout | None, scaled: bool = False
    ) -> Operand:
        """What a pointwise step reads; `scaled` where it may multiply by numbers on the way."""
        if is_scalar(expression):
            return Operand(None, (self.scalar(expression, scope),))
        if scaled and isinstance(expression, Contraction) and not expression.summed:
            factors = expression.factors
            tensors = [n for n, factor in enumerate(factors) if not is_scalar(factor)]
            if len(tensors) == 1 and not (tensors[0] and is_reciprocal(factors[tensors[0]])):
                (at,) = tensors
                numbers = [self.scalar(f, scope) for n, f in enumerate(factors) if n != at]
                value = self.lower(factors[at], scope, wanted)
                return Operand(value, tuple(numbers[:at]), tuple(numbers[at:]))
        return Operand(self.lower(expression, scope, wanted))

    def combine(
        self,
        rule: Function,
        written: Callable[..., Expression],
        operands: Sequence[Operand],
        first: Sequence[Operand] = (),
        wanted: Layout | None = None,
    ) -> Value:
        """A pointwise step of operands brought together as `rule` asks, after some that are as they are."""
        tensors = [each.value.element for each in operands if each.value is not None]
        element, result = rule.meeting(tensors, [number for each in operands for number in each.numbers])
        brought = [*first, *(self._brought(each, element) for each in operands)]
        values = [each.value for each in brought if each.value is not None]
        left = self._common_order(values, wanted) if values else ()
        if not all(each.ref.name in self.still for each in values):
            brought = [self._lying(each, axes_of_index(left)) for each in brought]
            values = [each.value for each in brought if each.value is not None]
        return self.emit(left, written(*(each.expression for each in brought)), values, {}, result)

    def _lying(self, operand: Operand, order: Layout) -> Operand:
        """The operand, lying as the result does where it is still, so that it is brought there once."""
        value = operand.value
        if value is None or value.ref.name not in self.still:
            return operand
        asked = tuple(axis for axis in order if axis in value.layout)
        return operand if asked == value.layout else replace(operand, value=self.reorder(value, asked))

    def _brought(self, operand: Operand, element: Element) -> Operand:
        value = operand.value
        return operand if value is None else replace(operand, value=self.convert(value, element))

    def _exact_together(self, terms: list[Operand]) -> list[Operand]:
        """The terms of a sum, those that are exact added up before they meet numbers of the working type."""
        exact = [each for each in terms if each.value is None or each.value.element.is_exact]
        if not 1 < len(exact) < len(terms) or all(each.value is None for each in exact):
            return terms
        total = self.combine(FUNCTIONS["add"], lambda *each: Call("add", each), exact)
        return [*(each for each in terms if each not in exact), Operand(total)]

    # ---- the order of the result

    def _common_order(self, values: Sequence[Value], wanted: Layout | None) -> tuple[Entry, ...]:
        """The order of a result made of some operands; theirs, grouped as they are, if they lie alike.

        But one that is wanted where none of them has all axes and each lies in that order, as far as it goes, or is
        still: libraries let a result lie as its operands do.
        """
        if len({each.ref.index for each in values}) == 1:
            return values[0].left
        axes = {axis for each in values for axis in each.layout}
        order = self._order(axes, values)
        asked = tuple(axis for axis in wanted or () if axis in axes)
        if len(asked) < len(axes):
            return order
        moving = (each.layout for each in values if each.ref.name not in self.still)
        return (
            asked if all(each == tuple(axis for axis in asked if axis in each) for each in moving) else order
        )

    def _order(self, axes: set[str], values: Sequence[Value]) -> Layout:
        """The order of a result of these axes: that of an operand that has all of them, the written one if
        there is a choice; and as it is written where none has."""
        whole = [each.layout for each in values if set(each.layout) == axes]
        written = tuple(axis for axis in self.written if axis in axes)
        if set(written) == axes and (not whole or written in whole):
            return written
        by_size = sorted(values, key=lambda each: -self.count(each.sizes, each.layout))
        return ordered(axes, *whole, *(each.layout for each in by_size))


def is_reciprocal(factor: Expression) -> bool:
    return isinstance(factor, Call) and factor.function == "reciprocal"
