"""Lowering: a program to steps, each one operation.

Each n-ary contraction goes to `choose`, which returns the pairs to contract and the layouts of the intermediates. The
layouts of all other intermediates, the left sides of their steps, are decided here.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from ..contraction.pairs import Choose, Layout, view_order
from ..graph.element_types import of_number
from ..graph.graph import Apply
from ..graph.shape_inference import Axis
from ..ir.rewriting import Program
from ..language.affine import is_window, reached
from ..language.equation import renamed_axes
from ..language.expression import (
    Call,
    Contraction,
    Expression,
    Literal,
    Ref,
    Size,
    axes_of_index,
    divisor_of,
    free_axes,
    is_scalar,
    occurring,
    scalar_value,
    transform,
)
from ..ops.record import Value, names_in
from ..ops.table import FUNCTIONS, Element
from ..planning.plans import AnyStep, CallStep, Plan, Result
from ..planning.target import Target
from .calls import Planned, lower_block, lower_call
from .context import Line, Lines, LoweringContext, Stored, TooLongError, read
from .contractions import lower_contraction, lower_quotient, share_copies
from .pointwise import applied

if TYPE_CHECKING:
    from ..autodiff.joint import JointGraph

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
            case _ if is_scalar(expression):
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
        return free_axes(expression) == axes and len(axes) == 1 and is_window(expression)

    def raised(self, expression: Expression, least: float) -> Expression:
        """An expression with its numbers raised to at least `least`."""
        value = scalar_value(expression) if isinstance(expression, Literal) else None
        if isinstance(value, int | float) and value < least:
            return Literal(least)
        return transform(expression, lambda part: self.raised(part, least))


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
    context.sizes, context.written = line.sizes, axes_of_index(equation.left)
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
    present = occurring(step.equation.right) | set(axes_of_index(step.equation.left))
    spoken = {
        part.axis for part in step.equation.parts if isinstance(part, Size)
    }  # these are sizes of the graph
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
