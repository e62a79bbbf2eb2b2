"""Associative scans: linear recurrences in a logarithmic number of rounds.

    h[b,t,n] = a[b,t,n] * previous[t](h[b,t,n]) + u[b,t,n]

The state before each position is `recur[t](a, u)`, or a running sum where `a` is 1. All other tensors follow from it.
Infinite values may become NaN, because products of several `a` replace the single steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from ..ir.build import axes_in, index, node, number
from ..ir.node import Axis, Node, Operand, Size, along, axes_of, substitute
from ..ir.positions import apart, applied, counted
from ..ops.along_axes import CUMSUM, RECUR
from ..ops.pointwise import EQUAL, WHERE
from ..ops.table import CONVERSIONS, Element, Function
from ..sizes import evaluate
from .components import Component

__all__ = ["Pays", "select_associative_scan"]

Pays: TypeAlias = "Callable[[Any, Sequence[Any]], bool]"
"""Whether it is quicker than a loop, given the number of positions along the axis and the sizes of other dimensions."""

ONE, ZERO = Operand(number(1)), Operand(number(0))


def select_associative_scan(component: Component, pays: Pays) -> dict[Node, Node]:
    """The state of a recurrence without a loop; nothing unless it is the only one, and linear in each element.

    Args:
        component: the nodes that recur.
        pays: whether an associative scan is quicker than a loop.
    """
    linear = _linear_state(component, pays)
    return {} if linear is None else {next(iter(component.states)): _without_component(component, linear)}


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
    if others or each.element < Element.WIDE or not pays(shape[at], shape[:at] + shape[at + 1 :]):
        return None
    found, dims = _linear(component, state.behind), tuple(range(len(shape)))
    if found is None or found.index != dims:
        return None
    told = {axis for operand in (found.factor, found.rest) if operand for axis in axes_of(operand.reads)}
    told |= {*dims} if state.starts else set()
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
    at, sizes = state.at, dict[Axis, Size](enumerate(each.shape))
    own, back = tuple(map(along, sizes)), ("back", number(int(state.back)))
    start = Operand(state.begin, own[:at] + own[at + 1 :]) if state.fill is None else Operand(state.fill)
    factor, rest = (
        ZERO if part is None else part if part.node.op == "number" else apart(part, sizes)
        for part in (linear.factor, linear.rest)
    )

    def over(function: Function, operands: Sequence[Operand], *options: tuple[str, Node]) -> Operand:
        return Operand(node(function.name, sizes, operands, own, None, (at,), (*options, back)), own)

    def added(*terms: Operand) -> Node:
        return node("add", sizes, terms, own)

    if factor == ONE and rest != ZERO:
        running = over(CUMSUM, [rest]).node
        moved = replace(state, behind=running, fill=ZERO.node).whole
        return added(Operand(moved, own), start) if state.starts else moved
    if state.fill is not None and at in axes_in([factor, rest]):
        return over(RECUR, [factor, rest], ("start", state.fill)).node
    end = evaluate(component.length, component.components.graph.bound) - 1 if state.back else 0
    first = applied(EQUAL.name, [Operand(index(component.length), (along(at),)), counted(end)], sizes)
    begun = applied("contract", [each for each in (factor, start) if each != ONE], sizes)
    begun = applied(WHERE.name, [first, begun, ZERO], sizes)
    total = begun if rest == ZERO else applied("add", [rest, begun], sizes)
    recurring = over(RECUR, [factor, total], ("start", ZERO.node))
    return added(recurring, applied(WHERE.name, [first, start, ZERO], sizes))
