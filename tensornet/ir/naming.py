"""Naming: a function as a graph of equations, which prints.

    add(contract(x[0,2], W[1,2]) [0,1], c[1])        z[b,o] = x[b,i] * W[o,i] + c[o]

A node that is read once, along axes alone, is written where it is read; every other one gets an equation. Names of
tensors come from a side table. Those of axes are found while an equation is written (`axis_names`): a name that tells a
size is one size throughout a graph and its blocks.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..graph.call import Along, scoped
from ..graph.graph import Apply, Graph
from ..graph.leaves import Leaf
from ..graph.shape_inference import Axis
from ..language.equation import Equation
from ..ops.table import FUNCTIONS, RESERVED
from ..sizes import evaluate, name_of, put_in, size_names, symbol
from .axis_names import SizeNames, Sizes, spoken_by
from .equations import MADE, Dims, Line, again, parted
from .function import Function, rebuilt
from .names import Names, Written
from .node import Node, Size

__all__ = ["graph_of", "told"]


def told(function: Function, names: Names) -> Sizes:
    """The names that tell sizes in a function."""
    formulas = {name: value for name, value in names.sizes if not isinstance(value, int)}
    whole = (name for name, value in names.sizes if isinstance(value, int))
    return Sizes({name: symbol(name) for name in (*function.sizes, *whole)} | formulas)


def graph_of(function: Function, names: Names, sizes: Sizes | None = None) -> Graph:
    """The graph of a function: what `frontend.elaborate_ir` reads.

    Args:
        function: the function.
        names: what its parts are called.
        sizes: the names that tell sizes, which graphs that are joined have in common.
    """
    sizes = sizes or told(function, names)
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
        self.taken, self.given = dict.fromkeys(self.reserved), {*self.tensors.values()}
        self.body: list[Equation | Apply] = []
        self.written = Written(names, outputs, self._lacks_sizes)
        self.lone = self.written.lone
        self.items: dict[Node, dict[int, Node]] = {}
        for each in self.written.nodes:
            if each.op == "item":
                self.items.setdefault(each.operands[0].node, {})[each.attributes["n"]] = each

    def _lacks_sizes(self, each: Node, readers: Iterable[Node]) -> bool:
        """Whether a node speaks of sizes, or neither what it reads nor their names tell those of its dimensions."""
        own = self.axes.get(each, ())
        return bool(spoken_by(each)) or not all(
            axis < len(own) and self.same(self.sizes.known.get(own[axis]), each.sizes[axis])
            for axis in parted(each, self.same)
        )

    def graph(self) -> Graph:
        """The graph."""
        for each in self.written:
            if each.op in ("call", "scan"):
                self._call(each)
            else:
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
        name = self.written.name(each, ChainMap(self.sizes.known, self.sizes.made, self.taken), self.given)
        self.taken[name] = None
        self.given.add(name)
        if each is not None:
            self.tensors[each] = name
        return name

    def dimension(self, each: Node, d: int) -> str:
        """What a dimension of a node is called, which has an equation then."""
        return "_".join(name for name, _ in self.dims[self.tensor(each)][d])

    def same(self, one: Size, two: Size) -> bool:
        """Whether two sizes are equal, as far as sizes have a value."""
        return bool(one == two or put_in(one, self.values) == put_in(two, self.values))

    def _define(self, each: Node, name: str) -> None:
        """Adds the equation of a node."""
        if each.op in MADE or self.tensors.get(each, name) != name:
            each = again(each)
        equation, self.dims[name] = Line(self, SizeNames(self)).equation(each, name)
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


def _dims_of(dims: Any) -> Dims:
    return tuple(tuple((axis.name, axis.size) for axis in dim) for dim in dims)


def _in_sizes(leaf: Leaf, sizes: Mapping[str, Any]) -> Leaf:
    """A leaf of a block with the block's own sizes put in."""
    dims = tuple(tuple(Axis(axis.name, put_in(axis.size, sizes)) for axis in dim) for dim in leaf.dims)
    return replace(leaf, dims=dims)
