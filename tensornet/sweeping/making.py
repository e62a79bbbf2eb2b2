"""`tensornet.sweep`: graphs built, planned, and timed side by side."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

from ..codegen.program import plan, planned
from ..device.calibration import profile_of
from ..device.timing import timings
from ..dtypes import element_type, itemsize
from ..errors import ShapeError, TensornetError, near
from ..fitting.nearest import nearest
from ..graph.argument_shapes import sizes_from_shapes
from ..graph.formulas import parameter_count
from ..graph.graph import Graph
from ..planning.gradients import Quickest, joint_graph, leaves_of, results_of
from ..planning.planner import NOMINAL, flop_count, whole_sizes
from ..planning.plans import Plan
from ..planning.progress import measuring, watched
from ..protocol import Backend, load_backend
from ..runtime.compiling import to_backend
from .candidates import BASELINE, Candidate, candidates
from .measuring import Place
from .sweeps import Row, Sweep, plain

__all__ = ["sweep"]


@watched()
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
    """What each of many graphs costs: parameters, FLOPs, bytes, and seconds, expected and measured.

    All are held at once and timed in this process, a call of one after that of another, in turns; they are compared
    with one of them, for a time says little, and a ratio more. What is timed are calls of `tensornet.module` on torch,
    with autograd for the backward pass, and of `tensornet.compile` elsewhere, the gradients as equations; all
    parameters get theirs.

    Args:
        graphs: graphs by name; or a function that builds one, with what to choose from in `over`. Settings that
            are the same for all are bound before: `functools.partial(tn.models.linear, (32, 32), (32, 32))`.
        over: setting → list of choices, of which all combinations are built. A tuple is one choice, as a rank for
            each mode is. What the builder refuses is a row that says why.
        inputs: arrays by the names of inputs; others are drawn, positions are 0. Their shapes say sizes.
        backend: "numpy", "torch", "cupy" or "jax".
        device: as the backend names it; its default if not given.
        dtype: the element type.
        measure: whether to time calls.
        training: whether to tell of the backward pass as well: the time of both ways, and bytes kept for it.
        error: gives a number for each graph, such as how well it approximates.
        weights: instead, that the graphs are to approximate: the error is then the least that factors can have,
            ‖W − Ŵ‖ / ‖W‖. Name to array, of graphs that have them or compute them of others, as
            `tensornet.substitute` makes it; or one array, of layers that multiply their one input by it.
        baseline: which the others are compared with: the name of one of them, the first if not given; or a graph,
            which is a row more, called "baseline".
        rounds: turns of each.
        clock: "wall"; or "process", where others use the processor too and there is one thread: then only time
            counts that this process had it.
        threads: of the processor, on torch.
        seed: of parameters and inputs that are drawn.
        **sizes: values for open sizes; each graph takes those that it has, and one not given is assumed to be 64.

    Raises:
        TensornetError: nothing is there to sweep over, choices are no list, all combinations are refused, or there
            is no such baseline, clock or number of threads; an error and weights are both given.
        ShapeError: no graph has a size or an input that is given, or it does not fit.
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
    place = Place(
        chosen, chosen.device() if device is None else device, element_type(dtype), threads, clock, seed
    )
    place.check()
    if type(rounds) is not int or rounds < 1:
        raise TensornetError(f"rounds is {rounds!r}", fix="give a whole number, 1 or more")
    if not isinstance(seed, Integral) or seed < 0:
        raise TensornetError(f"seed is {seed!r}", fix="give a whole number, 0 or more")
    if inputs is not None and not isinstance(inputs, Mapping):
        fix = 'give arrays by the names of inputs: {"x": array}'
        raise TensornetError(f"inputs is a {type(inputs).__name__}", fix=fix)
    if error is not None and not callable(error):
        fix = "give a function of a graph, or what the graphs are to approximate as weights="
        raise TensornetError(f"error is {error!r}", fix=fix)
    if weights is not None:
        if error is not None:
            raise TensornetError("error and weights are both given", fix="give one of them")
        error = functools.partial(nearest, weights=weights)
    given = to_backend(inputs or {}, chosen, device=place.device)
    asked = _Asked(place, training, error, sizes, given)
    found = candidates(graphs, over, baseline)
    asked.check(found)
    with place.taken():
        where = chosen.version(place.device)
        made = [asked.planned(each) for each in found]
        if all(each.plan is None for each in made):
            raise TensornetError(f"none of the graphs can be planned: {made[0].row.refused}")
        rows = _measured(made, place, given, rounds) if measure else [each.row for each in made]
    first = next(each.plan for each in made if each.plan is not None)
    told = baseline if isinstance(baseline, str) else BASELINE if baseline is not None else None
    return Sweep(
        tuple(rows),
        next(row.name for row in rows if not row.refused) if told is None else told,
        chosen.name,
        place.device,
        place.dtype,
        where,
        threads,
        clock,
        tuple({name: size for each in made for name, size in each.sizes}.items()),
        tuple(dict.fromkeys(name for each in made for name in each.assumed)),
        rounds if measure else 0,
        str(first.certainty or ""),
    )


@dataclass(frozen=True)
class _Planned:
    """A row, and what runs of it.

    Attributes:
        row: as far as it is known.
        plan: of the forward pass; nothing where there is no graph.
        both: of that and the backward pass, where it is asked for and there is one.
        sizes, assumed: of the axes that were open, and those among them that nobody gave.
    """

    row: Row
    plan: Plan | None = None
    both: Plan | None = None
    sizes: tuple[tuple[str, int], ...] = ()
    assumed: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Asked:
    """What is asked of each graph.

    Attributes:
        place: where it is to run.
        training: whether its backward pass is told of.
        error: gives a number for it.
        sizes: of open axes, of those graphs that have them.
        given: inputs.
    """

    place: Place
    training: bool
    error: Callable[[Graph], float] | None
    sizes: Mapping[str, int]
    given: Mapping[str, Any]

    def check(self, found: Sequence[Candidate]) -> None:
        """Refuses sizes and inputs that no graph has."""
        graphs = [each.graph for each in found if each.graph is not None]
        sizes = {name for graph in graphs for name in (*graph.open_sizes, *graph.bound)}
        inputs = {leaf.name for graph in graphs for leaf in graph.inputs}
        for what, wanted, known in (("size", self.sizes, sizes), ("input", self.given, inputs)):
            for name in wanted:
                if name not in known:
                    fix = f"{near(name, known)}there are {', '.join(sorted(known)) or 'none'}"
                    raise ShapeError(f"no graph has the {what} '{name}'", fix=fix)

    def planned(self, candidate: Candidate) -> _Planned:
        """A graph with what can be told of it before it runs."""
        settings = tuple((name, plain(value)) for name, value in candidate.settings)
        row = Row(candidate.name, settings, refused=candidate.refused, note=candidate.note)
        if candidate.graph is None:
            return _Planned(row)
        try:
            graph, assumed = self._sized(candidate.graph)
            forward = self._plan(graph)
        except TensornetError as error:
            return _Planned(replace(row, refused=error.message))
        sizes = tuple((name, graph.bound[name]) for name in candidate.graph.open_sizes)
        row = replace(
            row,
            parameters=parameter_count(graph),
            flops=flop_count(graph),
            bytes=forward.bytes,
            expected_seconds=forward.seconds,
        )
        if self.error is not None:
            row = self._with_error(row, candidate.graph)
        if not self.training:
            return _Planned(row, forward, None, sizes, assumed)
        try:
            both = self._plan(self._joint(graph))
            place = self.place
            back = plan(
                graph,
                backend=place.backend,
                device=place.device,
                dtype=place.dtype,
                training=True,
                compare=False,
            )
        except TensornetError as error:
            return _Planned(_noted(row, f"no backward pass: {error.message}"), forward, None, sizes, assumed)
        kept = sum(size for _, size in back.kept)
        row = replace(row, expected_training_seconds=both.seconds, kept=kept)
        return _Planned(row, forward, both, sizes, assumed)

    def _sized(self, graph: Graph) -> tuple[Graph, tuple[str, ...]]:
        """The graph with every size, and the names of those that are assumed."""
        known = {*graph.open_sizes, *graph.bound}
        told = {name: size for name, size in self.sizes.items() if name in known}
        graph = graph.bind(**whole_sizes(graph, told))
        leaves = [leaf for leaf in graph.inputs if leaf.name in self.given]
        shapes = [tuple(self.given[leaf.name].shape) for leaf in leaves]
        graph = graph.bind(**sizes_from_shapes(graph, leaves, shapes))
        assumed = tuple(graph.open_sizes)
        return graph.bind(**dict.fromkeys(assumed, NOMINAL)), assumed

    def _plan(self, graph: Graph) -> Plan:
        place = self.place
        return planned(graph, {}, place.backend, place.device, place.dtype)

    def _joint(self, graph: Graph) -> Graph:
        """The results of a graph and the gradients of its parameters, as one graph."""
        place = self.place
        profile = profile_of(place.backend, place.device, place.dtype)
        pairs = Quickest(profile, itemsize(place.dtype), ())
        return joint_graph(graph, leaves_of(graph, None), pairs=pairs).joined(results_of(graph))

    def _with_error(self, row: Row, graph: Graph) -> Row:
        assert self.error is not None
        try:
            told = self.error(graph)
        except TensornetError as error:
            return _noted(row, f"no error: {error.message}")
        try:
            found = float(told)
        except (TypeError, ValueError):
            found = math.nan
        return _noted(row, "no error: it is not a number") if math.isnan(found) else replace(row, error=found)


def _noted(row: Row, note: str) -> Row:
    return replace(row, note=f"{row.note}; {note}" if row.note else note)


def _measured(made: Sequence[_Planned], place: Place, given: Mapping[str, Any], rounds: int) -> list[Row]:
    """The rows with the time of a call, and of both ways where these were planned."""
    rows = {each.row.name: each.row for each in made}
    for way in ("seconds", "training_seconds"):
        runs = {}
        for each in made:
            try:
                run = _run(each, way, place, given)
            except (TensornetError, MemoryError, RuntimeError) as error:
                if not isinstance(error, TensornetError) and not _is_of_memory(error):
                    raise
                reason = getattr(error, "message", None) or str(error).partition("\n")[0]
                rows[each.row.name] = _noted(rows[each.row.name], f"not timed: {reason}")
            else:
                if run is not None:
                    runs[each.row.name] = run
        for name, found in timings(runs, rounds, clock=place.read, told=measuring).items():
            times: dict[str, Any] = {
                way: found.median,
                f"{way}_low": found.low,
                f"{way}_high": found.high,
            }
            rows[name] = replace(rows[name], **times)
    return list(rows.values())


def _is_of_memory(error: Exception) -> bool:
    """Whether there is too little memory: libraries say so each in their own way."""
    told = str(error).lower()
    return isinstance(error, MemoryError) or "memory" in told or "resource_exhausted" in told


def _run(made: _Planned, way: str, place: Place, given: Mapping[str, Any]) -> Callable[[], Any] | None:
    """What is to be timed of a graph, called once, if there is such a way of it."""
    if made.plan is None or (made.both is None and way == "training_seconds"):
        return None
    if made.both is None or way == "seconds":
        run = place.forward(made.plan, given)
    else:
        run = place.training(made.plan, made.both, given)
    run()
    return run
