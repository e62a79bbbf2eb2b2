"""Linear forms: what a state adds to a node, as a sum of products of tensors along axes that all of them share.

    z[b,t,o] = x[b,t,i] * W[o,i] + h_1[b,t,p] * U[o,p] + v[o]       x W + v, and h_1 · U summed over p

Sums, products and copies that depend on a state are opened, also where they are read at a position. What does not
depend on one stays a tensor.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
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
    node,
    plain_reads,
    row_major,
    substitute,
)
from ..ir.positions import applied, read_at
from ..ops.table import CONVERSIONS, Element
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
