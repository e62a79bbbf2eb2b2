"""Elaboration of graphs to the core form: functions of numbered axes, and the names of them.

A block that is called is a Function of sizes, and a recurrence a scan; `elaborate_expressions` makes the nodes.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from ..graph.element_types import of_leaves
from ..graph.graph import Apply, Graph
from ..graph.leaves import Leaf
from ..ir.build import item, leaf, node
from ..ir.function import Function, order, rebuilt
from ..ir.names import Called, Names
from ..ir.node import Axis, Gather, Node, Operand, Size, along
from ..language.equation import Equation
from ..ops.table import Element
from ..sizes import put_in, size_names, symbol
from .elaborate_expressions import Expressions

__all__ = ["function_of", "inputs_of"]


def function_of(graph: Graph) -> tuple[Function, Names]:
    """The function of a graph without recurrences, and its names; calls along an axis become scans.

    Sizes that are whole numbers stay names, those that are formulas are put in.
    """
    made = _Elaboration(graph, of_leaves(graph), {})
    outputs = tuple(made.tensors[name] for name in graph.outputs)
    sizes = dict.fromkeys(
        (*graph.open_sizes, *(name for name, value in graph.sizes if isinstance(value, int)))
    )
    return Function(made.inputs, outputs, tuple(sizes)), made.names


def inputs_of(leaves: Iterable[Leaf], graph: Graph) -> tuple[Node, ...]:
    """The inputs of a function that is given leaves, in the sizes of a graph."""
    size, shapes = Expressions(graph).size, _shapes(graph)
    return tuple(
        leaf("input", [*map(size, shapes.get(each.name, each.shape))], each.holds or Element.NUMBER, n=n)
        for n, each in enumerate(leaves)
        if each.value is None
    )


Memo: TypeAlias = "dict[Any, tuple[Function, tuple[str, ...], Names]]"


class _Elaboration:
    """The nodes of a graph, one equation after another.

    Attributes:
        tensors: the nodes, by the names of tensors.
        inputs: those of the leaves without a value.
        names: what they are called.
    """

    def __init__(self, graph: Graph, elements: Mapping[str, Element], blocks: Memo) -> None:
        self.graph, self.blocks, self.expressions = graph, blocks, Expressions(graph)
        self.tensors = self.expressions.tensors
        self.tensors.update(self._leaves(elements))
        self.inputs = tuple(self.tensors[each.name] for each in graph.leaves if each.value is None)
        constants = {self.tensors[each.name]: each.name for each in graph.leaves if each.value is not None}
        self.names = Names(graph.leaves, graph.outputs, graph.sizes, constants, self.expressions.axes, {})
        for line in graph.body:
            if isinstance(line, Equation):
                value = self.expressions.value(line.right, line.left, graph.scope(line))
                self.tensors[line.name] = value
            else:
                self.tensors.update(zip(line.results, self.called(line), strict=False))
            for name in line.defines:
                self.names.tensors.setdefault(self.tensors[name], name)

    def _leaves(self, elements: Mapping[str, Element]) -> Iterator[tuple[str, Node]]:
        """The inputs, numbered, and the constants, by name."""
        shapes = _shapes(self.graph)
        for n, each in enumerate(self.graph.leaves):
            shape = [self.expressions.size(length) for length in shapes[each.name]]
            constant = each.value is not None
            given = {"value": each.value} if constant else {"n": n}
            yield each.name, leaf("constant" if constant else "input", shape, elements[each.name], **given)

    def called(self, call: Apply) -> list[Node]:
        """The results of a block: items of one node that gives them all."""
        names = call.names()
        given = [self.tensors[names[each.name]] for each in call.graph.leaves if each.value is None]
        function, symbols, inner = self._block(call, given)
        sizes = tuple(self._argument(name, call.graph) for name in symbols)
        known = dict(zip(function.sizes, sizes, strict=True))
        shapes = [[put_in(length, known) for length in each.shape] for each in function.outputs]
        options: tuple[tuple[str, Any], ...] = (("function", function), ("sizes", sizes))
        if any("draw" in each.attributes for each in order(function.outputs)):
            options += (("draw", next(self.expressions.draws)),)
        chosen = [*range(len(function.outputs))]
        if call.along is None:
            made = node("call", *_whole_reads(given), options=options, element=Element.TRUTH)
        else:
            made = self._scan(call, given, options)
            length = made.sizes[made.over[0]]
            last = [shapes[n] for n in call.along.states]
            shapes = [*([length, *shape] for shape in shapes), *last]
            joined = call.along.joined(len(call.results))
            chosen = [*range(joined), *range(len(chosen), len(shapes))] if call.along.last else chosen
        self.names.calls.setdefault(made, Called(inner, call.scope, call.apart))
        elements = [each.element for each in function.outputs]
        elements += [elements[n] for n in call.along.states] if call.along else []
        return [item(made, n, shapes[n], elements[n]) for n in chosen]

    def _scan(self, call: Apply, given: Sequence[Node], options: tuple[tuple[str, Any], ...]) -> Node:
        """A block along an axis: what comes in position by position is read at it."""
        assert call.along is not None
        sizes, operands = _whole_reads(given)
        inputs = [
            n
            for n, each in enumerate(each for each in call.graph.leaves if each.value is None)
            if each.kind == "input"
        ]
        sizes["along"] = self.expressions.size(call.along.axis.size)
        for n, at in zip(inputs, call.along.cuts, strict=False):
            reads = operands[n].reads
            operands[n] = Operand(given[n], (*reads[:at], along("along"), *reads[at + 1 :]))
        states = inputs[len(call.along.cuts) :][: len(call.along.states)]
        options += (("states", tuple(zip(states, call.along.states, strict=True))), ("back", call.along.back))
        return node("scan", sizes, operands, over=("along",), options=options, element=Element.TRUTH)

    def _argument(self, name: str, block: Graph) -> Size:
        """The value of a size of a block, in the caller's sizes."""
        value = block.bound.get(name)
        return (
            value
            if value is not None and self.graph.bound.get(name) != value
            else self.expressions.size(symbol(name))
        )

    def _block(self, call: Apply, given: Sequence[Node]) -> tuple[Function, tuple[str, ...], Names]:
        """The function of a block, the names of its sizes in the block, and its names."""
        elements = tuple(each.element for each in given)
        key = call.graph, elements
        if key not in self.blocks:
            free = [each.name for each in call.graph.leaves if each.value is None]
            held = of_leaves(call.graph) | dict(zip(free, elements, strict=True))
            made = _Elaboration(call.graph, held, self.blocks)
            outputs = [made.tensors[name] for name in call.graph.outputs]
            self.blocks[key] = _of_sizes(made.inputs, outputs, made.names)
        return self.blocks[key]


# ---------------------------------------------------------------------------- parts of it


@functools.lru_cache(maxsize=256)
def _shapes(graph: Graph) -> Mapping[str, tuple[Any, ...]]:
    """The shapes of the leaves; of those of a block whose sizes are its own, these put in."""
    shapes = {each.name: each.shape for each in graph.leaves}
    for call in graph.calls:
        local = call.graph.sizes_beside(graph.bound)
        inner = _shapes(call.graph)
        for each in call.graph.leaves:
            if each.kind != "input":
                shapes[call.scoped(each.name)] = tuple(put_in(length, local) for length in inner[each.name])
    return shapes


def _of_sizes(
    inputs: Sequence[Node], outputs: Sequence[Node], names: Names
) -> tuple[Function, tuple[str, ...], Names]:
    """A function whose sizes are numbered as they are met, so that blocks of other sizes are one."""
    nodes = [*inputs, *order(outputs)]
    found = dict.fromkeys(name for each in nodes for length in each.sizes for name in size_names(length))
    found |= dict.fromkeys(name for each in nodes for length in _lengths(each) for name in size_names(length))
    sizes = {name: symbol(f"s{n}") for n, name in enumerate(found)}
    new: dict[Node, Node] = {}
    slots = rebuilt(inputs, new, sizes=sizes)
    results = rebuilt(outputs, new, sizes=sizes)
    function = Function(tuple(slots), tuple(results), tuple(f"s{n}" for n in range(len(sizes))))
    return function, tuple(found), names.moved(new)


def _lengths(each: Node) -> Iterable[Size]:
    """The sizes that a node speaks of, besides those of its axes."""
    yield from each.shape
    for _, value in each.options:
        yield from value if isinstance(value, tuple) else (value,)
    waiting = [*each.result, *(entry for operand in each.operands for entry in operand.reads)]
    while waiting:
        entry = waiting.pop()
        if isinstance(entry, Gather):
            waiting += entry.reads
        else:
            yield from (entry.offset, *entry.steps)


def _whole_reads(given: Sequence[Node]) -> tuple[dict[Axis, Size], list[Operand]]:
    """Tensors that are read as they are, each along axes of its own, and the sizes of these."""
    sizes: dict[Axis, Size] = {
        (n, d): length for n, each in enumerate(given) for d, length in enumerate(each.shape)
    }
    operands = [
        Operand(each, tuple(along((n, d)) for d in range(len(each.shape)))) for n, each in enumerate(given)
    ]
    return sizes, operands
