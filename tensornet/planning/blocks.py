"""Outlining: which blocks of a graph become functions of their own."""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace

from ..frontend.instantiate import instance, names_of_sizes
from ..graph.element_types import of_leaf
from ..graph.graph import Apply, Graph, inlined
from ..graph.leaves import Leaf
from ..language.equation import Equation
from ..language.expression import ELLIPSIS
from ..sizes import evaluate, name_of, symbol

LEAST = 5
"""The fewest equations of a block that becomes a function. A smaller block gains more by being planned together with
the equations around it."""


@functools.lru_cache(maxsize=256)
def with_functions(graph: Graph, around: frozenset[str] | None = None) -> Graph:
    """The graph with its calls inlined, except for those that become functions of their own (outlining).

    A call is inlined too if one of its results is not needed.

    Args:
        graph: the graph.
        around: the scopes whose calls are always kept, where each block runs on its own, under its own scope.
            None if no block does.
    """
    blocks = (call.graph for part in graph.parts() for call in part.calls)
    sites = Counter(in_numbers(block) for block in blocks if _is_function(block))
    held = defaultdict[str, set[Graph]](set)
    for scope, block in _held(graph):
        held[scope].add(bare(block))

    def written_out(call: Apply) -> bool:
        if call.along is not None:
            return False
        again = _is_function(call.graph) and (call.apart or sites[in_numbers(call.graph)] > 1)
        others = held[call.scope]
        apart = len(others) > 1 and len(set(map(in_numbers, others))) > 1
        return not again if around is None else apart or not (call.scope in around or again)

    found = inlined(graph, written_out)
    needed = found.needed()
    return inlined(found, lambda call: call.along is None and not needed.issuperset(call.results))


def _held(graph: Graph, prefix: str = "") -> Iterator[tuple[str, Graph]]:
    """Every scope in a graph and in its blocks, with each block that is called under it."""
    for call in graph.calls:
        scope = f"{prefix}{call.scope}"
        yield scope, call.graph
        yield from _held(call.graph, f"{scope}.")


@functools.lru_cache(maxsize=1024)
def _is_function(block: Graph) -> bool:
    """Whether a block is large enough for a call, and the shapes of its leaves determine its sizes."""
    dims = [dim for leaf in block.leaves for dim in leaf.dims]
    told = {name_of(dim[0].size) for dim in dims if len(dim) == 1}
    leading = any(axis.name == ELLIPSIS for dim in dims for axis in dim)
    return not leading and set(block.open_sizes) <= told and _length(block) >= LEAST


def _length(block: Graph) -> int:
    """The number of equations of a block, including those of the blocks that it calls."""
    return len(block.own) + sum(_length(call.graph) for call in block.calls)


@functools.lru_cache(maxsize=1024)
def in_numbers(block: Graph) -> Graph:
    """A normal form that is equal for blocks that are computed alike.

    The known sizes are put in as numbers, so that their names do not count. Values that do not affect how the block is
    computed are dropped."""
    block = bare(block)
    sizes = {name: evaluate(symbol(name), block.bound) for name in names_of_sizes(block)}
    return instance(block, sizes)


@functools.lru_cache(maxsize=1024)
def bare(graph: Graph) -> Graph:
    """The graph without the values of its leaves, which do not affect how it is computed."""
    body = tuple(
        item if isinstance(item, Equation) else replace(item, graph=bare(item.graph)) for item in graph.body
    )
    return replace(graph, leaves=tuple(map(_bare, graph.leaves)), body=body)


def _bare(leaf: Leaf) -> Leaf:
    holds = of_leaf(leaf) if leaf.value is not None else leaf.holds
    return replace(leaf, start=None, value=None, holds=holds)
