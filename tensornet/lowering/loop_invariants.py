"""Lowering of calls of blocks, with loop-invariant code motion: what depends on constants alone leaves the loop.

Terms that do not recur, such as `x * W` in `h[t] = tanh(x[t] * W + h[t-1] * U)`, left it in `scan/lowering.py`, where
the scan was built.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from ..graph.element_types import holding
from ..graph.graph import Apply, Graph
from ..graph.shape_inference import Axis, dim_size
from ..language.expression import fresh
from ..ops.table import Element
from ..planning.plans import CallStep, Plan
from ..planning.steps import Repetition, Step
from .context import LoweringContext, as_declared
from .reading import in_logical_order

Planned: TypeAlias = "Callable[[Graph, frozenset[str]], Plan]"
"""Plans a block that is called, given which of its leaves get gradients."""

_VARIABLE = re.compile(r"t\d+")


def lower_block(context: LoweringContext, call: Apply, planned: Planned) -> None:
    """Emits the call of a block. Its operands and results have the declared layout."""
    names, changing = call.names(), context.changing
    seen = {leaf.name: context.stored[names[leaf.name]].element for leaf in call.graph.leaves}
    given = frozenset(leaf for leaf, name in names.items() if context.stored[name].variable in changing)
    both_ways = given if call.along is None else frozenset[str]()  # autograd differentiates small steps
    plan = planned(holding(call.graph, seen), both_ways)
    tables, along = _hoist_loop_invariants(context, plan, call) if call.along is not None else ((), None)
    operands = tuple(_variable_of(context, name) for name in call.operands)
    dims = [context.lines.dims[name] for name in call.results]
    shapes = tuple(tuple(context.open(dim_size(dim)) for dim in each) for each in dims)
    context.add(CallStep(plan, call.scope, operands, call.results, shapes, tables=tables, along=along))
    elements = {result.name: result.element for result in plan.results}
    for (output, name), each in zip(call.made, dims, strict=True):
        context.stored[name] = as_declared(name, each, elements[output])
        if given and elements[output] >= Element.WIDE:
            changing.add(name)


def _hoist_loop_invariants(
    context: LoweringContext, plan: Plan, call: Apply
) -> tuple[tuple[str, ...], Repetition]:
    """Emits the steps of a block that depend on constants alone before its loop, under other names.

    The result is the names of the block's tables here, and the repetition.
    """
    along = call.along
    assert along is not None
    outer = call.names()
    names = {leaf.name: _variable_of(context, outer[leaf.name]) for leaf in call.graph.constants}
    for step in plan.once:
        assert isinstance(step, Step)
        name = fresh(step.equation.name, context.taken)
        if _VARIABLE.fullmatch(name):  # another variable has or will get that name
            name = context.name()
        context.taken.add(name)
        moved = step.reading(names).defining((name,))
        names[step.equation.name] = name
        context.add(moved)
    axis = Axis(along.axis.name, context.open(along.axis.size))
    count = context.positions({axis.name: axis.size}, (axis.name,))
    tables = tuple(names[table.made] for table in plan.tables)
    return tables, Repetition(axis, along.cuts, along.states, along.back, count)


def _variable_of(context: LoweringContext, name: str) -> str:
    """The variable of a block's operand, in its declared layout. A copy into that layout serves other calls too."""
    stored = context.stored[name]
    variable = in_logical_order(context, stored)
    context.stored[name] = replace(stored, variable=variable, entries=stored.left)
    return variable
