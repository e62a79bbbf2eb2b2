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
    Ref,
    axes_of_index,
    option_axes,
)
from ..language.patterns import pattern_of
from ..ops.protocols import Value, left_of
from ..ops.table import FUNCTIONS, Element, Function
from .context import LoweringContext
from .contractions import lower_rounded
from .pointwise import lower_pointwise, order_of
from .reading import read


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
            return _normed(context, call) or lower_pointwise(context, call, wanted)
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
    if not function.leaves_out(call.axes) and len(axes) > 1:
        value = context.reorder(value, (*(axis for axis in value.layout if axis not in axes), axes))
    call = replace(call, axes=(*axes, *function.makes(call.axes)))
    return _along(context, call, value, result)


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
    right = replace(call, arguments=tuple(each.ref for each in operands), options=context.options(call))
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
    options = dict(context.options(call))
    filling = [of_number(each) for name in options.keys() - option_axes(call) for each in options[name]]
    if function.resized is not None:
        for name in option_axes(call):
            amounts = [context.open(scalar_size(each, Scope())) for each in options[name]]
            sizes[name] = function.resized(sizes[name], *amounts)
            options[name] = tuple(map(size_expression, amounts))
    value = context.convert(value, function.meeting([value.element], filling)[0])
    right = replace(call, arguments=(value.ref,), options=tuple(options.items()))
    return context.emit(value.left, right, [value], value.element, sizes=sizes)
