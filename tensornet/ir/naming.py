"""Naming: a function as a graph of equations, which can be printed.

    add(contract(x[0,2], W[1,2]) [0,1], c[1])        z[b,o] = x[b,i] * W[o,i] + c[o]

A node that is read once, along plain axes, is written inside its reader. Every other node gets an equation. Names of
tensors come from a side table. Names of axes are chosen while an equation is written: an axis is named after a
dimension of its size that it runs along. If there is none, its name determines its size, which is then the same
throughout a graph.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..graph.graph import Graph
from ..graph.leaves import Leaf
from ..graph.shape_inference import Axis, Dim, size_expression
from ..language import expression
from ..language.equation import Equation
from ..language.expression import ELLIPSIS, Expression
from ..ops.table import FUNCTIONS, RESERVED
from ..sizes import floored, is_never_negative, name_of, put_in, size_names, symbol
from .equations import (
    MADE,
    AxisNames,
    Line,
    again,
    amounts_of,
    hints,
    is_in_window,
    is_lone,
    is_position_operand,
    parted,
    reads_of,
    size_of,
)
from .function import Function, order
from .node import Affine, Node, Operand, Size

__all__ = ["Names", "Sizes", "Written", "graph_of", "told"]


@dataclass(frozen=True)
class Names:
    """The names of the parts of a function in a graph: a side table, used only for printing.

    Attributes:
        leaves: the inputs and constants as the graph has them; those without a value are the inputs, in order.
        outputs: the names of the results.
        sizes: the sizes that have a value.
        tensors: the names of nodes that equations define, and of constants.
        axes: the names of the axes of nodes.
    """

    leaves: tuple[Leaf, ...]
    outputs: tuple[str, ...]
    sizes: tuple[tuple[str, Any], ...]
    tensors: dict[Node, str] = field(repr=False)
    axes: dict[Node, tuple[str, ...]] = field(repr=False)

    def moved(self, new: Mapping[Node, Node]) -> Names:
        """The names after nodes are replaced; names of nodes not in `new`, and of axes that changed, are dropped."""
        tensors = {new[each]: name for each, name in self.tensors.items() if each in new}
        pairs = ((each, new[each], names) for each, names in self.axes.items() if each in new)
        axes = {other: names[: _alike(each, other)] for each, other, names in pairs}
        return replace(self, tensors=tensors, axes=axes)


def _alike(one: Node, other: Node) -> int:
    """The number of leading axes of equal size in two nodes with the same dimensions, else 0."""
    pairs = zip(one.sizes, other.sizes, strict=False) if one.dims == other.dims else ()
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


# ---------------------------------------------------------------------------- nodes that get an equation


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
        needed = {*order(outputs)}
        roots = (each for each in names.tensors if each in needed and each.op != "item")  # calls come late
        self.nodes = order([*roots, *outputs])
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
    def axes(self) -> AxisNames:
        """Gives names to the axes of an equation."""

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
        axes = self.axes()
        equation, self.dims[name] = Line(self, axes).equation(each, name)
        self.add(equation, axes)

    def _call(self, each: Node) -> None:
        """Adds a call, with the present names of its operands."""
        call = each.attributes["call"]
        pairs = zip(call.graph.leaves, each.operands, strict=True)
        operands = tuple(self.tensor(read.node) for leaf, read in pairs if leaf.kind == "input")
        self.body.append(replace(call, operands=operands))
        self.dims.update(call.returned(self.bound))

    def new_name(self, each: Node) -> str:
        """A name for the tensor of a node: its own, if no other node has it."""
        name = self.names.tensors.get(each, "")
        if not name or name in self.given:
            stem = name or self.stems.get(each, "v")
            numbered = (f"{stem}_{n}" for n in itertools.count(1))
            name = next(each for each in numbered if each not in self.taken)
        self.taken.add(name)
        self.given.add(name)
        return name

    # ---- names that nodes pass on

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
        counts = Counter(each for node in self.nodes for each in node.children)
        reading: dict[Node, list[Operand]] = defaultdict(list)
        for node in self.nodes:
            for child, reads in reads_of(node):
                reading[child].append(Operand(node, reads))
        found: set[Node] = set()
        for child in reversed(self.nodes):
            pairs = reading[child]
            asked = (
                child in self.function.outputs or child in self.names.tensors or counts[child] != len(pairs)
            )
            if asked or not pairs or self.is_apart(child, [node for node, _ in pairs]):
                continue
            if not all(is_lone(node, child, reads) for node, reads in pairs):
                continue
            if len(pairs) == 1 or all(is_position_operand(node, child) for node, _ in pairs):
                found.add(child)
        return found


# ---------------------------------------------------------------------------- the equations of a graph


@dataclass(frozen=True)
class Sizes:
    """The names of axes, with their sizes.

    Attributes:
        known: the names that determine a size by themselves in a graph.
        made: the new names that were chosen to determine a size, in any graph.
        axes: all other names, in any graph.
    """

    known: dict[str, Size]
    made: dict[str, Size] = field(default_factory=dict)
    axes: dict[str, Size] = field(default_factory=dict)

    def name(self, size: Size, stem: str, used: Container[str], taken: Container[str]) -> str:
        """A name that determines a size and that the line does not use yet; a new name is not a tensor's."""
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
        """Whether an axis of this size may have a name: the name determines no other size."""
        return all(same(each.get(name, size), size) for each in (self.known, self.made))


def told(function: Function, names: Names) -> Sizes:
    """The names that determine sizes in a function."""
    formulas = {name: value for name, value in names.sizes if not isinstance(value, int)}
    whole = (name for name, value in names.sizes if isinstance(value, int))
    return Sizes({name: symbol(name) for name in (*function.sizes, *whole)} | formulas)


def graph_of(function: Function, names: Names, sizes: Sizes | None = None) -> Graph:
    """The graph of a function, which `frontend.elaborate_ir` can read.

    Args:
        function: the function.
        names: the names of its parts.
        sizes: the names that determine sizes, which graphs that are joined share.
    """
    return _Graph(function, names, sizes or told(function, names)).graph()


class _Graph(Written):
    """The equations of a graph under construction.

    Attributes:
        sizes: the names that determine sizes.
        reserved: the names of tensors at first, which no size may have.
    """

    def __init__(self, function: Function, names: Names, sizes: Sizes) -> None:
        self.sizes = sizes
        free = (each.name for each in names.leaves if each.value is None)
        super().__init__(function, names, dict(zip(function.inputs, free, strict=True)))
        self.leaves, self.reserved = [*names.leaves], frozenset(self.taken)
        self.taken.update(sizes.known, sizes.made)

    def axes(self) -> _SizeNames:
        """Gives names to the axes of an equation."""
        return _SizeNames(self)

    def is_apart(self, each: Node, readers: Sequence[Node]) -> bool:
        """Whether a node mentions sizes, or has an axis whose size neither its operands nor its name determines."""
        own = self.names.axes.get(each, ())
        told = bool(_spoken_by(each)) or not all(
            axis < len(own) and self.same(self.sizes.known.get(own[axis]), each.sizes[axis])
            for axis in parted(each, self.same)
        )
        return told or super().is_apart(each, readers)

    def graph(self) -> Graph:
        """The graph."""
        self.write()
        return Graph(tuple(self.leaves), tuple(self.body), self.names.outputs, tuple(self.bound.items()))

    def tensor(self, each: Node) -> str:
        """The name of a node, which gets an equation if it has none yet; a constant is declared."""
        if each.op == "constant" and each not in self.tensors:
            self.tensors[each] = name = self.new_name(each)
            if name not in self.dims:
                self.dims[name] = tuple((Axis(f"{name}{d}", size),) for d, size in enumerate(each.shape))
                self.leaves.append(Leaf(name, "constant", self.dims[name], value=each.attributes["value"]))
        return super().tensor(each)


# ---------------------------------------------------------------------------- names of axes


class _SizeNames:
    """The names of the axes of one equation; see `equations.AxisNames`.

    Attributes:
        used: the names used so far.
    """

    def __init__(self, naming: _Graph) -> None:
        self.naming, self.used = naming, set[str]()

    def sized(self, size: Size, stem: str = "", in_window: bool = False) -> str:
        """A name that determines a size; in a window it needs a value, or the axis would be as long as fits."""
        taken, used = self.naming.reserved, self.used
        if in_window and name_of(size) not in self.naming.bound:
            used = used | {str(name_of(size))}
        return self._taken(self.naming.sizes.name(size, stem or name_of(size) or "n", used, taken))

    def _taken(self, name: str) -> str:
        """Marks a name as used by the line; the graph records the size that it determines."""
        self.used.add(name)
        told = self.naming.sizes.known.get(name, self.naming.sizes.made.get(name))
        if told is not None:
            self.naming.taken.add(name)
            if name_of(told) != name:
                self.naming.bound.setdefault(name, told)
        return name

    def named(self, each: Node, axis: int) -> str:
        """A name for an axis: its own, that of a dimension of its size, or one that determines the size itself."""
        called = self.naming.called.get((each, axis))
        own = () if called is None else (called,)
        found, size = [*hints(self.naming, each, axis)], size_of(each, axis)
        if not found and own != (ELLIPSIS,):
            return self.sized(size, called or "", is_in_window(each, axis))
        stems = (*own, *found)
        names = itertools.chain(stems, (f"{stems[0]}_{n}" for n in itertools.count(1)))
        spoken = _spoken_by(each)  # inside these, the name of the axis has another size
        unused = (name for name in names if name not in self.used and name not in spoken)
        name = next(each for each in unused if self.naming.sizes.fits(each, size, self.naming.same))
        named = name in self.naming.sizes.known or size == 0  # a text cannot give the size 0
        if not named and self._reaches_window(each, axis):
            self.naming.sizes.made[name] = size  # the window may be read before what else determines it
        self.naming.sizes.axes[name] = size
        return self._taken(name)

    def _reaches_window(self, each: Node, axis: int) -> bool:
        """Whether an axis occurs in a window of a node, or of the nodes that are written inside it."""
        inner = (
            (child, axes[0])
            for child, reads in each.operands
            if child in self.naming.lone
            for axes, entry in zip(child.dims, reads, strict=True)
            if entry.axis == axis and axes and len(axes) == 1
        )
        return is_in_window(each, axis) or any(self._reaches_window(*pair) for pair in inner)

    def spoken(self, size: Size, alike: Iterable[str] = ()) -> Expression:
        """A size as the size of an axis, or as a formula; a name that is also a tensor's is replaced by its value."""
        for axis in alike:
            return expression.Size(axis)
        clashing = {*size_names(size)} & self.naming.reserved & self.naming.values.keys()
        return size_expression(put_in(size, {name: self.naming.values[name] for name in clashing}))

    def in_order(self, each: Node, entry: Affine, length: Size) -> Affine:
        """A window, reordered to start with an axis that is exactly as long as fits next to the others."""
        fits = (
            term
            for term in entry.terms
            if self.naming.same(_fit(each, entry, term[0], length), each.sizes[term[0]])
        )
        first = next(fits, None)
        assert first is not None, f"a window that does not reach from end to end: {each}"
        return Affine((first, *(term for term in entry.terms if term is not first)), entry.offset)


def _spoken_by(each: Node) -> set[str]:
    """The names of sizes in the amounts that a crop or a padding adds before and after."""
    amounts = amounts_of(each) if "fill" in each.attributes else ()
    return {name for _, *both in amounts for size in both for name in size_names(size)}


def _fit(each: Node, entry: Affine, axis: Any, length: Size) -> Size:
    """The largest size of an axis in a window, given the reach of the other axes."""
    step = dict(entry.terms)[axis]
    others = [((each.sizes[a] - 1) * by, _is_negative(by)) for a, by in entry.terms if a != axis]
    if _is_negative(step):
        return floored(entry.offset + sum(far for far, back in others if back), -step) + 1
    return floored(length - 1 - entry.offset - sum(far for far, back in others if not back), step) + 1


def _is_negative(step: Size) -> bool:
    return step != 0 and is_never_negative(-step)
