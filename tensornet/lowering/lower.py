"""Lowering: a program to steps, each one operation, with loop-invariant code motion.

Each n-ary contraction goes to `choose`, which returns the pairs to contract and the layouts of the intermediates. The
layouts of all other intermediates, the left sides of their steps, are decided here.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from ..contraction.pairs import Choose, Layout, flatten, view_order
from ..graph.element_types import holding, of_number
from ..graph.graph import Apply, Graph
from ..graph.shape_inference import Axis, Scope, dim_size, scalar_size, size_expression
from ..ir.rewriting import Program
from ..language.affine import is_window, reached
from ..language.equation import renamed_axes
from ..language.expression import (
    Call,
    Contraction,
    Expression,
    Literal,
    Ref,
    axes_of_index,
    divisor_of,
    fresh,
    scalar_value,
)
from ..language.patterns import pattern_of
from ..ops.record import Value, common, left_of, names_in
from ..ops.table import FUNCTIONS, Element, Function
from ..planning.plans import AnyStep, CallStep, Plan, Repetition, Result
from ..planning.target import Target
from .context import Line, Lines, LoweringContext, Stored, TooLongError, as_declared, in_logical_order, read
from .contractions import lower_contraction, lower_quotient, lower_rounded, share_copies
from .pointwise import applied, lower_pointwise, order_of

if TYPE_CHECKING:
    from ..autodiff.vjp import JointGraph


_NUMBERED = re.compile(r"(.+?)(?:_\d+)+")

COPIED = 0.05
"""The assumed share of callers who copy an output into row-major order. An output may have any layout, as with the
libraries' own einsum; the declared one is chosen where it costs hardly more."""


def lower(
    program: Program,
    values: Mapping[str, int],
    target: Target,
    choose: Choose,
    planned: Planned | None = None,
    inside: bool = False,
    product: Callable[[JointGraph, Mapping[str, int]], Plan] | None = None,
    alone: bool = False,
) -> tuple[tuple[AnyStep, ...], tuple[Result, ...]]:
    """The steps that compute a program, and where its outputs are.

    Args:
        program: the program, rewritten as far as it should be.
        values: every open size, for costs.
        target: the target that it is planned for.
        choose: orders an n-ary contraction.
        planned: plans a block that is called, given which of its leaves get gradients; needed if there are any.
        inside: whether the program is such a block, whose results are read by steps of its caller.
        product: plans the forward and backward pass of a product whose factors get gradients, at some sizes.
        alone: whether blocks run on their own.
    """
    context = _Lowering(Lines(program), values, target, choose, product, alone=alone)
    _lower_lines(context, inside, planned)
    share_copies(context)
    lines = context.lines
    results = tuple(_result(context, name, inside) for name in lines.names.outputs)
    names = {*lines.known}.union(*(line.sizes for line in lines.own))
    return tuple([_plainly(step, names) for step in context.steps]), results


def seconds_of(
    program: Program, values: Mapping[str, int], target: Target, choose: Choose, limit: float = math.inf
) -> float:
    """The expected seconds of a call of a program without calls, or more than `limit` if they exceed it."""
    context = _Lowering(Lines(program), values, target, choose, limit=limit)
    with contextlib.suppress(TooLongError):
        _lower_lines(context, inside=False)
        for name in program.names.outputs:
            _result(context, name, inside=False)
    return context.seconds


def _lower_lines(context: _Lowering, inside: bool, planned: Planned | None = None) -> None:
    """Emits the steps of all lines and calls."""
    lines = context.lines
    asked_for = frozenset(_asked_for(lines))
    leaving = frozenset[str]() if inside else frozenset(lines.names.outputs).difference(context.readers)
    for item in lines.body:
        if isinstance(item, Apply):
            assert planned is not None
            lower_block(context, item, planned)
        else:
            plain = not any(isinstance(entry, tuple) for entry in item.equation.left)
            context.asked = COPIED if item.equation.name in leaving and plain else 1.0
            _lower_line(context, item, item.equation.name in asked_for)


class _Lowering(LoweringContext):
    """The context, which lowers each expression by its kind; with what records of functions ask for, see
    `ops.record.Lowering`."""

    def lower(self, expression: Expression, wanted: Layout | None = None) -> Value:
        """The value of an expression; `wanted` is the preferred layout."""
        match expression:
            case Ref():
                return read(self, expression)
            case _ if expression.is_scalar:
                number = self.scalar(expression)
                return self.emit((), number, [], of_number(number))
            case Contraction(factors, ()) if any(map(divisor_of, factors[1:])):
                return lower_quotient(self, factors, wanted)
            case Contraction():
                return lower_contraction(self, expression, wanted)
            case Call(function) if (lowered := FUNCTIONS[function].lowered) is not None:
                return lowered(self, expression)
            case Call():
                return lower_call(self, expression, wanted)
        raise AssertionError(expression)

    def new_axis(self) -> str:
        """The name of a new axis, which the current line does not have."""
        return next(name for name in (f"v_{n}" for n in itertools.count()) if name not in self.sizes)

    applied = applied
    reached = staticmethod(reached)

    def is_even(self, expression: Expression, axes: tuple[str, ...]) -> bool:
        """Whether an expression gives positions at even distances, one for each position along an axis."""
        return expression.free_axes == axes and len(axes) == 1 and is_window(expression)

    def raised(self, expression: Expression, least: float) -> Expression:
        """An expression with its numbers raised to at least `least`."""
        value = scalar_value(expression) if isinstance(expression, Literal) else None
        if isinstance(value, int | float) and value < least:
            return Literal(least)
        return expression.transform(lambda part: self.raised(part, least))


# ---------------------------------------------------------------------------- lines


def _asked_for(lines: Lines) -> Iterator[str]:
    """The tensors that are best laid out as declared: all but those that contractions alone read."""
    yield from lines.names.outputs
    for call in lines.calls:
        yield from call.operands
        yield from call.held
    for line in lines.own:
        sums = (part for part in line.equation.parts if isinstance(part, Contraction) and part.summed)
        factors = Counter(each.name for part in sums for each in part.factors if isinstance(each, Ref))
        yield from Counter(line.equation.operands) - factors


def _lower_line(context: LoweringContext, line: Line, as_written: bool) -> None:
    """Emits the steps of a line. The step that computes the tensor gets its name."""
    equation, start = line.equation, len(context.steps)
    context.sizes, context.written = line.sizes, equation.kept
    value = context.lower(equation.right, context.written if as_written else None)
    if equation.name in context.read_by_name:
        value = context.reorder(value, equation.left)
        if not _is_made_here(context, value, start):  # the value is that of another tensor
            value = context.emit(value.left, value.ref, [value], value.element, seconds=context.profile.view)
    variable = value.ref.name
    if _is_made_here(context, value, start):
        if variable in context.changing:
            context.changing.add(equation.name)
        context.add(context.steps.pop().defining((equation.name,)))
        context.renamed[variable] = equation.name
        variable = equation.name
    if variable != equation.name:  # readers of this tensor read that variable
        context.readers[variable] += context.readers[equation.name] - 1
    missing = set(context.written) - set(value.layout)
    assert not missing, f"{equation} lost {missing}"
    logical = tuple(map(names_in, equation.left))
    dims = context.lines.dims[equation.name]
    context.stored[equation.name] = Stored(variable, value.left, logical, dims, value.element)


def _is_made_here(context: LoweringContext, value: Value, start: int) -> bool:
    """Whether a value is the result of the last step, at number `start` or later, and has no name yet."""
    made = len(context.steps) > start and (value.ref.name,) == context.steps[-1].defines
    return made and value.ref.name not in context.named


def _result(context: LoweringContext, name: str, inside: bool) -> Result:
    """Where an output is, in the layout that its reader expects."""
    stored = context.stored[name]
    axes = tuple(Axis(label, context.open(size)) for label, size in stored.sizes.items())
    value = Value(Ref(stored.variable, stored.entries), stored.sizes, stored.element)
    if stored.element is Element.WIDE and not inside:  # outputs have the working type
        value = context.convert(value, Element.NUMBER)
    if value.layout != axes_of_index(stored.left) and (
        inside or view_order(value.layout, stored.logical) is None
    ):
        value = context.reorder(value, stored.left)  # a caller expects the declared layout
    return Result(name, value.ref, stored.left, axes, value.element)


# ---------------------------------------------------------------------------- names


def _plainly(step: AnyStep, known: set[str]) -> AnyStep:
    """The step with the numbers removed from axis names where its axes stay distinct without them.

    Axes are local to an equation. Numbers distinguish axes of different sizes across equations, where blocks are
    inlined. They also distinguish axes of one equation that becomes several steps.

    Args:
        step: the step.
        known: the names of the graph's sizes and axes.
    """
    if isinstance(step, CallStep):
        return step
    present = step.equation.right.occurring | set(step.equation.kept)
    spoken = {size.axis for size in step.equation.right.sizes}  # these are sizes of the graph
    names: dict[str, str] = {}
    for axis in step.axes:
        found = None if axis.name in spoken else _NUMBERED.fullmatch(axis.name)
        if found is not None and found[1] in known - present and found[1] not in names.values():
            names[axis.name] = found[1]
    if not names:
        return step
    axes = tuple(replace(axis, name=names[axis.name]) if axis.name in names else axis for axis in step.axes)
    way = None if step.arrangement is None else step.arrangement.renamed(names)
    return replace(step, equation=renamed_axes(step.equation, names), axes=axes, arrangement=way)


# ---------------------------------------------------------------------------- calls of functions


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
        part = tuple(groups[axis] for axis in ref.free_axes)
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
    filling = [of_number(each) for name in options.keys() - call.option_axes for each in options[name]]
    if function.resized is not None:
        for name in call.option_axes:
            amounts = [context.open(scalar_size(each, Scope())) for each in options[name]]
            sizes[name] = function.resized(sizes[name], *amounts)
            options[name] = tuple(map(size_expression, amounts))
    value = context.convert(value, function.meeting([value.element], filling)[0])
    right = replace(call, arguments=(value.ref,), options=tuple(options.items()))
    return context.emit(value.left, right, [value], value.element, sizes=sizes)


# ---------------------------------------------------------------------------- calls of blocks

# loop-invariant code motion: what depends on constants alone leaves a block. Terms that do not recur, such as `x * W`
# in `h[t] = tanh(x[t] * W + h[t-1] * U)`, left a loop in `scan/lowering.py`, where the scan was built

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
