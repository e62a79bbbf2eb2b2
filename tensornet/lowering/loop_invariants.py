"""Loop-invariant code motion: steps that are the same at all positions of a loop are computed before it.

These are the steps that depend on constants alone, which `planning.constant_folding` finds. Terms that do not recur,
such as `x * W` in `h[t] = tanh(x[t] * W + h[t-1] * U)`, leave the loop in `scan.lowering`, where the scan is built.
"""

from __future__ import annotations

import re
from dataclasses import replace

from ..graph.graph import Apply
from ..graph.shape_inference import Axis
from ..language.expression import fresh
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
    """Emits the loop-invariant steps of a block before its loop, under other names.

    The result is the names of the block's tables here, and the repetition.
    """
    along = call.along
    assert along is not None
    outer = call.names()
    names = {leaf.name: variable_of(context, outer[leaf.name]) for leaf in call.graph.constants}
    for step in plan.once:
        assert isinstance(step, Step)
        name = fresh(step.equation.name, context.taken)
        if _VARIABLE.fullmatch(name):  # another variable has or will get that name
            name = context.name()
        context.taken.add(name)
        moved = step.reading(names).defining((name,))
        names[step.equation.name] = name
        add(context, moved)
    axis = Axis(along.axis.name, context.open(along.axis.size))
    count = context.count({axis.name: axis.size}, (axis.name,))
    tables = tuple(names[table.made] for table in plan.tables)
    return tables, Repetition(axis, along.cuts, along.states, along.back, along.last, count)


def variable_of(context: LoweringContext, name: str) -> str:
    """The variable of a block's operand, in its declared layout. A copy into that layout serves other calls too."""
    stored = context.stored[name]
    variable = in_logical_order(context, stored)
    context.stored[name] = replace(stored, variable=variable, entries=stored.left)
    return variable
