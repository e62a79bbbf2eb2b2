"""Positions in the place of axes, held by nodes, marked by ones, and in windows, `x[b,2*p+u]`; inlining of nodes."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..ops.structure import INSIDE, ONEHOT
from ..ops.table import Function
from ..sizes import product
from .node import (
    Affine,
    Axis,
    Entries,
    Gather,
    Node,
    Operand,
    Options,
    Size,
    Sizes,
    along,
    axes_in,
    axes_of,
    composed,
    distinct_axes,
    fills,
    index,
    node,
    number,
    own_axes,
    row_major,
    size,
    substitute,
)


def stand_alone(entries: Iterable[Affine | Gather], axes: Container[Axis]) -> bool:
    """Whether some axes occur in entries only as plain axes, also inside gathers."""
    return all(
        stand_alone(entry.reads, axes)
        if isinstance(entry, Gather)
        else entry.axis is not None or not any(axis in axes for axis, _ in entry.terms)
        for entry in entries
    )


def read_at(operand: Operand, table: Mapping[Axis, Affine | Gather], sizes: Sizes) -> Operand:
    """An operand with some of its axes replaced by positions; a copy of it, if they occur in sums of axes."""
    if not stand_alone(operand.reads, table):
        operand = apart(operand, sizes)
    return Operand(operand.node, substitute(operand.reads, table))


def apart(operand: Operand, sizes: Sizes) -> Operand:
    """A copy of an operand, with a dimension for each axis that it is read along."""
    left = tuple(map(along, dict.fromkeys(operand.axes)))
    return Operand(node("copy", sizes, [operand], left), left)


def applied(op: str, operands: Iterable[Operand], sizes: Sizes) -> Operand:
    """An elementwise function, along all axes of its operands."""
    given = [*operands]
    left = tuple(map(along, axes_in(given)))
    return Operand(node(op, sizes, given, left), left)


def held(entry: Affine | Gather, sizes: Sizes) -> Operand:
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


def seen_through(operand: Operand) -> list[Operand] | None:
    """The operands of a node that sums over nothing, in the axes of its reader; None for any other node."""
    each, reads = operand
    axes = own_axes(each)
    if axes is None or len(axes) < len(each.sizes):
        return None
    table = dict(zip(axes, reads, strict=True))
    return [Operand(part.node, substitute(part.reads, table)) for part in each.operands]


def position_of(told: Operand) -> Affine | None:
    """The sum of axes that a node holds, or None; every sum that `held` builds is recognised."""
    each, reads = told
    if each.op == "index":
        (entry,) = reads
        return entry if isinstance(entry, Affine) else None
    if each.op in ("number", "size"):
        ((_, value),) = each.options
        return Affine((), value)
    parts = seen_through(told) if each.op in ("add", "contract") else None
    found = [entry for entry in map(position_of, parts or ()) if entry is not None]
    moving = [n for n, entry in enumerate(found) if entry.terms]
    if parts is None or len(found) < len(parts) or (each.op == "contract" and len(moving) != 1):
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
    child, function = factor.node, factor.node.function
    if not function.selects or distinct_axes(factor.reads) is None:
        return None
    parts = seen_through(factor)
    if parts is None:
        return None
    axis = factor.reads[child.dims.index((child.over[0],))].axis
    return Ones(axis, parts[0], function, child.options)


def chooses(factor: Operand) -> bool:
    """Whether a factor consists of ones that select."""
    ones = ones_of(factor)
    return ones is not None and ones.is_inside


def ones_at(entry: Affine | Gather, axis: Axis, sizes: Sizes) -> Operand:
    """A factor that is 1 at a position of an axis."""
    told = held(entry, sizes)
    left = (*map(along, axes_in([told])), along(axis))
    options = ((INSIDE, number(1)),) if isinstance(entry, Gather) else ()
    return Operand(node(ONEHOT.name, sizes, [told], left, None, (axis,), options), left)


def with_ones(each: Node) -> Node:
    """A product with a one-hot factor for each dimension that it writes at positions."""
    if None not in each.dims:
        return each
    sizes: dict[Axis, Size] = dict(enumerate(each.sizes))
    result = [*each.result]
    ones: list[Operand] = []
    for d, axes in enumerate(each.dims):
        if axes is None:
            at = "at", d
            sizes[at] = each.shape[d]
            ones.append(ones_at(result[d], at, sizes))
            result[d] = along(at)
    return node("contract", sizes, [*ones, *each.operands], tuple(result), each.shape, each.over)


# ---------------------------------------------------------------------------- windows


@dataclass(frozen=True)
class Windowed:
    """A tensor that is still to be read in windows, so that computations on it come before the windows open.

    Attributes:
        node: the tensor.
        reads: where it is to be read.
        around: the zeros still to be added before and after it, for some of the windows.
    """

    node: Node
    reads: Entries
    around: Mapping[Affine | Gather, tuple[int, int]]

    def marked(self, windows: Sequence[Affine], sizes: Sizes) -> list[Operand]:
        """A factor for each of some windows, which is 1 where the tensor is read; no position of zeros has a 1."""
        starts = [self.around.get(each, (0, 0))[0] for each in windows]
        pairs = zip(windows, starts, strict=True)
        return [ones_at(Affine(each.terms, each.offset - n), ("at", each), sizes) for each, n in pairs]

    def sized(self, sizes: Mapping[Axis, Size]) -> dict[Axis, Size]:
        """The sizes of the axes of a reader, and of those that replace windows."""
        lengths = zip(self.reads, self.node.shape, strict=True)
        return {**sizes, **{("at", each): length for each, length in lengths}}

    def plainly(self, windows: Container[Affine | Gather]) -> Operand:
        """The tensor, read along plain axes instead of some windows."""
        reads = (along(("at", each)) if each in windows else each for each in self.reads)
        return Operand(self.node, tuple(reads))

    def followed(self, made: Operand) -> Windowed:
        """A tensor computed from this one, to be read in the windows that its axes replace."""
        axes = (entry.axis for entry in made.reads)
        reads = (axis[1] if isinstance(axis, tuple) else along(axis) for axis in axes)
        return replace(self, node=made.node, reads=tuple(reads))

    def padded(self, windows: Container[Affine | Gather]) -> Windowed:
        """The tensor, padded with the zeros for some windows."""
        amounts = [self.around.get(each, (0, 0)) if each in windows else (0, 0) for each in self.reads]
        if not any(map(any, amounts)):
            return self
        written = tuple(Affine(((d, 1),), before) for d, (before, _) in enumerate(amounts))
        shape = [length + sum(each) for length, each in zip(self.node.shape, amounts, strict=True)]
        operand = Operand(self.node, self.node.plain)
        made = node("copy", self.node.shape, [operand], written, shape, options=(("fill", number(0)),))
        return replace(self, node=made)


def windowed(operand: Operand, windows: Container[Affine | Gather]) -> Windowed:
    """A tensor that is read in windows, without zero padding along these."""
    child, reads = operand
    padding = _padding(child)
    if padding is None:
        return Windowed(child, reads, {})
    around: dict[Affine | Gather, tuple[int, int]] = {}
    bare, lengths = list[Affine](), list[Size]()
    for length, entry, read in zip(child.shape, padding.result, reads, strict=True):
        assert isinstance(entry, Affine)
        bare.append(replace(entry, offset=0))
        axis = bare[-1].axis
        lengths.append(length if axis is None else padding.sizes[axis])
        before, after = entry.offset, length - lengths[-1] - entry.offset
        counts = isinstance(before, int) and isinstance(after, int) and min(before, after) >= 0
        if not fills(bare[-1], padding.sizes, lengths[-1]) or not counts:
            return Windowed(child, reads, {})
        if before + after and read not in windows:
            return Windowed(child, reads, {})
        around[read] = before, after
    inner, plain = padding.operands[0]
    if plain != tuple(bare) or inner.shape != tuple(lengths):
        inner = node("copy", padding.sizes, padding.operands, tuple(bare), lengths)
    return Windowed(inner, reads, around)


def _padding(each: Node) -> Node | None:
    """A node as a tensor with zeros around it; None if it is neither that nor such a tensor with dimensions joined."""
    if each.op != "copy" or each.attributes:
        return each if each.attributes.get("fill") is number(0) else None
    child, reads = each.operands[0]
    axes = [read.axis for read in reads]
    whole = [axis is not None and each.sizes[axis] for axis in axes] == [*child.shape]
    if child.attributes.get("fill") is not number(0) or not whole or len({*axes}) < len(axes):
        return None
    written = substitute(each.result, dict(zip(axes, child.result, strict=True)))
    return node("copy", child.sizes, child.operands, written, each.shape, options=(("fill", number(0)),))


# ---------------------------------------------------------------------------- inlining


@dataclass(frozen=True)
class Opened:
    """A reader and the operands of one of its operands, in the axes of both.

    Attributes:
        operands: the operands of the reader, without the inlined one.
        inside: the operands of the inlined one.
        at: its position among the operands of the reader.
        result, over: those of the reader.
        axes: the axes of the reader.
        inside_over: the axes that the inlined operand sums although none of its operands has them.
        sizes: the sizes of all axes.
    """

    operands: tuple[Operand, ...]
    inside: tuple[Operand, ...]
    at: int
    result: Entries
    over: tuple[Axis, ...]
    axes: tuple[Axis, ...]
    inside_over: tuple[Axis, ...]
    sizes: dict[Axis, Size]

    def among(self, others: Sequence[Operand]) -> list[Operand]:
        """The operands of the reader, with others in the place of the inlined one."""
        return [*self.operands[: self.at], *others, *self.operands[self.at :]]

    def unread(self, operands: Iterable[Operand]) -> tuple[Axis, ...]:
        """The axes that a product sums although none of its operands has them: each multiplies it by its size."""
        there = {*axes_in(operands), *axes_of(self.result)}
        return tuple(axis for axis in (*self.axes, *self.inside_over) if axis not in there)


def _aligned(
    ours: Sequence[int], theirs: Sequence[int], reader: Node, child: Node, same: Callable[[Size, Size], bool]
) -> dict[int, tuple[int, ...]]:
    """The axes of a composite that each axis by which it is read stands for; none if both split it differently."""
    found, left = dict[int, tuple[int, ...]](), tuple(theirs)
    for axis in ours:
        is_last = axis == ours[-1]
        counts = [len(left)] if is_last else range(1, len(left))
        sizes = ((count, product(child.sizes[each] for each in left[:count])) for count in counts)
        count = next((count for count, size in sizes if same(size, reader.sizes[axis])), 0)
        if not count:
            return {}
        found[axis], left = left[:count], left[count:]
    return found


def opened(reader: Node, at: int, same: Callable[[Size, Size], bool]) -> Opened | None:
    """Inlines an operand of a node.

    Returns None if it is read or written at positions or in windows, or if both split a dimension differently.
    """
    child, reads = reader.operands[at]
    sizes: dict[Axis, Size] = {("out", axis): size for axis, size in enumerate(reader.sizes)}
    sizes |= {("in", axis): size for axis, size in enumerate(child.sizes)}
    outer = {axis: along(("out", axis)) for axis in range(len(reader.sizes))}
    read: dict[int, Affine] = {}
    for axes, entry, length in zip(child.dims, reads, child.shape, strict=True):
        if axes is None or not fills(entry, reader.sizes, length, same):
            return None
        if len(axes) == 1:
            read[axes[0]] = entry
            continue
        groups = _aligned([axis for axis, _ in entry.terms], axes, reader, child, same)
        for ours, theirs in groups.items():
            if len(theirs) == 1:
                read[theirs[0]] = along(ours)
            elif len(outer[ours].terms) == 1 and ours not in reader.over:
                outer[ours] = row_major(tuple(("in", axis) for axis in theirs), sizes)
            else:
                return None
        if not groups:
            return None
    inner = {axis: along(("in", axis)) for axis in range(len(child.sizes))}
    inner |= {axis: composed(entry, outer) for axis, entry in read.items()}
    others = (each for n, each in enumerate(reader.operands) if n != at)
    return Opened(
        tuple(Operand(each.node, substitute(each.reads, outer)) for each in others),
        tuple(Operand(each.node, substitute(each.reads, inner)) for each in child.operands),
        at,
        substitute(reader.result, outer),
        tuple(("out", axis) for axis in reader.over),
        tuple(axes_of(tuple(outer.values()))),
        tuple(("in", axis) for axis in child.over),
        sizes,
    )
