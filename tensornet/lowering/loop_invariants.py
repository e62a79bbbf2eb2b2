"""Loop-invariant code motion: what no position of a loop changes is computed before the loop.

Here this is what is made of constants (`planning.constant_folding` finds it). What does not recur, `x * W` in
`h[t] = tanh(x[t] * W + h[t-1] * U)`, leaves the loop where the scan is made, in `scan.lowering`.
"""

from __future__ import annotations

import re
from dataclasses import replace

from ..graph.graph import Apply
from ..graph.shape_inference import Axis
from ..language.expression import fresh, rename_tensors
from ..planning.plans import Plan
from ..planning.steps import Repetition, Step
from .context import LoweringContext
from .reading import in_logical_order
from .steps import add

__all__ = ["hoist_loop_invariants", "variable_of"]

_VARIABLE = re.compile(r"t\d+")


def hoist_loop_invariants(
    context: LoweringContext, plan: Plan, call: Apply
) -> tuple[tuple[str, ...], Repetition]:
    """Loop-invariant code motion: what is alike at all positions of a loop is made before it, under other names."""
    along = call.along
    assert along is not None
    outer = call.names()
    names = {leaf.name: variable_of(context, outer[leaf.name]) for leaf in call.graph.constants}
    for step in plan.once:
        assert isinstance(step, Step)
        name = fresh(step.equation.name, context.taken)
        if _VARIABLE.fullmatch(name):  # there is one of that name, or will be
            name = context.name()
        context.taken.add(name)
        right = rename_tensors(step.equation.right, names)
        names[step.equation.name] = name
        add(context, replace(step, equation=replace(step.equation, name=name, right=right), frees=()))
    axis = Axis(along.axis.name, context.open(along.axis.size))
    count = context.count({axis.name: axis.size}, (axis.name,))
    tables = tuple(names[table.made] for table in plan.tables)
    return tables, Repetition(axis, count, along.cuts, along.states, along.back, along.last)


def variable_of(context: LoweringContext, name: str) -> str:
    """The variable of a tensor that a block is given; brought in order once, it stays so for other calls."""
    stored = context.stored[name]
    variable = in_logical_order(context, stored)
    context.stored[name] = replace(stored, variable=variable, entries=stored.left)
    return variable
