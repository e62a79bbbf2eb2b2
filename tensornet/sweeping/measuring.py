"""`tensornet.sweep`: graphs, given by name or built for each combination of settings, are planned and timed."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy

from ..codegen.function import arguments, drawn
from ..codegen.program import plan, planned
from ..device.calibration import profile_of
from ..device.timing import Clock, timings
from ..dtypes import element_type, itemsize
from ..errors import (
    ShapeError,
    TensornetError,
    by_name,
    check_arguments,
    checked_call,
    checked_number,
    near,
    unwarned,
)
from ..graph.formulas import parameter_count
from ..graph.graph import Graph
from ..planning.flops import flop_count
from ..planning.gradients import joint_graph, leaves_of, pairwise_order, results_of
from ..planning.planner import NOMINAL, whole_sizes
from ..planning.plans import Plan
from ..protocol import Backend, load_backend
from ..runtime.compiling import compile
from ..runtime.initial_values import init
from .sweeps import Row, Sweep, plain

BASELINE = "baseline"
"""The name of a baseline that is given as a graph."""


@check_arguments
def sweep(
    graphs: Mapping[str, Graph] | Callable[..., Graph],
    /,
    *,
    over: Mapping[str, list[Any]] | None = None,
    backend: str | Backend = "torch",
    device: str | None = None,
    dtype: str = "float32",
    measure: bool = True,
    training: bool = False,
    error: Callable[[Graph], float] | None = None,
    baseline: str | Graph | None = None,
    rounds: int = 7,
    seed: int = 0,
    **sizes: int,
) -> Sweep:
    """The costs of many graphs in one table: parameters, FLOPs, bytes, and seconds, expected and measured.

    All graphs are in memory at once, and take turns to be timed in this process, on random inputs, with positions of 0.
    They are compared with one of them, because a ratio says more than a time. Calls of `tensornet.compile` are timed.
    The backward pass computes the gradients of all parameters: by autograd on torch, as equations elsewhere.

    Args:
        graphs: graphs by name; or a function that builds one from the settings in `over`. Bind settings that are the
            same for all before: `functools.partial(tn.models.linear, (32, 32), (32, 32))`.
        over: setting → list of choices. One graph is built for each combination. A tuple is one choice, such as a
            rank for each mode. A combination that the builder refuses becomes a row with the reason.
        backend: "numpy", "torch", "cupy" or "jax".
        device: the device as the backend names it; by default that of the backend.
        dtype: the element type.
        measure: whether to time calls.
        training: whether to report the backward pass too: the time of both passes, and the bytes kept for it.
        error: a function that returns a number for each graph, such as `lambda graph: tn.fit(dense, {"W": array},
            graph)[1]["W"].weight` for graphs of `tensornet.substitute`: the least error that their factors can have.
        baseline: the graph that the others are compared with: the name of one of them, by default the first that is
            not refused; or a graph, which becomes a further row called "baseline".
        rounds: the number of turns of each graph.
        seed: the seed of random parameters and inputs.
        **sizes: values for open sizes; each graph takes those that it has, and one not given is assumed to be 64.

    Raises:
        TensornetError: there is nothing to sweep over, choices are not a list, all combinations are refused, or there
            is no such baseline.
        ShapeError: no graph has a given size.
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
    checked_call(error, "error", "a graph")
    where = chosen.device() if device is None else device
    bench = Bench(chosen, where, element_type(dtype), seed, rounds, sizes)
    found = _candidates(graphs, over, baseline)
    bench.check_sizes([each.graph for each in found if each.graph])
    for each in found:
        bench.plan(each, error, training)
    refused = [each.refused for each in found if each.refused]
    if len(refused) == len(found):
        raise refused[0]
    for way in ("seconds", "training_seconds") if measure else ():
        bench.measure(way, found)
    return bench.table(found, BASELINE if isinstance(baseline, Graph) else baseline, measure)


# ---------------------------------------------------------------------------- graphs


@dataclass
class Candidate:
    """A graph of a sweep, and what is found of it.

    Attributes:
        name, chosen: the name of its row, and the settings that it was built with.
        graph: the graph, if it could be built.
        refused: the error for which there is no graph, or no plan.
        costs, notes: the costs of its row, and the remarks.
        plans: by what is measured, "seconds" and "training_seconds", the plans of the forward pass and of both passes.
    """

    name: str
    chosen: tuple[tuple[str, Any], ...] = ()
    graph: Any = None
    refused: TensornetError | None = None
    costs: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    plans: dict[str, Plan] = field(default_factory=dict)

    @property
    def row(self) -> Row:
        """Its row."""
        refused = self.refused.message if self.refused else ""
        return Row(self.name, self.chosen, **self.costs, refused=refused, note="; ".join(self.notes))

    @contextlib.contextmanager
    def noting(self, what: str) -> Iterator[None]:
        """Makes a remark of an error in the block: one of this library or of another, such as a lack of memory."""
        try:
            yield
        except (TensornetError, MemoryError, RuntimeError) as error:
            reason, *_ = str(getattr(error, "message", error)).split("\n")
            self.notes.append(f"{what}: {reason}")


def _candidates(
    graphs: Mapping[str, Graph] | Callable[..., Graph],
    over: Mapping[str, list[Any]] | None,
    baseline: str | Graph | None,
) -> list[Candidate]:
    """The graphs, in order. A baseline that is given as a graph comes first.

    Raises:
        TensornetError: there are no graphs or no choices, two graphs have the same name, or the baseline is unknown.
    """
    over = by_name(over, "the settings of over", '{"rank": [4, 8]}')
    fix = 'give graphs by name, {"dense": graph}; or a function that builds one, and over={"rank": [4, 8]}'
    found = list[Candidate]()
    if isinstance(graphs, Mapping) and not over:
        found += [Candidate(str(name), graph=graph) for name, graph in graphs.items()]
    elif callable(graphs) and not isinstance(graphs, Graph) and over:
        found += _built(graphs, over)
    if not found:
        what = f"a {type(graphs).__name__} {'with' if over else 'without'} settings"
        raise TensornetError(f"{what} is nothing to sweep over", fix=fix)
    if isinstance(baseline, Graph):
        found.insert(0, Candidate(BASELINE, graph=baseline))
    names = [each.name for each in found]
    for each in found:
        if names.count(each.name) > 1:
            raise TensornetError(f"two graphs are called '{each.name}'", fix="give each choice and name once")
        if not isinstance(each.graph, Graph) and not each.refused:
            told = f"'{each.name}' is a {type(each.graph).__name__}, not a graph"
            raise TensornetError(told, fix="give graphs, as tn.layer returns them")
    if not isinstance(baseline, Graph | None) and baseline not in names:
        raise TensornetError(f"there is no baseline '{baseline}'", fix=f"choose of {', '.join(names)}")
    return found


def _built(build: Callable[..., Graph], over: Mapping[str, list[Any]]) -> Iterator[Candidate]:
    """What a function builds from each combination of settings."""
    for setting, choices in over.items():
        if not isinstance(choices, list):  # a tuple may be one choice, such as a rank for each mode
            told = f"over['{setting}'] is a {type(choices).__name__}, not a list of choices"
            fix = f"to choose from several, give a list; {choices!r} alone is [{choices!r}]"
            raise TensornetError(told, fix=fix)
    for values in itertools.product(*over.values()):
        settings = dict(zip(over, values, strict=True))
        # words appear without their setting, as in `cp, rank=0.1`
        words = (value if isinstance(value, str) else f"{key}={value}" for key, value in settings.items())
        made = Candidate(", ".join(words), tuple((key, plain(value)) for key, value in settings.items()))
        try:
            made.graph = build(**settings)
        except TensornetError as error:
            made.refused = error
        yield made


# ---------------------------------------------------------------------------- costs


@dataclass(frozen=True)
class Bench:
    """Where the graphs of a sweep run, and the options that apply to each graph.

    Attributes:
        backend, device, dtype: the library, the device as the library names it, and the element type.
        seed: the seed of random arrays.
        rounds: the number of turns of each graph.
        sizes: the sizes of open axes, for the graphs that have them.
    """

    backend: Backend
    device: str
    dtype: str
    seed: int
    rounds: int
    sizes: Mapping[str, int]

    def __post_init__(self) -> None:
        self.backend.check_device(self.device)
        checked_number(self.rounds, "rounds", 1, whole=True)
        checked_number(self.seed, "seed", whole=True)

    @property
    def target(self) -> dict[str, Any]:
        """The options of the library for where a graph runs."""
        return {"backend": self.backend, "device": self.device, "dtype": self.dtype}

    def check_sizes(self, graphs: Sequence[Graph]) -> None:
        """Raises an error for sizes that no graph has, if there are graphs."""
        known = {name for graph in graphs for name in (*graph.open_sizes, *graph.bound)}
        for name in self.sizes if graphs else ():
            if name not in known:
                fix = f"{near(name, known)}there are {', '.join(sorted(known)) or 'none'}"
                raise ShapeError(f"no graph has the size '{name}'", fix=fix)

    def plan(self, found: Candidate, error: Callable[[Graph], float] | None, training: bool) -> None:
        """Plans a graph, and finds its costs before it runs."""
        if found.refused:
            return
        try:
            graph = self.bound(found.graph)
            graph = graph.bind(**dict.fromkeys(graph.open_sizes, NOMINAL))
            self._plan(found, "seconds", graph)
        except TensornetError as refused:
            found.refused = refused
            return
        found.costs |= {"parameters": parameter_count(graph), "flops": flop_count(graph)}
        found.costs["bytes"] = found.plans["seconds"].bytes
        if error is not None:
            with found.noting("no error"):
                if numpy.isnan(number := float(error(found.graph))):
                    raise TensornetError("it is not a number")
                found.costs["error"] = number
        if training:
            with found.noting("no backward pass"):
                pairs = pairwise_order(
                    profile_of(self.backend, self.device, self.dtype), itemsize(self.dtype)
                )
                joint = joint_graph(graph, leaves_of(graph, None), pairs=pairs)
                self._plan(found, "training_seconds", joint.joined(results_of(graph)))
                kept = plan(graph, **self.target, training=True, compare=False).kept
                found.costs["kept"] = sum(size for _, size in kept)

    def _plan(self, found: Candidate, way: str, graph: Graph) -> None:
        found.plans[way] = planned(graph, {}, **self.target)
        found.costs[f"expected_{way}"] = found.plans[way].seconds

    def bound(self, graph: Graph) -> Graph:
        """The graph with the sizes that are given."""
        known = self.sizes.keys() & {*graph.open_sizes, *graph.bound}
        return graph.bind(**whole_sizes(graph, {name: self.sizes[name] for name in known}))

    def table(self, candidates: Sequence[Candidate], baseline: str | None, measured: bool) -> Sweep:
        """The rows of all graphs, compared with one of them: the first that is not refused if none is named."""
        found = [each for each in candidates if each.plans]
        sizes, assumed = dict[str, int](), dict[str, None]()
        for each in found:
            sizes |= {name: each.plans["seconds"].graph.bound[name] for name in each.graph.open_sizes}
            assumed |= dict.fromkeys(self.bound(each.graph).open_sizes)
        return Sweep(
            rows=tuple(each.row for each in candidates),
            baseline=baseline or found[0].name,
            backend=self.backend.name,
            device=self.device,
            dtype=self.dtype,
            where=self.backend.version(self.device),
            sizes=tuple(sizes.items()),
            assumed=tuple(assumed),
            rounds=self.rounds if measured else 0,
            certainty=str(found[0].plans["seconds"].certainty or ""),
        )

    # ---- times

    def measure(self, way: str, candidates: Sequence[Candidate]) -> None:
        """Times a call of each graph, or of both passes if these were planned; the graphs take turns."""
        clock = Clock(wait=functools.partial(self.backend.synchronize, self.device))
        runs = dict[str, Callable[[], Any]]()
        for each in candidates:
            if way in each.plans:
                with each.noting("not timed"):
                    run = self.call(way, **each.plans)
                    run()
                    runs[each.name] = run
        took = timings(runs, self.rounds, clock=clock)
        for each in candidates:
            if found := took.get(each.name):
                each.costs |= {way: found.median, f"{way}_low": found.low, f"{way}_high": found.high}

    def call(self, way: str, seconds: Plan, training_seconds: Plan | None = None) -> Callable[[], Any]:
        """A call of a graph without dropout; or in training, and then the gradients of its parameters.

        Gradients are those of autograd on torch, else equations.

        Args:
            way: the plan that is measured.
            seconds, training_seconds: the plan of the forward pass, and that of both passes.
        """
        in_training, own = way == "training_seconds", {leaf.name for leaf in seconds.graph.inputs}
        by_autograd = in_training and self.backend.name == "torch"
        taken = training_seconds if in_training and training_seconds and not by_autograd else seconds
        inputs = [each for each in arguments(taken) if each[0].kind == "input"]
        arrays = drawn(inputs, self.backend, self.device, self.seed)
        for leaf, shape, dtype in inputs:
            if leaf.name not in own:  # the gradient of a result is of ones
                arrays[leaf.name] = self.backend.asarray(numpy.ones(shape), dtype, self.device)
        with unwarned():  # initial values do not affect times
            parameters = init(seconds.graph, seed=self.seed, **self.target)
        run = functools.partial(compile(taken.graph, backend=self.backend), parameters, *arrays.values())
        run = functools.partial(run, training=in_training)
        return _with_autograd(run, [*parameters.values()]) if by_autograd else run


def _with_autograd(run: Callable[[], Any], parameters: Sequence[Any]) -> Callable[[], Any]:
    """A call that computes results by `run`, and the gradients of their sums by the parameters."""
    import torch

    def both() -> Any:
        made = run()
        results = [each for each in (made if isinstance(made, tuple) else (made,)) if each.requires_grad]
        return torch.autograd.grad(results, parameters, [*map(torch.ones_like, results)], allow_unused=True)

    for each in parameters:
        each.requires_grad_()
    return both
