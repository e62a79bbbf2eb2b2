"""Checkpointing of scans: a recurrence in segments, recomputed in the backward pass.

    h.segments[s,b,t,o] = block(x[b,(s,t),i], h0[b,o], U[o,p])

A rematerialised call saves only its operands: the first state of each segment instead of all tensors at each position.
The positions that do not fill a segment become a call of their own.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

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
    """Replaces a component by calls of segments."""
    components, labels, (count, rest) = component.components, component.labels, divmod(size, length)
    back = component.state.back
    segment, other = _Segment.of(component, length), _Segment.of(component, rest) if rest else None
    nodes = [*segment.block.made]
    most = segment.block.results(nodes, lambda each: component.result(each, (count,), (length,)))
    over = other.block.results(nodes, lambda each: component.result(each, (), (rest,))) if other else {}
    lasts = {state.behind: component.result(each) for each, state in component.outer.items()}
    ends = {each: component.result(each) for each in lasts} if rest else lasts
    new = {each: _joined(whole, labels[each]) for each, whole in most.items()}
    for each, part in over.items():
        new[each] = concatenated((part, new[each]) if back else (new[each], part), labels[each])
    last = 0 if back else size - 1
    ends_of.update((new[each], (labels[each], last, end)) for each, end in ends.items())
    places = {each: (labels[each], last, end) for each, end in ends.items()}
    others = {
        each: _ending(places, components.graph, each) for state in ends for each in component.outside(state)
    }
    joined = [each for each in most if _is_read(component, each, others)]
    components.replace(new)

    def parted(each: Node, at: int) -> Node:
        return _parted(_cropped(each, at, count * length, rest, not back), at, count, length)

    cuts = tuple(at for _, at in segment.block.cuts)
    parts = len({most[each] for each in joined})
    states = tuple(range(parts, parts + len(lasts)))
    way = Along(NamedAxis(components.taken.fresh("segment"), count), cuts, states, back, last=True)
    given = (*segment.given(parted, "segments"), *component.starts)
    segment.call(given, joined, [*(most[each] for each in joined), *lasts.values()], "segments", way)
    if other is not None:
        cropped = functools.partial(_cropped, kept=rest, others=count * length, first=back)
        given = (*other.given(cropped, "rest"), *(components.names[each] for each in lasts.values()))
        other.call(given, joined, [*(over[each] for each in joined), *ends.values()], "rest")


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


@dataclass(frozen=True)
class _Segment:
    """A block of several positions, and the name and the input of the first value of each state."""

    block: Block
    firsts: dict[Node, tuple[str, Node]]

    @staticmethod
    def of(component: Component, length: int) -> _Segment:
        """The block of a component at `length` positions."""
        components = component.components
        block = Block(component, NamedAxis(components.taken.fresh(component.state.axis), length))
        firsts = {}
        for each in component.outer:
            at, dims = component.labels[each], components.dims(each)
            name = components.taken.fresh(f"{components.names[each]}.first")
            rest = dims[:at] + dims[at + 1 :], each.shape[:at] + each.shape[at + 1 :], "input"
            firsts[each] = name, block.given(name, each, *rest)
        return _Segment(block, firsts)

    def given(self, part: Callable[[Node, int], Node], stem: str) -> Iterator[str]:
        """The names of the operands with the axis; each call gets a part of them."""
        components = self.block.components
        return (
            components.asked(part(each, at), f"{components.names[each]}.{stem}")
            for each, at in self.block.cuts
        )

    def call(
        self,
        given: tuple[str, ...],
        joined: Sequence[Node],
        results: Sequence[Node],
        stem: str,
        along: Along | None = None,
    ) -> None:
        """Adds the call of the block.

        Args:
            given: the operands, without those that are the same in all calls.
            joined: the nodes that it returns at all positions.
            results: the caller's nodes for these, and for the last states.
            stem: the suffix of the names of the former.
            along: how it is called along an axis.
        """
        block, components = self.block, self.block.components
        outputs = {block.named(each): block.made[each] for each in joined}
        ends = {f"{name}.next": self._end(each) for each, (name, _) in self.firsts.items()}
        graph = block.graph(outputs | ends, self.firsts)
        stems = [f"{name}.{stem}" for name in outputs]
        stems += [f"{components.names[each]}.last" for each in self.firsts]
        components.call(block.call(graph, given, stems, along), dict.fromkeys(results))

    def _end(self, each: Node) -> Node:
        """The state after the last position of the block."""
        component = self.block.component
        made, at = self.block.made[component.states[each].behind], component.labels[each]
        return at_position(made, at, 0 if component.state.back else made.shape[at] - 1)


# ---------------------------------------------------------------------------- positions in segments


def _parted(each: Node, at: int, count: int, length: int) -> Node:
    """A tensor whose dimension `at` is split into an axis of segments and an axis of positions in each."""
    sizes = dict[Axis, Size](enumerate(each.shape)) | {"s": count, "l": length}
    reads = tuple(row_major(("s", "l"), sizes) if n == at else along(n) for n in range(len(each.shape)))
    axes: list[Axis] = [*range(len(each.shape))]
    axes[at : at + 1] = ["s", "l"]
    return node("copy", sizes, [Operand(each, reads)], tuple(map(along, axes)))


def _joined(each: Node, at: int) -> Node:
    """A tensor whose first axis, the segments, is merged into the positions of each."""
    count, *shape = each.shape
    sizes = dict[Axis, Size](enumerate(shape)) | {"s": count, "l": shape[at]}
    axes = range(len(shape))
    reads = (along("s"), *(along("l" if n == at else n) for n in axes))
    result = tuple(row_major(("s", "l"), sizes) if n == at else along(n) for n in axes)
    return node("copy", sizes, [Operand(each, reads)], result)


def _cropped(each: Node, at: int, kept: int, others: int, first: bool) -> Node:
    """A tensor at `kept` positions of a dimension: the first ones, or those after `others` positions."""
    if not others:
        return each
    axes = range(len(each.shape))
    sizes = dict[Axis, Size](enumerate(each.shape)) | {at: kept}
    start = 0 if first else others
    reads = tuple(Affine(((n, 1),), start) if n == at else along(n) for n in axes)
    shape, fill = [sizes[n] for n in axes], (("fill", number(0)),)
    return node("copy", sizes, [Operand(each, reads)], tuple(map(along, axes)), shape, options=fill)
