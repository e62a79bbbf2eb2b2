"""Lowering of pointwise functions, and epilogue fusion: they join the step of the matrix product before them.

Operands are converted as each function requires, and broadcast.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast

from ..contraction.pairs import Layout, merged, ordered
from ..graph.element_types import of_number
from ..language.expression import (
    Call,
    Contraction,
    Expression,
    Literal,
    Ref,
    axes_of_index,
    divisor_of,
    product_of,
    scalar_value,
)
from ..ops.convolution import CONVOLUTION, with_bias
from ..ops.record import Lowering, Value, common
from ..ops.table import CONVERSIONS, FUNCTIONS, Element, Function
from ..planning.plans import Step
from .context import LoweringContext

WORTH = 0.3
"""The layout that allows a fused bias is requested if a step for the bias takes at least this part of the time of
its product."""

MINUS = Literal(-1)


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

    def converted(self, context: LoweringContext, element: Element) -> Operand:
        """The same with its tensor converted to another element type."""
        return self if self.value is None else replace(self, value=context.convert(self.value, element))

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
    context: LoweringContext,
    expression: Expression,
    wanted: Layout | None,
    scaled: bool = False,
    signed: bool = False,
) -> Operand:
    """Lowers an operand of a pointwise step; `scaled`: whether the step may multiply it by numbers too; `signed`:
    whether it may subtract it."""
    if expression.is_scalar:
        return Operand(None, (context.scalar(expression),))
    if scaled and isinstance(expression, Contraction) and not expression.summed:
        factors = expression.factors
        tensors = [n for n, factor in enumerate(factors) if not factor.is_scalar]
        if len(tensors) == 1 and not (tensors[0] and divisor_of(factors[tensors[0]])):
            (at,) = tensors
            before, after = (
                tuple(context.scalar(each) for each in part) for part in (factors[:at], factors[at + 1 :])
            )
            return Operand(context.lower(factors[at], wanted), before, after)
        if signed and factors[0] == MINUS and len(factors) > 2:
            return Operand(context.lower(Contraction(factors[1:]), wanted), (MINUS,))
    return Operand(context.lower(expression, wanted))


def combine(
    context: LoweringContext,
    rule: Function,
    written: Callable[..., Expression],
    operands: Sequence[Operand],
    first: Sequence[Operand] = (),
) -> Value:
    """Emits a pointwise step over `first`, unchanged, and `operands`, converted as `rule` requires."""
    tensors = [each.value.element for each in operands if each.value is not None]
    if rule.takes == "truths":
        operands = [replace(each, before=tuple(map(_truth, each.before))) for each in operands]
    element, result = rule.meeting(tensors, [number for each in operands for number in each.numbers])
    brought = [*first, *(each.converted(context, element) for each in operands)]
    values = _tensors(brought)
    left, *others = dict.fromkeys(each.left for each in values) or [()]
    if others:  # else it has their composites too
        left = order_of(context, {axis for each in values for axis in each.layout}, values)
    if len(values) > 1:
        brought = [_in_order(context, each, values, axes_of_index(left)) for each in brought]
    return context.emit(left, written(*(each.expression for each in brought)), _tensors(brought), result)


def _in_order(context: LoweringContext, each: Operand, values: Sequence[Value], order: Layout) -> Operand:
    """An operand of a step over some values, copied into the order of the result if that takes less time than reading
    it at strides for each position of the result."""
    value = each.value
    if value is None or value.layout == (own := common(order, value.layout)):
        return each
    others = [other for other in values if other is not value]
    copied = replace(value, ref=Ref(value.ref.name, own))
    as_is, in_order = (context.access_seconds([*others, one], order) for one in (value, copied))
    saved = as_is - in_order - context.transpose_seconds(value, own)
    return replace(each, value=context.reorder(value, own)) if saved > 0.0 else each


def _truth(number: Expression) -> Expression:
    """A number as a truth value; one that depends on an open size is compared with 0."""
    value = scalar_value(number)
    return Call(CONVERSIONS[Element.TRUTH], (number, Literal(0))) if value is None else Literal(value != 0)


def _tensors(operands: Sequence[Operand]) -> list[Value]:
    return [each.value for each in operands if each.value is not None]


def _exact_together(context: LoweringContext, terms: list[Operand]) -> list[Operand]:
    """The terms of a sum. Exact ones are added up first, before they meet numbers of the working type."""
    exact = [each for each in terms if each.value is None or each.value.element.is_exact]
    if not 1 < len(exact) < len(terms) or not _tensors(exact):
        return terms
    total = combine(context, FUNCTIONS["add"], lambda *each: Call("add", each), exact)
    return [*(each for each in terms if each not in exact), Operand(total)]


# ---------------------------------------------------------------------------- the order of the result


def order_of(context: LoweringContext, axes: set[str], values: Sequence[Value]) -> Layout:
    """The layout of a result with these axes: that of an operand that has all of them, preferably in the written
    order. If no operand has all of them, it is the written order, or the one in which they are read fastest."""
    whole = [each.layout for each in values if set(each.layout) == axes]
    written = tuple(axis for axis in context.written if axis in axes)
    if set(written) == axes and (not whole or written in whole):
        return written
    by_size = sorted(values, key=lambda each: -context.positions(each.sizes, each.layout))
    found, kept = ordered(axes, *whole, *(each.layout for each in by_size)), Layout()
    for each in () if whole else by_size:
        kept = merged(kept, each.layout)
    if len(kept) < len(axes):
        return found
    return min((found, kept), key=functools.partial(context.access_seconds, values))


def lower_pointwise(context: LoweringContext, call: Call, wanted: Layout | None) -> Value:
    """Lowers a pointwise function. It is fused into the step of its operand where the library offers that."""
    function, adds = FUNCTIONS[call.function], call.function == "add"
    split = function.conditions
    conditions = [
        Operand(context.convert(context.lower(each, wanted), Element.TRUTH))
        for each in call.arguments[:split]
    ]
    asked = _order_with_bias(context, call) or wanted if adds else wanted
    arguments = call.arguments[split:]
    lowered = {
        n: operand(context, arguments[n], asked, adds, adds and n > 0)
        for n in sorted(range(len(arguments)), key=lambda n: _is_product(arguments[n]))
    }  # products last: a bias is fused only into the last step
    operands = [lowered[n] for n in range(len(arguments))]
    if adds:
        operands = _exact_together(context, operands)
    fused = _fused(context, call.function, operands)
    if fused is not None:
        return fused
    numbers = context.options(call)

    def written(*arguments: Expression) -> Call:
        return replace(call, arguments=arguments, options=numbers)

    return combine(context, _rule(call), written, operands, conditions)


def _is_product(part: Expression) -> bool:
    return isinstance(part, Contraction) and bool(part.summed)


def _fused(context: LoweringContext, function: str, operands: Sequence[Operand]) -> Value | None:
    """The value if it needs no new step: a truth value compared with 0, or an epilogue of the last product."""
    value = operands[0].value
    if FUNCTIONS[function].converts is Element.TRUTH:  # this conversion compares with a number
        zero = operands[1].value is None and scalar_value(operands[1].before[0]) == 0
        return value if zero and value is not None and value.element is Element.TRUTH else None
    if function == "add" and len(operands) == 2:
        return _with_bias(context, operands)
    return None


def _rule(call: Call) -> Function:
    """The record that decides the element types of a pointwise function."""
    function = FUNCTIONS[call.function]
    if function.keeps_whole is None:
        return function
    return function.beside([scalar_value(each) if each.is_scalar else None for each in call.arguments])


# ---------------------------------------------------------------------------- epilogue fusion


def _order_with_bias(context: LoweringContext, call: Call) -> Layout | None:
    """The layout in which a product of two tensors takes a bias in the same step, if it is worth requesting:
    the axes of the bias are innermost."""
    match call.arguments:
        case (Contraction((one, two), (_, *_)) as made, Ref() as bias) | (
            Ref() as bias,
            Contraction((one, two), (_, *_)) as made,
        ):
            last = bias.free_axes
        case _:
            return None
    own = [{*each.free_axes}.difference(other.free_axes) for each, other in ((one, two), (two, one))]
    if "linear" not in context.target.supported or {*last} not in own:
        return None
    rows, other = (one, two) if own[1] == {*last} else (two, one)
    first = rows.free_axes
    kept = tuple(axis for axis in first if axis not in made.summed)
    if not kept or not set(kept).isdisjoint(other.free_axes):
        return None  # a batch of products, to which no library adds a bias
    if len(kept) > 1 and (not isinstance(rows, Ref) or set(first[len(kept) :]) != set(made.summed)):
        return None
    m, n, k = (float(context.count(axes)) for axes in (kept, last, made.summed))
    size, profile = context.itemsize, context.profile
    alone = profile.pointwise(2 * size * m * n, size * m * n)
    return (*kept, *last) if alone > WORTH * profile.matmul(1.0, m, n, k, size) else None


def _with_bias(context: LoweringContext, terms: Sequence[Operand]) -> Value | None:
    """The last matrix product with a bias added to each of its rows, or the last convolution with one added to each
    channel, as one step, which most libraries offer.

    Other steps must not read the product alone: it has no name.
    """
    values = [each.value for each in terms if each.value is not None and not each.numbers]
    last = context.steps[-1] if context.steps else None
    if len(values) != 2 or not isinstance(last, Step):
        return None
    made, bias = values if values[0].ref.name == last.equation.name else reversed(values)
    if last.equation.name != made.ref.name or made.ref.name in context.named:
        return None
    if max(Element.WIDE, bias.element) > made.element or made.element.is_exact:
        return None
    if _biased(context, last, bias) is None:
        return None
    context.steps.pop()
    fused = _biased(context, last, context.convert(bias, made.element))
    context.steps.append(cast("Step", fused))
    return made


def _biased(context: LoweringContext, last: Step, bias: Value) -> Step | None:
    """A step with a bias, if libraries offer it."""
    right, way = last.equation.right, last.arrangement
    moved = last.bytes + context.itemsize * context.positions(bias.sizes, bias.layout)
    if isinstance(right, Call):  # a matrix product has a bias, or a function, already
        offered = right.function == CONVOLUTION.name and "convolution_bias" in context.target.supported
        summed = with_bias(cast("Lowering", context), right, bias) if offered else None
        if summed is None:
            return None
        return replace(last, equation=replace(last.equation, right=summed), bytes=moved)
    if way is None or way.kind not in ("matmul", "linear") or "linear" not in context.target.supported:
        return None
    if way.batch or not (way.rows and way.columns) or bias.layout != way.result[-1]:
        return None
    equation = replace(last.equation, right=Call("add", (right, bias.ref)))
    return replace(last, equation=equation, bytes=moved, arrangement=replace(way, kind="linear"))
