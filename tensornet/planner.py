"""Graph to plan: rewrite, order every contraction, lower, generate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from .calibration import profile_of
from .codegen import generate
from .device import DeviceProfile, default_profile, element_type, itemsize
from .elements import check_complex, of_leaves
from .errors import BackendError, ShapeError
from .formula import naive_flop_formula
from .functions import Element
from .graph import Graph
from .lowering import lower, peak_memory
from .ordering import as_written, fastest, fewest_flops
from .protocol import Backend, load_backend
from .rewrite import distribute, simplify
from .schedule import Alternative, Plan
from .search import Choose
from .sizes import as_size, evaluate

__all__ = ["flop_count", "flop_formula", "plan", "planned", "whole_sizes"]

NOMINAL = 64
"""The size assumed for an open axis when none is given."""

# ---------------------------------------------------------------------------- planning


def plan(
    graph: Graph,
    /,
    *,
    backend: str | Backend = "numpy",
    device: str | None = None,
    dtype: str = "float32",
    profile: DeviceProfile | None = None,
    memory_limit: int | None = None,
    compare: bool = True,
    outputs: str | Sequence[str] | None = None,
    **sizes: int,
) -> Plan:
    """Finds the fastest order to compute a graph on a device.

    Args:
        graph: a layer or a model.
        backend: "numpy", "torch" or "cupy".
        device: where it will run, as the backend names it; the backend's default if not given.
        dtype: the element type, "float32" and so on; it decides the bytes moved.
        profile: the device constants; those measured on this machine if not given.
        memory_limit: bytes that may be alive at once, inputs and parameters included.
        compare: whether to price the order as written and the one of fewest FLOPs as well.
        outputs: what to compute instead of the graph's own outputs; see `Graph.select`.
        **sizes: values for open sizes to plan at; one not given is assumed to be 64, and the plan
            says so. The code works for others.

    Raises:
        ShapeError: a size is given that is not open.
        BackendError: there is no such backend, it has no such device, or the plan needs more than
            `memory_limit`.

    Example:
        >>> import tensornet as tn
        >>> layer = tn.layer("y[b,p,q] = x[b,i,j] * U[p,i] * V[q,j]", inputs="x", i=4, j=4, p=2, q=2)
        >>> tn.plan(layer, b=10_000).steps[0].equation.name
        't1'
    """
    chosen = load_backend(backend)
    graph = graph if outputs is None else graph.select(outputs)
    device = chosen.device() if device is None else device
    return planned(graph, sizes, chosen, device, dtype, profile, memory_limit, compare)


def planned(
    graph: Graph,
    sizes: Mapping[str, int],
    backend: Backend,
    device: str,
    dtype: str,
    profile: DeviceProfile | None = None,
    memory_limit: int | None = None,
    compare: bool = False,
) -> Plan:
    """`plan` with the sizes apart from the settings, so that an axis may be called `dtype`."""
    backend.check_device(device)
    dtype, profile = element_type(dtype), profile or profile_of(backend, device)
    found = _schedule(graph, backend.name, device, dtype, profile, memory_limit, compare, sizes)
    return replace(found, code=generate(found, backend))


def _schedule(
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
    steps, results = lower(rewritten, values, profile, size, fastest)
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
        steps, _ = lower(candidate, values, profile, size, choose)
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
    found = _schedule(graph, "numpy", "cpu", "float32", default_profile("cpu"), None, False, sizes)
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
