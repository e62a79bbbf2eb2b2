"""The step builder: steps with their axes, costs and element types."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from ..contraction.pairs import Layout, Strategy, flatten, view_order
from ..graph.shape_inference import Axis
from ..language.equation import Equation
from ..language.expression import Call, Expression, Literal, Ref, axes_of_index, references
from ..ops.protocols import Left, Value, extent, sizes_of
from ..ops.table import CONVERSIONS, FUNCTIONS, Element, Function
from ..planning.constant_folding import is_invariant
from ..planning.plans import CallStep
from ..planning.steps import Step
from .context import LoweringContext

__all__ = ["add", "convert", "emit", "grouped", "offers", "reorder", "transpose_seconds", "ungrouped"]


def emit(
    context: LoweringContext,
    left: Left,
    right: Expression,
    operands: Sequence[Value],
    sizes: Mapping[str, Any],
    element: Element,
    arrangement: Strategy | None = None,
    *,
    seconds: float | None = None,
    flops: Any = 0,
) -> Value:
    """Adds a step and returns its result. Its time is that of its arrangement, or else of its function."""
    axes, itemsize = axes_of_index(left), context.itemsize
    known = {**sizes_of(operands), **sizes}
    everything = dict.fromkeys([*(axis for each in operands for axis in each.layout), *axes])
    if isinstance(right, Call):  # new axes, which no operand has
        everything |= dict.fromkeys(axis for axis in right.axes if axis in known)
    written = itemsize * context.count(known, axes)
    moved = written + itemsize * sum(context.count(each.sizes, each.layout) for each in operands)
    if arrangement is not None:
        seconds, flops = arrangement.seconds, 2 * extent(known, everything)
    elif seconds is None:
        seconds = _seconds(context, right, operands, axes, moved, written)
    step = Step(
        Equation(context.name(), left, right),
        tuple(Axis(axis, context.open(known[axis])) for axis in everything),
        context.known(flops) if flops else 0,
        flops,
        moved,
        seconds,
        element,
        arrangement=arrangement,
    )
    add(context, step)
    return Value(Ref(step.equation.name, left), {axis: known[axis] for axis in axes}, element)


def add(context: LoweringContext, step: Step | CallStep) -> None:
    """Adds a step, and records whether its results are invariant and whether they get gradients."""
    context.steps.append(step)
    if is_invariant(step, context.invariant, context.told_sizes):
        context.invariant.update(step.defines)
    real = isinstance(step, Step) and step.element >= Element.WIDE
    if real and not context.changing.isdisjoint(step.reads):
        context.changing.update(step.defines)


def _seconds(
    context: LoweringContext,
    right: Expression,
    operands: Sequence[Value],
    order: Layout,
    moved: int,
    written: int,
) -> float:
    """The time of a step that is no product: that of its function along its axes, and that of reading operands
    whose layout differs from the result's."""
    profile = context.profile
    if not isinstance(right, Call):
        return profile.pointwise(moved, written)
    function = FUNCTIONS[right.function]
    if function.is_look(right):
        return profile.view
    seconds = function.seconds(profile, moved, written, _in_order(context, function, right, operands))
    if function.axes != "none" or all(each.layout == order for each in operands):
        return seconds
    return seconds + _access_seconds(context, operands, order) - profile.pointwise(moved, written)


def _in_order(context: LoweringContext, function: Function, call: Call, operands: Sequence[Value]) -> bool:
    """Whether a function runs over the innermost axes; for one with conditions, whether these are invariant."""
    if function.conditions:
        asked = itertools.chain.from_iterable(map(references, call.arguments[: function.conditions]))
        return all(ref.name in context.invariant for ref in asked)
    over = function.runs_over(call.axes)
    return not over or not operands or set(over) == set(operands[0].layout[-len(over) :])


def _access_seconds(context: LoweringContext, values: Sequence[Value], order: Layout) -> float:
    """Seconds to iterate over some values in a given order of axes."""
    sizes = {axis: context.count(each.sizes, (axis,)) for each in values for axis in each.layout}
    layouts = tuple(each.layout for each in values)
    return context.profile.walk_seconds(order, layouts, sizes, context.itemsize)


# ---------------------------------------------------------------------------- values


def convert(context: LoweringContext, value: Value, element: Element) -> Value:
    """Element type conversion. A number becomes a truth value by comparison with 0."""
    if value.element is element:
        return value
    compared = (Literal(0),) if element is Element.TRUTH else ()
    right = Call(CONVERSIONS[element], (value.ref, *compared))
    return emit(context, value.left, right, [value], {}, element)


def reorder(context: LoweringContext, value: Value, left: Left) -> Value:
    """Transposition: the value in another layout."""
    if value.left == left:
        return value
    order = axes_of_index(left)
    seconds = context.profile.view if order == value.layout else transpose_seconds(context, value, order)
    return emit(context, left, value.ref, [value], {}, value.element, seconds=seconds)


def transpose_seconds(context: LoweringContext, value: Value, order: Layout) -> float:
    """Seconds to copy a value into another layout."""
    return _access_seconds(context, [value], order) + context.profile.view


def offers(context: LoweringContext, value: Value, groups: Sequence[Layout]) -> bool:
    """Whether a value has a dimension for each group, the last innermost, without a copy."""
    order = view_order(value.layout, tuple(groups))
    return order is not None and (not groups[-1] or order[-1] == len(groups) - 1)


def grouped(context: LoweringContext, value: Value, groups: Sequence[Layout]) -> Value:
    """The value, copied if it does not offer the groups."""
    return value if offers(context, value, groups) else reorder(context, value, flatten(tuple(groups)))


def ungrouped(context: LoweringContext, value: Value) -> Value:
    """The value with a dimension for each axis."""
    return reorder(context, value, value.layout)
