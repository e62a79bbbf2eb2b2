"""The vjp of calls: a forward block that also returns residuals, and its backward block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ..graph.call import scoped
from ..graph.graph import Apply, Graph
from ..graph.shape_inference import dim_size
from ..ir.node import Node, Size
from ..language.equation import Equation
from .activity import active_inside
from .joint import JointGraph
from .scan_vjp import ScanVjp, saving_carries

__all__ = ["Called", "asked", "backward_call", "forward_call"]


class Passes(Protocol):
    """The part of `backward.Backward` that calls use."""

    active: set[str]
    needed: frozenset[str]
    recomputed: frozenset[str]
    nodes: dict[str, Node]
    bound: dict[str, Any]
    items: list[Equation | Apply]

    def fresh(self, name: str) -> str:
        """A name for a tensor."""

    def part_of(self, each: Node) -> str:
        """A name for the part of a cotangent that one reader of a tensor contributes."""

    def whole(self, name: str) -> str:
        """The name of the gradient of a tensor."""

    def zeros(self, name: str) -> str:
        """The name of a tensor of zeros with the shape of another."""

    def take(self, result: str, shape: Sequence[Size], tensor: str, dims: tuple[int, ...]) -> None:
        """Adds the result of a call to the gradient of a tensor."""


@dataclass(frozen=True)
class Called:
    """A call in both passes: the block's joint graph, the leaves that get gradients, and the caller's names."""

    joint: JointGraph
    wrt: tuple[str, ...]
    names: Mapping[str, str]


def asked(context: Passes, call: Apply) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The results of the block that have gradients, and its leaves whose gradients are required."""
    block, inner = call.graph, call.names()
    if call.along is not None:
        inside = active_inside(call, context.active)
        outputs = tuple(output for output in block.outputs if output in inside)
        return outputs, tuple(leaf.name for leaf in block.inputs if leaf.name in inside)
    wrt = (
        leaf.name for leaf in block.leaves if leaf.kind != "constant" and inner[leaf.name] in context.active
    )
    pairs = zip(block.outputs, call.results, strict=True)
    of = (output for output, name in pairs if name in context.active and name in context.needed)
    return tuple(of), tuple(wrt)


def forward_call(
    context: Passes, call: Apply, found: JointGraph, wrt: tuple[str, ...]
) -> tuple[Apply, Called]:
    """A call of the block's forward pass; of the block itself, if its residuals are not saved.

    Args:
        context: the passes that the call belongs to.
        call: the call.
        found: the joint graph of its block.
        wrt: the leaves of the block that get gradients.
    """
    if call.along is not None:
        made = saving_carries(call, context.fresh)
        return made, Called(found, wrt, made.names())
    inner = {**call.names(), **dict(zip(call.graph.outputs, call.results, strict=True))}
    is_again = call.results[0] in context.recomputed
    made = replace(call, apart=True) if is_again else _returning(context, call, found.forward, inner)
    return made, Called(found, wrt, inner)


def _returning(context: Passes, call: Apply, graph: Graph, inner: dict[str, str]) -> Apply:
    """A call of another graph in place of a call; results without a name get one."""
    for name in graph.outputs:
        if name not in inner:
            inner[name] = context.fresh(scoped(call.scope, name))
    return replace(call, graph=graph, results=tuple(inner[name] for name in graph.outputs))


def backward_call(context: Passes, call: Apply, called: Called) -> None:
    """Adds a call of the block's backward pass, and adds its results to the gradients of the block's operands."""
    if call.along is not None:
        _backward_along(context, call, called)
        return
    found, inner = called.joint, dict(called.names)
    if call.results[0] in context.recomputed and found.residuals:
        inner = {name: tensor for name, tensor in inner.items() if name not in found.residuals}
        context.items.append(
            _returning(context, call, replace(found.forward, outputs=found.residuals), inner)
        )
    for output, seed in found.seeds:
        inner[seed] = context.whole(called.names[output])
    wrt = [inner[name] for name in called.wrt]
    results = tuple(context.part_of(context.nodes[name]) for name in wrt)
    operands = tuple(inner[leaf.name] for leaf in found.backward.inputs)
    made = Apply(found.backward, operands, results, call.scope)
    context.items.append(made)
    for (result, dims), name in zip(made.returned(context.bound), wrt, strict=True):
        context.take(result, [*map(dim_size, dims)], name, tuple(range(len(dims))))


def _backward_along(context: Passes, call: Apply, called: Called) -> None:
    """Adds the vjp of a call along an axis: a loop in the other direction, over the backward pass of the block."""
    back = ScanVjp.of(call, called.joint, called.wrt)
    cut = [context.whole(name) for name in back.gradients]
    carried = [context.whole(name) for name in back.final_carries]
    totals = [context.zeros(call.names()[leaf]) for leaf in back.accumulated]
    names = {leaf: called.names[leaf] for leaf in called.wrt}
    results = {leaf: context.part_of(context.nodes[names[leaf]]) for leaf in back.results}
    made = back.call(call, cut, carried, totals, tuple(results.values()))
    context.items.append(made)
    shapes = {name: [*map(dim_size, dims)] for name, dims in made.returned(context.bound)}
    for leaf, result in results.items():
        count = len(shapes[result])
        at = back.stacked_axes.get(leaf, 0)
        dims = (at, *range(at), *range(at + 1, count)) if count else ()
        context.take(result, shapes[result], names[leaf], dims)
