"""Scans: recurrences as calls of a block along an axis.

    f[b,t,o] = sigmoid(x[b,t,i] * W[o,i] + previous[t](h[b,t,p]) * U[o,p])
    h[b,t,o] = f * …

The block makes what a circle is at one position, of what comes in there and of the states that the one before left.
What does not recur is loop-invariant, and leaves the loop by construction: it is made for all positions at once. What
has nothing to do with the axis, `U`, is a constant of the block, and what is made of constants alone is made before
the loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from ..graph.call import Along
from ..graph.graph import Apply, Graph
from ..graph.recurrences import is_step
from ..graph.shape_inference import Axis as NamedAxis
from ..ir.build import leaf, node
from ..ir.equations import reads_of
from ..ir.function import order, rebuilt
from ..ir.node import Node, Operand, along, axes_of
from ..ops.scan import PREVIOUS
from ..ops.table import FUNCTIONS
from .circles import Block, Circle, Circles, numbered
from .cut import cut
from .states import with_states

__all__ = ["looped"]

Large: TypeAlias = "Callable[[Sequence[Any]], bool]"
"""Whether a tensor of some sizes had better not be there as a whole."""


def looped(graph: Graph, large: Large = lambda sizes: False, alone: bool = False) -> Graph:
    """The graph with a call along its axis in the place of each recurrence, and without steps otherwise.

    Args:
        graph: the graph.
        large: tells states of which nothing but smaller tensors is made at once, position by position.
        alone: whether products of what comes in are made position by position too, so that they are never there as
            a whole.
    """
    if not any(map(is_step, (part for equation in graph.own for part in equation.parts))):
        return graph
    needed = graph.needed()
    body = tuple(item for item in graph.body if needed.intersection(item.defines))
    circles = Circles(cut(with_states(replace(graph, body=body))))
    while circle := next(iter(circles), None):
        _take_readers_of_large(circle, large)
        _take_what_comes_in(circle, large, alone)
        _call(circle)
    return circles.changed()


def _call(circle: Circle) -> None:
    """Puts the call of a block along an axis in the place of a circle."""
    circles, block = circle.circles, Block(circle)
    behind = {state.behind for state in circle.states.values()}
    stacked = {each: _stacked(circle, each) for each in block.made if each in circle.nodes | behind}
    new = {each: _unstacked(circle, each, stacked[each]) for each in stacked}
    for each in circle.states.keys() - new.keys():
        (new[each],) = rebuilt([circle.states[each].whole], new)
    circles.replace(new)
    read = {*order(circles.roots())}
    joined = [each for each in stacked if stacked[each] in read]
    call = _called(block, joined)
    circles.calls.append(call)
    for each, (name, dims) in zip(joined, call.returned(circles.graph.bound), strict=True):
        circles.given(stacked[each], name, dims)


def _stacked(circle: Circle, each: Node) -> Node:
    """What a call gives of a node: the axis of the loop is the first."""
    at = circle.labels[each]
    shape = (each.shape[at], *each.shape[:at], *each.shape[at + 1 :])
    return leaf("input", shape, each.element, n=next(circle.circles.numbers))


def _unstacked(circle: Circle, each: Node, whole: Node) -> Node:
    """A node as a look at what a call gives of it."""
    axes, at, names = range(len(each.shape)), circle.labels[each], circle.circles.axes
    reads = tuple(map(along, (at, *(n for n in axes if n != at))))
    made = node("copy", dict(enumerate(each.shape)), [Operand(whole, reads)], tuple(map(along, axes)))
    own = [axes[0] for axes in each.dims if axes is not None and len(axes) == 1]
    if len(own) == len(each.shape) and len(called := names.get(each, ())) == len(each.sizes):
        names[made] = tuple(called[axis] for axis in own)
    return made


def _called(block: Block, joined: Sequence[Node]) -> Apply:
    """The call of a block along the axis, which puts some nodes together."""
    circle, circles = block.circle, block.circles
    results = {block.named(each): block.made[each] for each in joined}
    following = {block.named(state.behind): block.made[state.behind] for state in circle.outer.values()}
    outputs = tuple(results | following)
    graph = block.graph(results | following)
    starts = [
        circles.asked(state.begin, f"{circles.names[each]}.start") for each, state in circle.outer.items()
    ]
    operands = (
        *(circles.names[each] for each, _ in block.cuts),
        *starts,
        *(circles.names[each] for each in block.held),
    )
    way = Along(
        NamedAxis(circle.state.step.axes[0], circle.length),
        tuple(at for _, at in block.cuts),
        tuple(outputs.index(block.named(state.behind)) for state in circle.outer.values()),
        circle.state.step.function != PREVIOUS.name,
    )
    stacked = tuple(circles.fresh(numbered(f"{name}.along")) for name in results)
    return Apply(graph, operands, stacked, "", True, way)


# ---------------------------------------------------------------------------- what else is made at each position


def _take_what_comes_in(circle: Circle, large: Large, alone: bool) -> None:
    """Takes products of what comes in that are not to be there as a whole, and what is made of them alone."""
    for reader in reversed(circle.all):
        for child in dict.fromkeys(reader.children) if reader in circle.nodes else ():
            if child in circle.labels or child in circle.circles.names:
                continue
            axis = circle.read_along(reader, child)
            if axis is None or not circle.nodes.issuperset(circle.readers[child]):
                continue
            if _grows(circle, child, large) or (alone and _is_alone(circle, child, axis)):
                circle.take(child, axis)


def _is_alone(circle: Circle, each: Node, axis: int) -> bool:
    """Whether what comes in is a product that is made position by position, or of such ones element by element."""
    if each in circle.circles.names:
        return False
    if each.op == "contract" and len(each.sizes) > len(each.shape):
        return True
    pairs = (
        (child, dim)
        for child, reads in each.operands
        for dim, entry in zip(child.dims, reads, strict=True)
        if entry.axis == axis
    )
    pointwise = each.op in FUNCTIONS and FUNCTIONS[each.op].kind == "pointwise"
    return pointwise and any(
        _is_alone(circle, child, dim[0]) for child, dim in pairs if dim and len(dim) == 1
    )


def _grows(circle: Circle, each: Node, large: Large) -> bool:
    """Whether a node is a large product of smaller factors, which is made position by position."""
    if each.op != "contract" or len(each.sizes) > len(each.shape) or None in each.dims:
        return False
    outer = all(len({*axes_of(reads)}) < len(each.sizes) for _, reads in each.operands)
    return outer and large(circle.circles.opened(each.shape))


def _take_readers_of_large(circle: Circle, large: Large) -> None:
    """Takes what makes smaller tensors of large ones, where nothing else reads these."""
    after = set[Node]()
    for each in circle.all:
        if each not in circle.labels and not (circle.labels.keys() | after).isdisjoint(each.children):
            after.add(each)
    kept = {*circle.circles.outputs.values()}
    for each in circle.in_order:
        outside = [reader for reader in circle.readers[each] if reader not in circle.labels]
        if outside and each not in kept and large(circle.circles.opened(each.shape)):
            axes = [_is_less(circle, reader, each, after) for reader in outside]
            for reader, axis in zip(outside, axes, strict=True) if None not in axes else ():
                circle.take(reader, axis)


def _is_less(circle: Circle, each: Node, large: Node, after: set[Node]) -> int | None:
    """The axis of a node that makes something smaller of a large one at each position; nothing where it does not."""
    inner = circle.states.keys() - circle.outer.keys()
    if not (after | inner).isdisjoint(each.children):
        return None
    axes = {reads[circle.labels[child]].axis for child, reads in reads_of(each) if child in circle.labels}
    axis = axes.pop() if len(axes) == 1 else None
    if axis is None or axis in each.over or [entry.axis for entry in each.result].count(axis) != 1:
        return None
    whole, own = (Counter(circle.circles.opened(made.shape)) for made in (large, each))
    return axis if own.total() < whole.total() and not own - whole else None
