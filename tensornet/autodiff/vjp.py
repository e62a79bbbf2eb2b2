"""Vector-Jacobian products (vjp): the joint graph of a graph, its forward pass and its backward pass as graphs.

A graph is cut at its calls and at the states of its recurrences (`scan/cut.py`). The rest is brought into A-normal form
(`a_normal_form.py`), so that the common parts of the derivatives of several factors are computed once: a product of N
factors takes O(N) products back. Then the nodes are visited from the last to the first. The cotangent that a tensor
gets from its readers (`x.grad`) is passed on to its operands (`backward.py`):

    y[b,o] = x[b,i] * W[o,i]    →    W.grad[o,i] = y.grad[b,o] * x[b,i]

A residual is a tensor of the forward pass that the backward pass reads: a result of the one, an input of the other.
Tensors that depend only on constants, and tensors without a name, are computed again.

A call of a block becomes two. The vjp of a scan is a scan: the cotangent of a state is read before it is defined, as
the state is (`Backward.foresee` and `through_state`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..graph.graph import Apply, Graph, of_tensors_named
from ..graph.leaves import Leaf, called_last, scoped, told_apart
from ..graph.shape_inference import Axis, dim_size
from ..ir.node import Node, cast, leaf, rebuilt
from ..language.equation import Equation
from ..ops.table import Element
from ..passes.dead_code import eliminate_dead_code
from ..scan.cut import State, put_together
from ..sizes import evaluate
from .a_normal_form import Pairs
from .activity import active
from .backward import Backward


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
        and not any(equation.right.is_random for part in call.graph.parts for equation in part.own)
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


# ---------------------------------------------------------------------------- the joint graph


@dataclass(frozen=True)
class JointGraph:
    """The forward and the backward pass of a graph.

    Attributes:
        forward: computes the results of the graph, and after them the residuals.
        backward: computes the gradients of the leaves, from the leaves, the residuals and gradients of the results.
        residuals: the results of `forward` that the backward pass reads.
        seeds: the results whose gradients come from outside, each with its input of `backward`.
    """

    forward: Graph
    backward: Graph
    residuals: tuple[str, ...]
    seeds: tuple[tuple[str, str], ...]

    def joined(self, outputs: Sequence[str] = ()) -> Graph:
        """Both passes as one graph, which returns some of the forward results and the gradients."""
        leaves = {leaf.name: leaf for leaf in (*self.forward.leaves, *self.backward.leaves)}
        inputs = [
            leaf for leaf in leaves.values() if leaf.kind == "input" and leaf.name not in self.residuals
        ]
        others = [leaf for leaf in leaves.values() if leaf.kind != "input"]
        made = {name for item in self.forward.body for name in item.defines}
        again = [item for item in self.backward.body if not made.intersection(item.defines)]
        body = (*self.forward.body, *again)
        sizes = tuple({**self.forward.bound, **self.backward.bound}.items())
        found = _tidy(
            eliminate_dead_code(Graph((*inputs, *others), body, (*outputs, *self.backward.outputs), sizes))
        )
        own = told_apart(found.leaves, found.calls)
        return replace(found, leaves=called_last(own, found.calls))


def _tidy(graph: Graph) -> Graph:
    """The graph without sizes that nothing in it mentions, and without formulas of axes that tensors size."""
    told = (pair for pair in graph.sizes if isinstance(pair[1], int) or pair[0] in graph.by_name)
    return replace(graph, sizes=tuple(told))


# ---------------------------------------------------------------------------- partition


def partitioned(passes: Backward) -> JointGraph:
    """The joint graph of two passes."""
    results, renamed = _results(passes)
    outputs = results | {name: made for name, made in passes.asked.items() if name not in results}
    residuals = _residuals(passes, outputs.values())
    leaves = {each.name for each in passes.graph.leaves}
    made = {*passes.nodes, *passes.names.values(), *(name for call in passes.calls for name in call.results)}
    made -= leaves | passes.given.keys() | outputs.keys()
    kept = dict.fromkeys(passes.names[each] for each in residuals)
    kept |= dict.fromkeys(name for item in passes.items for name in item.reads if name in made)
    forward = _forward(passes, tuple(kept))
    backward = _backward(passes, forward, outputs, residuals, kept, renamed)
    used = {each.name for each in backward.inputs}
    seeds = tuple(passes.seeds.items())
    return JointGraph(forward, backward, tuple(name for name in kept if name in used), seeds)


def _results(passes: Backward) -> tuple[dict[str, Node], dict[str, str]]:
    """The gradients of the leaves by name, and new names for the results of calls that are such gradients already.

    Each gradient is computed here, and for one leaf only.
    """
    wholes = [passes.cotangents.whole(passes.nodes[name]) for name in passes.wrt]
    results, renamed = dict[str, Node](), dict[str, str]()
    for name, made in zip(passes.results.values(), _certain(passes, wholes), strict=True):
        is_own = made not in passes.forward and made not in results.values()
        if is_own and made.op == "input" and passes.names[made] not in renamed:
            renamed[passes.names[made]] = name
            continue
        if is_own and made.op != "input":
            passes.names[made] = name
        results[name] = made
    return results, renamed


def _certain(passes: Backward, gradients: Sequence[Node]) -> list[Node]:
    """Gradients of the working element type: an input of unknown element type may hold integers."""
    own = {each.name for each in passes.graph.inputs} - {*passes.wrt}
    new = {
        each: leaf("input", each.shape, Element.SHORT, n=next(passes.numbers))
        for each, known in passes.program.leaves.items()
        if known.name in own
    }
    seeds = {passes.given[name][0] for name in passes.seeds.values()}
    pairs = zip(gradients, rebuilt(gradients, new), strict=True)
    return [
        made
        if found.element is Element.NUMBER and made not in passes.forward and made not in seeds
        else cast(made, Element.NUMBER)
        for made, found in pairs
    ]


def _residuals(passes: Backward, outputs: Iterable[Node]) -> list[Node]:
    """The tensors of the forward pass that the backward pass reads, in order."""
    leaves = {passes.nodes[each.name] for each in passes.graph.leaves}
    still, seen, found, waiting = set[Node](), set[Node](), set[Node](), [*outputs]
    for each in passes.program.nodes:
        if each.op != "input" and not each.function.random and still.issuperset(each.children):
            still.add(each)
    while waiting:
        each = waiting.pop()
        if each in seen:
            continue
        seen.add(each)
        if each not in passes.forward or each in leaves or each in still or each not in passes.names:
            waiting += each.children
        else:
            found.add(each)
    return [each for each in dict.fromkeys((*passes.nodes.values(), *passes.program.nodes)) if each in found]


# ---------------------------------------------------------------------------- graphs


def _forward(passes: Backward, kept: tuple[str, ...]) -> Graph:
    """The forward pass, which also returns the tensors that are kept."""
    outputs = {name: passes.nodes[name] for name in passes.program.names.outputs}
    names = ((each, name) for each, name in passes.names.items() if each in passes.forward)
    made = {name: each for each, name in names if each.op not in ("input", "constant")}
    outputs |= {name: made[name] for name in kept if name in made}
    printed, bound = _printed(passes, passes.program.leaves, outputs)
    body = put_together([*printed, *map(passes.equation, passes.states), *passes.calls])
    results = tuple(dict.fromkeys((*passes.graph.outputs, *kept)))
    sizes = tuple({**passes.bound, **bound}.items())
    return _tidy(replace(passes.graph, body=tuple(body), outputs=results, sizes=sizes))


def _backward(
    passes: Backward,
    forward: Graph,
    outputs: Mapping[str, Node],
    residuals: Sequence[Node],
    kept: Iterable[str],
    renamed: Mapping[str, str],
) -> Graph:
    """The backward pass, with residuals and seeds as inputs."""
    new = {each: leaf("input", each.shape, each.element, n=next(passes.numbers)) for each in residuals}
    held = {name: _input(name, forward) for name in kept}
    leaves = {passes.nodes[each.name]: each for each in passes.graph.leaves}
    leaves |= {new[each]: held[passes.names[each]] for each in residuals} | dict(passes.given.values())
    made = dict(zip(outputs, rebuilt(outputs.values(), new), strict=True))
    passes.names = {new.get(each, each): name for each, name in passes.names.items()}
    passes.axes = {new.get(each, each): axes for each, axes in passes.axes.items()}
    printed, bound = _printed(passes, leaves, made)
    body = [of_tensors_named(item, renamed) for item in put_together([*printed, *passes.items])]
    read = {name for item in body for name in item.reads}.difference(*(item.defines for item in body))
    given = [each for each in passes.graph.leaves if each.name in read]
    left = (
        *(each for each in given if each.kind == "input"),
        *(each for name, each in held.items() if name in read),
        *(passes.given[name][1] for name in passes.seeds.values()),
        *(each for each in given if each.kind != "input"),
    )
    sizes = tuple({**passes.told, **passes.bound, **bound}.items())
    return _tidy(Graph(left, tuple(body), tuple(passes.results.values()), sizes))


def _printed(
    passes: Backward, leaves: Mapping[Node, Leaf], outputs: Mapping[str, Node]
) -> tuple[tuple[Equation, ...], Mapping[str, Any]]:
    """Nodes as equations, and the sizes that these mention."""
    axes = passes.program.names.axes | passes.axes
    found = passes.cut.printed(leaves, outputs, passes.names, axes, passes.sizes) if outputs else None
    return (found.own, found.bound) if found is not None else ((), {})


def _input(name: str, forward: Graph) -> Leaf:
    """A tensor of the forward pass as an input, in sizes that any caller of the graph knows."""
    dims = (tuple(Axis(a.name, evaluate(a.size, forward.bound)) for a in dim) for dim in forward.named[name])
    return Leaf(name, "input", tuple(dims))
