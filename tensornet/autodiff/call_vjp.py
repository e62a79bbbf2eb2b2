"""The vjp of calls: a forward block that also returns residuals, and its backward block. For loops see `scan_vjp`."""

from __future__ import annotations

from dataclasses import replace

from ..graph.graph import Apply, Graph
from ..graph.leaves import scoped
from ..graph.shape_inference import dim_size
from .activity import active_inside
from .backward import Backward
from .joint import JointGraph
from .scan_vjp import Called, backward_scan, saving_carries


def asked(passes: Backward, call: Apply) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The results of the block that have gradients, and its leaves whose gradients are required."""
    block, inner = call.graph, call.names()
    if call.along is not None:
        inside = active_inside(call, passes.active)
        outputs = tuple(output for output in block.outputs if output in inside)
        return outputs, tuple(leaf.name for leaf in block.inputs if leaf.name in inside)
    wrt = (
        leaf.name for leaf in block.leaves if leaf.kind != "constant" and inner[leaf.name] in passes.active
    )
    pairs = zip(block.outputs, call.results, strict=True)
    of = (output for output, name in pairs if name in passes.active and name in passes.needed)
    return tuple(of), tuple(wrt)


def forward_call(passes: Backward, call: Apply, joint: JointGraph, wrt: tuple[str, ...]) -> Called:
    """A call of the block's forward pass; of the block itself, if its residuals are not saved."""
    if call.along is not None:
        made = saving_carries(passes, call)
        return Called(made, joint, wrt, made.names())
    inner = {**call.names(), **dict(zip(call.graph.outputs, call.results, strict=True))}
    is_again = call.results[0] in passes.recomputed
    made = replace(call, apart=True) if is_again else _returning(passes, call, joint.forward, inner)
    return Called(made, joint, wrt, inner)


def _returning(passes: Backward, call: Apply, graph: Graph, inner: dict[str, str]) -> Apply:
    """A call of another graph in place of a call; results without a name get one."""
    for name in graph.outputs:
        if name not in inner:
            inner[name] = passes.taken.fresh(scoped(call.scope, name))
    return replace(call, graph=graph, results=tuple(inner[name] for name in graph.outputs))


def backward_call(passes: Backward, called: Called) -> None:
    """Adds a call of the block's backward pass, and adds its results to the gradients of the block's operands."""
    if called.call.along is not None:
        backward_scan(passes, called)
        return
    call, joint, inner = called.call, called.joint, dict(called.names)
    if call.results[0] in passes.recomputed and joint.residuals:
        inner = {name: tensor for name, tensor in inner.items() if name not in joint.residuals}
        again = replace(joint.forward, outputs=joint.residuals)
        passes.items.append(_returning(passes, call, again, inner))
    for output, seed in joint.seeds:
        inner[seed] = passes.whole(called.names[output])
    wrt = [inner[name] for name in called.wrt]
    results = tuple(passes.part_of(passes.nodes[name]) for name in wrt)
    operands = tuple(inner[leaf.name] for leaf in joint.backward.inputs)
    made = Apply(joint.backward, operands, results, call.scope)
    passes.items.append(made)
    for (result, dims), name in zip(made.returned(passes.bound), wrt, strict=True):
        passes.take(result, [*map(dim_size, dims)], name, tuple(range(len(dims))))
