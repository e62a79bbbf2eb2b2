"""Associative scans: linear recurrences in a logarithmic number of rounds.

    h[b,t,n] = a[b,t,n] * previous[t](h[b,t,n]) + u[b,t,n]

The state before each position is `recur[t](a, u)`, or a running sum where `a` is 1. All other tensors follow from it.
Infinite values may become NaN, because products of several `a` replace the single steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from ..ir.node import Axis, Node, Operand, Size, along, axes_in, index, node, number
from ..ir.positions import apart, applied, counted
from ..ops.along_axes import CUMSUM, RECUR
from ..ops.pointwise import EQUAL, WHERE
from ..ops.table import Element, Function
from ..sizes import evaluate
from .components import Component
from .linear_forms import LinearForms, NotLinear, Product

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
    return {} if linear is None else {next(iter(component.states)): _without_component(component, *linear)}


def _linear_state(component: Component, pays: Pays) -> tuple[Operand, Operand] | None:
    """The factor and the rest of the next state, `factor * state + rest`, read along its dimensions.

    None if it is not linear in each element, or if a loop is quicker.
    """
    (each, state), *others = component.states.items()
    at, shape = component.labels[each], component.components.opened(each.shape)
    if others or each.element < Element.WIDE or not pays(shape[at], shape[:at] + shape[at + 1 :]):
        return None
    own = each.plain
    forms, found = LinearForms(component, dict(enumerate(each.shape))), (list[Operand](), list[Operand]())
    try:
        terms = forms.terms(Operand(state.behind, own))
    except NotLinear:
        return None
    for term in terms:
        states = [factor for factor in term.factors if forms.recurs(factor)]
        if states and (states != [Operand(each, own)] or term.summed):
            return None
        factors = tuple(factor for factor in term.factors if factor not in (*states, ONE))
        found[not states].append(forms.operand(Product(factors, term.summed)) if factors else ONE)
    factor, rest = (_added(part, forms.sizes) for part in found)
    told = {*axes_in([factor, rest])} | ({*range(len(shape))} if state.starts else set())
    return (
        (factor, rest) if told.issuperset(range(len(shape))) else None
    )  # else no operand gives a dimension's size


def _added(terms: Sequence[Operand], sizes: Mapping[Axis, Size]) -> Operand:
    """The sum of some operands; 0 for none."""
    return applied("add", terms, sizes) if len(terms) > 1 else next(iter(terms), ZERO)


def _without_component(component: Component, factor: Operand, rest: Operand) -> Node:
    """A state at all positions, computed from its factor and its rest without a loop."""
    ((each, state),) = component.states.items()
    at, sizes = state.at, dict[Axis, Size](enumerate(each.shape))
    own, back = each.plain, ("back", number(int(state.back)))
    start = Operand(state.begin, own[:at] + own[at + 1 :]) if state.fill is None else Operand(state.fill)
    factor, rest = (each if each.node.op == "number" else apart(each, sizes) for each in (factor, rest))

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
