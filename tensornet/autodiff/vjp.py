"""Vector-Jacobian products (vjp): a graph's forward pass and its backward pass as graphs.

A graph is cut at its calls and at the states of its recurrences (`scan/cut.py`). The rest is brought into A-normal form
(`a_normal_form.py`), so that the common parts of the derivatives of several factors are computed once: a product of N
factors takes O(N) products back. Then the nodes are visited from the last to the first. The cotangent that a tensor
gets from its readers (`x.grad`) is passed on to its operands (`backward.py`):

    y[b,o] = x[b,i] * W[o,i]    →    W.grad[o,i] = y.grad[b,o] * x[b,i]

A call of a block becomes two. The vjp of a scan is a scan: the cotangent of a state is read before it is defined, as
the state is (`Backward.foresee` and `through_state`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ..graph.graph import Apply, Graph
from ..graph.leaves import scoped
from ..graph.shape_inference import dim_size
from ..ir.node import Node
from ..language.expression import is_random
from ..scan.cut import State
from .a_normal_form import Pairs
from .activity import active
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
                _backward_call(passes, called[item])
    for name in wrt:
        passes.gradient_of(passes.nodes[name])
    return partitioned(passes)


def _forward_calls(passes: Backward, pairs: Pairs) -> dict[int, Called]:
    """Adds the calls to the forward pass. Returns those with gradients, by number, with the joint graphs of blocks."""
    called = dict[int, Called]()
    for n, call in enumerate(passes.graph.calls):
        of = tuple(output for output, name in call.made if name in passes.active and name in passes.needed)
        if of:
            called[n] = _forward_call(passes, call, of, pairs)
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
        and not any(is_random(equation.right) for part in call.graph.parts for equation in part.own)
    )


# ---------------------------------------------------------------------------- calls


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


def _forward_call(passes: Backward, call: Apply, of: tuple[str, ...], pairs: Pairs) -> Called:
    """A call of the block's forward pass; of the block itself, if its residuals are not saved."""
    inner, free = call.names(), (leaf.name for leaf in call.graph.leaves if leaf.kind != "constant")
    wrt = tuple(name for name in free if inner[name] in passes.active)
    inner.update(call.made)
    joint = differentiated(call.graph, of, wrt, pairs)
    is_again = call.results[0] in passes.recomputed
    made = replace(call, apart=True) if is_again else _returning(passes, call, joint.forward, inner)
    return Called(made, joint, wrt, inner)


def _returning(passes: Backward, call: Apply, graph: Graph, inner: dict[str, str]) -> Apply:
    """A call of another graph in place of a call; results without a name get one."""
    for name in graph.outputs:
        if name not in inner:
            inner[name] = passes.taken.fresh(scoped(call.scope, name))
    return replace(call, graph=graph, results=tuple(inner[name] for name in graph.outputs))


def _backward_call(passes: Backward, called: Called) -> None:
    """Adds a call of the block's backward pass, and adds its results to the gradients of the block's operands."""
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
    for name, (result, dims) in zip(wrt, made.returned(passes.bound), strict=True):
        passes.take(result, [*map(dim_size, dims)], name, tuple(range(len(dims))))
