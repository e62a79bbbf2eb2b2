"""Lowering of calls: of functions as their records declare, and of blocks with loop-invariant code motion.

Of a block along an axis, what depends on constants alone leaves the loop. Terms that do not recur, such as `x * W` in
`h[t] = tanh(x[t] * W + h[t-1] * U)`, left it in `scan/lowering.py`, where the scan was built.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

from ..contraction.pairs import Layout, flatten, view_order
from ..graph.element_types import holding, of_number
from ..graph.graph import Apply, Graph
from ..graph.shape_inference import Axis, Scope, dim_size, scalar_size, size_expression
from ..language.expression import Call, Contraction, Ref, axes_of_index, fresh, option_axes
from ..language.patterns import pattern_of
from ..ops.record import Value, common, left_of
from ..ops.table import FUNCTIONS, Element, Function
from ..planning.plans import CallStep, Plan, Repetition
from .context import LoweringContext, as_declared, in_logical_order, read
from .contractions import lower_rounded
from .pointwise import lower_pointwise, order_of


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
    if function.averages:
        outer = context.before_innermost(value, axes)
        if outer:
            value = _along(context, replace(call, axes=outer), value, result)
            axes = common(value.layout, axes)
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


# ---------------------------------------------------------------------------- calls of blocks


Planned: TypeAlias = "Callable[[Graph, frozenset[str]], Plan]"
"""Plans a block that is called, given which of its leaves get gradients."""

_VARIABLE = re.compile(r"t\d+")


def lower_block(context: LoweringContext, call: Apply, planned: Planned) -> None:
    """Emits the call of a block. Its operands and results have the declared layout."""
    names, changing, along = call.names(), context.changing, call.along
    seen = {leaf.name: context.stored[names[leaf.name]].element for leaf in call.graph.leaves}
    given = frozenset(leaf for leaf, name in names.items() if context.stored[name].variable in changing)
    both_ways = given if along is None else frozenset[str]()  # autograd differentiates small steps
    plan = planned(holding(call.graph, seen), both_ways)
    is_module = context.alone and along is None and call.scope  # it computes its own tables
    tables = () if is_module else tuple(_hoist_loop_invariants(context, plan, call))
    repetition = None
    if along is not None:
        axis = Axis(along.axis.name, context.open(along.axis.size))
        count = context.positions({axis.name: axis.size}, (axis.name,))
        repetition = Repetition(axis, along.cuts, along.states, along.back, count)
    operands = tuple(_variable_of(context, name) for name in call.operands)
    dims = [context.lines.dims[name] for name in call.results]
    shapes = tuple(tuple(context.open(dim_size(dim)) for dim in each) for each in dims)
    context.add(CallStep(plan, call.scope, operands, call.results, shapes, tables=tables, along=repetition))
    elements = {result.name: result.element for result in plan.results}
    for (output, name), each in zip(call.made, dims, strict=True):
        context.stored[name] = as_declared(name, each, elements[output])
        if given and elements[output] >= Element.WIDE:
            changing.add(name)


def _hoist_loop_invariants(context: LoweringContext, plan: Plan, call: Apply) -> Iterator[str]:
    """Emits the steps of a block that depend on constants alone before its call, under other names.

    The result is the names of the block's tables here.
    """
    outer = call.names()
    names = {leaf.name: _variable_of(context, outer[leaf.name]) for leaf in call.graph.constants}
    for step in plan.once:
        made = list[str]()
        for each in step.defines:
            name = fresh(call.scoped(each), context.taken)
            if _VARIABLE.fullmatch(name):  # another variable has or will get that name
                name = context.name()
            context.taken.add(name)
            made.append(name)
        context.add(step.reading(names, call.scope).defining(made))
        names.update(zip(step.defines, made, strict=True))
    return (names[table.made] for table in plan.tables)


def _variable_of(context: LoweringContext, name: str) -> str:
    """The variable of a block's operand, in its declared layout. A copy into that layout serves other calls too."""
    stored = context.stored[name]
    variable = in_logical_order(context, stored)
    context.stored[name] = replace(stored, variable=variable, entries=stored.left)
    return variable
