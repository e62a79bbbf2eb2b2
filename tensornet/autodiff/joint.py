"""The joint graph: forward and backward passes, and the residuals between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..graph.call import called_last, told_apart
from ..graph.graph import Graph
from ..language.expression import Ref, occurring
from ..passes.dead_code import eliminate_dead_code
from ..sizes import size_names

__all__ = ["JointGraph", "tidy"]


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
        found = tidy(
            eliminate_dead_code(Graph((*inputs, *others), body, (*outputs, *self.backward.outputs), sizes))
        )
        own = told_apart(found.leaves, found.calls)
        return replace(found, leaves=called_last(own, found.calls))


def tidy(graph: Graph) -> Graph:
    """The graph without sizes that nothing in it mentions, and without formulas of axes that tensors size."""
    alone = graph.by_name
    formulas = {name: size for name, size in graph.sizes if not isinstance(size, int) and name in alone}
    used = {*alone, *(name for size in formulas.values() for name in size_names(size))}
    for leaf in graph.leaves:
        used.update(name for dim in leaf.dims for axis in dim for name in size_names(axis.size))
    for equation in graph.own:
        used.update(name for part in equation.parts if not isinstance(part, Ref) for name in occurring(part))
    for call in graph.calls:
        used.update(call.graph.bound)
    sizes = (
        (name, size)
        for name, size in graph.sizes
        if name in formulas or (isinstance(size, int) and name in used)
    )
    return replace(graph, sizes=tuple(sizes))
