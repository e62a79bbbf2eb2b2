"""Associative scans: linear recurrences in a logarithmic number of rounds.

    h[b,t,n] = a[b,t,n] * previous[t](h[b,t,n]) + u[b,t,n]

The state before each position is `recur[t](a, u)`, or a running sum where `a` is 1. All other tensors follow from it.
Infinite values may become NaN, because products of several `a` replace the single steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..frontend.elaborate_expressions import Expressions
from ..graph.graph import Graph
from ..graph.shape_inference import size_expression
from ..ir.build import number
from ..ir.node import Node, Operand, along, axes_of, substitute
from ..ir.positions import apart, applied
from ..language.expression import Call, Expression, Literal, Ref, product_of, sum_of
from ..ops.along_axes import CUMSUM, PREVIOUS, RECUR
from ..ops.pointwise import EQUAL, WHERE
from ..ops.structure import INDEX
from ..ops.table import CONVERSIONS, Element
from ..sizes import evaluate
from .components import Component, Components
from .cut import cut
from .states import moved, with_states

__all__ = ["Pays", "select_associative_scans"]

Pays: TypeAlias = "Callable[[Any, Sequence[Any]], bool]"
"""Whether it is quicker than a loop, given the number of positions along the axis and the sizes of other dimensions."""

ONE, ZERO = Operand(number(1)), Literal(0)


def select_associative_scans(graph: Graph, pays: Pays) -> Graph:
    """The graph without the recurrences that have one state, linear in each element, where `pays` allows that.

    Args:
        graph: the graph.
        pays: whether an associative scan is quicker than a loop.
    """
    if not graph.recurrences:
        return graph
    components, kept = Components(cut(with_states(graph))), set[Node]()
    for component in components.all:
        linear = _linear_state(component, pays)
        if linear is None:
            kept.update(component.states)
        else:
            components.replace({next(iter(component.states)): _without_component(component, linear)})
    return components.changed(kept) if components.new else graph


@dataclass(frozen=True)
class _Linear:
    """`factor * m + rest`, with a state m; None stands for 0.

    Attributes:
        factor, rest: the operands, read along the dimensions of the node that they compute.
        index: for each dimension of the state, the dimension of the node that it becomes.
    """

    factor: Operand | None
    rest: Operand | None
    index: tuple[int, ...]

    def under(self, dims: dict[Any, Any]) -> _Linear:
        """The same along the dimensions of a node that reads it."""
        table = {axis: along(dim) for axis, dim in dims.items()}
        factor, rest = (
            each and Operand(each.node, substitute(each.reads, table)) for each in (self.factor, self.rest)
        )
        return _Linear(factor, rest, tuple(dims[d] for d in self.index))


def _linear_state(component: Component, pays: Pays) -> _Linear | None:
    """The next state as a linear function of this one; None if it is not linear, or a loop is quicker."""
    (each, state), *others = component.states.items()
    at, shape = component.labels[each], component.components.opened(each.shape)
    plain = all(isinstance(entry, str) for entry in state.state.equation.left)
    if (
        others
        or not plain
        or each.element < Element.WIDE
        or not pays(shape[at], shape[:at] + shape[at + 1 :])
    ):
        return None
    found, dims = _linear(component, state.behind), tuple(range(len(shape)))
    if found is None or found.index != dims:
        return None
    told = {axis for operand in (found.factor, found.rest) if operand for axis in axes_of(operand.reads)}
    told |= {*dims} if len(state.state.step.arguments) > 1 else set()
    return found if told.issuperset(dims) else None  # else no operand gives the size of a dimension


def _linear(component: Component, each: Node) -> _Linear | None:
    """A node as a factor of the state and the rest."""
    if each in component.states:
        return _Linear(ONE, None, tuple(range(len(each.shape))))
    dims: dict[Any, int] = {axes[0]: d for d, axes in enumerate(each.dims) if axes and len(axes) == 1}
    if each.op not in ("add", "contract", "copy", CONVERSIONS[Element.NUMBER]) or "fill" in each.attributes:
        return None
    if not len(dims) == len(each.sizes) == len(each.shape):
        return None
    inside, others = list[_Linear](), list[Operand]()
    for child, reads in each.operands:
        if child in component.labels:
            found, axes = _linear(component, child), [entry.axis for entry in reads]
            if found is None or None in axes or len({*axes}) < len(axes):
                return None
            inside.append(found.under({d: dims[axis] for d, axis in enumerate(axes)}))
        else:
            others.append(Operand(child, substitute(reads, {a: along(d) for a, d in dims.items()})))
    if len({found.index for found in inside}) != 1 or (each.op == "contract" and len(inside) > 1):
        return None
    sizes = dict(enumerate(each.shape))
    factors = [found.factor for found in inside if found.factor is not None]
    rests = [found.rest for found in inside if found.rest is not None]
    if each.op == "contract":
        factor, rest = (_applied("contract", part and [*part, *others], sizes) for part in (factors, rests))
    else:
        factor, rest = (_applied("add", part, sizes) for part in (factors, [*rests, *others]))
    return _Linear(factor, rest, inside[0].index)


def _applied(op: str, operands: list[Operand], sizes: dict[Any, Any]) -> Operand | None:
    """A function of some operands, without factors of 1; None for no operands."""
    if op == "contract" and len(operands) > 1:
        operands = [each for each in operands if each != ONE]
    return applied(op, operands, sizes) if len(operands) > 1 else next(iter(operands), None)


def _without_component(component: Component, linear: _Linear) -> Node:
    """A state at all positions, computed from its factor and its rest without a loop."""
    ((each, state),) = component.states.items()
    left, step, graph = state.state.equation.left, state.state.step, component.components.graph
    expressions, sizes = Expressions(graph), dict(enumerate(each.shape))

    def ref(name: str, operand: Operand | None) -> Expression:
        """A reference to an operand in expressions; a number becomes a literal, None becomes 0."""
        if operand is None or operand.node.op == "number":
            return ZERO if operand is None else Literal(operand.node.attributes["value"])
        node, reads = apart(operand, sizes)
        axes = tuple(left[entry.axis] for entry in reads)  # type: ignore[index]
        found = Ref(f"@{name}", axes)
        expressions.reads[found] = Operand(node, tuple(map(along, axes)))
        return found

    (axis,), start = step.axes, (*step.arguments[1:], ZERO)[0]
    if not isinstance(start, Literal):
        dims = [d for d in range(len(left)) if d != state.state.at]
        start = ref("start", Operand(state.begin, tuple(map(along, dims))))
    factor, rest = ref("factor", linear.factor), ref("rest", linear.rest)
    scope = graph.scope(state.state.equation)
    back = step.function != PREVIOUS.name
    told = ("back", (Literal(int(back)),))
    if factor == Literal(1) and rest != ZERO:
        running = expressions.value(Call(CUMSUM.name, (rest,), (axis,), (told,)), left, scope)
        whole = ref("running", Operand(running, tuple(map(along, range(len(left))))))
        found = sum_of([moved(Call(step.function, (whole,), (axis,))), *([] if start == ZERO else [start])])
        return expressions.value(found, left, scope)
    here = {axis for each in (factor, rest) if isinstance(each, Ref) for axis in each.index}
    if isinstance(start, Literal) and axis in here:
        return expressions.value(
            Call(RECUR.name, (factor, rest), (axis,), (("start", (start,)), told)), left, scope
        )
    end = sum_of([size_expression(evaluate(component.length, graph.bound)), Literal(-1)]) if back else ZERO
    first = Call(EQUAL.name, (Call(INDEX.name, (), (axis,)), end))
    added = Call(WHERE.name, (first, product_of([factor, start]), ZERO))
    total = added if rest == ZERO else sum_of([rest, added])
    found = Call(RECUR.name, (factor, total), (axis,), (("start", (ZERO,)), told))
    return expressions.value(sum_of([found, Call(WHERE.name, (first, start, ZERO))]), left, scope)
