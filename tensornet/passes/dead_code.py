"""Dead code elimination: what no output needs is dropped."""

from __future__ import annotations

from dataclasses import replace

from ..graph.graph import Apply, Graph
from ..language.equation import Equation

__all__ = ["eliminate_dead_code"]


def eliminate_dead_code(graph: Graph) -> Graph:
    """Drops what no output needs: equations, calls, and results of calls; leaves stay, so that signatures do."""
    needed = graph.needed()
    kept = tuple(_needed_of(item, needed) for item in graph.body if needed.intersection(item.defines))
    return graph if kept == graph.body else replace(graph, body=kept)


def _needed_of(item: Equation | Apply, needed: frozenset[str]) -> Equation | Apply:
    """What an equation or a call defines that is needed."""
    if isinstance(item, Equation) or item.along is not None or needed.issuperset(item.results):
        return item
    pairs = zip(item.graph.outputs, item.results, strict=True)
    outputs, results = zip(*(pair for pair in pairs if pair[1] in needed), strict=True)
    return replace(item, graph=eliminate_dead_code(replace(item.graph, outputs=outputs)), results=results)
