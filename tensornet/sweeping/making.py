"""`tensornet.sweep`: graphs built, planned, and timed side by side."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..device.timing import timings
from ..dtypes import element_type
from ..errors import ShapeError, TensornetError, near
from ..fitting.nearest import nearest
from ..graph.argument_shapes import sizes_from_shapes
from ..graph.formulas import parameter_count
from ..graph.graph import Graph
from ..planning.flops import flop_count
from ..planning.planner import NOMINAL, whole_sizes
from ..planning.plans import Plan
from ..protocol import Backend, load_backend
from ..runtime.compiling import to_backend
from .candidates import BASELINE, Candidate, candidates
from .measuring import Place
from .sweeps import Row, Sweep

__all__ = ["sweep"]


def sweep(
    graphs: Mapping[str, Graph] | Callable[..., Graph],
    /,
    *,
    over: Mapping[str, list[Any]] | None = None,
    inputs: Mapping[str, Any] | None = None,
    backend: str | Backend = "torch",
    device: str | None = None,
    dtype: str = "float32",
    measure: bool = True,
    training: bool = False,
    error: Callable[[Graph], float] | None = None,
    weights: Any = None,
    baseline: str | Graph | None = None,
    rounds: int = 7,
    clock: str = "wall",
    threads: int | None = None,
    seed: int = 0,
    **sizes: int,
) -> Sweep:
    """The costs of many graphs in one table: parameters, FLOPs, bytes, and seconds, expected and measured.

    All graphs are in memory at once, and take turns to be timed in this process. They are compared with one of them,
    because a ratio says more than a time. On torch, calls of `tensornet.module` are timed, with autograd for the
    backward pass. On other backends, calls of `tensornet.compile` are timed, with the gradients as equations. The
    backward pass computes the gradients of all parameters.

    Args:
        graphs: graphs by name; or a function that builds one from the settings in `over`. Bind settings that are the
            same for all before: `functools.partial(tn.models.linear, (32, 32), (32, 32))`.
        over: setting → list of choices. One graph is built for each combination. A tuple is one choice, such as a
            rank for each mode. A combination that the builder refuses becomes a row with the reason.
        inputs: arrays by the names of inputs. Their shapes determine sizes. Other inputs are random, positions are 0.
        backend: "numpy", "torch", "cupy" or "jax".
        device: the device as the backend names it; by default that of the backend.
        dtype: the element type.
        measure: whether to time calls.
        training: whether to report the backward pass too: the time of both passes, and the bytes kept for it.
        error: a function that returns a number for each graph, such as an approximation error.
        weights: instead of `error`, the weights that the graphs approximate. The error is then the least that factors
            can have, ‖W − Ŵ‖ / ‖W‖. Name to array, for graphs that have the weights or compute them from others, as
            after `tensornet.substitute`; or one array, for layers that multiply their one input by it.
        baseline: the graph that the others are compared with: the name of one of them, by default the first that is
            not refused; or a graph, which becomes a further row called "baseline".
        rounds: the number of turns of each graph.
        clock: "wall"; or "process", if other processes use the processor. It counts only the time in which this
            process runs, and needs device="cpu" and threads=1.
        threads: the number of threads of the processor, on torch.
        seed: the seed of random parameters and inputs.
        **sizes: values for open sizes; each graph takes those that it has, and one not given is assumed to be 64.

    Raises:
        TensornetError: there is nothing to sweep over, choices are not a list, all combinations are refused, or there
            is no such baseline, clock or number of threads; an error and weights are both given.
        ShapeError: no graph has a given size or input, or its shape does not match.
        BackendError: there is no such backend or device.

    Example:
        >>> import functools, tensornet as tn
        >>> build = functools.partial(tn.models.tcl, (8, 8))
        >>> found = tn.sweep(build, over={"ranks": [2, (4, 2), 8]}, baseline="ranks=8", measure=False, lead=100)
        >>> [(row.name, row.parameters, found.ratio(row, "parameters")) for row in found]
        [('ranks=2', 32, 0.25), ('ranks=(4, 2)', 48, 0.375), ('ranks=8', 128, 1.0)]
    """
    chosen = load_backend(backend)
    chosen.namespace()
    where = chosen.device() if device is None else device
    place = Place(chosen, where, element_type(dtype), threads, clock, seed, rounds)
    place.check()
    if inputs is not None and not isinstance(inputs, Mapping):
        fix = 'give arrays by the names of inputs: {"x": array}'
        raise TensornetError(f"inputs is a {type(inputs).__name__}", fix=fix)
    if error is not None and not callable(error):
        fix = "give a function of a graph, or what the graphs are to approximate as weights="
        raise TensornetError(f"error is {error!r}", fix=fix)
    if weights is not None and error is not None:
        raise TensornetError("error and weights are both given", fix="give one of them")
    error = error if weights is None else functools.partial(nearest, weights=weights)
    given = to_backend(inputs or {}, chosen, device=place.device)
    found = candidates(graphs, over, baseline)
    _check_names(found, sizes, given)
    with place.taken():
        made = [_planned(*each, place, training, error, sizes, given) for each in found]
        plans = [each.plan for each in made if each.plan is not None]
        if not plans:
            raise TensornetError(f"none of the graphs can be planned: {made[0].row.refused}")
        rows = _measured(made, place, given) if measure else [each.row for each in made]
        where = chosen.version(place.device)
    first = next(row.name for row in rows if not row.refused)
    return Sweep(
        rows=tuple(rows),
        baseline=BASELINE if isinstance(baseline, Graph) else baseline or first,
        backend=chosen.name,
        device=place.device,
        dtype=place.dtype,
        where=where,
        threads=threads,
        clock=clock,
        sizes=tuple({name: size for each in made for name, size in each.sizes.items()}.items()),
        assumed=tuple(dict.fromkeys(name for each in made for name in each.assumed)),
        rounds=rounds if measure else 0,
        certainty=str(plans[0].certainty or ""),
    )


def _check_names(found: Sequence[Candidate], sizes: Mapping[str, int], given: Mapping[str, Any]) -> None:
    """Raises an error for sizes and inputs that no graph has."""
    graphs = [graph for _, graph in found if graph is not None]
    all_sizes = {name for graph in graphs for name in (*graph.open_sizes, *graph.bound)}
    inputs = {leaf.name for graph in graphs for leaf in graph.inputs}
    for what, wanted, known in (("size", sizes, all_sizes), ("input", given, inputs)):
        for name in wanted:
            if name not in known:
                fix = f"{near(name, known)}there are {', '.join(sorted(known)) or 'none'}"
                raise ShapeError(f"no graph has the {what} '{name}'", fix=fix)


@dataclass(frozen=True)
class _Planned:
    """A row, and the plans of its graph.

    Attributes:
        row: the row without measured times.
        plan: the plan of the forward pass; None if there is no graph.
        both: the plan of the forward and the backward pass, if it is required and there is one.
        sizes, assumed: the sizes of open axes, and the names of those that were not given.
    """

    row: Row
    plan: Plan | None = None
    both: Plan | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    assumed: tuple[str, ...] = ()


def _planned(
    row: Row,
    graph: Graph | None,
    place: Place,
    training: bool,
    error: Callable[[Graph], float] | None,
    sizes: Mapping[str, int],
    given: Mapping[str, Any],
) -> _Planned:
    """A graph with its costs before it runs; see `sweep` for the options."""
    if graph is None:
        return _Planned(row)
    try:
        sized, assumed = _sized(graph, sizes, given)
        forward, both = place.planned(sized), None
    except TensornetError as refusal:
        return _Planned(replace(row, refused=refusal.message))
    costs = {"flops": flop_count(sized), "bytes": forward.bytes, "expected_seconds": forward.seconds}
    row = _with_error(replace(row, parameters=parameter_count(sized), **costs), graph, error)
    try:
        if training:
            both, kept = place.planned_both_ways(sized)
            row = replace(row, expected_training_seconds=both.seconds, kept=kept)
    except TensornetError as refusal:
        row = _noted(row, f"no backward pass: {refusal.message}")
    return _Planned(row, forward, both, {name: sized.bound[name] for name in graph.open_sizes}, assumed)


def _sized(graph: Graph, sizes: Mapping[str, int], given: Mapping[str, Any]) -> tuple[Graph, tuple[str, ...]]:
    """The graph with every size bound, and the names of sizes that are assumed."""
    known = {*graph.open_sizes, *graph.bound}
    graph = graph.bind(**whole_sizes(graph, {name: size for name, size in sizes.items() if name in known}))
    leaves = [leaf for leaf in graph.inputs if leaf.name in given]
    shapes = [tuple(given[leaf.name].shape) for leaf in leaves]
    graph = graph.bind(**sizes_from_shapes(graph, leaves, shapes))
    return graph.bind(**dict.fromkeys(graph.open_sizes, NOMINAL)), graph.open_sizes


def _with_error(row: Row, graph: Graph, error: Callable[[Graph], float] | None) -> Row:
    """The row with the error of its graph, or a note that there is none."""
    try:
        found = None if error is None else float(error(graph))
    except TensornetError as raised:
        return _noted(row, f"no error: {raised.message}")
    except (TypeError, ValueError):
        found = math.nan
    is_number = found is None or not math.isnan(found)
    return replace(row, error=found) if is_number else _noted(row, "no error: it is not a number")


def _noted(row: Row, note: str) -> Row:
    return replace(row, note=f"{row.note}; {note}" if row.note else note)


def _measured(made: Sequence[_Planned], place: Place, given: Mapping[str, Any]) -> list[Row]:
    """The rows with the time of a call, and of both passes if these were planned."""
    rows = {each.row.name: each.row for each in made}
    for way in ("seconds", "training_seconds"):
        runs = dict[str, Callable[[], Any]]()
        for name, plan, both in ((each.row.name, each.plan, each.both) for each in made):
            if plan is None or (both is None and way == "training_seconds"):
                continue
            try:
                run = place.call(plan, both if way == "training_seconds" else None, given)
                run()
                runs[name] = run
            except (TensornetError, MemoryError, RuntimeError) as error:
                if not isinstance(error, TensornetError) and not _is_of_memory(error):
                    raise
                reason = getattr(error, "message", None) or str(error).partition("\n")[0]
                rows[name] = _noted(rows[name], f"not timed: {reason}")
        for name, found in timings(runs, place.rounds, clock=place.read).items():
            times: dict[str, Any] = {way: found.median, f"{way}_low": found.low, f"{way}_high": found.high}
            rows[name] = replace(rows[name], **times)
    return list(rows.values())


def _is_of_memory(error: Exception) -> bool:
    """Whether an error means too little memory. Each library reports this in its own way."""
    told = str(error).lower()
    return isinstance(error, MemoryError) or "memory" in told or "resource_exhausted" in told
