"""Vector-Jacobian products (vjp): a graph's forward pass and its backward pass as graphs.

A graph is cut at its calls and at the states of its recurrences (`scan/cut.py`). The rest is brought into A-normal form
(`a_normal_form.py`), so that the common parts of the derivatives of several factors are computed once: a product of N
factors takes O(N) products back. Then the nodes are visited from the last to the first. The cotangent that a tensor
gets from its readers (`x.grad`) is passed on to its operands (`cotangents.py`):

    y[b,o] = x[b,i] * W[o,i]    →    W.grad[o,i] = y.grad[b,o] * x[b,i]

A call of a block becomes two. The cotangent of a state is read before it is defined, as the state is.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ..graph.graph import Apply, Graph
from ..graph.leaves import Along, Leaf, scoped
from ..graph.shape_inference import axes_of_dims, dim_size
from ..ir.node import Node
from ..language.equation import Equation
from ..language.expression import Ref, Taken, is_random, sum_of
from ..scan.cut import State
from .a_normal_form import Pairs
from .activity import active, active_inside
from .backward import Backward
from .joint import JointGraph, partitioned


@functools.lru_cache(maxsize=512)
def differentiated(
    graph: Graph,
    of: tuple[str, ...],
    wrt: tuple[str, ...],
    pairs: Pairs,
    alone: bool = False,
    recomputed: frozenset[str] = frozenset(),
) -> JointGraph:
    """The joint graph of a graph: its forward and its backward pass.

    Args:
        graph: the graph.
        of: the results that have gradients.
        wrt: the leaves whose gradients are required.
        pairs: orders products of more than two factors.
        alone: whether nothing encloses the graph, so that the gradient of a result without axes is 1.
        recomputed: the calls of `rematerializable` whose residuals are not saved, by their first results.

    Raises:
        EquationError: a function on the way has no derivative.
    """
    passes = Backward(graph, of, wrt, pairs, alone, recomputed)
    called = _forward_calls(passes, pairs)
    for name in of:
        passes.seed(name)
    for state in passes.states:
        if state.node in passes.through and not state.readers.isdisjoint(passes.needed):
            passes.foresee(state)
    for item in reversed(passes.order()):
        match item:
            case State():
                passes.through_state(item)
            case Node():
                passes.through_node(item)
            case _ if item in called and passes.has_gradient(graph.calls[item].results):
                backward_call(passes, called[item])
    for name in wrt:
        passes.gradient_of(passes.nodes[name])
    return partitioned(passes)


def _forward_calls(passes: Backward, pairs: Pairs) -> dict[int, Called]:
    """Adds the calls to the forward pass. Returns those with gradients, by number, with the joint graphs of blocks."""
    called = dict[int, Called]()
    for n, call in enumerate(passes.graph.calls):
        if any(name in passes.active and name in passes.needed for name in call.results):
            chosen, leaves = asked(passes, call)
            called[n] = forward_call(passes, call, differentiated(call.graph, chosen, leaves, pairs), leaves)
        passes.calls.append(called[n].call if n in called else call)
        passes.cotangents.uses.update(passes.given_to(call))
    return called


def rematerializable(graph: Graph, wrt: Iterable[str]) -> tuple[str, ...]:
    """The calls that can be rematerialised, by their first results, in order: none that draws random numbers."""
    changing = active(graph, wrt)
    return tuple(
        call.results[0]
        for call in graph.calls
        if changing.intersection(call.results)
        and not any(is_random(equation.right) for part in call.graph.parts() for equation in part.own)
    )


# ---------------------------------------------------------------------------- scans

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

    By position it is given what the scan is given, the states that each iteration started from, and the gradients of
    stacked results. Its states are the gradients of the last states, and sums of gradients, at first 0.
    """
    call, along, names = called.call, called.call.along, called.names
    both, seeds = called.joint.joined(), dict(called.joint.seeds)
    assert along is not None
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
    seeded = [(name, leaves.get(seeds.get(carried[name], ""))) for name in moved]
    lasting = [leaf or _like(taken, leaves[name], "none") for name, leaf in seeded]
    sums = [_like(taken, leaves[name], "sum") for name in summed]
    totals = [_added(taken, leaf, name, grads[name]) for name, leaf in zip(summed, sums, strict=True)]
    first, last = ([leaves[name] for name in each] for each in ((*cuts, *carried, *given), wholes))
    outputs = (*(grads[name] for name in (*stacked, *moved)), *(each.name for each in totals))
    others = (leaf for leaf in both.leaves if leaf.kind != "input")
    block = Graph((*first, *lasting, *sums, *last, *others), (*both.body, *totals), outputs, both.sizes)
    operands = (
        *call.operands[: len(cuts)],
        *call.results[joined - len(carried) : joined],
        *[passes.whole(result) for result in given.values()],
        *[passes.whole(lasts[name]) for name in moved],
        *[passes.zeros(names[name]) for name in summed],
        *call.operands[len(cuts) + len(carried) :],
    )
    results = {name: passes.part_of(passes.nodes[names[name]]) for name in (*stacked, *moved, *summed)}
    axes, states = (*along.cuts, *(0 for _ in (*carried, *given))), range(len(stacked), len(outputs))
    back = Along(along.axis, axes, tuple(states), not along.back, last=True)
    made = Apply(block, operands, tuple(results.values()), call.scope, True, back)
    _take_results(passes, made, [names[name] for name in results], [cuts.get(name, 0) for name in results])


def _like(taken: Taken, leaf: Leaf, suffix: str) -> Leaf:
    """An input of the shape of another leaf, of the working element type."""
    return replace(leaf, name=taken.fresh(f"{leaf.name}.{suffix}"), holds=None)


def _take_results(passes: Backward, call: Apply, tensors: Iterable[str], places: Iterable[int]) -> None:
    """Adds a call to the backward pass, and each of its results to the gradient of a tensor.

    The first dimension of a result is that of the tensor at its place. The others follow in order.
    """
    passes.items.append(call)
    for name, at, (result, dims) in zip(tensors, places, call.returned(passes.bound), strict=True):
        order = (at, *(d for d in range(len(dims)) if d != at))[: len(dims)]
        passes.take(result, [*map(dim_size, dims)], name, order)


def _added(taken: Taken, sum_so_far: Leaf, name: str, gradient: str) -> Equation:
    """The sum of a leaf's gradients so far and that of one more iteration."""
    axes = axes_of_dims(sum_so_far.dims)
    total = sum_of([Ref(sum_so_far.name, axes), Ref(gradient, axes)])
    return Equation(taken.fresh(f"{name}.total"), axes, total)


# ---------------------------------------------------------------------------- calls


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
    _take_results(passes, made, wrt, [0] * len(wrt))
