"""Dead code elimination: drops what no output needs."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from ..graph.graph import Apply, Graph
from ..language.equation import Equation
from ..sizes import name_of, size_names


def eliminate_dead_code(graph: Graph) -> Graph:
    """Drops what no output needs: equations, calls, and results and operands of calls.

    Leaves stay, so that signatures do not change.
    """
    needed = {*(graph.needed() if graph.reads_below else graph.outputs)}  # steps read tensors defined below
    kept: list[Equation | Apply] = []
    for item in reversed(graph.body):
        if not needed.isdisjoint(item.defines):
            kept.append(_needed_of(item, needed))
            needed.update(kept[-1].reads)
    body = tuple(reversed(kept))
    if body == graph.body:
        return graph
    found = replace(graph, body=body)
    return eliminate_dead_code(found) if graph.reads_below else found  # calls that are narrower need less


def _needed_of(item: Equation | Apply, needed: Container[str]) -> Equation | Apply:
    """An equation or a call; a call without the results and operands that are not needed."""
    if isinstance(item, Equation) or item.along is not None or all(name in needed for name in item.results):
        return item
    pairs = zip(item.graph.outputs, item.results, strict=True)
    outputs, results = zip(*(pair for pair in pairs if pair[1] in needed), strict=True)
    block = eliminate_dead_code(replace(item.graph, outputs=outputs))
    unread = _unread(block)
    given = zip(block.inputs, item.operands, strict=True)
    operands = tuple(name for leaf, name in given if leaf.name not in unread)
    block = replace(block, leaves=tuple(leaf for leaf in block.leaves if leaf.name not in unread))
    return replace(item, graph=block, operands=operands, results=results)


def _unread(block: Graph) -> set[str]:
    """The inputs of a block that nothing needs, not even for a size."""
    needed = block.needed()
    unread = [leaf for leaf in block.inputs if leaf.name not in needed]
    others = (leaf for leaf in block.leaves if leaf not in unread)
    told = {*block.bound, *(name_of(a.size) for leaf in others for dim in leaf.dims for a in dim)}
    sizes = {leaf.name: {n for dim in leaf.dims for a in dim for n in size_names(a.size)} for leaf in unread}
    return {name for name, own in sizes.items() if own <= told}
