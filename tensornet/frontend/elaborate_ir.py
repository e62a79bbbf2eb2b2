"""Elaboration of graphs to the core form: functions of numbered axes, and their names.

A graph without calls and recurrences is one function; `scan.cut` cuts other graphs at these.
`elaborate_expressions` builds the nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..graph.element_types import of_leaves
from ..graph.graph import Graph
from ..graph.leaves import Leaf
from ..ir.build import leaf
from ..ir.function import Function
from ..ir.naming import Names
from ..ir.node import Node
from ..language.equation import Equation
from ..ops.table import Element
from .elaborate_expressions import Expressions

__all__ = ["elaborated", "function_of", "size_arguments"]


def function_of(graph: Graph) -> tuple[Function, Names]:
    """The function of a graph without calls and recurrences, and its names.

    Sizes with an integer value stay names. Sizes with a formula are replaced by it.
    """
    expressions = Expressions(graph)
    inputs, tensors = elaborated(expressions, graph.leaves, of_leaves(graph), graph.own)
    outputs = tuple(expressions.tensors[name] for name in graph.outputs)
    names = Names(graph.leaves, graph.outputs, graph.sizes, tensors, expressions.axes)
    return Function(inputs, outputs, size_arguments(graph)), names


def elaborated(
    expressions: Expressions,
    leaves: Sequence[Leaf],
    elements: Mapping[str, Element],
    equations: Iterable[Equation],
    shapes: Mapping[str, tuple[Any, ...]] = {},
) -> tuple[tuple[Node, ...], dict[Node, str]]:
    """Elaborates equations in order; `expressions.tensors` then has the node of each tensor.

    Args:
        expressions: elaborates their right sides.
        leaves: the tensors that they read.
        elements: the element types of these.
        equations: the equations.
        shapes: the shapes of leaves that are declared in the sizes of another graph.

    Returns:
        The nodes of the leaves without a value, and the names of constants and of what the equations define.
    """
    inputs, names = list[Node](), dict[Node, str]()
    for n, each in enumerate(leaves):
        shape, element = (
            [*map(expressions.size, shapes.get(each.name, each.shape))],
            elements[each.name],
        )
        if each.value is None:
            made = leaf("input", shape, element, n=n)
            inputs.append(made)
        else:
            made = leaf("constant", shape, element, value=each.value)
            names[made] = each.name
        expressions.tensors[each.name] = made
    for equation in equations:
        names.setdefault(expressions.define(equation), equation.name)
    return tuple(inputs), names


def size_arguments(graph: Graph) -> tuple[str, ...]:
    """The names of the sizes that the function of a graph uses."""
    whole = (name for name, value in graph.sizes if isinstance(value, int))
    return tuple(dict.fromkeys((*graph.open_sizes, *whole)))
