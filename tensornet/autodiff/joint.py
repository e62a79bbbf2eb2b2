"""The joint graph: forward and backward passes, and its partition into both, with the residuals between them.

A residual is a tensor of the forward pass that the backward pass reads: a result of the one, an input of the other.
Tensors that depend only on constants, and tensors without a name, are computed again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..graph.graph import Graph, of_tensors_named
from ..graph.leaves import Leaf, called_last, told_apart
from ..graph.shape_inference import Axis
from ..ir.node import Node, cast, leaf, rebuilt
from ..language.equation import Equation
from ..ops.table import Element
from ..passes.dead_code import eliminate_dead_code
from ..scan.cut import put_together
from ..sizes import evaluate
from .backward import Backward


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
