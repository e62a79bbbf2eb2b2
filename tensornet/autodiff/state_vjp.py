"""The vjp of recurrent states, which the backward pass reads before it makes them."""

from __future__ import annotations

from collections.abc import Sequence

from ..graph.algebra import ZERO, summed_over
from ..graph.graph import Apply
from ..graph.recurrences import is_step
from ..graph.shape_inference import Axis, dim_size
from ..language.equation import Equation
from ..language.expression import Call, Expression, Ref, free_axes
from ..language.parser import parse_rule
from ..ops.scan import PREVIOUS
from ..ops.table import FUNCTIONS, Element
from .cotangents import added_up, full, give, part_of
from .vjp_context import GRADIENT, VjpContext

__all__ = ["backward_state", "foresee"]


def foresee(context: VjpContext, forward: Sequence[Equation | Apply]) -> None:
    """The gradients of states, which recurrences read in the backward pass before they are made.

    What a state is made of stands below it; of the gradient of the one it gets that of the other, moved on.
    """
    done = {leaf.name for leaf in context.graph.leaves}
    for item in forward:
        done.update(item.defines)
        match item:
            case Equation(name, left, Call(function, (Ref(behind), *_), (axis,)) as step) if is_step(step):
                if behind in done or name not in context.active or name not in context.needed:
                    continue
                context.states[name] = gradient = context.fresh(GRADIENT.format(name))
                axes = context.axes(behind)
                sizes = [
                    Axis(each, dim_size(dim)) for each, dim in zip(axes, context.dims[behind], strict=True)
                ]
                context.dims[gradient] = context.resolved(tuple((each,) for each in sizes))
                context.elements[gradient] = Element.NUMBER
                other = parse_rule(
                    FUNCTIONS[function].gradient(0), {"g": Ref(gradient, axes)}, (axes[left.index(axis)],)
                )
                context.uses[behind] += 1
                part = part_of(context, behind)
                context.put(part, axes, other, context.axis_sizes(behind))
                context.terms[behind].append(Ref(part, axes))


def backward_state(context: VjpContext, state: Equation) -> None:
    """The gradient of a state under the name it is read by, and what the start gets of it."""
    assert isinstance(state.right, Call)
    name, axes = context.states[state.name], context.axes(state.name)
    total = added_up(context, state.name) if context.terms[state.name] else ZERO
    context.put(name, axes, full(total, axes), context.axis_sizes(state.name))
    (axis,) = state.right.axes
    first = 0 if state.right.function == PREVIOUS.name else -1
    for start in state.right.arguments[1:]:
        if isinstance(start, Ref) and start.name in context.active:
            index = tuple(first if entry == axis else entry for entry in state.left)
            give(context, start, _alone(Ref(name, index), start), context.scope(state.right))


def _alone(term: Expression, operand: Ref) -> Expression:
    """A gradient, summed over the axes that an operand has not."""
    own = free_axes(operand)
    return summed_over(term, [axis for axis in free_axes(term) if axis not in own])
