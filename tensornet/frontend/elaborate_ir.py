"""Elaboration of graphs to the core form: functions of numbered axes, and their names.

A graph without calls and recurrences is one function; `scan.cut` cuts other graphs at these.
`elaborate_expressions` builds the nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..graph.element_types import of_leaves
from ..graph.graph import Graph
from ..graph.leaves import Leaf
from ..ir.build import leaf
from ..ir.function import Function
from ..ir.naming import Names
from ..ir.node import Node
from ..ops.table import Element
from ..sizes import put_in
from .elaborate_expressions import Expressions

__all__ = ["function_of", "inputs_of"]


def function_of(graph: Graph) -> tuple[Function, Names]:
    """The function of a graph without calls and recurrences, and its names.

    Sizes with an integer value stay names. Sizes with a formula are replaced by it.
    """
    expressions, elements = Expressions(graph), of_leaves(graph)
    given = {
        each.name: leaf("constant", shape, elements[each.name], value=each.value)
        if each.value is not None
        else leaf("input", shape, elements[each.name], n=n)
        for n, each in enumerate(graph.leaves)
        for shape in [[*map(expressions.size, each.shape)]]
    }
    expressions.tensors.update(given)
    constants = {given[each.name]: each.name for each in graph.leaves if each.value is not None}
    names = Names(graph.leaves, graph.outputs, graph.sizes, constants, expressions.axes)
    for equation in graph.own:
        value = expressions.value(equation.right, equation.left, graph.scope(equation))
        expressions.tensors[equation.name] = value
        names.tensors.setdefault(value, equation.name)
    outputs = tuple(expressions.tensors[name] for name in graph.outputs)
    whole = (name for name, value in graph.sizes if isinstance(value, int))
    sizes = tuple(dict.fromkeys((*graph.open_sizes, *whole)))
    return Function(
        tuple(given[each.name] for each in graph.leaves if each.value is None), outputs, sizes
    ), names


def inputs_of(leaves: Iterable[Leaf], graph: Graph) -> tuple[Node, ...]:
    """The input nodes for leaves without a value, in the sizes of a graph."""
    size, shapes = Expressions(graph).size, _shapes(graph)
    return tuple(
        leaf("input", [*map(size, shapes.get(each.name, each.shape))], each.holds or Element.NUMBER, n=n)
        for n, each in enumerate(leaves)
        if each.value is None
    )


def _shapes(graph: Graph) -> Mapping[str, tuple[Any, ...]]:
    """The shapes of the leaves, those of called blocks included, in the sizes of the graph."""
    shapes = {each.name: each.shape for each in graph.leaves}
    for call in graph.calls:
        local = call.graph.sizes_beside(graph.bound)
        inner = _shapes(call.graph)
        for each in call.graph.leaves:
            if each.kind != "input":
                shapes[call.scoped(each.name)] = tuple(put_in(length, local) for length in inner[each.name])
    return shapes
