"""Positions: substituting them for axes, and converting them to nodes that hold them."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from ..ops.structure import INSIDE, ONEHOT
from ..ops.table import FUNCTIONS, Function
from ..sizes import product
from .build import Options, index, node, number, size
from .node import Affine, Axis, Entries, Gather, Node, Operand, Size, along, axes_of, composed, substitute
from .products import axes_in

__all__ = [
    *("Ones", "apart", "applied", "chooses", "counted", "held", "ones_of"),
    *("position_of", "put_in", "stand_alone", "with_ones"),
]


def stand_alone(entries: Iterable[Affine | Gather], axes: Container[Axis]) -> bool:
    """Whether some axes occur in entries only as plain axes, also inside gathers."""
    return all(
        stand_alone(entry.reads, axes)
        if isinstance(entry, Gather)
        else entry.axis is not None or not any(axis in axes for axis, _ in entry.terms)
        for entry in entries
    )


def put_in(entries: Entries, table: Mapping[Axis, Affine | Gather]) -> Entries:
    """Entries with their plain axes replaced by other entries."""
    return tuple(
        Gather(entry.node, put_in(entry.reads, table))
        if isinstance(entry, Gather)
        else table.get(entry.axis, entry)
        for entry in entries
    )


def apart(operand: Operand, sizes: Mapping[Axis, Size]) -> Operand:
    """A copy of an operand, with a dimension for each axis that it is read along."""
    left = tuple(map(along, dict.fromkeys(axes_of(operand.reads))))
    return Operand(node("copy", sizes, [operand], left), left)


def applied(op: str, operands: Iterable[Operand], sizes: Mapping[Axis, Size]) -> Operand:
    """An elementwise function, along all axes of its operands."""
    given = [*operands]
    left = tuple(map(along, axes_in(given)))
    return Operand(node(op, sizes, given, left), left)


def held(entry: Affine | Gather, sizes: Mapping[Axis, Size]) -> Operand:
    """A node that holds positions, along the axes that they depend on."""
    if isinstance(entry, Gather):
        return Operand(entry.node, entry.reads)
    terms = [
        here if step == 1 else applied("contract", [counted(step), here], sizes)
        for axis, step in entry.terms
        for here in [Operand(index(sizes[axis]), (along(axis),))]
    ]
    terms += [counted(entry.offset)] if entry.offset != 0 or not terms else []
    return terms[0] if len(terms) == 1 else applied("add", terms, sizes)


def counted(amount: Size) -> Operand:
    """A number of positions as an operand."""
    return Operand(number(amount) if isinstance(amount, int) else size(amount))


def position_of(told: Operand) -> Affine | None:
    """The sum of axes that a node holds, or None; every sum that `held` builds is recognised."""
    each, reads = told
    if each.op == "index":
        (entry,) = reads
        return entry if isinstance(entry, Affine) else None
    if each.op in ("number", "size"):
        ((_, value),) = each.options
        return Affine((), value)
    if each.op not in ("add", "contract") or len(each.sizes) > len(each.shape) or None in each.dims:
        return None
    table = {axes[0]: entry for axes, entry in zip(each.dims, reads, strict=True) if axes}
    parts = [Operand(part.node, substitute(part.reads, table)) for part in each.operands]  # type: ignore[arg-type]
    found = [entry for entry in map(position_of, parts) if entry is not None]
    moving = [n for n, entry in enumerate(found) if entry.terms]
    if len(found) < len(parts) or (each.op == "contract" and len(moving) != 1):
        return None
    terms = tuple((n, 1) for n in range(len(found)))
    if each.op == "contract":
        terms = ((moving[0], product(entry.offset for entry in found if not entry.terms)),)
    return composed(Affine(terms), dict(enumerate(found)))


# ---------------------------------------------------------------------------- ones


@dataclass(frozen=True)
class Ones:
    """A factor that is 1 at given positions of an axis.

    Attributes:
        axis: the axis.
        told: the operand that holds the positions.
        function: the function that computes the ones.
        options: its options.
    """

    axis: Axis
    told: Operand
    function: Function
    options: Options

    @property
    def is_inside(self) -> bool:
        """Whether the positions must be inside the axis, so that the ones select."""
        inside = dict(self.options).get(INSIDE)
        return inside is not None and bool(inside.attributes.get("value"))


def ones_of(factor: Operand) -> Ones | None:
    """A factor as ones, or None if it has another form."""
    child, function = factor.node, FUNCTIONS.get(factor.node.op)
    if function is None or not function.selects:
        return None
    names = [entry.axis for entry in factor.reads]
    dims = [axes[0] for axes in child.dims if axes is not None and len(axes) == 1]
    if None in names or len({*names}) < len(names) or len(dims) < len(names):
        return None
    table = dict(zip(dims, map(along, names), strict=True))
    ((told, reads),) = child.operands
    return Ones(table[child.over[0]].axis, Operand(told, substitute(reads, table)), function, child.options)


def chooses(factor: Operand) -> bool:
    """Whether a factor consists of ones that select."""
    ones = ones_of(factor)
    return ones is not None and ones.is_inside


def with_ones(each: Node) -> Node:
    """A product with a one-hot factor for each dimension that it writes at positions."""
    if None not in each.dims:
        return each
    sizes: dict[Axis, Size] = dict(enumerate(each.sizes))
    result = [*each.result]
    ones: list[Operand] = []
    for d, axes in enumerate(each.dims):
        if axes is None:
            told, at = held(result[d], sizes), ("at", d)
            sizes[at] = each.shape[d]
            left = (*map(along, axes_in([told])), along(at))
            options = ((INSIDE, number(1)),) if isinstance(result[d], Gather) else ()
            ones.append(Operand(node(ONEHOT.name, sizes, [told], left, None, (at,), options), left))
            result[d] = along(at)
    return node("contract", sizes, [*ones, *each.operands], tuple(result), each.shape, each.over)
