"""Graphs as values of JSON, exactly and at once: nothing is inferred anew, as it is from `Graph.to_json`.

What is inside a plan is written so; the text of every equation stands beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..documents import Part
from ..language.encoding import read_equation, read_size, write_equation, write_size
from ..language.equation import Equation
from ..language.starts import STARTS
from ..operations.functions import Element
from .apply import Apply
from .graph import Graph
from .leaves import Constant, Leaf
from .shape import Axis

__all__ = ["read_axes", "read_element", "read_graph", "write_axes", "write_graph"]


def write_axes(axes: tuple[Axis, ...]) -> list[list[Any]]:
    """Axes with their sizes."""
    return [[axis.name, write_size(axis.size)] for axis in axes]


def read_axes(part: Part) -> tuple[Axis, ...]:
    """What `write_axes` gave."""
    return tuple(Axis(name.name(), read_size(size)) for name, size in (each.pair() for each in part))


def read_element(part: Part) -> Element:
    """What the elements of a tensor are, by name."""
    return Element[part.one_of(*Element.__members__)]


def write_graph(graph: Graph, values: bool = True) -> dict[str, Any]:
    """A graph as a value of JSON.

    Args:
        graph: the graph.
        values: whether the values of constants and starts are written, and not only of what kind they are.
    """
    blocks = {block: number for number, block in enumerate(dict.fromkeys(call.graph for call in graph.calls))}
    return {
        "sizes": [[name, write_size(size)] for name, size in graph.sizes],
        "leaves": [_write_leaf(leaf, values) for leaf in graph.leaves],
        "blocks": [write_graph(block, values) for block in blocks],
        "body": [
            _write_call(item, blocks) if isinstance(item, Apply) else write_equation(item)
            for item in graph.body
        ],
        "outputs": list(graph.outputs),
    }


def _write_call(call: Apply, blocks: Mapping[Graph, int]) -> dict[str, Any]:
    return {
        "block": blocks[call.graph],
        "scope": call.scope,
        "operands": list(call.operands),
        "results": list(call.results),
        "apart": call.apart,
    }


def read_graph(part: Part) -> Graph:
    """What `write_graph` gave, checked as any graph is.

    Raises:
        EquationError: it is no graph.
        ShapeError: its sizes cannot be.
    """
    blocks = [read_graph(each) for each in part["blocks"]]
    return Graph(
        tuple(_read_leaf(each) for each in part["leaves"]),
        tuple(_read_item(each, blocks) for each in part["body"]),
        part["outputs"].names(),
        tuple((name.name(), read_size(size)) for name, size in (each.pair() for each in part["sizes"])),
    )


def _read_item(part: Part, blocks: Sequence[Graph]) -> Equation | Apply:
    if part.get("block") is None:
        return read_equation(part)
    operands, results = part["operands"].names(), part["results"].names()
    is_apart = part.get("apart")
    scope, block = part["scope"].scope(), part["block"].among(blocks)
    return Apply(block, operands, results, scope, is_apart is not None and is_apart.truth())


def _write_leaf(leaf: Leaf, values: bool) -> dict[str, Any]:
    start = leaf.start
    return {
        "name": leaf.name,
        "kind": leaf.kind,
        "dims": [write_axes(dim) for dim in leaf.dims],
        "start": _write_array(start, values) if isinstance(start, Constant) else start and list(start),
        "value": leaf.value and _write_array(leaf.value, values),
        "holds": leaf.holds if leaf.holds is None else leaf.holds.name,
    }


def _read_leaf(part: Part) -> Leaf:
    start, value, holds = part["start"], part["value"], part["holds"]
    return Leaf(
        part["name"].name(),
        part["kind"].one_of("input", "parameter", "constant"),
        tuple(read_axes(dim) for dim in part["dims"]),
        None if start.is_none else _read_start(start),
        None if value.is_none else _read_array(value),
        None if holds.is_none else read_element(holds),
    )


def _write_array(array: Constant, values: bool) -> dict[str, Any]:
    return array.plain() if values else {"dtype": array.dtype, "shape": list(array.shape)}


def _read_array(part: Part) -> Constant:
    """A value, which must be as long as its shape says."""
    try:
        found = Constant.of_plain(part.value)
        found.array()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise part.fail(f"is no array: {error!r}") from None
    return found


def _read_start(part: Part) -> tuple[str, float] | Constant:
    if isinstance(part.value, dict):
        return _read_array(part)
    kind, number = part.pair()
    return kind.one_of(*STARTS), number.real()
