"""The vjp of a scan, a call along an axis: a scan in the other direction.

    y.along, c.last = block(x[s,b,t,i], c0[b,o], W[o,i])    →
    x.grad.along, c0.grad, W.grad = back(x[s,b,t,i], c.firsts[s,b,o], y.grad.along, c.last.grad, 0, W[o,i])

The cotangent of a state is carried from iteration to iteration. That of an operand that all iterations read is
accumulated over them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..graph.graph import Apply, Graph
from ..graph.leaves import Along, Leaf
from ..graph.shape_inference import axes_of_dims, dim_size
from ..language.equation import Equation
from ..language.expression import Ref, Taken, sum_of
from .backward import Backward
from .joint import JointGraph

FIRST = "{}.firsts"
"""The name of the state that each iteration starts from, stacked over all of them."""


@dataclass(frozen=True)
class Called:
    """A call in both passes.

    Attributes:
        call: the call of the forward pass.
        joint: the joint graph of its block.
        wrt: the leaves of the block that get gradients.
        names: the caller's names of the block's tensors.
    """

    call: Apply
    joint: JointGraph
    wrt: tuple[str, ...]
    names: Mapping[str, str]


def saving_carries(passes: Backward, call: Apply) -> Apply:
    """A call along an axis, which also returns the state that each iteration starts from."""
    assert call.along is not None
    block, joined = call.graph, call.along.joined(len(call.results))
    states = block.inputs[len(call.along.cuts) :][: len(call.along.states)]
    taken, firsts = Taken(block.named), list[Equation]()
    for leaf in states:
        axes = axes_of_dims(leaf.dims)
        firsts.append(Equation(taken.fresh(FIRST.format(leaf.name)), axes, Ref(leaf.name, axes)))
    made = tuple(each.name for each in firsts)
    outputs = (*block.outputs[:joined], *made, *block.outputs[joined:])
    along = replace(call.along, states=tuple(n if n < joined else n + len(made) for n in call.along.states))
    return replace(
        call,
        graph=replace(block, body=(*block.body, *firsts), outputs=outputs),
        results=(*call.results[:joined], *map(passes.taken.fresh, made), *call.results[joined:]),
        along=along,
    )


def backward_scan(passes: Backward, called: Called) -> None:
    """Adds the vjp of a scan: a scan in the other direction, over the backward pass of the block.

    It is given what the scan is given by position, the states that each iteration started from, and gradients of
    stacked results; then, as states, the gradients of the last states and sums of gradients, at first 0; then what all
    iterations read. It returns stacked gradients, and the last values of its states.
    """
    call, along, names = called.call, called.call.along, called.names
    assert along is not None
    both, seeds = called.joint.joined(), dict(called.joint.seeds)
    leaves = {leaf.name: leaf for leaf in (*both.inputs, *call.graph.inputs)}
    own = [leaf.name for leaf in call.graph.inputs]
    grads = dict(zip(called.wrt, both.outputs, strict=True))
    cuts, carried = dict(zip(own, along.cuts, strict=False)), dict(call.carried())
    wholes = [name for name in own if name not in cuts and name not in carried]
    joined = along.joined(len(call.results))
    given = {seeds[output]: result for output, result in list(call.made)[:joined] if output in seeds}
    lasts = dict(zip(carried, call.results[joined:], strict=True))
    stacked, moved, summed = ([name for name in part if name in grads] for part in (cuts, carried, wholes))
    taken = Taken(both.named)
    lasting = [
        leaves.get(seeds.get(carried[name], ""))
        or replace(leaves[name], name=taken.fresh(f"{name}.none"), holds=None)
        for name in moved
    ]
    sums = [replace(leaves[name], name=taken.fresh(f"{name}.sum"), holds=None) for name in summed]
    totals = [_added(taken, leaf, name, grads[name]) for name, leaf in zip(summed, sums, strict=True)]
    inputs = (
        *(leaves[name] for name in (*cuts, *carried, *given)),
        *lasting,
        *sums,
        *(leaves[name] for name in wholes),
    )
    others = (leaf for leaf in both.leaves if leaf.kind != "input")
    outputs = (*(grads[name] for name in (*stacked, *moved)), *(each.name for each in totals))
    block = Graph((*inputs, *others), (*both.body, *totals), outputs, both.sizes)
    operands = (
        *call.operands[: len(cuts)],
        *call.results[joined - len(carried) : joined],
        *[passes.whole(result) for result in given.values()],
        *[passes.whole(lasts[name]) for name in moved],
        *[passes.zeros(names[name]) for name in summed],
        *call.operands[len(cuts) + len(carried) :],
    )
    results = {name: passes.part_of(passes.nodes[names[name]]) for name in (*stacked, *moved, *summed)}
    by_position = (*along.cuts, *([0] * (len(carried) + len(given))))
    back = Along(along.axis, by_position, tuple(range(len(stacked), len(outputs))), not along.back, last=True)
    made = Apply(block, operands, tuple(results.values()), call.scope, True, back)
    passes.items.append(made)
    for (name, result), (_, dims) in zip(results.items(), made.returned(passes.bound), strict=True):
        at = cuts.get(name, 0)
        order = (at, *(d for d in range(len(dims)) if d != at))[: len(dims)]
        passes.take(result, [*map(dim_size, dims)], names[name], order)


def _added(taken: Taken, sum_so_far: Leaf, name: str, gradient: str) -> Equation:
    """The sum of a leaf's gradients so far and that of one more iteration."""
    axes = axes_of_dims(sum_so_far.dims)
    total = sum_of([Ref(sum_so_far.name, axes), Ref(gradient, axes)])
    return Equation(taken.fresh(f"{name}.total"), axes, total)
