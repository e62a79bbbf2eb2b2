"""Naming: a function as a graph of equations, which prints.

    add(contract(x[0,2], W[1,2]) [0,1], c[1])        z[b,o] = x[b,i] * W[o,i] + c[o]

A node that is read once, along axes alone, is written where it is read; every other one gets an equation. Names of
tensors come from a side table. Those of axes are found while an equation is written (`equations`): a name that tells
a size is one size throughout a graph and its blocks.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..graph.call import Along, scoped
from ..graph.graph import Apply, Graph
from ..graph.leaves import Leaf
from ..graph.shape_inference import Axis
from ..language.equation import Equation
from ..language.expression import ELLIPSIS
from ..ops.table import FUNCTIONS, RESERVED
from ..sizes import evaluate, name_of, put_in, size_names, symbol
from .equations import LEAVES, Dims, Line, Sizes, is_lone, is_told, reads_of
from .function import Function, order, rebuilt
from .node import Affine, Node, Operand, Size, fills

__all__ = ["Called", "Names", "graph_of"]


@dataclass(frozen=True)
class Names:
    """What a graph calls the parts of a function: a side table, for printing alone.

    Attributes:
        leaves: the inputs and constants as the graph has them; those without a value are the inputs, in order.
        outputs: the names of the results.
        sizes: the sizes that have a value.
        tensors: the names of nodes that equations define, and of constants.
        axes: the names of the axes of nodes.
        calls: the names of calls and scans.
    """

    leaves: tuple[Leaf, ...]
    outputs: tuple[str, ...]
    sizes: tuple[tuple[str, Any], ...]
    tensors: dict[Node, str] = field(repr=False)
    axes: dict[Node, tuple[str, ...]] = field(repr=False)
    calls: dict[Node, Called] = field(repr=False)

    def moved(self, new: Mapping[Node, Node]) -> Names:
        """The names of other nodes in the place of some; those of others are left out, as are those of other axes."""
        tensors = {new[each]: name for each, name in self.tensors.items() if each in new}
        pairs = ((each, new[each], names) for each, names in self.axes.items() if each in new)
        axes = {other: names[: _alike(each, other)] for each, other, names in pairs}
        calls = {new[each]: called for each, called in self.calls.items() if each in new}
        return replace(self, tensors=tensors, axes=axes, calls=calls)


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


def graph_of(function: Function, names: Names) -> Graph:
    """The graph of a function: what `frontend.elaborate_ir` reads."""
    formulas = {name: value for name, value in names.sizes if not isinstance(value, int)}
    whole = (name for name, value in names.sizes if isinstance(value, int))
    sizes = Sizes({name: symbol(name) for name in (*function.sizes, *whole)} | formulas)
    return _Naming(function.inputs, function.outputs, names, names.sizes, sizes, {}).graph()


class _Naming:
    """The equations and calls of a graph, while they are written.

    Attributes:
        tensors: the names of nodes.
        dims: the dimensions of tensors, by name.
        bound: the sizes that have a value.
        sizes: the names that tell sizes, here and in blocks.
        lone: the nodes that are written where they are read.
        items: the results of calls that are read, by their number.
    """

    def __init__(
        self,
        inputs: Sequence[Node],
        outputs: Sequence[Node],
        names: Names,
        bound: Iterable[tuple[str, Any]],
        sizes: Sizes,
        blocks: dict[Any, Graph],
    ) -> None:
        self.names, self.outputs, self.sizes, self.blocks = names, tuple(outputs), sizes, blocks
        self.axes = names.axes
        self.leaves, self.bound = list(names.leaves), dict(bound)
        self.values = {name: value for name, value in self.bound.items() if isinstance(value, int)}
        free = (each.name for each in names.leaves if each.value is None)
        self.tensors = dict(zip(inputs, free, strict=True))
        self.dims: dict[str, Dims] = {each.name: _dims_of(each.dims) for each in names.leaves}
        self.reserved = {*self.dims, *names.outputs, *names.tensors.values(), *FUNCTIONS, *RESERVED}
        self.taken, self.given = {*self.reserved}, {*self.tensors.values()}
        self.body: list[Equation | Apply] = []
        needed = {*order(outputs)}
        self.nodes = order(
            [*(each for each in names.tensors if each in needed), *outputs]
        )  # as they were written
        self.stems: dict[Node | None, str] = dict(zip(outputs, names.outputs, strict=False))
        self.called = dict[tuple[Node, int], str]()
        for each in reversed(self.nodes):
            self._ask(each)
        self.items: dict[Node, dict[int, Node]] = {}
        for each in self.nodes:
            if each.op == "item":
                self.items.setdefault(each.operands[0].node, {})[each.attributes["n"]] = each
        self.lone = self._written_where_read()

    def _ask(self, each: Node) -> None:
        """Has what a node reads go by the names of the node and of its axes, where it has none of its own."""
        stem = self.names.tensors.get(each) or self.stems.get(each, "v")
        self.stems |= dict.fromkeys(each.children, stem)
        self.called |= {(each, n): name for n, name in enumerate(self.axes.get(each, ()))}
        for child, reads in each.operands:
            for axes, entry in zip(child.dims, reads, strict=True):
                name = self.called.get((each, entry.axis), ELLIPSIS) if entry.axis is not None else ELLIPSIS
                if axes and len(axes) == 1 and name != ELLIPSIS:
                    self.called.setdefault((child, axes[0]), name)

    def _written_where_read(self) -> set[Node]:
        """The nodes without a name that are read along axes alone: once, or as positions that kernels are told."""
        counts = Counter(each for node in self.nodes for each in node.children)
        reading: dict[Node, list[Operand]] = defaultdict(list)
        for node in self.nodes:
            for child, reads in reads_of(node) if node.op not in ("call", "scan") else ():
                reading[child].append(Operand(node, reads))
        found: set[Node] = set()
        for child in reversed(self.nodes):
            pairs = reading[child]
            asked = child in self.outputs or child in self.names.tensors or counts[child] != len(pairs)
            if asked or not pairs or not self._tells_sizes(child):
                continue
            if not all(is_lone(node, child, reads) for node, reads in pairs):
                continue
            if len(pairs) == 1 or all(is_told(node, child) for node, _ in pairs):
                found.add(child)
        return found

    def _tells_sizes(self, each: Node) -> bool:
        """Whether what a node reads tells the sizes of its dimensions, or their names do: nothing around it may."""
        entries = [
            (entry, length)
            for child, reads in each.operands
            for entry, length in zip(reads, child.shape, strict=True)
        ]
        told, own = {entry.axis for entry, _ in entries}, self.axes.get(each, ())
        kept = {axis for axes in each.dims for axis in axes or ()}
        apart = {
            axis
            for entry, length in entries
            if entry.axis is None
            and isinstance(entry, Affine)
            and fills(entry, each.sizes, length, self.same)
            for axis, _ in entry.terms
        }
        return all(
            axis < len(own) and self.same(self.sizes.known.get(own[axis]), each.sizes[axis])
            for axis in (apart & kept) - told
        )

    def graph(self) -> Graph:
        """The graph."""
        for each in self.nodes:
            if each.op in ("call", "scan"):
                self._call(each)
            elif not (each in self.lone or each.is_scalar or each.op in ("input", "item", *LEAVES)):
                self.tensor(each)
        for name, each in zip(self.names.outputs, self.outputs, strict=True):
            if self.tensors.get(each) != name:
                self._define(each, name)
        return Graph(tuple(self.leaves), tuple(self.body), self.names.outputs, tuple(self.bound.items()))

    def tensor(self, each: Node) -> str:
        """The name of a node, which gets an equation if it has none yet."""
        if each not in self.tensors:
            name = self._named(each)
            if each.op != "constant":
                self._define(each, name)
            elif name not in self.dims:
                axes = tuple((Axis(f"{name}{d}", size),) for d, size in enumerate(each.shape))
                self.leaves.append(Leaf(name, "constant", axes, value=each.attributes["value"]))
                self.dims[name] = _dims_of(axes)
        return self.tensors[each]

    def _named(self, each: Node | None) -> str:
        """A name for a node: its own, if no other node has it."""
        own = self.names.tensors.get(each, "") if each is not None else ""
        stem = own or self.stems.get(each, "v")
        numbered = (f"{stem}_{n}" for n in itertools.count(1))
        taken = (self.taken, self.sizes.known, self.sizes.made)
        free = (name for name in numbered if not any(name in names for names in taken))
        name = own if own and own not in self.given else next(free)
        self.taken.add(name)
        self.given.add(name)
        if each is not None:
            self.tensors[each] = name
        return name

    def same(self, one: Size, two: Size) -> bool:
        """Whether two sizes are equal, as far as sizes have a value."""
        return bool(one == two or put_in(one, self.values) == put_in(two, self.values))

    def _define(self, each: Node, name: str) -> None:
        """Adds the equation of a node."""
        equation, self.dims[name] = Line(self).equation(each, name)
        self.body.append(equation)

    # ---- calls

    def _call(self, made: Node) -> None:
        """Adds a call, and the block that it calls."""
        called, function = self.names.calls[made], made.attributes["function"]
        given = [self.tensor(each.node) for each in made.operands]
        free = [each for each in called.names.leaves if each.value is None]
        pairs = [*zip(free, given, strict=True)]
        passed = {leaf.name for leaf, name in pairs if scoped(called.scope, leaf.name) != name}
        block = self._block(function, made.attributes["sizes"], called.names, passed)
        items = self.items.get(made, {})
        count = len(function.outputs)
        along = None if made.op == "call" else self._along(made, any(n >= count for n in items))
        if along is not None:
            count = count + len(along.states) if along.last else 1 + max(items, default=0)
        names = {leaf.name: name for leaf, name in pairs}
        operands = tuple(names[leaf.name] for leaf in block.inputs)
        results = tuple(self._named(items.get(n)) for n in range(count))
        call = Apply(block, operands, results, called.scope, called.apart, along)
        self.body.append(call)
        self.dims.update((name, _dims_of(dims)) for name, dims in call.returned(self.bound))

    def _along(self, made: Node, last: bool) -> Along:
        """How a scan goes along its axis."""
        (over,) = made.over
        entries = [(n, entry) for operand in made.operands for n, entry in enumerate(operand.reads)]
        cuts = tuple(n for n, entry in entries if entry.axis == over)
        axis = Axis(name_of(made.sizes[over]) or "t", made.sizes[over])
        return Along(
            axis, cuts, tuple(n for _, n in made.attributes["states"]), made.attributes["back"], last
        )

    def _block(self, function: Function, sizes: tuple[Size, ...], names: Names, passed: set[str]) -> Graph:
        """The graph of a function that is called, in the sizes of the caller; its inputs are passed as operands."""
        spoken = {name for size in sizes for name in size_names(size)}
        bound = tuple((name, value) for name, value in self.bound.items() if name in spoken)
        key = function, sizes, id(names), frozenset(passed), bound
        if key not in self.blocks:
            local = {name: value for name, value in names.sizes if self.bound.get(name) != value}
            new: dict[Node, Node] = {}
            table = dict(zip(function.sizes, sizes, strict=True))
            inputs = rebuilt(function.inputs, new, sizes=table)
            outputs = rebuilt(function.outputs, new, sizes=table)
            leaves = (_in_sizes(each, local) for each in names.leaves)
            leaves = (replace(e, kind="input") if e.name in passed else e for e in leaves)
            inner = replace(names.moved(new), leaves=tuple(leaves))
            own = {name: evaluate(value, local) for name, value in local.items() if name not in spoken}
            known = self.sizes.inside(own)
            self.blocks[key] = _Naming(inputs, outputs, inner, bound, known, self.blocks).graph()
        return self.blocks[key]


def _alike(one: Node, other: Node) -> int:
    """How many axes two nodes have alike, the first ones, if they have the same dimensions."""
    pairs = zip(one.sizes, other.sizes, strict=False) if one.dims == other.dims else ()
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def _dims_of(dims: Any) -> Dims:
    return tuple(tuple((axis.name, axis.size) for axis in dim) for dim in dims)


def _in_sizes(leaf: Leaf, sizes: Mapping[str, Any]) -> Leaf:
    """A leaf of a block with the block's own sizes put in."""
    dims = tuple(tuple(Axis(axis.name, put_in(axis.size, sizes)) for axis in dim) for dim in leaf.dims)
    return replace(leaf, dims=dims)
