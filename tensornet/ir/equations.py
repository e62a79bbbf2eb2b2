"""Equations of nodes: a name for each axis, and an expression for each operation.

An axis is called as a dimension that it runs along and that is as long. Where there is none, its name tells its size.
A result that is written at positions is a product with one-hot factors.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, cast

from ..graph.shape_inference import size_expression
from ..language import expression
from ..language.affine import ones_at
from ..language.equation import Equation
from ..language.expression import (
    ELLIPSIS,
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
from ..sizes import floored, is_never_negative, name_of, put_in, size_names
from .build import Options, node, whole
from .node import Affine, Entries, Gather, Node, Operand, Size, along, axes_of, fills

__all__ = ["LEAVES", "Dims", "Line", "Sizes", "is_lone", "is_position", "is_told", "reads_of"]

Dims: TypeAlias = "tuple[tuple[tuple[str, Size], ...], ...]"
"""The axes of each dimension of a tensor, and their sizes."""

LEAVES = ("number", "size", "index")
"""What is written where it is read."""

JOINED = (CONCAT.name, "stack")


@dataclass(frozen=True)
class Sizes:
    """The names of axes.

    Attributes:
        known: those that tell a size by themselves in a graph.
        made: those that do so in any graph, and were made for it.
        axes: all others, in any graph.
    """

    known: dict[str, Size]
    made: dict[str, Size] = field(default_factory=dict)
    axes: dict[str, Size] = field(default_factory=dict)

    def inside(self, own: Mapping[str, Size]) -> Sizes:
        """The names in a block, which has sizes of its own."""
        return Sizes({**self.known, **own}, self.made, self.axes)

    def name(self, size: Size, stem: str, used: Container[str], taken: Container[str]) -> str:
        """A name that tells a size, which a line does not use yet, and which no tensor has if it is a new one."""
        found = {**self.made, **self.known}
        alike = [name for name, each in found.items() if each == size and name not in used]
        if alike:
            return min(alike, key=lambda name: (name != stem, name != name_of(size)))
        names = itertools.chain((stem,), (f"{stem}_{n}" for n in itertools.count(1)))
        free = (each for each in names if each not in found and each not in used and each not in taken)
        name = next(each for each in free if self.axes.get(each, size) == size)
        self.made[name] = size
        return name

    def fits(self, name: str, size: Size, same: Callable[[Size, Size], bool]) -> bool:
        """Whether an axis of a size may have a name, as far as names tell sizes."""
        return all(same(each.get(name, size), size) for each in (self.known, self.made))


class Naming(Protocol):
    """Whose equations are written: `naming`."""

    tensors: dict[Node, str]
    dims: dict[str, Dims]
    bound: dict[str, Any]
    sizes: Sizes
    values: dict[str, int]
    lone: set[Node]
    reserved: set[str]
    called: dict[tuple[Node, int], str]

    def tensor(self, each: Node) -> str:
        """The name of a node, which has an equation then."""

    def same(self, one: Size, two: Size) -> bool:
        """Whether two sizes are equal, as far as sizes have a value."""


class Line:
    """One equation, while it is written.

    Attributes:
        used: the names of its axes.
    """

    def __init__(self, naming: Naming) -> None:
        self.naming, self.used = naming, set[str]()

    def equation(self, each: Node, name: str) -> tuple[Equation, Dims]:
        """The equation of a node, and the dimensions of what it defines."""
        if each.op in ("input", "item", "constant", *LEAVES) or self.naming.tensors.get(each, name) != name:
            sizes: Any = {((), n): size for n, size in enumerate(each.shape)}
            operand = whole(each)
            each = node("copy", sizes, [operand], operand.reads, options=(("again", True),))
        names: dict[int, str] = {}
        left: list[Any] = []
        dims: list[tuple[tuple[str, Size], ...]] = []
        for d, length in enumerate(each.shape):
            axes = parts(each, d)
            if axes is None:
                found: tuple[str, ...] = (self.sized(length),)
                dims.append(((found[0], length),))
            else:
                found = tuple(self.named(each, axis) for axis in axes)
                names.update(zip(axes, found, strict=True))
                dims.append(tuple((names[axis], _size_of(each, axis)) for axis in axes))
            left.append(found[0] if len(found) == 1 else found)
        return Equation(name, tuple(left), self.value(each, left, names)), tuple(dims)

    # ---- axes

    def sized(self, size: Size, stem: str = "") -> str:
        """A name that tells a size."""
        taken = self.naming.reserved
        return self._taken(self.naming.sizes.name(size, stem or name_of(size) or "n", self.used, taken))

    def _taken(self, name: str) -> str:
        """A name that the line uses from here on; the graph says the size that it tells."""
        self.used.add(name)
        told = self.naming.sizes.known.get(name, self.naming.sizes.made.get(name))
        if told is not None and name_of(told) != name:
            self.naming.bound.setdefault(name, told)
        return name

    def named(self, each: Node, axis: int) -> str:
        """A name for an axis: its own, or that of a dimension that tells its size, or one that does by itself."""
        called = self.naming.called.get((each, axis))
        own = () if called is None else (called,)
        hints, size = [*self._hints(each, axis)], _size_of(each, axis)
        if not hints and own != (ELLIPSIS,):
            return self.sized(size, *own)
        stems = (*own, *hints)
        names = itertools.chain(stems, (f"{stems[0]}_{n}" for n in itertools.count(1)))
        unused = (each for each in names if each not in self.used)
        name = next(each for each in unused if self.naming.sizes.fits(each, size, self.naming.same))
        self.naming.sizes.axes[name] = size
        return self._taken(name)

    def _hints(self, each: Node, axis: int) -> Iterator[str]:
        """What the dimensions are called that an axis runs along as a whole, and so tell its size."""
        joins = each.op in JOINED and axis == each.over[0]
        moves = joins or "fill" in each.attributes
        axes = each.over if joins else (axis,)
        for child, reads in reads_of(each):
            for d, entry in enumerate(reads):
                runs = _moved_axis(entry) if "fill" in each.attributes else entry.axis
                if runs not in axes:
                    continue
                if child in self.naming.lone:
                    yield from (name for inner in parts(child, d) or () for name in self._hints(child, inner))
                elif child.op not in LEAVES and (moves or self.naming.same(each.sizes[axis], child.shape[d])):
                    yield "_".join(name for name, _ in self.naming.dims[self.naming.tensor(child)][d])
        yield from ("n",) if joins else ()

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
                names[axis] = self.named(each, axis)
        names |= dict.fromkeys(joined, names[joined[0]]) if joined else {}
        if "fill" in each.attributes:
            return self._padded(each, names)
        written = {axis for d in range(len(each.shape)) for axis in parts(each, d) or ()}
        pairs = enumerate(zip(each.result, dims, strict=True))
        hot = [self._hot(each, entry, dim, names) for d, (entry, dim) in pairs if parts(each, d) is None]
        read = {*each.over, *(axis for operand in each.operands for axis in axes_of(operand.reads))}
        if hot:
            read |= {*axes_of(each.result)}
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
            unread = [self._spoken(each.sizes[axis]) for axis in each.over]
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
        for d, (written, read) in enumerate(zip(each.result, operand.reads, strict=True)):
            assert isinstance(written, Affine)
            assert isinstance(read, Affine)
            before = written.offset - read.offset
            after = each.shape[d] - operand.node.shape[d] - before
            if before != 0 or after != 0:
                amounts.append((names[_moved_axis(written)], (self._spoken(before), self._spoken(after))))
        fill = self._scalar(each.attributes["fill"], each, {})
        more = () if fill == Literal(0) else (("value", (fill,)),)
        plain = Operand(operand.node, tuple(along(_moved_axis(entry)) for entry in operand.reads))
        return Call(PAD.name, (self.read(each, plain, names),), (), (*amounts, *more))

    def _spoken(self, size: Size) -> Expression:
        """A size as an expression; one that is called as a tensor is goes by its value."""
        clashing = {*size_names(size)} & self.naming.reserved & self.naming.values.keys()
        return size_expression(put_in(size, {name: self.naming.values[name] for name in clashing}))

    def _scalar(self, number: Node, each: Node, names: Mapping[int, str]) -> Expression:
        """A number in the expression of a node; a size is that of an axis, if one is as long."""
        match number.op:
            case "number":
                return Literal(number.attributes["value"])
            case "size":
                size = number.attributes["size"]
                alike = (expression.Size(name) for axis, name in names.items() if each.sizes[axis] == size)
                return next(alike, None) or self._spoken(size)
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
        return cast("Index", self._position(self._windowed(each, entry, length), names))

    def _place(self, offset: Size, length: Size) -> Index:
        """A fixed position, from the first one or from the last."""
        for found in (offset, offset - length):
            if isinstance(found, int):
                return found
        return cast("Index", sum_of([Literal(0), self._spoken(offset)]))

    def _position(self, entry: Affine, names: Mapping[int, str]) -> Expression:
        """A sum of axes as an expression of positions."""
        moving = [(step, Call(INDEX.name, (), (names[axis],))) for axis, step in entry.terms]
        terms = [here if step == 1 else product_of([self._spoken(step), here]) for step, here in moving]
        return sum_of([*terms, self._spoken(entry.offset)] if entry.offset != 0 else [*terms])

    def _windowed(self, each: Node, entry: Affine, length: Size) -> Affine:
        """A window, first an axis that is as long as fits, if one may have another size there."""
        fits = [
            term
            for term in entry.terms
            if self.naming.same(_fit(each, entry, term[0], length), each.sizes[term[0]])
        ]
        assert fits, f"a window that does not reach from end to end: {each}"
        first = min(fits, key=lambda term: any(self._hints(each, term[0])))
        return Affine((first, *(term for term in entry.terms if term is not first)), entry.offset)


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
    if child.op in ("input", "constant", "item", "call", "scan", *LEAVES):
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
    return child.op == "copy" and "fill" not in child.attributes and plain


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


def _size_of(each: Node, axis: int) -> Size:
    """The size of an axis; of one that is cropped or padded, afterwards."""
    if "fill" in each.attributes:
        return each.shape[next(d for d, entry in enumerate(each.result) if axis in axes_of((entry,)))]
    return each.sizes[axis]


def _fit(each: Node, entry: Affine, axis: Any, length: Size) -> Size:
    """How long an axis of a window may be: as far as it reaches beside the others."""
    step = dict(entry.terms)[axis]
    others = [((each.sizes[a] - 1) * by, _is_negative(by)) for a, by in entry.terms if a != axis]
    if _is_negative(step):
        return floored(entry.offset + sum(far for far, back in others if back), -step) + 1
    return floored(length - 1 - entry.offset - sum(far for far, back in others if not back), step) + 1


def _is_negative(step: Size) -> bool:
    return step != 0 and is_never_negative(-step)
