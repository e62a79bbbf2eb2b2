"""The choices for one graph: a variable for each tensor, and what the placements of its readers cost.

A block that is called is a part of its own. It is solved once for all placements of its inputs and outputs, so that
depth costs nothing. If these are too many, as in the step of a recurrence, its choices join those of the caller.

In the program that is divided, recurrences are calls along an axis, and each size is a number.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..autodiff.a_normal_form import take_apart
from ..autodiff.activity import active as active_names
from ..autodiff.activity import active_inside, is_active
from ..graph.element_types import bytes_of
from ..graph.graph import Apply, Graph
from ..graph.leaves import Leaf
from ..graph.shape_inference import Dim, resized
from ..ir.node import Node
from ..ops.table import Element
from ..planning.gradients import in_pairs
from ..scan.cut import cut
from ..scan.lowering import lower_recurrences
from ..sizes import evaluate
from .mesh import PARTIAL, REPLICATED, VARYING, Mesh, Placement, cost_of_route, costs_of_routes, local_shape
from .rules import Division, ShardingStrategy, operands_of, strategies, work
from .search import CostTable, Solved, Variable, eliminated


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


BOUNDARY = 1 << 19
"""The most combinations of placements of the inputs and outputs of a block that is solved by itself."""

SMALL = 1 << 16
"""The most numbers of a tensor that each device computes whole once, because it depends on no argument."""

UPDATE = 7
"""How often an optimizer reads or writes an array of the size of a parameter: Adam its gradient, state and value."""


@dataclass(frozen=True)
class Asked:
    """The axes that a user divides in a graph, and in each of the blocks that it calls.

    Attributes:
        axes: names of axes, and the numbers of mesh axes; None if all is to be chosen.
        inside: the same for each call.
        kept: the placements of parameters that have one already.
    """

    axes: tuple[tuple[str, int], ...] | None
    inside: tuple[Asked, ...]
    kept: tuple[tuple[str, Placement], ...] = ()

    def places(self, name: str, n: int) -> bool:
        """Whether an axis is divided along a mesh axis."""
        return any(m == n and _is_called(name, asked) for asked, m in self.axes or ())


def _is_called(name: str, asked: str) -> bool:
    """Whether an axis is one that a user means. A number after a name only keeps two axes apart."""
    return asked in (name, name.rstrip("0123456789").removesuffix("_") if "_" in name else name)


@functools.lru_cache(maxsize=256)
def part_of(graph: Graph, mesh: Mesh, asked: Asked, wrt: frozenset[str], itemsize: int) -> Part:
    """The part of a graph, made once for equal ones."""
    return Part(graph, mesh, asked, wrt, itemsize)


class Part:
    """The choices for a graph.

    Attributes:
        graph: the graph, without recurrences and with known sizes.
        program: its equations, with products of two factors; it is cut at calls.
        nodes: the nodes of leaves, of results of calls, and of what calls and outputs need, by name.
        known: the small nodes that depend on no argument, which are computed once, before the first step.
        choices: the placements of each leaf, and the strategies of each node.
        tables: the costs.
        outputs: the placements that each output may have.
        calls: the parts of the blocks that are called.
    """

    def __init__(self, graph: Graph, mesh: Mesh, asked: Asked, wrt: frozenset[str], itemsize: int) -> None:
        self.mesh, self.asked, self.itemsize = mesh, asked, itemsize
        self.graph = in_loops(graph)
        self.active = active_names(self.graph, tuple(wrt))
        self.bound = self.graph.bound
        found = cut(self.graph, in_numbers=True)
        program = found.program
        numbers = {each for each in program.nodes if each.op == "input" and each.element >= Element.WIDE}
        self.program = take_apart(program, numbers, in_pairs)
        outputs = zip(program.names.outputs, self.program.function.outputs, strict=True)
        self.nodes: dict[str, Node] = {**found.nodes, **dict(outputs)}
        self.leaf_of = {self.nodes[each.name]: each for each in self.graph.leaves}
        active = (self.nodes[name] for name in self.active if name in self.nodes)
        given = ("input", "constant")
        self.moving = {each for each in active if each.op in given and each.element >= Element.WIDE}
        self.known: set[Node] = set()
        self.choices: dict[Variable, list[Any]] = {}
        self.tables: list[CostTable] = []
        self.readers: dict[Node, list[tuple[Variable, list[Placement]]]] = {}
        self._leaves()
        self._nodes()
        self.calls = [self._call(k, call) for k, call in enumerate(self.graph.calls)]
        self._outputs()
        for each, readers in self.readers.items():
            self._deliver(each, readers)

    # ---- leaves

    def _leaves(self) -> None:
        called = {leaf.name for call in self.graph.calls for leaf in call.leaves()}
        for each in self.graph.leaves:
            if each.name not in called:
                node = self.nodes[each.name]
                self.choices[node] = list(self._places(self.dims(each.name), (REPLICATED, VARYING)))
                if each.kind != "input":
                    self._store(node, each)
        results = (name for call in self.graph.calls for name in call.results)
        for name in results:
            self.choices[self.nodes[name]] = list(self._places(self.dims(name), (REPLICATED,)))

    def dims(self, name: str) -> tuple[Dim, ...]:
        """The dimensions of a tensor, with numbers for their sizes."""
        return resized(self.graph.named[name], lambda size: int(evaluate(size, self.bound)))

    def _store(self, node: Node, leaf: Leaf) -> None:
        """The choices for a parameter or a constant: where it is kept."""
        import numpy

        places = self.choices[node]
        size = [math.prod(local_shape(node.shape, place, self.mesh.shape)) for place in places]
        cost = UPDATE * self.itemsize / self.mesh.memory if leaf.name in self.active else 0.0
        fixed = (
            self.fixed(self.dims(leaf.name)) if leaf.kind == "parameter" else (REPLICATED,) * len(places[0])
        )
        fixed = dict(self.asked.kept).get(leaf.name, fixed)
        self.tables.append(self.only(node, fixed, cost * numpy.array(size)))

    def only(self, node: Node, fixed: Placement | None, costs: Any = 0.0) -> CostTable:
        """The costs of a leaf, which is never varying, in one placement if that is fixed."""
        import numpy

        free = [VARYING not in place and fixed in (None, place) for place in self.choices[node]]
        return CostTable((node,), numpy.where(free, costs, math.inf))

    def fixed(self, dims: Sequence[Dim]) -> Placement | None:
        """The placement that a user asks for, of a leaf with these dimensions; None if it is free."""
        if self.asked.axes is None:
            return None
        found: list[int | str] = [REPLICATED] * len(self.mesh.shape)
        for name, n in self.asked.axes:
            if found[n] == REPLICATED and self.mesh.shape[n] > 1:
                for d, dim in enumerate(dims):
                    if _is_called(dim[0].name, name) and dim[0].size % self._parts(found, d, n) == 0:
                        found[n] = d
                        break
        return tuple(found)

    def _parts(self, found: Sequence[int | str], d: int, n: int) -> int:
        """The number of parts of a dimension, if another mesh axis divides it too."""
        return math.prod(k for m, k in enumerate(self.mesh.shape) if m == n or found[m] == d)

    def _places(self, dims: Sequence[Dim], whole: Sequence[str]) -> Iterator[Placement]:
        """All placements of a tensor that are no sums."""
        along: list[tuple[int | str, ...]] = [
            (*whole, *(d for d, dim in enumerate(dims) if n > 1 and dim[0].size % n == 0 and dim[0].size))
            for n in self.mesh.shape
        ]
        for place in itertools.product(*along):
            parts = [self._parts(place, d, -1) for d in range(len(dims))]
            if all(dim[0].size % n == 0 for dim, n in zip(dims, parts, strict=True)):
                yield place

    # ---- nodes

    def _nodes(self) -> None:
        import numpy

        for each in self.program.nodes:
            if each.is_scalar or each in self.choices:
                continue
            found: dict[tuple[Any, ...], tuple[float, ShardingStrategy]] = {}
            if is_active(each, self.moving):
                self.moving.add(each)
            known = all(child in self.known or child.op == "constant" for child, _ in operands_of(each))
            if known and math.prod(each.sizes) <= SMALL:
                self.known.add(each)
            for strategy in self._strategies(each):
                key = (strategy.out, *(strategy.need(k) for k in range(len(operands_of(each)))))
                seconds = self._seconds(each, strategy)
                if key not in found or seconds < found[key][0]:
                    found[key] = seconds, strategy
            self.choices[each] = [strategy for _, strategy in found.values()]
            self.tables.append(CostTable((each,), numpy.array([seconds for seconds, _ in found.values()])))
            for k, (child, _) in enumerate(operands_of(each)):
                needs = [strategy.need(k) for strategy in self.choices[each]]
                self.readers.setdefault(child, []).append((each, needs))

    def _strategies(self, each: Node) -> list[ShardingStrategy]:
        """The ways to divide a node that its operands and the user allow."""
        found = strategies(each, self.mesh.shape)
        if each in self.known:
            return found[:1]  # whole
        sums = [{n for out in self.outs(child) for n, place in enumerate(out) if place == PARTIAL}
                for child, _ in operands_of(each)]  # fmt: skip
        found = [
            strategy
            for strategy in found
            if all(
                place != PARTIAL or n in sums[k]
                for n, division in enumerate(strategy.divisions)
                for k, place in enumerate(division.ins)
            )
        ]
        for n in range(len(self.mesh.shape)):
            told = [strategy for strategy in found if self._is_told(each, strategy.divisions[n], n)]
            found = told or found
        return found

    def _is_told(self, each: Node, division: Division, n: int) -> bool:
        """Whether a division is one that the user asks for by the name of an axis."""
        if division.table is not None:
            operand, d = division.table
            leaf = self.leaf_of.get(operands_of(each)[operand].node)
            return leaf is not None and self.asked.places(leaf.dims[d][0].name, n)
        names = self.program.names.axes.get(each, ())
        axis = division.axis
        return axis is not None and axis < len(names) and self.asked.places(names[axis], n)

    def _seconds(self, each: Node, strategy: ShardingStrategy) -> float:
        """The expected time of the work of a node on one device, forward and backward."""
        tensors = [child for child, _ in operands_of(each)]
        numbers = 2.0 * math.prod(each.sizes) if each.op == "contract" and len(tensors) > 1 else 0.0
        held = [(each, strategy.out), *((child, strategy.need(k)) for k, child in enumerate(tensors))]
        size = sum(math.prod(local_shape(tensor.shape, place, self.mesh.shape)) for tensor, place in held)
        flops = numbers / work(each, strategy, self.mesh.shape) / self.mesh.flops
        once = max(flops, size * self.itemsize / self.mesh.memory)
        return once * (3.0 if each in self.moving else 1.0)

    def outs(self, each: Variable) -> list[Placement]:
        """The placements of a tensor, for each of its choices."""
        found = self.choices.get(each, ())
        return [choice.out if isinstance(choice, ShardingStrategy) else choice for choice in found]

    # ---- calls

    def _call(self, k: int, call: Apply) -> Part:
        """The part of a block that is called; its inputs read tensors here, and its outputs are tensors here."""
        names = call.names()
        inside = active_inside(call, self.active)
        wrt = frozenset(leaf.name for leaf in call.graph.leaves if leaf.name in inside)
        part = part_of(call.graph, self.mesh, self.asked.inside[k], wrt, self.itemsize)
        count = 1 if call.along is None else int(call.along.axis.size)
        self.choices |= {(k, each): list(part.choices[each]) for each in part.inside}
        tables = [
            CostTable(tuple((k, each) for each in one), costs * count) for one, costs in part.contracted
        ]
        tables += part.ties(call, k)
        renamed = dict(self._renamed(k, call, part))
        for variables, costs in tables:
            self._add(tuple(renamed.get(each, each) for each in variables), costs)
        cuts = call.along.cuts if call.along is not None else ()
        for at, leaf in enumerate(call.graph.inputs):
            node = self.nodes[names[leaf.name]]
            places = part.choices[part.nodes[leaf.name]]
            needs = [with_axis(place, cuts[at]) if at < len(cuts) else place for place in places]
            self.readers.setdefault(node, []).append(((k, part.nodes[leaf.name]), needs))
        return part

    def _renamed(self, k: int, call: Apply, part: Part) -> Iterator[tuple[Variable, Variable]]:
        """The outputs of a block, which are variables here."""
        for output, result in call.made:
            node, places = self.nodes[result], part.choices["out", output]
            if call.along is not None:
                places = [with_axis(place, 0) for place in places]
            self.choices[node] = places
            yield (k, ("out", output)), node

    def _add(self, variables: tuple[Variable, ...], costs: Any) -> None:
        """Adds a table. Two of its variables may be the same."""
        import numpy

        distinct = tuple(dict.fromkeys(variables))
        if len(distinct) < len(variables):
            letters = {each: n for n, each in enumerate(distinct)}
            costs = numpy.einsum(costs, [letters[each] for each in variables], list(letters.values()))
        self.tables.append(CostTable(distinct, costs))

    def ties(self, call: Apply, k: int) -> list[CostTable]:
        """The tables that leave each state of a loop in one placement, in which an iteration takes it and makes it."""
        import numpy

        tables = list[CostTable]()
        for state, output in call.carried():
            one, two = self.nodes[state], ("out", output)
            costs = [[0.0 if a == b else math.inf for b in self.choices[two]] for a in self.choices[one]]
            tables.append(CostTable(((k, one), (k, two)), numpy.array(costs)))
        return tables

    @functools.cached_property
    def boundary(self) -> tuple[Variable, ...]:
        """The variables that a caller sees: inputs and outputs."""
        inputs = (self.nodes[leaf.name] for leaf in self.graph.inputs)
        return (*inputs, *(("out", name) for name in dict.fromkeys(self.graph.outputs)))

    @functools.cached_property
    def is_solved(self) -> bool:
        """Whether the part is solved by itself."""
        return math.prod(len(self.choices[each]) for each in self.boundary) <= BOUNDARY

    @functools.cached_property
    def solved(self) -> Solved:
        """The part, solved for all placements of its boundary."""
        sizes = {each: len(found) for each, found in self.choices.items()}
        used = {each for table in self.tables for each in table.variables} | {*self.boundary}
        return eliminated({each: n for each, n in sizes.items() if each in used}, self.tables, self.boundary)

    @property
    def inside(self) -> tuple[Variable, ...]:
        """The variables that a caller takes over."""
        return self.boundary if self.is_solved else tuple(self.choices)

    @property
    def contracted(self) -> list[CostTable]:
        """The tables that a caller takes over."""
        return [self.solved.table] if self.is_solved else self.tables

    # ---- outputs

    def _outputs(self) -> None:
        import numpy

        for name in dict.fromkeys(self.graph.outputs):
            node, dims = self.nodes[name], self.dims(name)
            places = list(self._places(dims, (REPLICATED,)))
            self.choices["out", name] = places
            self.readers.setdefault(node, []).append((("out", name), places))
            told = self.fixed(dims)
            if told is not None:
                differ = [
                    sum(a != b and a != REPLICATED for a, b in zip(told, p, strict=True)) for p in places
                ]
                least = min(differ)
                costs = numpy.array([0.0 if n == least else math.inf for n in differ])
                self.tables.append(CostTable((("out", name),), costs))

    # ---- delivery

    def conversion(self, each: Node, given: Placement, asked: Placement) -> float:
        """The seconds of the collectives between two placements of a tensor, forward and backward."""
        latency, rate = cost_of_route(given, asked, self.mesh, each in self.moving)
        return latency + rate * self._bytes(each)

    def _bytes(self, each: Node) -> int:
        """The bytes of a whole tensor."""
        return math.prod(each.shape) * bytes_of(each.element, self.itemsize)

    def _deliver(self, each: Node, readers: Sequence[tuple[Variable, list[Placement]]]) -> None:
        """Tables of the collectives between a tensor and its readers. What several need is sent to all of them once."""
        import numpy

        self.choices.setdefault(each, [(REPLICATED,) * len(self.mesh.shape)])  # a number
        outs = self.outs(each)
        own, needs = list(dict.fromkeys(outs)), list(dict.fromkeys(p for _, found in readers for p in found))
        latency, rate = costs_of_routes(tuple(own), tuple(needs), self.mesh, each in self.moving)
        prices = (latency + rate * self._bytes(each))[[own.index(p) for p in outs]]
        at = [[needs.index(p) for p in found] for _, found in readers]
        if len(readers) == 1:
            self._add((each, readers[0][0]), prices[:, at[0]])
            return
        sent = ("sent", each)
        self.choices[sent] = [None, *needs]
        first = numpy.concatenate([numpy.zeros((len(outs), 1)), prices], axis=1)
        self.tables.append(CostTable((each, sent), first))
        there = numpy.where(numpy.eye(len(needs), dtype=bool), 0.0, math.inf)
        there = numpy.concatenate([numpy.full((1, len(needs)), math.inf), there])
        for (reader, _), places in zip(readers, at, strict=True):
            self._add((each, sent, reader), numpy.minimum(prices[:, None, :], there[None])[:, :, places])


def with_axis(place: Placement, at: int) -> Placement:
    """The placement of a tensor that has one more dimension."""
    return tuple(p + (p >= at) if isinstance(p, int) else p for p in place)
