"""Naming: a function as a graph of equations, which prints.

    add(contract(x[0,2], W[1,2]) [0,1], c[1])        z[b,o] = x[b,i] * W[o,i] + c[o]

A node that is read once, along axes alone, is written where it is read; every other one gets an equation. An axis is
called as the dimension that it runs along, and one name is one size throughout a graph: an axis whose size no tensor
tells has a name that does. A result that is written at positions is a product with one-hot factors.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from ..graph.call import Along, Apply, scoped
from ..graph.graph import Graph
from ..graph.leaves import Leaf
from ..graph.shape_inference import Axis, size_expression
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
from ..ops.structure import INDEX, PAD, REPEAT
from ..ops.table import FUNCTIONS, RESERVED
from ..sizes import put_in
from .function import Function, order, rebuilt
from .node import Affine, Entries, Gather, Node, Operand, axes_of, row_major
from .size import ONE, ZERO, Size, of_sympy, product

__all__ = ["Called", "Names", "named"]

Dims: TypeAlias = "tuple[tuple[tuple[str, Size], ...], ...]"
"""The axes of each dimension of a tensor, and their sizes."""

LEAVES = ("number", "size", "index")
"""What is written where it is read."""


@dataclass(frozen=True)
class Names:
    """What a graph calls the parts of a function: a side table, for printing alone.

    Attributes:
        leaves: the inputs and constants as the graph has them; those without a value are the inputs, in order.
        outputs: the names of the results.
        sizes: the sizes that have a value.
        tensors: the names of nodes that equations define, and of constants.
        calls: the names of calls and scans.
    """

    leaves: tuple[Leaf, ...]
    outputs: tuple[str, ...]
    sizes: tuple[tuple[str, Any], ...]
    tensors: Mapping[Node, str] = field(repr=False)
    calls: Mapping[Node, Called] = field(repr=False)


@dataclass(frozen=True)
class Called:
    """What a graph calls a call.

    Attributes:
        names: those of the function that is called.
        scope: what stands before them in the caller.
        apart: whether it is planned as a call in any case.
    """

    names: Names
    scope: str
    apart: bool


def named(function: Function, names: Names) -> Graph:
    """The graph of a function: what `frontend.elaborate_ir` reads."""
    return _Naming(function.inputs, function.outputs, names, names.leaves, names.sizes, {}).graph()


class _Naming:
    """The equations and calls of a graph, while they are written.

    Attributes:
        tensors: the names of nodes.
        dims: the dimensions of tensors, by name.
        bound: the sizes that have a value; a new one for each name that tells a size.
        axes: every axis name in use, and its size.
    """

    def __init__(
        self,
        inputs: Sequence[Node],
        outputs: Sequence[Node],
        names: Names,
        leaves: Sequence[Leaf],
        sizes: Iterable[tuple[str, Any]],
        blocks: dict[Any, Graph],
        inner: bool = False,
    ) -> None:
        self.inner = inner
        self.names, self.leaves, self.outputs, self.blocks = names, list(leaves), tuple(outputs), blocks
        self.bound = dict(sizes)
        self.values = {name: value for name, value in self.bound.items() if isinstance(value, int)}
        self.nodes = order(outputs)
        self.tensors = dict(zip(inputs, (each.name for each in leaves if each.value is None), strict=True))
        self.dims: dict[str, Dims] = {each.name: _dims_of(each.dims) for each in leaves}
        self.tensor_names = {*self.dims, *names.outputs, *names.tensors.values(), *FUNCTIONS, *RESERVED}
        self.taken = {*self.tensor_names}
        self.axes: dict[str, Size] = {}
        for name in {name for each in self.nodes for size in each.sizes for name in size.names} | {
            *self.bound
        }:
            self.axes[name] = Size.of(name)
        self.told_sizes: dict[Size, list[str]] = {}
        self.body: list[Equation | Apply] = []
        self.items: dict[Node, dict[int, Node]] = {}
        for each in self.nodes:
            if each.op == "item":
                self.items.setdefault(each.operands[0].node, {})[each.told["n"]] = each
        self.lone = self._written_where_read()

    def graph(self) -> Graph:
        """The graph."""
        for each in self.nodes:
            if each.op in ("call", "scan"):
                self._call(each)
            elif each not in self.lone and each.op not in ("input", "item", *LEAVES):
                self.tensor(each)
        for name, each in zip(self.names.outputs, self.outputs, strict=True):
            if self.tensors.get(each) != name:
                self.define(each, name)
        return Graph(tuple(self.leaves), tuple(self.body), self.names.outputs, tuple(self.bound.items()))

    def tensor(self, each: Node) -> str:
        """The name of a node, which gets an equation if it has none yet."""
        if each not in self.tensors:
            name = self.names.tensors.get(each, "")
            if not name or name in self.tensors.values():
                name = self.fresh(name or "v")
            if each.op == "constant":
                self.tensors[each] = name
                self._constant(each, name)
            else:
                self.tensors[each] = name
                self.define(each, name)
        return self.tensors[each]

    def _constant(self, each: Node, name: str) -> None:
        """Adds the leaf of a constant, if there is none."""
        if name not in self.dims:
            axes = tuple((Axis(self.size_name(size, set()), size.to_sympy()),) for size in each.shape)
            self.leaves.append(Leaf(name, "constant", axes, value=each.told["value"]))
            self.dims[name] = _dims_of(axes)

    def define(self, each: Node, name: str) -> None:
        """Adds the equation of a node."""
        line = _Line(self)
        equation, dims = line.equation(each, name)
        self.body.append(equation)
        self.dims[name] = dims

    def fresh(self, stem: str) -> str:
        """A name for a tensor or a size that nothing has."""
        names = itertools.chain((stem,), (f"{stem}_{n}" for n in itertools.count(1)))
        name = next(each for each in names if each not in self.taken and each not in self.axes)
        self.taken.add(name)
        return name

    # ---- sizes

    def same(self, one: Size, two: Size) -> bool:
        """Whether two sizes are equal, as far as sizes have a value."""
        return one == two or one.at(self.values) == two.at(self.values)

    def size_name(self, size: Size, used: Container[str]) -> str:
        """A name for an axis that tells its size, which a line does not use yet."""
        if size.name is not None and size.name not in used:
            return size.name
        known = self.told_sizes.setdefault(size, [])
        for name in known:
            if name not in used:
                return name
        name = self.fresh(size.name or "n")
        self.axes[name], self.bound[name] = size, size.to_sympy()
        known.append(name)
        return name

    def spoken(self, size: Size) -> Expression:
        """A size as an expression; one that is called as a tensor is goes by its value."""
        taken = size.names & self.tensor_names & self.values.keys()
        return size_expression(size.at({name: self.values[name] for name in taken}).to_sympy())

    # ---- what is written where

    def _written_where_read(self) -> set[Node]:
        """The nodes that are read once, along axes alone, and have no name."""
        counts = Counter(each for node in self.nodes for each in node.nodes())
        lone: set[Node] = set()
        for node in self.nodes:
            if node.op in ("call", "scan"):
                continue
            for operand in _reads(node):
                child = operand.node
                if counts[child] == 1 and child not in self.outputs and child not in self.names.tensors:
                    if child.op not in ("input", "constant", "item", "call", "scan") and self._is_lone(
                        node, operand
                    ):
                        lone.add(child)
        return lone

    def _is_lone(self, reader: Node, operand: Operand) -> bool:
        """Whether a node may be written where a reader reads it."""
        child, axes = operand.node, [e.axis if isinstance(e, Affine) else None for e in operand.reads]
        if None in axes or len(set(axes)) < len(axes):
            return not axes and child.op not in LEAVES
        if any(
            _parts(child, d, self.same) and len(_parts(child, d, self.same) or ()) > 1
            for d in range(len(axes))
        ):
            return False
        if reader.op in ("concat", "stack") or "fill" in reader.told:
            plain = child.op == "copy" and "fill" not in child.told
            entries = (entry for operand in child.operands for entry in operand.reads)
            return plain and all(
                isinstance(e, Affine) and (e.axis is not None or not e.terms) for e in entries
            )
        return True

    # ---- calls

    def _call(self, made: Node) -> None:
        """Adds a call, and the block that it calls."""
        called, told = self.names.calls[made], made.told
        function: Function = told["function"]
        given = [self.tensor(each.node) for each in made.operands]
        free = [each for each in called.names.leaves if each.value is None]
        moved = tuple(
            leaf.kind != "input" and scoped(called.scope, leaf.name) != name
            for leaf, name in zip(free, given, strict=True)
        )
        block = self._block(function, told["sizes"], called.names, moved)
        along, count = self._along(made, block), len(function.outputs)
        items = self.items.get(made, {})
        if made.op == "scan":
            count = 1 + max((n for n in items if n < count), default=0)
            if along is not None and along.last:
                count = len(function.outputs) + len(along.states)
        shown = [self._result(items.get(n)) for n in range(count)]
        names = {leaf.name: name for leaf, name in zip(free, given, strict=True)}
        operands = tuple(names[leaf.name] for leaf in block.inputs)
        call = Apply(block, operands, tuple(shown), called.scope, called.apart, along)
        self.body.append(call)
        for name, dims in call.returned(self.bound):
            self.dims[name] = _dims_of(dims)

    def _result(self, each: Node | None) -> str:
        """The name of a result of a call."""
        name = self.names.tensors.get(each, "") if each is not None else ""
        if not name or name in self.tensors.values():
            name = self.fresh(name or "v")
        if each is not None:
            self.tensors[each] = name
        return name

    def _along(self, made: Node, block: Graph) -> Along | None:
        """How a scan goes along its axis."""
        if made.op == "call":
            return None
        (over,) = made.over
        cuts = [
            n
            for each in made.operands
            for n, e in enumerate(each.reads)
            if isinstance(e, Affine) and e.axis == over
        ]
        states = tuple(n for _, n in made.told["states"])
        size = made.sizes[over]
        name = size.name or "t"
        last = any(n >= len(block.outputs) for n in self.items.get(made, {}))
        return Along(Axis(name, size.to_sympy()), tuple(cuts), states, made.told["back"], last)

    def _block(
        self, function: Function, sizes: tuple[Size, ...], names: Names, moved: tuple[bool, ...]
    ) -> Graph:
        """The graph of a function that is called, in the sizes of the caller."""
        bound = {name for size in sizes for name in size.names}
        outer = tuple((name, value) for name, value in self.bound.items() if name in bound)
        key = function, sizes, id(names), moved, outer
        if key not in self.blocks:
            local = {name: value for name, value in names.sizes if self.bound.get(name) != value}
            new: dict[Node, Node] = {}
            table = dict(zip(function.sizes, sizes, strict=True))
            inputs = rebuilt(function.inputs, new, sizes=table)
            outputs = rebuilt(function.outputs, new, sizes=table)
            tensors = {new[each]: name for each, name in names.tensors.items() if each in new}
            calls = {new[each]: called for each, called in names.calls.items() if each in new}
            inner = replace(names, tensors=tensors, calls=calls)
            gone = iter(moved)
            leaves = [_in_sizes(each, local) for each in names.leaves]
            leaves = [replace(e, kind="input") if e.value is None and next(gone) else e for e in leaves]
            self.blocks[key] = _Naming(inputs, outputs, inner, leaves, outer, self.blocks, True).graph()
        return self.blocks[key]


# ---------------------------------------------------------------------------- one equation


class _Line:
    """One equation, while it is written: the names of its axes."""

    def __init__(self, naming: _Naming) -> None:
        self.naming, self.used = naming, set[str]()

    def equation(self, each: Node, name: str) -> tuple[Equation, Dims]:
        """The equation of a node, and the dimensions of what it defines."""
        if (each in self.naming.tensors and self.naming.tensors[each] != name) or each.op in LEAVES:
            each = _copied(each)
        names: dict[int, str] = {}
        left: list[Any] = []
        dims: list[tuple[tuple[str, Size], ...]] = []
        for d in range(len(each.shape)):
            parts = _parts(each, d, self.naming.same)
            if parts is None:
                made = self.sized(each.shape[d])
                left.append(made)
                dims.append(((made, each.shape[d]),))
            else:
                for axis in parts:
                    names[axis] = self.named(each, axis)
                found = tuple(names[axis] for axis in parts)
                left.append(found[0] if len(found) == 1 else found)
                dims.append(tuple((names[axis], _size_of(each, axis)) for axis in parts))
        return Equation(name, tuple(left), self.value(each, left, names)), tuple(dims)

    # ---- axes

    def sized(self, size: Size) -> str:
        """A name that tells a size."""
        ellipsis = size.name == "lead" and any(
            n == ELLIPSIS for dims in self.naming.dims.values() for d in dims for n, _ in d
        )
        name = ELLIPSIS if ellipsis and ELLIPSIS not in self.used else self.naming.size_name(size, self.used)
        self.used.add(name)
        return name

    def named(self, each: Node, axis: int) -> str:
        """A name for an axis: that of a dimension that tells its size, or one that does by itself."""
        hints, size = [*self._hints(each, axis)], _size_of(each, axis)
        if not hints or (self.naming.inner and hints[0] != size.name and self._is_part(each, axis)):
            return self.sized(size)
        more = ["i"] if hints[0] != ELLIPSIS else []
        names = itertools.chain(hints, more, (f"{hints[0]}_{n}" for n in itertools.count(1)))
        known = self.naming.axes
        name = next(n for n in names if n not in self.used and self.naming.same(known.get(n, size), size))
        known[name] = size
        self.used.add(name)
        return name

    def _hints(self, each: Node, axis: int) -> Iterator[str]:
        """What dimensions that tell the size of an axis are called."""
        naming = self.naming
        joins = each.op in ("concat", "stack") and axis == each.over[0]
        axes = each.over if joins else (axis,)
        for operand in _reads(each):
            for d, entry in enumerate(operand.reads):
                if not isinstance(entry, Affine) or not {*axes} & {a for a, _ in entry.terms}:
                    continue
                child = operand.node
                if child in naming.lone:
                    parts = _parts(child, d, naming.same)
                    yield from self._hints(child, parts[0]) if parts else ()
                elif child.op not in LEAVES:
                    dim = naming.dims[naming.tensor(child)][d]
                    told = joins or "fill" in each.told
                    yield from (
                        ["_".join(name for name, _ in dim)]
                        if told
                        else self._told_by(each, axis, entry, dim, child.shape[d])
                    )
        if joins:
            yield "n"

    def _is_part(self, each: Node, axis: int) -> bool:
        """Whether an axis is a part of a composite, or of a sum of axes, in what is written there."""
        for node, entries in ((None, each.result), *_reads(each)):
            for d, entry in enumerate(entries):
                if isinstance(entry, Affine) and axis in axes_of((entry,)):
                    parts = _parts(node, d, self.naming.same) if node in self.naming.lone else None
                    if entry.axis is None or (parts and self._is_part(node, parts[0])):
                        return True
        return False

    def _told_by(
        self, each: Node, axis: int, entry: Affine, dim: tuple[tuple[str, Size], ...], length: Size
    ) -> Iterator[str]:
        """What a dimension is called along which an axis runs, if it tells the size of that."""
        same = self.naming.same
        if entry.axis == axis and same(each.sizes[axis], length):
            yield "_".join(name for name, _ in dim)
        elif _is_composite(each, entry, length, same) and len(entry.terms) == len(dim):
            alike = all(same(each.sizes[a], size) for (a, _), (_, size) in zip(entry.terms, dim, strict=True))  # type: ignore[index]
            if alike:
                yield dim[[a for a, _ in entry.terms].index(axis)][0]

    # ---- expressions

    def value(self, each: Node, dims: Sequence[Any], names: dict[int, str]) -> Expression:
        """The expression of a node, whose dimensions are called so."""
        for axis in range(len(each.sizes)):
            if axis not in names and not (each.op in ("concat", "stack") and axis in each.over):
                names[axis] = self.named(each, axis)
        if each.op in ("concat", "stack"):
            names |= dict.fromkeys(each.over, names.get(each.over[0], ""))
        hot = [
            self.hot(each, entry, str(dim), names)
            for d, (entry, dim) in enumerate(zip(each.result, dims, strict=True))
            if _parts(each, d, self.naming.same) is None
        ]
        if "fill" in each.told:
            return self.padded(each, names)
        parts = [self.read(each, operand, names) for operand in each.operands]
        right = self.right(each, parts, hot, names)
        read = {*each.over, *(axis for operand in each.operands for axis in axes_of(operand.reads))}
        for d in range(len(each.shape)):
            for axis in _parts(each, d, self.naming.same) or ():
                if axis not in read and not (hot and axis in axes_of(each.result)):
                    right = Call(REPEAT.name, (right,), (names[axis],))
        return right

    def right(
        self, each: Node, parts: list[Expression], hot: list[Expression], names: Mapping[int, str]
    ) -> Expression:
        """The operation on its parts."""
        if each.op == "contract" or hot:
            kept = {axis for d in range(len(each.shape)) for axis in _parts(each, d, self.naming.same) or ()}
            unread = [self.naming.spoken(each.sizes[axis]) for axis in each.over]
            summed = tuple(names[a] for a in range(len(each.sizes)) if a not in kept and a not in each.over)
            factors = [*hot, *parts, *unread]
            if not factors or (len(factors) == 1 and not summed and each.op == "contract"):
                factors = [Literal(1), *factors]
            return flat(contraction(tuple(factors), summed, None))
        if each.op == "copy":
            return parts[0]
        over = tuple(dict.fromkeys(names[axis] for axis in each.over))
        options = tuple(
            (name, (self.scalar(value, each, names),)) for name, value in each.options if name != "draw"
        )
        if each.op == "roll":
            return Call(each.op, tuple(parts), (), tuple(zip(over, (v for _, v in options), strict=True)))
        call = Call(each.op, tuple(parts), over, options)
        return flat(call) if each.op == "add" else call

    def hot(self, each: Node, entry: Affine | Gather, dim: str, names: Mapping[int, str]) -> Expression:
        """Ones where a result is written."""
        if isinstance(entry, Gather):
            return ones_at(self.held(each, entry, names), dim)
        return ones_at(self.position(entry, names), dim)

    def padded(self, each: Node, names: Mapping[int, str]) -> Expression:
        """A copy that leaves positions out, or has more: a crop or a padding."""
        (operand,) = each.operands
        amounts: list[Any] = []
        for written, read in zip(each.result, operand.reads, strict=True):
            assert isinstance(written, Affine) and isinstance(read, Affine)
            d = each.result.index(written)
            before = written.offset - read.offset
            after = each.shape[d] - operand.node.shape[d] - before
            if before != ZERO or after != ZERO:
                pair = tuple(self.naming.spoken(amount) for amount in (before, after))
                amounts.append((names[written.terms[0][0]], pair))  # type: ignore[index]
        fill = self.scalar(each.told["fill"], each, {})
        more = () if fill == Literal(0) else (("value", (fill,)),)
        plain = Operand(operand.node, tuple(Affine(e.terms) for e in operand.reads))  # type: ignore[union-attr]
        return Call(PAD.name, (self.read(each, plain, names, whole=True),), (), (*amounts, *more))

    def scalar(self, number: Node, each: Node, names: Mapping[int, str]) -> Expression:
        """A number in the expression of a node; a size is that of an axis, if one is as long."""
        match number.op:
            case "number":
                return Literal(number.told["value"])
            case "size":
                size = number.told["size"]
                alike = (
                    expression.Size(names[axis])
                    for axis, own in enumerate(each.sizes)
                    if own == size and axis in names
                )
                return next(alike, None) or self.naming.spoken(size)
        parts = tuple(self.scalar(operand.node, each, names) for operand in number.operands)
        if number.op == "contract":
            return product_of([*parts])
        options = tuple((name, (self.scalar(value, each, names),)) for name, value in number.options)
        return Call(number.op, parts, (), options)

    def read(self, each: Node, operand: Operand, names: Mapping[int, str], whole: bool = False) -> Expression:
        """An operand, as it is read."""
        child, reads = operand
        if child.is_scalar:
            return self.scalar(child, each, names)
        if child.op == "index":
            (entry,) = reads
            inner = isinstance(entry, Gather)
            return (
                self.read(each, Operand(entry.node, entry.reads), names)
                if inner
                else self.position(entry, names)
            )
        if child in self.naming.lone:
            dims = [names[e.axis] for e in reads]  # type: ignore[union-attr, index]
            inner_names = {
                parts[0]: dim for d, dim in enumerate(dims) if (parts := _parts(child, d, self.naming.same))
            }
            return self.value(child, dims, inner_names)
        entries = zip(reads, child.shape, strict=True)
        index = [self.entry(each, entry, length, names, whole) for entry, length in entries]
        return Ref(self.naming.tensor(child), tuple(index))

    def entry(
        self, each: Node, entry: Affine | Gather, length: Size, names: Mapping[int, str], whole: bool
    ) -> Index:
        """What stands in brackets."""
        if isinstance(entry, Gather):
            return self.held(each, entry, names)  # type: ignore[return-value]
        if not entry.terms:
            return self.place(entry.offset, length)
        if entry.axis is not None and (whole or self.naming.same(each.sizes[entry.axis], length)):
            return names[entry.axis]
        if _is_composite(each, entry, length, self.naming.same):
            return tuple(names[axis] for axis, _ in entry.terms)
        return self.position(self.windowed(each, entry, length), names)

    def held(self, each: Node, entry: Gather, names: Mapping[int, str]) -> Expression:
        """What holds positions: a tensor, where it is no more than the positions along an axis, which must be there."""
        if entry.node.op != "index":
            return self.read(each, Operand(entry.node, entry.reads), names)
        entries = zip(entry.reads, entry.node.shape, strict=True)
        name = self.naming.tensor(entry.node)
        return Ref(name, tuple(self.entry(each, inner, length, names, False) for inner, length in entries))

    def place(self, offset: Size, length: Size) -> Index:
        """A fixed position."""
        for found in (offset.value, (offset - length).value):
            if found is not None:
                return found
        return sum_of([Literal(0), self.naming.spoken(offset)])  # type: ignore[return-value]

    def position(self, entry: Affine, names: Mapping[int, str]) -> Any:
        """A sum of axes as an expression of positions."""
        terms: list[Expression] = []
        for axis, step in entry.terms:
            here = Call(INDEX.name, (), (names[axis],))
            terms.append(here if step == ONE else product_of([self.naming.spoken(step), here]))
        if entry.offset != ZERO:
            terms.append(self.naming.spoken(entry.offset))
        return sum_of(terms)

    def windowed(self, each: Node, entry: Affine, length: Size) -> Affine:
        """A window, first the axis that is as long as fits."""
        fitting = [
            term
            for term in entry.terms
            if self.naming.same(_fit(each, entry, term[0], length), each.sizes[term[0]])
        ]
        assert fitting, f"a window that does not reach from end to end: {each}"
        first = min(fitting, key=lambda term: bool([*self._hints(each, term[0])]))
        return replace(entry, terms=(first, *(term for term in entry.terms if term is not first)))


# ---------------------------------------------------------------------------- parts of it


def _size_of(each: Node, axis: int) -> Size:
    """The size of an axis; of one that is cropped or padded, afterwards."""
    if "fill" in each.told:
        return each.shape[next(d for d, entry in enumerate(each.result) if axis in axes_of((entry,)))]
    return each.sizes[axis]


def _reads(each: Node) -> list[Operand]:
    """What a node reads, positions included."""
    entries = (*each.result, *(entry for operand in each.operands for entry in operand.reads))
    return [*each.operands, *_gathers(entries)]


def _fit(each: Node, entry: Affine, axis: Any, length: Size) -> Size:
    """How long an axis of a window may be: as far as it reaches beside the others."""
    from .size import floor

    step = dict(entry.terms)[axis]
    others = [(each.sizes[a] - 1, by) for a, by in entry.terms if a != axis]  # type: ignore[index]
    if _is_negative(step):
        room = entry.offset + sum((last * by for last, by in others if _is_negative(by)), ZERO)
        return floor(room / -step) + 1
    room = length - 1 - entry.offset - sum((last * by for last, by in others if not _is_negative(by)), ZERO)
    return floor(room / step) + 1


def _is_negative(step: Size) -> bool:
    return (-step).is_never_negative and step != ZERO


def _is_composite(each: Node, entry: Affine, length: Size, same: Any) -> bool:
    """Whether a position is that in a composite that fills a dimension."""
    axes = tuple(axis for axis, _ in entry.terms)
    sizes: Any = dict(enumerate(each.sizes))
    if entry.offset != ZERO or not axes:
        return False
    pairs = zip(entry.steps, row_major(axes, sizes).steps, strict=True)
    return all(same(one, two) for one, two in pairs) and same(product(sizes[a] for a in axes), length)


def _parts(each: Node, d: int, same: Any) -> tuple[int, ...] | None:
    """The axes that a dimension of a result is; nothing where it is written otherwise."""
    entry = each.result[d]
    if isinstance(entry, Gather):
        return None
    before = {*axes_of(each.result[:d])}
    axes: Any = tuple(axis for axis, _ in entry.terms)
    if "fill" in each.told:
        return axes
    return axes if _is_composite(each, entry, each.shape[d], same) and not before & {*axes} else None


def _gathers(entries: Entries) -> Iterator[Operand]:
    """The reads of what holds positions, of some entries."""
    for entry in entries:
        if isinstance(entry, Gather):
            yield Operand(entry.node, entry.reads)
            yield from _gathers(entry.reads)


def _copied(each: Node) -> Node:
    """A node that is another tensor of the same value."""
    from .build import node, whole

    sizes: Any = {((), n): size for n, size in enumerate(each.shape)}
    operand = whole(each)
    return node("copy", sizes, [operand], operand.reads, options=(("again", 1),), element=each.element)


def _dims_of(dims: Any) -> Dims:
    return tuple(tuple((axis.name, of_sympy(axis.size)) for axis in dim) for dim in dims)


def _in_sizes(leaf: Leaf, sizes: Mapping[str, Any]) -> Leaf:
    """A leaf of a block with the block's own sizes put in."""
    dims = tuple(tuple(Axis(axis.name, put_in(axis.size, sizes)) for axis in dim) for dim in leaf.dims)
    return replace(leaf, dims=dims)
