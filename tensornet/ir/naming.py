"""Naming: a function as a graph of equations, which can be printed.

    add(contract(x[0,2], W[1,2]) [0,1], c[1])        z[b,o] = x[b,i] * W[o,i] + c[o]

A node that is read once, along plain axes, is written inside its reader. Every other node gets an equation. Names of
tensors come from a side table. Names of axes are chosen while an equation is written (`axis_names`): a name that
determines a size has one size throughout a graph.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable
from typing import Any

from ..graph.graph import Graph
from ..graph.leaves import Leaf
from ..graph.shape_inference import Axis
from ..language.equation import Equation
from ..ops.table import FUNCTIONS, RESERVED
from ..sizes import put_in, symbol
from .axis_names import SizeNames, Sizes, spoken_by
from .equations import MADE, Dims, Line, again, parted
from .function import Function
from .names import Names, Written
from .node import Node, Size

__all__ = ["graph_of", "told"]


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
    return _Naming(function, names, sizes or told(function, names)).graph()


class _Naming:
    """The equations of a graph under construction.

    Attributes:
        tensors: the names of nodes.
        dims: the dimensions of tensors, by name.
        bound: the sizes that have a value.
        sizes: the names that determine sizes.
        lone: the nodes that are written inside their readers.
    """

    def __init__(self, function: Function, names: Names, sizes: Sizes) -> None:
        self.names, self.outputs, self.sizes = names, function.outputs, sizes
        self.axes = names.axes
        self.leaves, self.bound = list(names.leaves), dict(names.sizes)
        self.values = {name: value for name, value in self.bound.items() if isinstance(value, int)}
        free = (each.name for each in names.leaves if each.value is None)
        self.tensors = dict(zip(function.inputs, free, strict=True))
        self.dims: dict[str, Dims] = {each.name: _dims_of(each.dims) for each in names.leaves}
        self.reserved = {*self.dims, *names.outputs, *names.tensors.values(), *FUNCTIONS, *RESERVED}
        self.taken, self.given = dict.fromkeys(self.reserved), {*self.tensors.values()}
        self.body: list[Equation] = []
        self.written = Written(names, self.outputs, self._lacks_sizes)
        self.lone = self.written.lone

    def _lacks_sizes(self, each: Node, readers: Iterable[Node]) -> bool:
        """Whether a node mentions sizes, or has an axis whose size neither its operands nor its name determines."""
        own = self.axes.get(each, ())
        return bool(spoken_by(each)) or not all(
            axis < len(own) and self.same(self.sizes.known.get(own[axis]), each.sizes[axis])
            for axis in parted(each, self.same)
        )

    def graph(self) -> Graph:
        """The graph."""
        for each in self.written:
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
        """The name of a dimension of a node, which gets an equation if it has none."""
        return "_".join(name for name, _ in self.dims[self.tensor(each)][d])

    def same(self, one: Size, two: Size) -> bool:
        """Whether two sizes are equal, given the known values of sizes."""
        return bool(one == two or put_in(one, self.values) == put_in(two, self.values))

    def _define(self, each: Node, name: str) -> None:
        """Adds the equation of a node."""
        if each.op in MADE or self.tensors.get(each, name) != name:
            each = again(each)
        equation, self.dims[name] = Line(self, SizeNames(self)).equation(each, name)
        self.body.append(equation)


def _dims_of(dims: Any) -> Dims:
    return tuple(tuple((axis.name, axis.size) for axis in dim) for dim in dims)
