"""The vjp of calls: a forward block that also returns residuals, and its backward block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..graph.call import scoped
from ..graph.element_types import of_tensors
from ..graph.graph import Apply, Graph
from ..language.expression import Ref
from ..ops.table import Element
from .activity import active_inside
from .cotangents import part_of, whole, zeros
from .joint import JointGraph
from .scan_vjp import ScanVjp, with_firsts
from .vjp_context import VjpContext

__all__ = ["Called", "asked", "backward_call", "forward_call"]


@dataclass(frozen=True)
class Called:
    """A call in both passes: the block's, the leaves that get gradients, what the caller calls its tensors."""

    joint: JointGraph
    wrt: tuple[str, ...]
    names: Mapping[str, str]


def asked(context: VjpContext, call: Apply) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The results of the block that have gradients, and its leaves whose gradients are asked for."""
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
    context: VjpContext, call: Apply, found: JointGraph, wrt: tuple[str, ...]
) -> tuple[Apply, Called]:
    """A call of the block's forward pass; of the block itself, if nothing is to be kept of it.

    Args:
        context: what is written.
        call: the call.
        found: the joint graph of its block.
        wrt: the leaves of the block that get gradients.
    """
    inner = call.names()
    if call.along is not None:
        made = _with_firsts(context, call)
        return made, Called(found, wrt, made.names())
    inner.update(zip(call.graph.outputs, call.results, strict=True))
    is_again = call.results[0] in context.again
    made = replace(call, apart=True) if is_again else _returning(context, call, found.forward, inner)
    return made, Called(found, wrt, inner)


def _with_firsts(context: VjpContext, call: Apply) -> Apply:
    """Calls along an axis, of which nothing is kept but what each of them goes on from."""
    made = with_firsts(call, context.fresh)
    _note(context, made, [output for output, _ in made.made])
    return made


def _returning(context: VjpContext, call: Apply, graph: Graph, inner: dict[str, str]) -> Apply:
    """A call of another graph in the place of one; the results that have no name get one."""
    for name in graph.outputs:
        if name not in inner:
            inner[name] = context.fresh(scoped(call.scope, name))
    made = replace(call, graph=graph, results=tuple(inner[name] for name in graph.outputs))
    _note(context, made, graph.outputs)
    return made


def _note(context: VjpContext, made: Apply, outputs: Sequence[str]) -> None:
    """The dimensions and elements of what a call returns, which are those outputs of its block."""
    inside = of_tensors(made.graph)
    for (name, dims), output in zip(made.returned(context.bound), outputs, strict=True):
        context.dims[name], context.elements[name] = dims, inside[output]


def backward_call(context: VjpContext, call: Apply, called: Called) -> None:
    """A call of the block's backward pass, and what it gives to what the block was given."""
    if call.along is not None:
        _backward_along(context, call, called)
        return
    found, inner = called.joint, dict(called.names)
    if call.results[0] in context.again and found.residuals:
        inner = {name: tensor for name, tensor in inner.items() if name not in found.residuals}
        context.body.append(_returning(context, call, replace(found.forward, outputs=found.residuals), inner))
    for output, seed in found.seeds:
        inner[seed] = whole(context, called.names[output])
    wrt = [inner[name] for name in called.wrt]
    results = tuple(part_of(context, name) for name in wrt)
    operands = tuple(inner[leaf.name] for leaf in found.backward.inputs)
    made = Apply(found.backward, operands, results, call.scope)
    context.body.append(made)
    for (result, dims), name in zip(made.returned(context.bound), wrt, strict=True):
        context.dims[result], context.elements[result] = dims, Element.NUMBER
        context.terms[name].append(Ref(result, context.axes(name)))


def _backward_along(context: VjpContext, call: Apply, called: Called) -> None:
    """The calls made again from the last to the first, each with its backward pass."""
    back = ScanVjp.of(call, called.joint, called.wrt)
    cut = [whole(context, name) for name in back.gradients]
    carried = [whole(context, name) for name in back.lasts]
    totals = [zeros(context, call.names()[leaf]) for leaf in back.totals]
    names = dict(zip(called.wrt, map(called.names.get, called.wrt), strict=True))
    results = {leaf: part_of(context, str(names[leaf])) for leaf in back.results}
    made = back.call(call, cut, carried, totals, tuple(results.values()))
    context.body.append(made)
    for name, dims in made.returned(context.bound):
        context.dims[name], context.elements[name] = dims, Element.NUMBER
    for leaf, result in results.items():
        tensor = str(names[leaf])
        if tensor in context.active:
            axes = context.axes(tensor)
            at = back.cuts.get(leaf, 0)
            context.terms[tensor].append(Ref(result, (axes[at], *axes[:at], *axes[at + 1 :]) if axes else ()))
