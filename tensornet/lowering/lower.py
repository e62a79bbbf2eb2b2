"""Lowering: a graph to steps, each one operation.

Lowering decides the order in memory of every intermediate (the left side of its step) and hands
each n-ary contraction to `choose`, which returns which pairs to contract, and how.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from ..autodiff.joint import Directions
from ..contraction.pairs import Layout, view_order
from ..contraction.search import Choose
from ..graph.call import Apply
from ..graph.element_types import holding, of_number
from ..graph.graph import Graph
from ..graph.inline import renamed_axes
from ..graph.shape_inference import Axis, Scope, dim_size
from ..language.equation import Equation
from ..language.expression import (
    Call,
    Contraction,
    Expression,
    Ref,
    axes_of_index,
    fresh,
    is_scalar,
    occurring,
    rename_tensors,
)
from ..ops.table import Element
from ..planning.liveness import with_frees
from ..planning.plans import Plan
from ..planning.steps import CallStep, Repetition, Result, Step
from ..planning.target import Target
from .calls import Calling
from .pointwise import is_reciprocal
from .values import Stored, Value, as_declared

__all__ = ["lower", "steps_to_price"]

Planned: TypeAlias = "Callable[[Graph, frozenset[str]], Plan]"

_VARIABLE = re.compile(r"t\d+")
_NUMBERED = re.compile(r"(.+?)(?:_\d+)+")


def lower(
    graph: Graph,
    values: Mapping[str, int],
    target: Target,
    choose: Choose,
    planned: Planned | None = None,
    inside: bool = False,
    product: Callable[[Directions, Mapping[str, int]], Plan] | None = None,
    as_laid: bool = False,
) -> tuple[tuple[Step | CallStep, ...], tuple[Result, ...]]:
    """The steps that compute a graph, and where its outputs are.

    Args:
        graph: the graph, rewritten as far as it should be.
        values: every open size, for costs.
        target: what it is planned for.
        choose: orders an n-ary contraction.
        planned: plans a block that is called, told which of its leaves get gradients.
        inside: whether the graph is such a block, whose results go on being computed with.
        product: plans a product whose factors get gradients, both ways, at some sizes.
        as_laid: whether all that is made had better lie as it is written.
    """
    lowering = _Lowering(graph, values, target, choose, as_laid)
    if product is not None:
        lowering.product = product
    results = lowering.results(planned, inside)
    names = {*graph.bound, *graph.open_sizes}.union(*(equation.axes for equation in graph.own))
    steps = [_plainly(step, names) for step in lowering.steps]
    return with_frees(steps, [each.value.name for each in results]), results


def steps_to_price(
    graph: Graph, values: Mapping[str, int], target: Target, choose: Choose
) -> Sequence[Step | CallStep]:
    """The steps that compute a graph without calls, as they are made: their axes may have numbers, and nothing
    is freed. The arguments are those of `lower`."""
    lowering = _Lowering(graph, values, target, choose)
    lowering.results()
    return lowering.steps


COPIED = 0.05
"""Of those who read what leaves a plan, so many have it copied into the order that is written: it may lie in any, as
what the libraries' own einsum gives, but is written so where that takes hardly longer."""


def _plainly(step: Step | CallStep, known: set[str]) -> Step | CallStep:
    """The step with axes by their plain names, where a number tells none of its own apart.

    Axes are local to an equation; numbers keep those with sizes of their own apart in different ones, where
    blocks are written out, and those of one equation that parts into several steps.

    Args:
        step: the step.
        known: the names of the graph's sizes and axes.
    """
    if isinstance(step, CallStep):
        return step
    present = occurring(step.equation.right) | set(axes_of_index(step.equation.left))
    stems = {
        axis.name: found[1] for axis in step.axes if (found := _NUMBERED.fullmatch(axis.name)) is not None
    }
    names = {stem: name for name, stem in reversed(stems.items()) if stem in known - present}
    names = {name: stem for stem, name in names.items()}
    if not names:
        return step
    axes = tuple(replace(axis, name=names.get(axis.name, axis.name)) for axis in step.axes)
    way = None if step.arrangement is None else step.arrangement.renamed(names)
    return replace(step, equation=renamed_axes(step.equation, names), axes=axes, arrangement=way)


class _Lowering(Calling):
    """Lowers the equations and calls of a graph, one after another."""

    def __init__(
        self, graph: Graph, values: Mapping[str, int], target: Target, choose: Choose, as_laid: bool = False
    ) -> None:
        super().__init__(graph, values, target)
        self.choose = choose
        self.asked_for = frozenset(graph.named if as_laid else _asked_for(graph))
        self.read_by_name = frozenset(leaf.name for call in graph.calls for leaf in call.leaves())

    def results(self, planned: Planned | None = None, inside: bool = False) -> tuple[Result, ...]:
        """Makes the steps; where the outputs are then."""
        self.leaving = frozenset() if inside else frozenset(self.graph.outputs).difference(self.readers)
        for item in self.graph.body:
            if isinstance(item, Apply):
                assert planned is not None
                self.apply(item, planned)
            else:
                self.equation(item)
        return tuple(self.result(name, inside) for name in self.graph.outputs)

    def equation(self, equation: Equation) -> None:
        scope = self.graph.scope(equation)
        self.written = axes_of_index(equation.left)
        leaves = equation.name in self.leaving and not any(
            isinstance(entry, tuple) for entry in equation.left
        )
        self.asked = COPIED if leaves else 1.0
        start = len(self.steps)
        value = self.lower(equation.right, scope, self.written if equation.name in self.asked_for else None)
        if equation.name in self.read_by_name:  # a block reads it by its name
            value = self.reorder(value, equation.left)
        variable = value.ref.name
        if (
            len(self.steps) > start
            and (variable,) == self.steps[-1].defines
            and variable not in self.graph.named
        ):
            self._rename_last(equation.name)
            variable = equation.name
        logical = tuple((entry,) if isinstance(entry, str) else entry for entry in equation.left)
        missing = set(axes_of_index(equation.left)) - set(value.layout)
        assert not missing, f"{equation} lost {missing}"
        dims = self.graph.named[equation.name]
        self.stored[equation.name] = Stored(variable, value.left, logical, dims, value.element)

    def _rename_last(self, name: str) -> None:
        last = self.steps[-1]
        if last.defines[0] in self.changing:
            self.changing.add(name)
        self.steps[-1] = _renamed(last, name)
        self._note_still()

    def lower(self, expression: Expression, scope: Scope, wanted: Layout | None) -> Value:
        """The value of an expression; `wanted` is the order in memory that would suit."""
        match expression:
            case Ref():
                return self.read(expression, scope)
            case _ if is_scalar(expression):
                number = self.scalar(expression, scope)
                return self.emit((), number, [], {}, of_number(number))
            case Contraction(factors, ()) if any(map(is_reciprocal, factors[1:])):
                return self.quotient(factors, scope, wanted)
            case Contraction():
                return self.contract(expression, scope, wanted)
            case Call():
                return self.call(expression, scope, wanted)
        raise AssertionError(expression)

    # ---- calls and results

    def apply(self, call: Apply, planned: Planned) -> None:
        """A call of a block; what it is given, and what it gives, lies in memory as it is declared."""
        names = call.names()
        seen = {leaf.name: self.stored[names[leaf.name]].element for leaf in call.graph.leaves}
        changing = frozenset(
            leaf for leaf, name in names.items() if self.stored[name].variable in self.changing
        )
        both_ways = changing if call.along is None else frozenset[str]()  # small steps are autograd's own
        plan = planned(holding(call.graph, seen), both_ways)
        tables, along = self._repeated(plan, call) if call.along is not None else ((), None)
        operands = tuple(self._given(name) for name in call.operands)
        dims = [self.graph.named[name] for name in call.results]
        shapes = tuple(tuple(self.open(dim_size(dim)) for dim in each) for each in dims)
        self.steps.append(
            CallStep(plan, call.scope, operands, call.results, shapes, tables=tables, along=along)
        )
        self._note_still()
        elements = {result.name: result.element for result in plan.results}
        for (output, name), each in zip(call.made, dims, strict=True):
            self.stored[name] = as_declared(name, each, elements[output])
            if changing and elements[output] >= Element.WIDE:
                self.changing.add(name)

    def _repeated(self, plan: Plan, call: Apply) -> tuple[tuple[str, ...], Repetition]:
        """What a block that is repeated makes of what is alike at all positions: made before it, under other names."""
        assert call.along is not None
        outer = call.names()
        names = {leaf.name: self._given(outer[leaf.name]) for leaf in call.graph.constants}
        for step in plan.once:
            assert isinstance(step, Step)
            moved = replace(step, equation=_reading(step.equation, names), frees=())
            name = fresh(step.equation.name, self.taken)
            if _VARIABLE.fullmatch(name):  # there is one of that name, or will be
                name = next(each for each in self.numbered if each not in self.taken)
            self.taken.add(name)
            names[step.equation.name] = name
            if any(each in self.changing for each in moved.reads):
                self.changing.add(name)
            self.steps.append(_renamed(moved, name))
            self._note_still()
        axis = Axis(call.along.axis.name, self.open(call.along.axis.size))
        count = self.count({axis.name: axis.size}, (axis.name,))
        tables = tuple(names[table.made] for table in plan.tables)
        return tables, Repetition(
            axis, count, call.along.cuts, call.along.states, call.along.back, call.along.last
        )

    def _given(self, name: str) -> str:
        """The variable of a tensor that a block is given; brought in order once, it stays so for other calls."""
        stored = self.stored[name]
        variable = self._in_logical_order(stored)
        entries = tuple(part[0] if len(part) == 1 else part for part in stored.logical)
        self.stored[name] = replace(stored, variable=variable, entries=entries)
        return variable

    def result(self, name: str, inside: bool) -> Result:
        stored = self.stored[name]
        left = tuple(part[0] if len(part) == 1 else part for part in stored.logical)
        axes = tuple(
            Axis(label, self.open(axis.size))
            for part, dim in zip(stored.logical, stored.dims, strict=True)
            for label, axis in zip(part, dim, strict=True)
        )
        value = Value(Ref(stored.variable, stored.entries), stored.sizes, stored.element)
        if stored.element is Element.WIDE and not inside:  # what leaves is of the working type
            value = self.convert(value, Element.NUMBER)
        groups = tuple(stored.logical)
        if value.layout != axes_of_index(left) and (inside or view_order(value.layout, groups) is None):
            value = self.reorder(value, left)  # a caller takes it to lie as it is declared
        return Result(name, value.ref, left, axes, value.element)


def _reading(equation: Equation, names: Mapping[str, str]) -> Equation:
    """The equation of tensors under other names."""
    return replace(equation, right=rename_tensors(equation.right, names))


def _renamed(step: Step | CallStep, name: str) -> Step | CallStep:
    """The step whose one result is called otherwise."""
    if isinstance(step, CallStep):
        return replace(step, results=(name,))
    return replace(step, equation=replace(step.equation, name=name))


def _asked_for(graph: Graph) -> Iterator[str]:
    """The tensors that are best made in the order that is written: all but those that go into products alone."""
    yield from graph.outputs
    for call in graph.calls:
        yield from call.operands
        yield from (leaf.name for leaf in call.leaves())
    for equation in graph.own:
        sums = (part for part in equation.parts if isinstance(part, Contraction) and part.summed)
        factors = Counter(each.name for part in sums for each in part.factors if isinstance(each, Ref))
        yield from Counter(ref.name for ref in equation.references) - factors
