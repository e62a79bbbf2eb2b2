"""Lowering of function calls: each as the record of its function declares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..contraction.pairs import Layout, flatten, view_order
from ..graph.element_types import of_number
from ..graph.shape_inference import Scope, scalar_size, size_expression
from ..language.expression import (
    Call,
    Contraction,
    Expression,
    Literal,
    Ref,
    axes_of_index,
    is_scalar,
    option_axes,
    scalar_value,
)
from ..language.patterns import pattern_of
from ..ops.attention import HIDDEN, HIDDEN_IN_HALF
from ..ops.pointwise import WHERE
from ..ops.protocols import Value, left_of
from ..ops.table import FUNCTIONS, Element, Function
from .context import LoweringContext
from .contractions import lower_rounded
from .epilogues import order_with_bias, with_bias, with_function
from .pointwise import Operand, combine, exact_together, operand, order_of
from .reading import read

__all__ = ["lower_call"]


def lower_call(context: LoweringContext, call: Call, wanted: Layout | None) -> Value:
    """Lowers a call of a function whose record does not lower it itself."""
    function = FUNCTIONS[call.function]
    if function.computes:
        return _kernel(context, call)
    match function.axes:
        case "none" if function.rounds:
            return lower_rounded(context, call, wanted)
        case "none" if function.converts is not None and len(call.arguments) == 1:
            return context.convert(context.lower(call.arguments[0], wanted), function.converts)
        case "none":
            return _pointwise(context, call, wanted)
        case "joined":
            return _joined(context, call)
        case "moved":
            return _moved(context, call)
    return _over_axes(context, call, wanted)


def _kernel(context: LoweringContext, call: Call) -> Value:
    """Lowers a call of a kernel of one equation. Each operand offers one dimension per axis of that equation."""
    function = FUNCTIONS[call.function]
    (meaning,) = function.computes
    assert not meaning.axes, (
        f"{function.name}: where tensors do not tell the axes apart, the record lowers it"
    )
    pattern = pattern_of(meaning)
    values = [context.lower(each, None) for each in call.arguments]
    element, result = function.meeting([each.element for each in values])
    values = [context.convert(each, element) for each in values]
    groups = pattern.groups([each.layout for each in values])
    for n, ref in enumerate(pattern.tensors):
        part = tuple(groups[axis] for axis in axes_of_index(ref.index))
        if view_order(values[n].layout, part) is None:
            values[n] = context.reorder(values[n], flatten(part))
    right = replace(call, arguments=tuple(each.ref for each in values))
    left = left_of(groups[axis] for axis in pattern.left)
    return context.emit(left, right, values, result)


def _numbers(context: LoweringContext, call: Call) -> tuple[tuple[str, tuple[Expression, ...]], ...]:
    """The options of a call, with known sizes substituted."""
    return tuple((name, tuple(context.scalar(v) for v in values)) for name, values in call.options)


# ---------------------------------------------------------------------------- element by element


def _pointwise(context: LoweringContext, call: Call, wanted: Layout | None) -> Value:
    """Lowers a pointwise function. It is fused into the step of its operand where the library offers that."""
    normed = _normed(context, call)
    if normed is not None:
        return normed
    function, adds = FUNCTIONS[call.function], call.function == "add"
    split = function.conditions
    conditions = [
        Operand(context.convert(context.lower(each, wanted), Element.TRUTH))
        for each in call.arguments[:split]
    ]
    hidden = _hidden(context, call, conditions, wanted)
    if hidden is not None:
        return hidden
    asked = order_with_bias(context, call) or wanted if adds else wanted
    arguments = call.arguments[split:]
    lowered = {
        n: operand(context, arguments[n], asked, adds)
        for n in sorted(range(len(arguments)), key=lambda n: _is_product(arguments[n]))
    }  # products last: a bias is fused only into the last step
    operands = [lowered[n] for n in range(len(arguments))]
    if adds:
        operands = exact_together(context, operands)
    fused = _fused(context, call.function, operands)
    if fused is not None:
        return fused
    numbers = _numbers(context, call)

    def written(*arguments: Expression) -> Call:
        return replace(call, arguments=arguments, options=numbers)

    return combine(context, _rule(call), written, operands, conditions, wanted)


def _is_product(part: Expression) -> bool:
    return isinstance(part, Contraction) and bool(part.summed)


def _fused(context: LoweringContext, function: str, operands: Sequence[Operand]) -> Value | None:
    """The value if it needs no new step: a truth value compared with 0, or an epilogue of the last product."""
    value = operands[0].value
    if FUNCTIONS[function].converts is Element.TRUTH:  # this conversion compares with a number
        zero = operands[1].value is None and scalar_value(operands[1].before[0]) == 0
        return value if zero and value is not None and value.element is Element.TRUTH else None
    if function == "add" and len(operands) == 2:
        return with_bias(context, operands)
    if len(operands) == 1 and value is not None and not operands[0].numbers:
        return with_function(context, function, value)
    return None


def _rule(call: Call) -> Function:
    """The record that decides the element types of a pointwise function."""
    function = FUNCTIONS[call.function]
    if function.keeps_whole is None:
        return function
    return function.beside([scalar_value(each) if is_scalar(each) else None for each in call.arguments])


def _hidden(
    context: LoweringContext, call: Call, conditions: list[Operand], wanted: Layout | None
) -> Value | None:
    """`where(see, P, -1e30)` as the sum of P and a table of 0 and -1e30, which takes a tenth of the time.

    This requires that `see` is the same at every call, so that the table is computed once. P must be a parameter,
    since other tensors may not be finite.
    """
    match call:
        case Call(WHERE.name, (_, Ref() as hides, Literal() as number)):
            value = scalar_value(number)
        case _:
            return None
    least = HIDDEN if context.itemsize > 2 else HIDDEN_IN_HALF
    if not isinstance(value, int | float) or value > least:
        return None
    if hides.name not in context.lines.of_kind("parameter"):
        return None
    if not all(each.value is not None and each.value.ref.name in context.invariant for each in conditions):
        return None
    choices = [Operand(None, (Literal(0),)), Operand(None, (number,))]
    table = combine(context, WHERE, lambda *each: Call(WHERE.name, each), choices, conditions, wanted)
    bias = context.lower(hides, wanted)
    axes = {*table.layout, *bias.layout}
    order = tuple(axis for axis in wanted or order_of(context, axes, [table, bias]) if axis in axes)
    near = context.reorder(bias, tuple(axis for axis in order if axis in bias.layout))
    terms = [Operand(near), Operand(table)]
    return combine(context, FUNCTIONS["add"], lambda *each: Call("add", each), terms, (), order)


def _normed(context: LoweringContext, call: Call) -> Value | None:
    """`gain[c] * normalize[c](x) + bias[c]` as one step, which most libraries offer."""
    match call:
        case Call(
            "add",
            (Contraction((_, _) as factors, ()), Ref() as bias)
            | (Ref() as bias, Contraction((_, _) as factors, ())),
        ):
            gain = next((each for each in factors if isinstance(each, Ref)), None)
            norm = next((each for each in factors if isinstance(each, Call)), None)
        case _:
            return None
    if gain is None or norm is None or not FUNCTIONS[norm.function].affine or len(norm.axes) != 1:
        return None
    if gain.index != norm.axes or bias.index != norm.axes:
        return None
    value = context.lower(norm.arguments[0], None)
    affine = [read(context, each) for each in (gain, bias)]
    element = max(Element.WIDE, value.element, *(each.element for each in affine))
    value, *affine = [context.convert(each, element) for each in (value, *affine)]
    return _along(context, norm, value, element, affine)


# ---------------------------------------------------------------------------- over axes


def _over_axes(context: LoweringContext, call: Call, wanted: Layout | None) -> Value:
    """Lowers a function along some axes of its operand, which it keeps or removes."""
    function, argument = FUNCTIONS[call.function], call.arguments[0]
    asked = None if function.leaves_out(call.axes) else wanted
    value = context.lower(argument, asked)
    element, result = function.meeting([value.element])
    value = context.convert(value, element)
    over = function.runs_over(call.axes)
    axes = tuple(axis for axis in value.layout if axis in over)
    if function.one_by_one and len(axes) > 1:
        for axis in axes:
            value = _along(context, replace(call, axes=(axis,)), value, result)
        return value
    if not function.leaves_out(call.axes) and len(axes) > 1:
        value = context.reorder(value, (*(axis for axis in value.layout if axis not in axes), axes))
    call = replace(call, axes=(*axes, *function.makes(call.axes)))
    return _along(context, call, value, result)


def _along(
    context: LoweringContext, call: Call, value: Value, result: Element, more: Sequence[Value] = ()
) -> Value:
    """Emits the step of a function along axes of a value."""
    function = FUNCTIONS[call.function]
    axes, made = function.runs_over(call.axes), function.makes(call.axes)
    reduces = bool(function.leaves_out(call.axes))
    if not reduces:
        value = _innermost(context, value, axes, function)
    whole = axes in value.left or all(axis in value.left for axis in axes)
    left = value.left if whole else value.layout
    if reduces:
        parts = (made if entry in axes or entry == axes else (entry,) for entry in left)
        left = tuple(each for part in parts for each in part)
    operands = [value, *more]
    right = replace(call, arguments=tuple(each.ref for each in operands), options=_numbers(context, call))
    return context.emit(left, right, operands, result)


def _innermost(context: LoweringContext, value: Value, axes: tuple[str, ...], function: Function) -> Value:
    """The value, copied so that the axes a function runs along are innermost, if that is faster."""
    order = (*(axis for axis in value.layout if axis not in axes), *axes)
    if value.layout == order:
        return value
    written = context.itemsize * context.positions(value.sizes, value.layout)
    inside, as_it_is = (
        function.seconds(context.profile, 2 * written, written, inner) for inner in (True, False)
    )
    return (
        context.reorder(value, order)
        if context.transpose_seconds(value, order) + inside < as_it_is
        else value
    )


# ---------------------------------------------------------------------------- axes joined and moved along


def _joined(context: LoweringContext, call: Call) -> Value:
    """Lowers a concatenation along an axis. An operand without that axis has size 1 along it."""
    axis = call.axes[0]
    values = [context.ungrouped(context.lower(part, None)) for part in call.arguments]
    element, result = FUNCTIONS[call.function].meeting([each.element for each in values])
    values = [context.convert(each, element) for each in values]
    left = order_of(context, {axis, *(name for each in values for name in each.layout)}, values)
    right = replace(call, arguments=tuple(each.ref for each in values))
    return context.emit(left, right, values, result, sizes={axis: context.sizes[axis]})


def _moved(context: LoweringContext, call: Call) -> Value:
    """Lowers a function that keeps the axes and moves the elements along some of them."""
    function, argument = FUNCTIONS[call.function], call.arguments[0]
    value = context.ungrouped(context.lower(argument, None))
    sizes = dict(value.sizes)
    options = dict(_numbers(context, call))
    filling = [of_number(each) for name in options.keys() - option_axes(call) for each in options[name]]
    if function.resized is not None:
        for name in option_axes(call):
            amounts = [context.open(scalar_size(each, Scope())) for each in options[name]]
            sizes[name] = function.resized(sizes[name], *amounts)
            options[name] = tuple(map(size_expression, amounts))
    value = context.convert(value, function.meeting([value.element], filling)[0])
    right = replace(call, arguments=(value.ref,), options=tuple(options.items()))
    return context.emit(value.left, right, [value], value.element, sizes=sizes)
