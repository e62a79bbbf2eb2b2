"""Graph to plan: rewrite, order every contraction, lower."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..dtypes import itemsize
from ..errors import BackendError, ShapeError
from ..graph.elements import check_complex, of_leaves
from ..graph.formula import naive_flop_formula
from ..graph.graph import Graph
from ..graph.rewrite import distribute, simplify
from ..operations.functions import Element
from ..sizes import as_size, evaluate
from .device import DeviceProfile, default_profile
from .lowering import lower, peak_memory
from .ordering import as_written, fastest, fewest_flops
from .plans import Alternative, Plan
from .search import Choose
from .watching import counted, watched

__all__ = ["flop_count", "flop_formula", "schedule", "whole_sizes"]

NOMINAL = 64
"""The size assumed for an open axis when none is given."""

# ---------------------------------------------------------------------------- planning


@watched()
def schedule(
    graph: Graph,
    backend: str,
    device: str,
    dtype: str,
    profile: DeviceProfile,
    memory_limit: int | None,
    compare: bool,
    sizes: Mapping[str, int],
) -> Plan:
    """The plan, its code not yet written."""
    given = whole_sizes(graph, sizes)
    values = {name: given.get(name, NOMINAL) for name in graph.open_sizes}
    size = itemsize(dtype)
    rewritten = rewrite(graph, values, profile, size)
    steps, results = lower(rewritten, values, profile, size, counted(rewritten, fastest))
    if "complex" in dtype:
        numbers = [name for name, holds in of_leaves(rewritten).items() if holds is Element.NUMBER]
        check_complex((step.equation for step in steps), numbers)
    peak = peak_memory(rewritten, steps, values, size)
    if memory_limit is not None and peak > memory_limit:
        raise BackendError(
            f"the plan needs {peak:,} bytes at once, and memory_limit is {memory_limit:,}",
            fix=f"allow {peak:,} bytes, or plan for smaller sizes ({', '.join(values) or 'all are fixed'})",
        )
    alternatives = _alternatives(graph, values, profile, size) if compare else ()
    at = tuple(sorted(values.items()))
    assumed = tuple(name for name, _ in at if name not in sizes)
    return Plan(graph, backend, device, dtype, at, steps, results, peak, assumed, alternatives)


def whole_sizes(graph: Graph, sizes: Mapping[str, Any]) -> dict[str, int]:
    """The sizes given for axes that are open, or that are just so long, as integers."""
    given = {name: as_size(value, name) for name, value in sizes.items()}
    for name, value in given.items():
        if graph.bound.get(name, value) != value or (
            name not in graph.open_sizes and name not in graph.bound
        ):
            known = f"it is {graph.bound[name]}" if name in graph.bound else "there is no such axis"
            raise ShapeError(
                f"a size is given for '{name}', which is not open: {known}",
                fix=f"open sizes: {', '.join(graph.open_sizes) or 'none'}",
            )
        if not isinstance(value, int):
            raise ShapeError(f"the size of '{name}' is {value!r}", fix="give a positive integer")
    return given


def rewrite(graph: Graph, values: Mapping[str, int], profile: DeviceProfile, size: int) -> Graph:
    """Every rewrite that pays at these sizes."""

    def cost(part: Graph) -> float:
        steps, _ = lower(part, values, profile, size, fastest)
        return sum(step.seconds for step in steps)

    return simplify(distribute(simplify(graph), cost))


def _alternatives(
    graph: Graph, values: Mapping[str, int], profile: DeviceProfile, size: int
) -> tuple[Alternative, ...]:
    rows: list[Alternative] = []
    options: list[tuple[str, Graph, Choose]] = [
        ("as written", graph, as_written),
        ("fewest FLOPs", simplify(graph), fewest_flops),
    ]
    for name, candidate, choose in options:
        steps, _ = lower(candidate, values, profile, size, counted(candidate, choose))
        rows.append(
            Alternative(
                name,
                sum(step.flops for step in steps),
                sum(step.bytes for step in steps),
                sum(step.seconds for step in steps),
                peak_memory(candidate, steps, values, size),
            )
        )
    return tuple(rows)


# ---------------------------------------------------------------------------- FLOPs


def flop_formula(graph: Graph, /, *, naive: bool = False, **sizes: Any) -> Any:
    """The FLOPs of the contractions, as a formula in the names of the axes.

    Each pairwise step of the plan counts 2 × the product of all its axes (a multiplication and an
    addition); with `naive=True` each contraction as written counts 2 × the product of all of its
    axes at once. Pointwise functions, softmax and the like, and sums over a lone tensor are not
    counted.

    Args:
        graph: a layer or a model.
        naive: count the terms as written instead of a plan's steps.
        **sizes: values of open sizes at which to plan; they decide the order, not the symbols.

    Example:
        >>> import tensornet as tn
        >>> tn.flop_formula(tn.layer("y[b,o] = x[b,i] * W[o,i]", inputs="x"))
        2*b*i*o
    """
    import sympy

    if naive:
        return naive_flop_formula(graph)
    found = schedule(graph, "numpy", "cpu", "float32", default_profile("cpu"), None, False, sizes)
    return sympy.expand(found.flop_formula)


def flop_count(graph: Graph, /, *, naive: bool = False, **sizes: int) -> Any:
    """The FLOPs of the contractions: an `int`, or a formula in the sizes still open.

    Args:
        graph: a layer or a model.
        naive: count the terms as written instead of a plan's steps.
        **sizes: values for open sizes.

    Example:
        >>> import tensornet as tn
        >>> tn.flop_count(tn.layer("y[b,o] = x[b,i] * W[o,i]", inputs="x", i=4, o=2), b=10)
        160
    """
    given = whole_sizes(graph, sizes)
    return evaluate(flop_formula(graph, naive=naive, **sizes), {**graph.bound, **given})
