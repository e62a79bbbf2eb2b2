"""Checkpointing of scans: a recurrence in segments, recomputed in the backward pass.

    h.segments[s,b,t,o] = block(x[b,(s,t),i], h0[b,o], U[o,p])

A rematerialised call saves only its operands: the first state of each segment instead of all tensors at each position.
The positions that do not fill a segment become a call along one shorter segment.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence

from ..graph.graph import Graph, inlined
from ..graph.leaves import Along
from ..graph.shape_inference import Axis as NamedAxis
from ..ir.equations import MADE
from ..ir.function import over_operands
from ..ir.node import (
    Affine,
    Axis,
    Node,
    Operand,
    Size,
    along,
    at_position,
    concatenated,
    node,
    number,
    row_major,
)
from ..sizes import evaluate
from .components import Block, Component, Components, is_sized
from .cut import cut


def checkpoint_recurrences(graph: Graph, count: int) -> Graph:
    """The graph with each recurrence split into about `count` segments along its axis, each a call.

    Recurrences that draw random numbers, or whose axis has no size yet, are left as they are.
    """
    graph = inlined(graph, lambda call: any(part.recurrences for part in call.graph.parts()))
    if not graph.recurrences:
        return graph
    components = Components(cut(graph))
    ends = dict[Node, tuple[int, int, Node]]()
    components.rule = functools.partial(_ending, ends, graph)
    for component in components.all:
        size = evaluate(component.length, graph.bound)
        component.take_sources(functools.partial(_is_source, component))  # what is computed for it alone
        if isinstance(size, int) and size > 1 and not any(map(_is_random_or_sized, component.nodes)):
            _part(component, size, math.ceil(size / count), ends)
    return components.changed() if components.calls else graph


def _is_random_or_sized(each: Node) -> bool:
    """Whether a node draws random numbers, or has an option that is computed from sizes."""
    values = (value for _, value in each.options if isinstance(value, Node))
    return "draw" in each.attributes or any(map(is_sized, values))


def _is_source(component: Component, each: Node, axis: int) -> bool:
    """Whether a node can be computed position by position, and is no result."""
    components = component.components
    given = each in components.new or each.op in MADE or each.is_scalar or each in components.results
    return not (given or _is_random_or_sized(each) or "fill" in each.attributes or axis in each.over)


# ---------------------------------------------------------------------------- one recurrence


def _part(component: Component, size: int, length: int, ends_of: dict[Node, tuple[int, int, Node]]) -> None:
    """Replaces a component by a call along its segments, and by one more for the positions that do not fill one."""
    components, labels, back = component.components, component.labels, component.state.back
    runs = [_Run(component, size // length, length)]
    runs += [_Run(component, 1, size % length)] if size % length else []
    parts = [{each: _joined(whole, labels[each]) for each, whole in run.results.items()} for run in runs]
    ordered = parts[::-1] if back else parts
    new = {each: concatenated([part[each] for part in ordered], labels[each]) for each in parts[0]}
    last = 0 if back else size - 1
    places = {each: (labels[each], last, end) for each, end in runs[-1].ends.items()}
    ends_of.update((new[each], place) for each, place in places.items())
    outside = (reader for state in places for reader in component.outside(state))
    others = {reader: _ending(places, components.graph, reader) for reader in outside}
    joined = [each for each in new if _is_read(component, each, others)]
    components.replace(new)
    states, done = component.starts, 0
    for run in runs:
        run.call(joined, states, size - done - run.positions if back else done)
        states, done = [components.names[each] for each in run.ends.values()], done + run.positions


def _is_read(component: Component, each: Node, others: Mapping[Node, Node]) -> bool:
    """Whether a node is a result, or is read outside at other positions than the last one of a state."""
    asked = each in component.components.results
    return asked or any(each in others.get(reader, reader).children for reader in component.outside(each))


def _ending(ends: Mapping[Node, tuple[int, int, Node]], graph: Graph, each: Node) -> Node:
    """A node that reads the result of the last segment instead of the last position of a state.

    Args:
        ends: for each state at all positions, the dimension, the last position, and the last segment's result.
        graph: the graph, which has the values of sizes.
        each: the node.
    """
    operands = list(each.operands)
    for n, (child, reads) in enumerate(operands):
        at, last, end = ends.get(child, (0, 0, None))
        entry = reads[at] if end is not None else None
        fixed = isinstance(entry, Affine) and not entry.terms and evaluate(entry.offset, graph.bound) == last
        if end is not None and fixed:
            operands[n] = Operand(end, reads[:at] + reads[at + 1 :])
    return each if operands == list(each.operands) else over_operands(each, operands)


class _Run:
    """Segments of equal length, as a call of a block along them.

    Attributes:
        component, block: the component, and its block at the positions of one segment.
        count, length: the number of segments, and of positions in each.
        firsts: for each state, the name and the input of its first value in the block.
        results, ends: the call's results for nodes, and for the tensors behind states at the last position.
    """

    def __init__(self, component: Component, count: int, length: int) -> None:
        self.component, self.count, self.length = component, count, length
        components = component.components
        self.block = Block(component, NamedAxis(components.taken.fresh(component.state.axis), length))
        self.firsts = dict[Node, tuple[str, Node]]()
        for each in component.outer:
            at, dims = component.labels[each], components.dims(each)
            name = components.taken.fresh(f"{components.names[each]}.first")
            rest = dims[:at] + dims[at + 1 :], each.shape[:at] + each.shape[at + 1 :], "input"
            self.firsts[each] = name, self.block.given(name, each, *rest)
        nodes = [*self.block.made]
        self.results = self.block.results(
            nodes, lambda each: component.result(each, (self.count,), (self.length,))
        )
        self.ends = {state.behind: component.result(each) for each, state in component.outer.items()}

    @property
    def positions(self) -> int:
        """The number of positions in all segments."""
        return self.count * self.length

    def call(self, joined: Sequence[Node], states: Iterable[str], first: int) -> None:
        """Adds the call.

        Args:
            joined: the nodes that it returns at all positions.
            states: the names of the states that it starts from.
            first: its first position.
        """
        block, components = self.block, self.component.components
        outputs = {block.named(each): block.made[each] for each in joined}
        ends = {f"{name}.next": self._end(each) for each, (name, _) in self.firsts.items()}
        graph = block.graph(outputs | ends, self.firsts)
        given = [
            components.asked(self._parted(each, at, first), f"{components.names[each]}.segments")
            for each, at in block.cuts
        ]
        stems = [f"{name}.segments" for name in outputs]
        stems += [f"{components.names[each]}.last" for each in self.firsts]
        axis, cuts = (
            NamedAxis(components.taken.fresh("segment"), self.count),
            tuple(at for _, at in block.cuts),
        )
        states_at = tuple(range(len(outputs), len(outputs) + len(ends)))
        way = Along(axis, cuts, states_at, self.component.state.back, last=True)
        results = dict.fromkeys([*(self.results[each] for each in joined), *self.ends.values()])
        components.call(block.call(graph, (*given, *states), stems, way), results)

    def _end(self, each: Node) -> Node:
        """The state after the last position of the block."""
        made, at = self.block.made[self.component.states[each].behind], self.component.labels[each]
        return at_position(made, at, 0 if self.component.state.back else made.shape[at] - 1)

    def _parted(self, each: Node, at: int, first: int) -> Node:
        """A tensor at the positions of the segments: an axis of segments and an axis of positions in each."""
        axes = range(len(each.shape))
        sizes = dict[Axis, Size](enumerate(each.shape)) | {at: self.positions}
        if each.shape[at] != self.positions:
            reads = tuple(Affine(((n, 1),), first) if n == at else along(n) for n in axes)
            shape, fill = [sizes[n] for n in axes], (("fill", number(0)),)
            each = node("copy", sizes, [Operand(each, reads)], tuple(map(along, axes)), shape, options=fill)
        sizes |= {"s": self.count, "l": self.length}
        reads = tuple(row_major(("s", "l"), sizes) if n == at else along(n) for n in axes)
        left: list[Axis] = [*axes[:at], "s", "l", *axes[at + 1 :]]
        return node("copy", sizes, [Operand(each, reads)], tuple(map(along, left)))


def _joined(each: Node, at: int) -> Node:
    """A tensor whose first axis, the segments, is merged into the positions of each."""
    count, *shape = each.shape
    sizes = dict[Axis, Size](enumerate(shape)) | {"s": count, "l": shape[at]}
    axes = range(len(shape))
    reads = (along("s"), *(along("l" if n == at else n) for n in axes))
    result = tuple(row_major(("s", "l"), sizes) if n == at else along(n) for n in axes)
    return node("copy", sizes, [Operand(each, reads)], result)
