"""Vector-Jacobian products (vjp): a graph's forward pass and its backward pass as graphs.

A graph is cut at its calls and at the states of its recurrences (`scan/cut.py`). The rest is brought into A-normal form
(`a_normal_form.py`), so that the common parts of the derivatives of several factors are computed once: a product of N
factors takes O(N) products back. Then the nodes are visited from the last to the first. The cotangent that a tensor
gets from its readers (`x.grad`) is passed on to its operands (`vjp_rules.py`, `cotangents.py`):

    y[b,o] = x[b,i] * W[o,i]    →    W.grad[o,i] = y.grad[b,o] * x[b,i]

A call of a block becomes two (`call_vjp.py`). The cotangent of a state is read before it is defined, as the state is.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

from ..graph.graph import Graph
from ..language.expression import is_random
from ..scan.states import with_states
from .a_normal_form import Pairs
from .activity import active
from .backward import Backward
from .joint import JointGraph
from .partition import partitioned

__all__ = ["differentiated", "rematerializable"]


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

    def joint(block: Graph, outputs: tuple[str, ...], leaves: tuple[str, ...]) -> JointGraph:
        return differentiated(block, outputs, leaves, pairs)

    return partitioned(Backward(with_states(graph), of, wrt, pairs, alone, recomputed, joint))


def rematerializable(graph: Graph, wrt: Iterable[str]) -> tuple[str, ...]:
    """The calls that can be rematerialised, by their first results, in order: none that draws random numbers."""
    changing = active(graph, wrt)
    return tuple(
        call.results[0]
        for call in graph.calls
        if changing.intersection(call.results)
        and not any(is_random(equation.right) for part in call.graph.parts() for equation in part.own)
    )
