"""Scans: recurrences as calls of a block along an axis.

    f[b,t,o] = sigmoid(x[b,t,i] * W[o,i] + previous[t](h[b,t,p]) * U[o,p])
    h[b,t,o] = f * …

The block computes one position of a component from the inputs at that position and the previous states. Tensors that
do not recur leave the loop by construction (loop fission): they are computed for all positions at once.
Tensors without the axis, such as `U`, are constants of the block. Tensors that depend on constants alone are computed
before the loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from ..graph.graph import Graph
from ..graph.recurrences import is_step
from ..ir.equations import reads_of
from ..ir.node import Node, axes_of, moved_in
from .components import Block, Component, Components
from .cut import cut

Large: TypeAlias = "Callable[[Sequence[Any]], bool]"
"""Whether a tensor of these sizes is too large to be held whole."""


Kernel: TypeAlias = "Callable[[Component], Mapping[Node, Node]]"
"""The nodes that a kernel computes in place of nodes or states of a component; none where it does not apply."""


def lower_recurrences(
    graph: Graph, large: Large = lambda sizes: False, alone: bool = False, kernels: Sequence[Kernel] = ()
) -> Graph:
    """The graph with each recurrence replaced by a kernel or by a call along its axis, and with no steps left.

    Args:
        graph: the graph.
        large: whether a tensor of these sizes is too large to hold for all positions at once. The readers of such a
            tensor move into the loop if all of them compute smaller tensors from it.
        alone: whether products of inputs are computed position by position too, so that they are never held whole.
        kernels: what may compute a recurrence without a loop; the first that applies does.
    """
    if not any(map(is_step, (part for equation in graph.own for part in equation.parts))):
        return graph
    needed = graph.needed()
    body = tuple(item for item in graph.body if needed.intersection(item.defines))
    components = Components(cut(replace(graph, body=body)))
    for component in components.all:
        made = next(filter(None, (kernel(component) for kernel in kernels)), None)
        components.replace(made or _loop(component, large, alone))
        components.replace(
            {each: state.whole for each, state in component.states.items() if each not in components.new}
        )
    return components.changed()


def _loop(component: Component, large: Large, alone: bool) -> dict[Node, Node]:
    """The nodes that the call of a block along an axis computes in place of those of a component."""
    _take_readers_of_large(component, large)
    _take_what_comes_in(component, large, alone)
    components, block = component.components, Block(component)
    following = [state.behind for state in component.outer.values()]
    behind = {state.behind for state in component.states.values()}
    nodes = [each for each in block.made if each in component.nodes | behind]
    stacked = block.stacked(nodes)
    joined = [each for each in stacked if component.is_read(each)]
    new = {each: _unstacked(component, each, stacked[each]) for each in joined}
    outputs = {block.named(each): block.made[each] for each in (*joined, *following)}
    call = block.call(outputs, dict.fromkeys(f"{block.named(each)}.along" for each in joined))
    components.call(call, dict.fromkeys(stacked[each] for each in joined))
    return new


def _unstacked(component: Component, each: Node, whole: Node) -> Node:
    """A node as a copy of the call's result for it, with the axes in the node's order."""
    made, names = moved_in(whole, component.labels[each]), component.components.axes
    own = [axes[0] for axes in each.dims if axes is not None and len(axes) == 1]
    if len(own) == len(each.shape) and len(called := names.get(each, ())) == len(each.sizes):
        names[made] = tuple(called[axis] for axis in own)
    return made


# ---------------------------------------------------------------------------- other nodes computed at each position


def _take_what_comes_in(component: Component, large: Large, alone: bool) -> None:
    """Takes products among the inputs that must not be held whole, and elementwise functions of them."""
    names = component.components.names

    def comes_in(each: Node, axis: int) -> bool:
        is_whole = _grows(component, each, large) or (alone and _is_alone(component, each, axis))
        return each not in names and is_whole

    component.take_sources(comes_in)


def _is_alone(component: Component, each: Node, axis: int) -> bool:
    """Whether an input is a contraction, or an elementwise function of one at the same position."""
    if each in component.components.names:
        return False
    if each.op == "contract" and len(each.sizes) > len(each.shape):
        return True
    pairs = (
        (child, dim)
        for child, reads in each.operands
        for dim, entry in zip(child.dims, reads, strict=True)
        if entry.axis == axis
    )
    pointwise = each.function.name and each.function.kind == "pointwise"
    return bool(pointwise) and any(
        _is_alone(component, child, dim[0]) for child, dim in pairs if dim and len(dim) == 1
    )


def _grows(component: Component, each: Node, large: Large) -> bool:
    """Whether a node is a large product of smaller factors, with no axis summed."""
    if each.op != "contract" or len(each.sizes) > len(each.shape) or None in each.dims:
        return False
    outer = all(len({*axes_of(reads)}) < len(each.sizes) for _, reads in each.operands)
    return outer and large(component.components.opened(each.shape))


def _take_readers_of_large(component: Component, large: Large) -> None:
    """Takes the readers of a large node if all of them compute smaller tensors from it."""
    kept, after = component.components.results, set[Node]()
    for each in component.in_order:
        outside = component.outside(each)
        if outside and each not in kept and large(component.components.opened(each.shape)):
            after = after or _after(component)
            axes = [_is_less(component, reader, each, after) for reader in outside]
            for reader, axis in zip(outside, axes, strict=True) if None not in axes else ():
                component.take(reader, axis)


def _after(component: Component) -> set[Node]:
    """The nodes that depend on a component and are no part of it."""
    hanging, reading = {*component.labels}, component.components.reading
    for group in component.components.groups:
        if not hanging.isdisjoint(child for each in group for child in reading[each]):
            hanging.update(group)
    return hanging.difference(component.labels)


def _is_less(component: Component, each: Node, large: Node, after: set[Node]) -> int | None:
    """The axis along which a node computes something smaller than a large one at each position; None if it does not."""
    inner = component.states.keys() - component.outer.keys()
    if not (after | inner).isdisjoint(each.children):
        return None
    axes = {
        reads[component.labels[child]].axis for child, reads in reads_of(each) if child in component.labels
    }
    axis = axes.pop() if len(axes) == 1 else None
    if axis is None or axis in each.over or [entry.axis for entry in each.result].count(axis) != 1:
        return None
    whole, own = (Counter(component.components.opened(made.shape)) for made in (large, each))
    return axis if own.total() < whole.total() and not own - whole else None
