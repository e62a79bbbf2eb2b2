"""Losses: a loss appended to a graph."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..errors import EquationError
from ..graph.graph import Graph
from ..graph.shape_inference import Axis, dim_size
from ..language.expression import ELLIPSIS, fresh
from ..language.parser import parse_names
from ..sizes import name_of, put_in, size_names, symbol
from .composition import Trace
from .instantiate import written_out

__all__ = ["ending_in", "with_loss"]


def with_loss(graph: Graph, loss: Graph | str | None) -> Graph:
    """The graph with a scalar loss as its only result.

    Args:
        graph: a layer or a model.
        loss: a graph that takes the results of `graph` and further inputs, which then follow those of `graph`;
            or the name of a scalar that `graph` computes; or None if the loss is its only result.

    Raises:
        EquationError: the loss is not a scalar, or takes fewer inputs than there are results.
        ShapeError: the loss does not fit the results.
    """
    if loss is not None and not isinstance(loss, Graph | str):
        fix = "write it as equations: tensornet.layer(…)"
        raise EquationError(f"a loss is a graph, or the name of a number, not {loss!r}", fix=fix)
    if isinstance(loss, str):
        graph = graph.select(loss)
    found = ending_in(graph, loss) if isinstance(loss, Graph) else graph
    if len(found.outputs) != 1 or found.named[found.outputs[0]]:
        known = ", ".join(f"{name} with {len(found.named[name])} axes" for name in found.outputs)
        fix = "give loss= a graph with one number as its result, or the name of one"
        raise EquationError(f"the loss must be a single number, and the results are {known}", fix=fix)
    return found


def ending_in(graph: Graph, loss: Graph) -> Graph:
    """A graph followed by a loss, which takes its results and then inputs of its own."""
    count, results = len(graph.inputs), len(graph.outputs)
    if len(loss.inputs) < results:
        told = ", ".join(leaf.name for leaf in loss.inputs) or "none"
        raise EquationError(
            f"the loss takes {len(loss.inputs)} input(s) ({told}), and there are {results} result(s)",
            fix=f"give it an input for each result, or select some of {', '.join(graph.outputs)}: graph.select(…)",
        )

    lead = _leading(graph, loss)
    sizes = _sizes_of(graph, loss, lead)
    inputs = [replace(leaf, dims=written_out(leaf.dims, lead)) for leaf in graph.inputs]
    taken = {leaf.name for leaf in inputs}
    for leaf in loss.inputs[results:]:
        dims = tuple(tuple(Axis(axis.name, put_in(axis.size, sizes)) for axis in dim) for dim in leaf.dims)
        inputs.append(replace(leaf, name=fresh(leaf.name, taken), dims=dims))
        taken.add(inputs[-1].name)
    spoken = {name for leaf in inputs for size in leaf.shape for name in size_names(size)}
    known = {name: size for name, size in graph.sizes if name in spoken}
    trace = Trace(known)
    declared = parse_names([str(leaf).removesuffix(": input") for leaf in inputs], "input")
    tensors = tuple(map(trace.input, declared))
    given = trace.call(graph, tensors[:count], "")
    scope = "loss" if loss.parameters or loss.constants else ""
    found = trace.call(loss, (*given, *tensors[count:]), scope)
    return trace.graph(tuple(each.name for each in found))


def _leading(graph: Graph, loss: Graph) -> tuple[Axis, ...]:
    """The axes that `...` stands for in the graph, given how the loss reads its first result."""
    dims = graph.named[graph.outputs[0]]
    if not any(dim[0].name == ELLIPSIS for dim in dims if dim):
        return ()
    axes = [dim[0].name for dim in loss.inputs[0].dims]
    return tuple(Axis(name, symbol(name)) for name in axes[: len(axes) - len(dims) + 1])


def _sizes_of(graph: Graph, loss: Graph, lead: tuple[Axis, ...]) -> dict[str, Any]:
    """The open sizes of the loss, in terms of those of the graph."""
    found: dict[str, Any] = {}
    for name, leaf in zip(graph.outputs, loss.inputs, strict=False):
        for dim, own in zip(written_out(graph.named[name], lead), leaf.dims, strict=False):
            size = dim_size(own)
            if (mine := name_of(size)) is not None:
                found.setdefault(mine, dim_size(dim))
    return found
