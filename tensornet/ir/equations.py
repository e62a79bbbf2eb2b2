"""Equations of nodes: a name for each axis, and an expression for each operation.

What the names of axes tell is up to who gives them (`AxisNames`): in a graph, sizes. A result that is written at
positions is a product with one-hot factors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, cast

from ..language.affine import ones_at
from ..language.equation import Equation
from ..language.expression import (
    Call,
    Expression,
    Index,
    Literal,
    Ref,
    contraction,
    flat,
    product_of,
    sum_of,
)
from ..ops.structure import CONCAT, INDEX, ONEHOT, PAD, REPEAT
from ..ops.table import FUNCTIONS
from .build import Options, node, whole
from .node import Affine, Entries, Gather, Node, Operand, Size, along, axes_of, fills

__all__ = [
    *("LEAVES", "MADE", "AxisNames", "Dims", "Line", "Naming", "again", "amounts_of", "hints"),
    *(
        "is_in_window",
        "is_kernel",
        "is_lone",
        "is_position",
        "is_told",
        "parted",
        "parts",
        "reads_of",
        "size_of",
    ),
]

Dims: TypeAlias = "tuple[tuple[tuple[str, Size], ...], ...]"
"""The axes of each dimension of a tensor, and their sizes."""

LEAVES = ("number", "size", "index")
"""What is written where it is read."""

MADE = ("input", "constant", *LEAVES)
"""What is there without an equation."""

JOINED = (CONCAT.name, "stack")


class Naming(Protocol):
    """What calls the tensors of a program by names, and the axes of one equation."""

    lone: set[Node]

    def tensor(self, each: Node) -> str:
        """The name of a node, which has an equation then."""

    def dimension(self, each: Node, d: int) -> str:
        """What a dimension of a node is called that has an equation."""

    def same(self, one: Size, two: Size) -> bool:
        """Whether two sizes are equal, as far as sizes have a value."""


class AxisNames(Protocol):
    """What calls the axes of one equation by names."""

    def named(self, each: Node, axis: int) -> str:
        """A name for an axis of a node, which no other one has."""

    def sized(self, size: Size) -> str:
        """A name for an axis of some size."""

    def spoken(self, size: Size, alike: Iterable[str] = ()) -> Expression:
        """A size as an expression, where some axes are as long."""

    def in_order(self, each: Node, entry: Affine, length: Size) -> Affine:
        """A window with its axes in the order in which they are written."""


class Line:
    """One equation, while it is written."""

    def __init__(self, naming: Naming, axes: AxisNames) -> None:
        self.naming, self.axes = naming, axes

    def equation(self, each: Node, name: str) -> tuple[Equation, Dims]:
        """The equation of a node, and the dimensions of what it defines."""
        names: dict[int, str] = {}
        left: list[Any] = []
        dims: list[tuple[tuple[str, Size], ...]] = []
        for d, length in enumerate(each.shape):
            axes = parts(each, d)
            if axes is None:
                found: tuple[str, ...] = (self.axes.sized(length),)
                dims.append(((found[0], length),))
            else:
                found = tuple(self.axes.named(each, axis) for axis in axes)
                names.update(zip(axes, found, strict=True))
                dims.append(tuple((names[axis], size_of(each, axis)) for axis in axes))
            left.append(found[0] if len(found) == 1 else found)
        return Equation(name, tuple(left), self.value(each, left, names)), tuple(dims)

    # ---- expressions

    def value(self, each: Node, dims: Sequence[Any], names: dict[int, str]) -> Expression:
        """The expression of a node.

        Args:
            each: the node.
            dims: what its dimensions are called.
            names: what those of its axes are called that these are.
        """
        joined = each.over if each.op in JOINED else ()
        for axis in range(len(each.sizes)):
            if axis not in names and axis not in joined:
                names[axis] = self.axes.named(each, axis)
        names |= dict.fromkeys(joined, names[joined[0]]) if joined else {}
        if "fill" in each.attributes:
            return self._padded(each, names)
        written = {axis for d in range(len(each.shape)) for axis in parts(each, d) or ()}
        pairs = enumerate(zip(each.result, dims, strict=True))
        placed = [(entry, dim) for d, (entry, dim) in pairs if parts(each, d) is None]
        hot = [self._hot(each, entry, dim, names) for entry, dim in placed]
        entries = (*(entry for entry, _ in placed), *(e for operand in each.operands for e in operand.reads))
        read = {*each.over, *axes_of(entries)}
        operands = [self.read(each, operand, names) for operand in each.operands]
        right = self._operation(each, [*hot, *operands], written, names)
        for axis in written - read:
            right = Call(REPEAT.name, (right,), (names[axis],))
        return right

    def _operation(
        self, each: Node, operands: list[Expression], written: set[int], names: Mapping[int, str]
    ) -> Expression:
        """An operation on its operands."""
        if each.op == "contract" or len(operands) > len(each.operands):
            unread = [self.axes.spoken(each.sizes[axis]) for axis in each.over]
            summed = tuple(name for axis, name in names.items() if axis not in {*written, *each.over})
            factors = [*operands, *unread]
            alone = len(factors) < 2 and not summed and each.op == "contract"
            return flat(contraction(tuple([Literal(1)] * alone + factors), summed, None))
        if each.op == "copy":
            return operands[0]
        over = tuple(dict.fromkeys(names[axis] for axis in each.over))
        options = self._options(each, each, names)
        if each.op == "roll":
            shifts = tuple((name, shift) for name, (_, shift) in zip(over, options, strict=True))
            return Call(each.op, tuple(operands), (), shifts)
        return flat(Call(each.op, tuple(operands), over, options))

    def _hot(self, each: Node, entry: Affine | Gather, dim: str, names: Mapping[int, str]) -> Expression:
        """Ones where a result is written."""
        if isinstance(entry, Gather):
            return ones_at(self._held(each, entry, names), dim)
        return ones_at(self._position(entry, names), dim)

    def _padded(self, each: Node, names: Mapping[int, str]) -> Expression:
        """A copy that leaves positions out, or has more: a crop or a padding."""
        (operand,) = each.operands
        amounts: list[tuple[str, tuple[Expression, ...]]] = []
        for axis, before, after in amounts_of(each):
            if before != 0 or after != 0:
                amounts.append((names[axis], (self.axes.spoken(before), self.axes.spoken(after))))
        fill = self._scalar(each.attributes["fill"], each, {})
        more = () if fill == Literal(0) else (("value", (fill,)),)
        plain = Operand(operand.node, tuple(along(_moved_axis(entry)) for entry in operand.reads))
        return Call(PAD.name, (self.read(each, plain, names),), (), (*amounts, *more))

    def _scalar(self, number: Node, each: Node, names: Mapping[int, str]) -> Expression:
        """A number in the expression of a node; a size is that of an axis, if one is as long."""
        match number.op:
            case "number":
                return Literal(number.attributes["value"])
            case "size":
                size = number.attributes["size"]
                alike = (name for axis, name in names.items() if each.sizes[axis] == size)
                return self.axes.spoken(size, alike)
        operands = tuple(self._scalar(operand.node, each, names) for operand in number.operands)
        if number.op == "contract":
            return product_of([*operands])
        return Call(number.op, operands, (), self._options(number, each, names))

    def _options(self, told: Node, each: Node, names: Mapping[int, str]) -> Options:
        """The options of an operation, in the expression of a node; which draw it is, is none."""
        given = ((name, value) for name, value in told.options if name != "draw")
        return tuple((name, (self._scalar(value, each, names),)) for name, value in given)

    # ---- reads

    def read(self, each: Node, operand: Operand, names: Mapping[int, str]) -> Expression:
        """An operand of a node, as it is read."""
        child, reads = operand
        if child.is_scalar:
            return self._scalar(child, each, names)
        sized_inside = each.op in JOINED or "fill" in each.attributes
        if child.op == "index" and not sized_inside and isinstance(reads[0], Affine):
            return self._position(reads[0], names)
        if child in self.naming.lone or (is_told(each, child) and is_lone(each, child, reads)):
            dims = [names[_moved_axis(entry)] for entry in reads]
            inner = {axes[0]: dim for d, dim in enumerate(dims) if (axes := parts(child, d)) is not None}
            return self.value(child, dims, inner)
        return self._ref(each, operand, names)

    def _ref(self, each: Node, operand: Operand, names: Mapping[int, str]) -> Ref:
        """A tensor that is read by its name."""
        child, reads = operand
        pairs = zip(reads, child.shape, strict=True)
        index = tuple(self._entry(each, entry, length, names) for entry, length in pairs)
        return Ref(self.naming.tensor(child), index)

    def _held(self, each: Node, entry: Gather, names: Mapping[int, str]) -> Expression:
        """What holds positions: a tensor, where it is no more than those along an axis, which must be there."""
        operand = Operand(entry.node, entry.reads)
        return (
            self._ref(each, operand, names) if entry.node.op == "index" else self.read(each, operand, names)
        )

    def _entry(self, each: Node, entry: Affine | Gather, length: Size, names: Mapping[int, str]) -> Index:
        """What stands in brackets, of a dimension of some length."""
        if isinstance(entry, Gather):
            return cast("Index", self._held(each, entry, names))
        if not entry.terms:
            return self._place(entry.offset, length)
        if entry.axis is not None and "fill" in each.attributes:
            return names[entry.axis]
        if fills(entry, each.sizes, length, self.naming.same):
            found = tuple(names[axis] for axis, _ in entry.terms)
            return found if len(found) > 1 else found[0]
        return cast("Index", self._position(self.axes.in_order(each, entry, length), names))

    def _place(self, offset: Size, length: Size) -> Index:
        """A fixed position, from the first one or from the last."""
        for found in (offset, offset - length):
            if isinstance(found, int):
                return found
        return cast("Index", sum_of([Literal(0), self.axes.spoken(offset)]))

    def _position(self, entry: Affine, names: Mapping[int, str]) -> Expression:
        """A sum of axes as an expression of positions."""
        moving = [(step, Call(INDEX.name, (), (names[axis],))) for axis, step in entry.terms]
        terms = [here if step == 1 else product_of([self.axes.spoken(step), here]) for step, here in moving]
        return sum_of([*terms, self.axes.spoken(entry.offset)] if entry.offset != 0 else [*terms])


def again(each: Node) -> Node:
    """A node once more, for an equation of its own."""
    operand, sizes = whole(each), {((), n): size for n, size in enumerate(each.shape)}
    return node("copy", sizes, [operand], operand.reads, options=(("again", True),))


# ---------------------------------------------------------------------------- what a node is


def reads_of(each: Node) -> list[Operand]:
    """What a node reads: operands, and what holds positions."""
    found = [*each.operands]
    if len(each.children) == len(found):
        return found
    waiting: list[Any] = [*each.result, *(entry for operand in each.operands for entry in operand.reads)]
    while waiting:
        entry = waiting.pop(0)
        if isinstance(entry, Gather):
            found.append(Operand(entry.node, entry.reads))
            waiting += entry.reads
    return found


def is_lone(reader: Node, child: Node, reads: Entries) -> bool:
    """Whether a node may be written where another reads it: along axes alone, as it is written itself."""
    if child.op in MADE:
        return False
    axes = [entry.axis for entry in reads]
    if (
        None in axes
        or len(set(axes)) < len(axes)
        or any(len(parts(child, d) or ()) > 1 for d in range(len(axes)))
    ):
        return False
    entries = [entry for operand in child.operands for entry in operand.reads]  # its axes are sized inside
    plain = all(e.axis is not None or (isinstance(e, Affine) and not e.terms) for e in entries)
    if reader.op not in JOINED and "fill" not in reader.attributes:
        return plain or not is_kernel(child) or any(isinstance(entry, Gather) for entry in entries)
    told = {*axes_of(child.result)} <= {*axes_of(tuple(entries))}
    return child.op == "copy" and "fill" not in child.attributes and plain and told


def is_position(each: Node) -> bool:
    """Whether a node is a sum of positions along axes, or ones there."""
    if each.op in LEAVES or each.is_scalar:
        return True
    whole = each.op in ("add", "contract") and each.element.is_position
    if each.op != ONEHOT.name and not (whole and len(each.sizes) == len(each.shape)):
        return False
    entries = (entry for operand in each.operands for entry in operand.reads)
    plain = all(isinstance(entry, Affine) for entry in entries)
    return plain and all(is_position(operand.node) for operand in each.operands)


def is_told(reader: Node, child: Node) -> bool:
    """Whether a node is an operand that tells positions to a kernel, which takes them as they are written, or is a
    part of such ones."""
    is_operand = is_position(child) and any(each.node is child for each in reader.operands)
    return is_operand and (is_kernel(reader) or is_position(reader))


def is_kernel(each: Node) -> bool:
    """Whether a node is of a function that nobody writes."""
    return each.op in FUNCTIONS and FUNCTIONS[each.op].is_kernel


def _moved_axis(entry: Affine | Gather) -> int:
    """The axis of a position that is one, from wherever it starts."""
    assert isinstance(entry, Affine)
    ((axis, _),) = entry.terms
    return int(axis)


def parts(each: Node, d: int) -> tuple[int, ...] | None:
    """The axes that a dimension of a result is; nothing where it is written otherwise. A crop or padding moves them."""
    return tuple(axes_of((each.result[d],))) if "fill" in each.attributes else each.dims[d]


def is_in_window(each: Node, axis: int) -> bool:
    """Whether an axis moves a window."""
    pairs = (pair for child, reads in reads_of(each) for pair in zip(reads, child.shape, strict=True))
    return any(
        isinstance(entry, Affine)
        and entry.axis is None
        and axis in axes_of((entry,))
        and not fills(entry, each.sizes, length)
        for entry, length in pairs
    )


def amounts_of(each: Node) -> Iterator[tuple[int, Size, Size]]:
    """The axes of a crop or a padding, and how many positions come before and after along each."""
    (operand,) = each.operands
    for d, (written, read) in enumerate(zip(each.result, operand.reads, strict=True)):
        assert isinstance(written, Affine)
        assert isinstance(read, Affine)
        before = written.offset - read.offset
        yield _moved_axis(written), before, each.shape[d] - operand.node.shape[d] - before


def parted(each: Node, same: Callable[[Size, Size], bool]) -> set[int]:
    """The axes of a result that nothing which a node reads has as a dimension: they are parts of one."""
    entries = [
        (entry, length)
        for child, reads in each.operands
        for entry, length in zip(reads, child.shape, strict=True)
    ]
    kept = {axis for axes in each.dims for axis in axes or ()}
    apart = {
        axis
        for entry, length in entries
        if entry.axis is None and isinstance(entry, Affine) and fills(entry, each.sizes, length, same)
        for axis, _ in entry.terms
    }
    return (apart & kept).difference(entry.axis for entry, _ in entries)


def size_of(each: Node, axis: int) -> Size:
    """The size of an axis; of one that is cropped or padded, afterwards."""
    if "fill" in each.attributes:
        return each.shape[next(d for d, entry in enumerate(each.result) if axis in axes_of((entry,)))]
    return each.sizes[axis]


def hints(naming: Naming, each: Node, axis: int) -> Iterator[str]:
    """What the dimensions are called that an axis runs along as a whole."""
    joins = each.op in JOINED and axis == each.over[0]
    moves = joins or "fill" in each.attributes
    axes = each.over if joins else (axis,)
    for child, reads in reads_of(each):
        for d, entry in enumerate(reads):
            runs = _moved_axis(entry) if "fill" in each.attributes else entry.axis
            if runs not in axes:
                continue
            if child in naming.lone:
                yield from (name for inner in parts(child, d) or () for name in hints(naming, child, inner))
            elif child.op not in LEAVES and (moves or naming.same(each.sizes[axis], child.shape[d])):
                yield naming.dimension(child, d)
    yield from ("n",) if joins else ()
