"""Equations of nodes: a name for each axis, and an expression for each operation.

    add(contract(x[0,2], W[1,2]) [0,1], c[1])        z[b,o] = x[b,i] * W[o,i] + c[o]

A node that is read once, along plain axes, is written inside its reader. Every other node gets an equation. Names of
tensors come from a side table. What the names of axes mean is left to an implementation of `AxisNames`: in a graph,
they determine sizes. A result that is written at positions becomes a product with one-hot factors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, cast

from ..graph.recurrences import calls_late
from ..graph.shape_inference import Axis, Dim, size_expression
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
    numbered,
    product_of,
    sum_of,
)
from ..ops.record import entry_of
from ..ops.structure import CONCAT, INDEX, INSIDE, ONEHOT, PAD, REPEAT
from ..ops.table import FUNCTIONS, RESERVED
from ..sizes import put_in
from .node import (
    Affine,
    Entries,
    Function,
    Gather,
    Names,
    Node,
    Operand,
    Options,
    Size,
    along,
    axes_of,
    distinct_axes,
    fills,
    node,
    order,
    partial_reads,
    whole,
)

LEAVES = ("number", "size", "index")
"""The ops of nodes that are written inside the expression that reads them."""

MADE = ("input", "constant", "item", *LEAVES)
"""The ops of nodes that have no equation."""

JOINED = (CONCAT.name, "stack")


class AxisNames(Protocol):
    """Gives names to the axes of one equation."""

    def named(self, each: Node, axis: int) -> str:
        """A name for an axis of a node that no other axis has."""

    def sized(self, size: Size) -> str:
        """A name for an axis of this size."""

    def spoken(self, size: Size, alike: Iterable[str] = ()) -> Expression:
        """A size as an expression; `alike` are axes of this size."""

    def in_order(self, each: Node, entry: Affine, length: Size) -> Affine:
        """A window with its axes in the order in which they are written."""


class Written(ABC):
    """The equations and calls of a function, while they are written.

    Attributes:
        names, function: the function, and the names of its parts.
        nodes: the nodes that the outputs need; named ones are in the order in which they were written.
        stems: the stems of numbered names, for nodes without a name of their own.
        called: the names of axes; an axis may take the name of a reader's axis that runs along it.
        lone: the nodes that are written inside their readers.
        tensors: the names of nodes; at first, of inputs.
        dims: the dimensions of tensors, by name.
        bound, values: the sizes that have a value, and those whose value is an integer.
        taken: the names that a new name must differ from.
        body: the equations and calls so far.
    """

    def __init__(self, function: Function, names: Names, tensors: Mapping[Node, str]) -> None:
        self.function, self.names, outputs = function, names, function.outputs
        self.nodes = self._in_order()
        self.stems: dict[Node, str] = dict(zip(outputs, names.outputs, strict=False))
        self.called = dict[tuple[Node, int], str]()
        for each in reversed(self.nodes):
            self._ask(each)
        self.tensors, self.given = dict(tensors), {*tensors.values()}
        self.dims: dict[str, tuple[Dim, ...]] = {each.name: each.dims for each in names.leaves}
        self.bound = dict(names.sizes)
        self.values = {name: value for name, value in names.sizes if isinstance(value, int)}
        self.taken = {*self.dims, *names.outputs, *names.tensors.values(), *FUNCTIONS, *RESERVED}
        self.body = list[Any]()
        self.lone = self._written_where_read()

    @abstractmethod
    def axes(self, each: Node) -> AxisNames:
        """Gives names to the axes of the equation of a node."""

    def same(self, one: Size, two: Size) -> bool:
        """Whether two sizes are equal, given the known values of sizes."""
        return bool(one == two or put_in(one, self.values) == put_in(two, self.values))

    def is_apart(self, each: Node, readers: Sequence[Node]) -> bool:
        """Whether a node gets an equation of its own."""
        return any(reader.op == "call" for reader in readers)

    def add(self, equation: Equation, axes: Any) -> None:
        """Adds an equation, whose axes have the given names."""
        self.body.append(equation)

    # ---- tensors

    def write(self) -> None:
        """Writes all equations and calls, in order."""
        for each in self.nodes:
            if each.op == "item":
                call = each.attributes["call"].attributes["call"]
                self.tensors[each] = call.results[each.attributes["n"]]
            elif each.op == "call":
                self._call(each)
            elif not (each in self.lone or each.is_scalar or each.op in MADE):
                self.tensor(each)
        for name, each in zip(self.names.outputs, self.function.outputs, strict=True):
            if self.tensors.get(each) != name:
                self.define(each, name)

    def tensor(self, each: Node) -> str:
        """The name of a node, which gets an equation if it has none yet."""
        if each not in self.tensors:
            self.tensors[each] = name = self.new_name(each)
            self.define(each, name)
        return self.tensors[each]

    def dimension(self, each: Node, d: int) -> str:
        """The name of a dimension of a node, which gets an equation if it has none."""
        return "_".join(axis.name for axis in self.dims[self.tensor(each)][d])

    def define(self, each: Node, name: str) -> None:
        """Adds the equation of a node."""
        if each.op in MADE or self.tensors.get(each, name) != name:
            each = again(each)
        axes = self.axes(each)
        equation, self.dims[name] = Line(self, axes).equation(each, name)
        self.add(equation, axes)

    def _call(self, each: Node) -> None:
        """Adds a call, with the present names of its operands."""
        call = each.attributes["call"]
        pairs = [*zip(call.graph.leaves, each.operands, strict=True)]
        operands = tuple(self.tensor(read.node) for leaf, read in pairs if leaf.kind == "input")
        for leaf, read in pairs:  # a number, or a tensor that passes find equal to another, read by its name
            if leaf.kind != "input" and call.scoped(leaf.name) not in self.dims:
                self.define(read.node, call.scoped(leaf.name))
        self.body.append(replace(call, operands=operands))
        self.dims.update(call.returned(self.bound))

    def new_name(self, each: Node) -> str:
        """A name for the tensor of a node: its own, if no other node has it."""
        name = self.names.tensors.get(each, "")
        if not name or name in self.given:
            names = numbered(name or self.stems.get(each, "v"))
            name = next(each for each in names if each not in self.taken)
        self.taken.add(name)
        self.given.add(name)
        return name

    # ---- order, and names that nodes pass on

    def _in_order(self) -> list[Node]:
        """The needed nodes. Calls keep their order, and come as late as possible."""
        needed = {*order(self.function.outputs)}
        named = [each for each in self.names.tensors if each in needed]
        calls = dict.fromkeys(each.attributes["call"] for each in named if each.op == "item")
        nodes = order([*(each for each in named if each.op != "item"), *self.function.outputs])
        if not calls:
            return nodes
        items = [*(each for each in nodes if each not in calls), *calls]
        return [*calls_late(items, lambda each: each.children, calls.__contains__)]

    def _ask(self, each: Node) -> None:
        """Passes the names of a node and of its axes to the nodes that it reads, where these have none."""
        stem = self.names.tensors.get(each) or self.stems.get(each, "v")
        self.stems |= dict.fromkeys(each.children, stem)
        self.called |= {(each, n): name for n, name in enumerate(self.names.axes.get(each, ()))}
        for child, reads in each.operands:
            for axes, entry in zip(child.dims, reads, strict=True):
                name = self.called.get((each, entry.axis), ELLIPSIS) if entry.axis is not None else ELLIPSIS
                if axes and len(axes) == 1 and name != ELLIPSIS:
                    self.called.setdefault((child, axes[0]), name)

    def _written_where_read(self) -> set[Node]:
        """The unnamed nodes that are read along plain axes: either once, or as positions of kernels."""
        counts = Counter(each for reader in self.nodes for each in reader.children)
        reading: dict[Node, list[Operand]] = defaultdict(list)
        for reader in self.nodes:
            for child, reads in reads_of(reader):
                reading[child].append(Operand(reader, reads))
        found: set[Node] = set()
        for child in reversed(self.nodes):
            pairs = reading[child]
            asked = (
                child in self.function.outputs or child in self.names.tensors or counts[child] != len(pairs)
            )
            if asked or not pairs or self.is_apart(child, [reader for reader, _ in pairs]):
                continue
            if not all(is_lone(reader, child, reads) for reader, reads in pairs):
                continue
            if len(pairs) == 1 or all(is_position_operand(reader, child) for reader, _ in pairs):
                found.add(child)
        return found


class Line:
    """One equation under construction, or the positions in its brackets, where the name of an axis is no size."""

    def __init__(self, naming: Written, axes: AxisNames, in_brackets: bool = False) -> None:
        self.naming, self.axes, self.in_brackets = naming, axes, in_brackets

    def equation(self, each: Node, name: str) -> tuple[Equation, tuple[Dim, ...]]:
        """The equation of a node, and the dimensions of its result."""
        names: dict[int, str] = {}
        left: list[Any] = []
        dims: list[Dim] = []
        for d, length in enumerate(each.shape):
            axes = parts(each, d)
            if axes is None:
                found: tuple[str, ...] = (self.axes.sized(length),)
                dims.append((Axis(found[0], length),))
            else:
                found = tuple(self.axes.named(each, axis) for axis in axes)
                names.update(zip(axes, found, strict=True))
                dims.append(tuple(Axis(names[axis], size_of(each, axis)) for axis in axes))
            left.append(entry_of(found))
        return Equation(name, tuple(left), self.value(each, left, names)), tuple(dims)

    # ---- expressions

    def value(self, each: Node, dims: Sequence[Any], names: dict[int, str]) -> Expression:
        """The expression of a node.

        Args:
            each: the node.
            dims: the names of its dimensions.
            names: the names of the axes that these consist of.
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
        options = options_of(each, self._spoken(each, names))
        if each.op == "roll":
            shifts = tuple((name, shift) for name, (_, shift) in zip(over, options, strict=True))
            return Call(each.op, tuple(operands), (), shifts)
        return flat(Call(each.op, tuple(operands), over, options))

    def _hot(self, each: Node, entry: Affine | Gather, dim: str, names: Mapping[int, str]) -> Expression:
        """A one-hot factor at the positions where a result is written."""
        if isinstance(entry, Gather):
            return ones_at(self._held(each, entry, names), dim)
        return ones_at(self._position(entry, names), dim)

    def _padded(self, each: Node, names: Mapping[int, str]) -> Expression:
        """A copy with fewer or more positions: a crop or a padding."""
        (operand,) = each.operands
        amounts: list[tuple[str, tuple[Expression, ...]]] = []
        for axis, before, after in amounts_of(each):
            if before != 0 or after != 0:
                amounts.append((names[axis], (self.axes.spoken(before), self.axes.spoken(after))))
        fill = scalar_expression(each.attributes["fill"], self.axes.spoken)
        if fill != Literal(0):
            amounts.append(("value", (fill,)))
        if INSIDE in each.attributes:
            amounts.append((INSIDE, (Literal(1),)))
        plain = Operand(operand.node, tuple(along(_moved_axis(entry)) for entry in operand.reads))
        found = self.read(each, plain, names)
        return Call(PAD.name, (found,), (), tuple(amounts)) if amounts else found

    def _spoken(self, each: Node, names: Mapping[int, str]) -> Callable[[Size], Expression]:
        """How sizes are written in the expression of a node: as that of an axis, if one has it."""

        def spoken(size: Size) -> Expression:
            alike = (name for axis, name in names.items() if each.sizes[axis] == size)
            return self.axes.spoken(size, () if self.in_brackets else alike)

        return spoken

    # ---- reads

    def read(self, each: Node, operand: Operand, names: Mapping[int, str]) -> Expression:
        """The expression of an operand of a node."""
        child, reads = operand
        if child.is_scalar:
            return scalar_expression(child, self._spoken(each, names))
        sized_inside = each.op in JOINED or "fill" in each.attributes
        if child.op == "index" and not sized_inside and isinstance(reads[0], Affine):
            return self._position(reads[0], names)
        if child in self.naming.lone or (is_position_operand(each, child) and is_lone(each, child, reads)):
            dims = [names[_moved_axis(entry)] for entry in reads]
            inner = {axes[0]: dim for d, dim in enumerate(dims) if (axes := parts(child, d)) is not None}
            return self.value(child, dims, inner)
        return self._ref(each, operand, names)

    def _ref(self, each: Node, operand: Operand, names: Mapping[int, str]) -> Ref:
        """A reference to a tensor by its name."""
        child, reads = operand
        pairs = zip(reads, child.shape, strict=True)
        index = tuple(self._entry(each, entry, length, names) for entry, length in pairs)
        return Ref(self.naming.tensor(child), index)

    def _held(self, each: Node, entry: Gather, names: Mapping[int, str]) -> Expression:
        """The expression that holds positions; an index is read as a named tensor, since it must be in range."""
        operand, inside = Operand(entry.node, entry.reads), Line(self.naming, self.axes, in_brackets=True)
        found = inside._ref if entry.node.op == "index" else inside.read
        return found(each, operand, names)

    def _entry(self, each: Node, entry: Affine | Gather, length: Size, names: Mapping[int, str]) -> Index:
        """An entry of brackets, for a dimension of this length."""
        if isinstance(entry, Gather):
            return cast("Index", self._held(each, entry, names))
        if not entry.terms:
            return self._place(entry.offset, length)
        if entry.axis is not None and "fill" in each.attributes:
            return names[entry.axis]
        if fills(entry, each.sizes, length, self.naming.same):
            found = tuple(names[axis] for axis, _ in entry.terms)
            return entry_of(found)
        return cast("Index", self._position(self.axes.in_order(each, entry, length), names))

    def _place(self, offset: Size, length: Size) -> Index:
        """A fixed position, counted from the start or from the end."""
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
    """A copy of a node that gets an equation of its own."""
    operand, sizes = whole(each), {((), n): size for n, size in enumerate(each.shape)}
    return node("copy", sizes, [operand], operand.reads, options=(("again", True),))


def scalar_expression(each: Node, spoken: Callable[[Size], Expression] = size_expression) -> Expression:
    """A node without axes as an expression; `spoken` writes the sizes in it."""
    match each.op:
        case "number":
            return Literal(each.attributes["value"])
        case "size":
            return spoken(each.attributes["size"])
    parts = tuple(scalar_expression(operand.node, spoken) for operand in each.operands)
    return product_of(parts) if each.op == "contract" else Call(each.op, parts, (), options_of(each, spoken))


def options_of(each: Node, spoken: Callable[[Size], Expression] = size_expression) -> Options:
    """The options of a node as expressions; the number of a random draw is left out."""
    given = ((name, value) for name, value in each.options if name != "draw")
    return tuple((name, (scalar_expression(value, spoken),)) for name, value in given)


# ---------------------------------------------------------------------------- properties of nodes


def reads_of(each: Node) -> list[Operand]:
    """The operands of a node, and the reads that hold positions."""
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
    """Whether a node may be written inside its reader, which reads it along plain axes."""
    if child.op in MADE:
        return False
    if distinct_axes(reads) is None or any(len(parts(child, d) or ()) > 1 for d in range(len(reads))):
        return False
    entries = [entry for operand in child.operands for entry in operand.reads]  # its axes are sized inside
    plain = all(e.axis is not None or (isinstance(e, Affine) and not e.terms) for e in entries)
    if reader.op not in JOINED and "fill" not in reader.attributes:
        return plain or not child.function.is_kernel or any(isinstance(entry, Gather) for entry in entries)
    told = {*axes_of(child.result)} <= {*axes_of(tuple(entries))}
    return child.op == "copy" and "fill" not in child.attributes and plain and told


def is_position(each: Node) -> bool:
    """Whether a node is a sum of positions along axes, or a one-hot tensor of them."""
    if each.op in LEAVES or each.is_scalar:
        return True
    whole = each.op in ("add", "contract") and each.element.is_position
    if each.op != ONEHOT.name and not (whole and len(each.sizes) == len(each.shape)):
        return False
    entries = (entry for operand in each.operands for entry in operand.reads)
    plain = all(isinstance(entry, Affine) for entry in entries)
    return plain and all(is_position(operand.node) for operand in each.operands)


def is_position_operand(reader: Node, child: Node) -> bool:
    """Whether a node is an operand that gives positions to a kernel, which takes them as they are written, or a part
    of these positions."""
    is_operand = is_position(child) and any(each.node is child for each in reader.operands)
    return is_operand and (reader.function.is_kernel or is_position(reader))


def _moved_axis(entry: Affine | Gather) -> int:
    """The axis of a position along one axis, with any offset."""
    assert isinstance(entry, Affine)
    ((axis, _),) = entry.terms
    return int(axis)


def parts(each: Node, d: int) -> tuple[int, ...] | None:
    """The axes that a dimension of a result consists of, or None; a crop or a padding may shift its axis."""
    return each.result[d].axes if "fill" in each.attributes else each.dims[d]


def is_in_window(each: Node, axis: int) -> bool:
    """Whether an axis occurs in a window."""
    entries = (entry for operand in reads_of(each) for entry in partial_reads(operand, each.sizes))
    return any(isinstance(entry, Affine) and entry.axis is None and axis in entry.axes for entry in entries)


def amounts_of(each: Node) -> Iterator[tuple[int, Size, Size]]:
    """The axes of a crop or a padding, and the number of positions added before and after along each."""
    (operand,) = each.operands
    for d, (written, read) in enumerate(zip(each.result, operand.reads, strict=True)):
        assert isinstance(written, Affine)
        assert isinstance(read, Affine)
        before = written.offset - read.offset
        yield _moved_axis(written), before, each.shape[d] - operand.node.shape[d] - before


def parted(each: Node, same: Callable[[Size, Size], bool]) -> set[int]:
    """The axes of a result that no operand has as a dimension, but only as part of a composite one."""
    entries = [
        (entry, length)
        for child, reads in each.operands
        for entry, length in zip(reads, child.shape, strict=True)
    ]
    kept = {axis for axes in each.dims for axis in axes or ()}
    apart = {
        axis
        for entry, length in entries
        if entry.axis is None and fills(entry, each.sizes, length, same)
        for axis, _ in entry.terms
    }
    return (apart & kept).difference(entry.axis for entry, _ in entries)


def size_of(each: Node, axis: int) -> Size:
    """The size of an axis, after any crop or padding."""
    if "fill" in each.attributes:
        return each.shape[next(d for d, entry in enumerate(each.result) if axis in entry.axes)]
    return each.sizes[axis]


def hints(naming: Written, each: Node, axis: int) -> Iterator[str]:
    """The names of the dimensions that an axis runs along as a whole."""
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
