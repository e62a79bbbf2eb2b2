"""Linear forms, and the associative scan of linear recurrences: a logarithmic number of rounds in the place of a loop.

A linear form is what a state adds to a node, as a sum of products of tensors along axes that all of them share.

    z[b,t,o] = x[b,t,i] * W[o,i] + h_1[b,t,p] * U[o,p] + v[o]       x W + v, and h_1 · U summed over p

Sums, products and copies that depend on a state are opened, also where they are read at a position. What does not
depend on one stays a tensor. Of a recurrence of single elements

    h[b,t,n] = a[b,t,n] * previous[t](h[b,t,n]) + u[b,t,n]

the state before each position is `recur[t](a, u)`, or a running sum where `a` is 1. All other tensors follow from it.
Infinite values may become NaN, because products of several `a` replace the single steps.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

from ..ir.node import (
    Affine,
    Axis,
    Entries,
    Node,
    Operand,
    Size,
    along,
    axes_in,
    axes_of,
    index,
    node,
    number,
    plain_reads,
    row_major,
    substitute,
)
from ..ir.positions import apart, applied, counted, read_at
from ..ops.along_axes import CUMSUM, RECUR
from ..ops.pointwise import EQUAL, WHERE
from ..ops.table import CONVERSIONS, Element, Function
from ..sizes import evaluate
from .components import Component

Opens: TypeAlias = "Callable[[Operand], bool]"
"""Whether an operand is opened."""


class NotLinear(Exception):  # noqa: N818
    """A node is no sum of products along shared axes."""


class Product(NamedTuple):
    """A product of operands, and the axes that it sums."""

    factors: tuple[Operand, ...]
    summed: frozenset[Axis] = frozenset()


class LinearForms:
    """The linear forms of nodes over the states of a component.

    Attributes:
        component: the component.
        sizes: the sizes of all axes.
        fixed: the positions of axes along which nodes are read at one position.
    """

    def __init__(self, component: Component, sizes: Mapping[Axis, Size]) -> None:
        self.component, self.sizes = component, dict(sizes)
        self.bound = component.components.graph.bound
        self.fixed = dict[Axis, Affine]()
        self.opened = dict[Operand, tuple[list[Operand], frozenset[Axis]]]()

    def recurs(self, part: Operand) -> bool:
        """Whether an operand depends on a state."""
        return self._depends(part.node)

    def _depends(self, each: Node) -> bool:
        known = each in self.component.components.rank
        return each in self.component.labels or (not known and any(map(self._depends, each.children)))

    def terms(self, part: Operand, opens: Opens | None = None) -> list[Product]:
        """The products whose sum an operand is.

        Args:
            part: the operand.
            opens: which operands are opened; those that depend on a state by default.
        """
        opens, each = opens or self.recurs, part.node
        recurs, is_copy = self.recurs(part), part.node.op in ("add", "copy")
        if not opens(part) or "fill" in each.attributes or each.over:
            return [Product((part,))]
        if is_copy or (recurs and each.op == CONVERSIONS[Element.NUMBER]):
            operands, summed = self._inside(part)
            if summed:
                raise NotLinear
            moving = [other for other in operands if self.recurs(other)]
            others = [other for other in operands if other not in moving]
            if moving and len(others) > 1:
                operands = [*moving, applied("add", others, self.sizes)]
            return [term for other in operands for term in self.terms(other, opens)]
        if each.op == "contract":
            operands, summed = self._inside(part)
            sums = (
                self.terms(other, opens) if self.recurs(other) else [Product((other,))] for other in operands
            )
            return [self._multiplied(way, summed) for way in itertools.product(*sums)]
        return [Product((part,))]

    def _multiplied(self, terms: Sequence[Product], summed: frozenset[Axis]) -> Product:
        """The product of some products, summed over more axes."""
        factors = tuple(factor for term in terms for factor in term.factors)
        summed = summed.union(*(term.summed for term in terms))
        if not summed.issubset(axes_in(factors)):
            raise NotLinear
        return Product(factors, summed)

    def node(self, parts: Sequence[Operand], left: Entries, op: str = "contract") -> Node:
        """A product or a sum of some parts; a copy of a single part.

        Products are computed at all positions of the axes that are read at one: the gates of a cell share them.
        """
        fixed = [axis for axis in axes_in(parts) if axis in self.fixed]
        if len(parts) == 1 and {*axes_in(parts)} <= {*axes_of(left), *fixed}:
            return node("copy", self.sizes, [read_at(parts[0], self.fixed, self.sizes)], left)
        made = node(op, self.sizes, parts, (*map(along, fixed), *left))
        rest = plain_reads(len(left))
        reads = (*(self.fixed[axis] for axis in fixed), *rest)
        return node("copy", made.shape[len(fixed) :], [Operand(made, reads)], rest)

    def operand(self, term: Product) -> Operand:
        """A product as one operand."""
        axes = axes_in(term.factors)
        left = tuple(along(axis) for axis in axes if axis not in {*term.summed, *self.fixed})
        is_one = len(term.factors) == 1 and len(left) == len(axes)
        return term.factors[0] if is_one else Operand(self.node(term.factors, left), left)

    def _inside(self, part: Operand) -> tuple[list[Operand], frozenset[Axis]]:
        """The operands of an operand, and the axes that it sums."""
        if part not in self.opened:
            each, table = part.node, dict[Axis, Affine]()
            for axes, entry in zip(each.dims, part.reads, strict=True):
                table |= self._table(each, axes, entry)
            summed = {
                axis: ("s", len(self.opened), axis) for axis in range(len(each.sizes)) if axis not in table
            }
            self.sizes |= {new: each.sizes[axis] for axis, new in summed.items()}
            table |= {axis: along(new) for axis, new in summed.items()}
            operands = [Operand(child, substitute(entries, table)) for child, entries in each.operands]
            self.opened[part] = operands, frozenset(summed.values())
        return self.opened[part]

    def _table(self, each: Node, axes: tuple[int, ...] | None, entry: Any) -> dict[Axis, Affine]:
        """The position along each axis of a dimension, given the position in the dimension."""
        if axes is None or not isinstance(entry, Affine):
            raise NotLinear
        if len(axes) == 1:
            return {axes[0]: entry if entry.terms else self._at(each, axes[0], entry.offset)}
        steps = row_major(axes, each.sizes).steps
        found, offset, terms = dict[Axis, Affine](), evaluate(entry.offset, self.bound), dict(entry.terms)
        for axis, step in zip(axes, steps, strict=True):
            alike = [a for a, by in terms.items() if by == step and self.sizes[a] == each.sizes[axis]]
            if alike:
                found[axis] = along(alike[0])
                del terms[alike[0]]
            elif isinstance(offset, int) and isinstance(by := evaluate(step, self.bound), int):
                found[axis], offset = self._at(each, axis, offset // by), offset % by
        if terms or offset != 0 or len(found) < len(axes):
            raise NotLinear
        return found

    def _at(self, each: Node, axis: int, position: Size) -> Affine:
        """An axis of its own for a position along an axis."""
        found = ("at", each, axis, position)
        self.fixed[found], self.sizes[found] = Affine((), position), each.sizes[axis]
        return along(found)


# ---------------------------------------------------------------------------- associative scan


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
