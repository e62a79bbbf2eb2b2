"""The program that is divided: recurrences are calls along an axis, and each size is a number."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ..graph.graph import Apply, Graph
from ..ir.node import Affine, Function, Gather, Node, Operand, interned
from ..ir.rewriting import Program
from ..scan.cut import cut
from ..scan.lowering import lower_recurrences
from ..sizes import evaluate


@functools.lru_cache(maxsize=256)
def in_loops(graph: Graph) -> Graph:
    """The graph with its recurrences as calls along an axis.

    Calls are given the parameters that something else reads too, and those along an axis all: so collectives of them
    stand before the loop.
    """
    graph = lower_recurrences(graph)
    read = Counter(leaf.name for call in graph.calls for leaf in call.leaves())
    read.update(leaf.name for leaf in graph.inputs)
    read.update({ref.name for equation in graph.own for ref in equation.references})
    read.update({name for call in graph.calls for name in call.operands})
    body = (_closed(each, read, graph.bound) if isinstance(each, Apply) else each for each in graph.body)
    return replace(graph, body=tuple(body))


def _closed(call: Apply, read: Mapping[str, int], bound: Mapping[str, Any]) -> Apply:
    """A call with the parameters that are read more than once as inputs; along an axis, with all of its own."""
    free = [leaf for leaf in call.graph.leaves if leaf.kind != "input" and leaf.value is None]
    own = [leaf for leaf in free if call.along is not None or read[call.scoped(leaf.name)] > 1]
    given = [replace(leaf, kind="input") for leaf in own]
    others = [leaf for leaf in call.graph.leaves if leaf not in own]
    inputs = [leaf for leaf in others if leaf.kind == "input"]
    block = replace(call.graph, leaves=(*inputs, *given, *(leaf for leaf in others if leaf.kind != "input")))
    operands = (*call.operands, *(call.scoped(leaf.name) for leaf in own))
    along = call.along
    if along is not None:
        along = replace(along, axis=replace(along.axis, size=evaluate(along.axis.size, bound)))
    return replace(call, graph=block, along=along, operands=operands)


def program_of(graph: Graph) -> tuple[Program, dict[str, Node]]:
    """The equations of a graph without recurrences; and the nodes of leaves, of results of calls, and of outputs."""
    found = cut(graph)
    new = _numbered((*found.program.nodes, *found.nodes.values()), graph.bound)
    return _over(found.program, new), {name: new[each] for name, each in found.nodes.items()}


def _numbered(nodes: Iterable[Node], bound: Mapping[str, Any]) -> dict[Node, Node]:
    """Nodes with a number for each size."""
    new: dict[Node, Node] = {}

    def number_of(size: Any) -> Any:
        return evaluate(size, bound)

    def entry(each: Affine | Gather) -> Affine | Gather:
        if isinstance(each, Gather):
            return Gather(new[each.node], tuple(map(entry, each.reads)))
        steps = ((axis, number_of(step)) for axis, step in each.terms)
        return Affine(tuple(steps), number_of(each.offset))

    for old in nodes:
        operands = [Operand(new[child], tuple(map(entry, reads))) for child, reads in old.operands]
        pairs = ((name, new[each] if isinstance(each, Node) else each) for name, each in old.options)
        options = tuple((name, number_of(each) if name == "size" else each) for name, each in pairs)
        sizes, shape = (tuple(map(number_of, each)) for each in (old.sizes, old.shape))
        result = tuple(map(entry, old.result))
        new[old] = interned(old.op, sizes, tuple(operands), result, shape, old.over, options, old.element)
    return new


def _over(program: Program, new: Mapping[Node, Node]) -> Program:
    """A program with other nodes, which have the same axes."""
    names = program.names
    tensors = {new[each]: name for each, name in names.tensors.items() if each in new}
    axes = {new[each]: found for each, found in names.axes.items() if each in new}
    inputs = tuple(new.get(each, each) for each in program.function.inputs)
    function = Function(inputs, tuple(new[each] for each in program.function.outputs))
    return Program(function, replace(names, sizes=(), tensors=tensors, axes=axes))
