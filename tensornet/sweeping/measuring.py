"""`tensornet.sweep`: graphs, given by name or built for each combination of settings, are planned and timed."""

from __future__ import annotations

import contextlib
import functools
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy

from ..codegen.loading import arguments, drawn
from ..codegen.program import plan, planned
from ..device.calibration import profile_of
from ..device.timing import Clock, timings
from ..dtypes import element_type, itemsize
from ..errors import BackendError, ShapeError, TensornetError, TensornetWarning, near
from ..fitting.weights import nearest
from ..graph.argument_shapes import sizes_from_shapes
from ..graph.formulas import parameter_count
from ..graph.graph import Graph
from ..planning.flops import flop_count
from ..planning.gradients import PairwiseOrder, joint_graph, leaves_of, results_of
from ..planning.planner import NOMINAL, whole_sizes
from ..planning.plans import Plan
from ..protocol import Backend, load_backend
from ..runtime.compiling import compile, module, to_backend
from ..runtime.initial_values import init
from .making import BASELINE, Candidate, candidates
from .sweeps import Sweep

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
    if inputs is not None and not isinstance(inputs, Mapping):
        fix = 'give arrays by the names of inputs: {"x": array}'
        raise TensornetError(f"inputs is a {type(inputs).__name__}", fix=fix)
    where, kind = chosen.device() if device is None else device, element_type(dtype)
    given = to_backend(inputs or {}, chosen, device=where)
    judge = _judge(error, weights)
    bench = Bench(chosen, where, kind, threads, clock, seed, rounds, training, judge, sizes, given)
    bench.check()
    found = candidates(graphs, over, baseline)
    bench.check_names([each.graph for each in found if each.graph])
    with bench.taken():
        for each in found:
            bench.plan(each)
        if all(each.plan is None for each in found):
            fix = "give graphs, and sizes as positive integers, with which tensornet.plan(graph, …) makes a plan"
            raise TensornetError(f"none of the graphs can be planned: {found[0].row.refused}", fix=fix)
        if measure:
            bench.measure(found)
        return bench.table(found, BASELINE if isinstance(baseline, Graph) else baseline, measure)


def _judge(error: Callable[[Graph], float] | None, weights: Any) -> Callable[[Graph], float] | None:
    """The function that returns the error of a graph, if one is given, or weights that graphs approximate."""
    if error is not None and not callable(error):
        fix = "give a function of a graph, or what the graphs are to approximate as weights="
        raise TensornetError(f"error is {error!r}", fix=fix)
    if weights is not None and error is not None:
        raise TensornetError("error and weights are both given", fix="give one of them")
    return error if weights is None else functools.partial(nearest, weights=weights)


# ---------------------------------------------------------------------------- costs


@dataclass(frozen=True)
class Bench:
    """Where the graphs of a sweep run, the clock, and the options that apply to each graph.

    Attributes:
        backend, device, dtype: the library, the device as the library names it, and the element type.
        threads: the number of threads of the processor, on torch; its default if not given.
        clock: "wall", or "process", which counts only the time in which this process runs.
        seed: the seed of random arrays.
        rounds: the number of turns of each graph.
        training: whether the backward pass is reported.
        error: the function that returns the error of a graph.
        sizes: the sizes of open axes, for the graphs that have them.
        given: the inputs that are given; others are random.
    """

    backend: Backend
    device: str
    dtype: str
    threads: int | None
    clock: str
    seed: int
    rounds: int
    training: bool
    error: Callable[[Graph], float] | None
    sizes: Mapping[str, int]
    given: Mapping[str, Any]

    def check(self) -> None:
        """Raises an error for an unknown device or clock, and for numbers or a clock that cannot be used here."""
        self.backend.check_device(self.device)
        for name, least in (("threads", 1), ("rounds", 1), ("seed", 0)):
            number = getattr(self, name)
            is_whole = isinstance(number, Integral) and not isinstance(number, bool)
            if not (is_whole and number >= least) and (number, name) != (None, "threads"):
                raise TensornetError(f"{name} is {number!r}", fix=f"give a whole number, {least} or more")
        if self.threads is not None and self.backend.name != "torch":
            fix = "leave it out, and set OMP_NUM_THREADS or the like before Python starts"
            raise BackendError(f"the threads of {self.backend.name} cannot be set", fix=fix)
        if self.clock not in ("wall", "process"):
            raise TensornetError(f"there is no clock '{self.clock}'", fix="use 'wall' or 'process'")
        if self.clock == "process" and (self.device != "cpu" or self.threads != 1):
            fix = "add threads=1 and device='cpu', or use clock='wall'"
            raise TensornetError("the time of a process is that of one thread of the processor", fix=fix)

    def check_names(self, graphs: Sequence[Graph]) -> None:
        """Raises an error for sizes and inputs that no graph has."""
        sizes = {name for graph in graphs for name in (*graph.open_sizes, *graph.bound)}
        inputs = {leaf.name for graph in graphs for leaf in graph.inputs}
        for what, wanted, known in (("size", self.sizes, sizes), ("input", self.given, inputs)):
            for name in wanted:
                if name not in known:
                    fix = f"{near(name, known)}there are {', '.join(sorted(known)) or 'none'}"
                    raise ShapeError(f"no graph has the {what} '{name}'", fix=fix)

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Sets the number of threads for the block, and restores it afterwards."""
        with contextlib.ExitStack() as after:
            if self.threads is not None:
                import torch

                after.callback(torch.set_num_threads, torch.get_num_threads())
                torch.set_num_threads(self.threads)
            yield

    @property
    def read(self) -> Clock:
        """The clock."""
        now = time.process_time if self.clock == "process" else time.perf_counter
        return Clock(now, functools.partial(self.backend.synchronize, self.device))

    # ---- costs before a graph runs

    def plan(self, found: Candidate) -> None:
        """Plans a graph, and finds its costs before it runs."""
        if found.graph is None:
            return
        try:
            graph = self.bound(found.graph)
            graph = graph.bind(**dict.fromkeys(graph.open_sizes, NOMINAL))
            found.plan = self._plan(graph)
        except TensornetError as error:
            found.costs["refused"] = error.message
            return
        found.costs |= {"parameters": parameter_count(graph), "flops": flop_count(graph)}
        found.costs |= {"bytes": found.plan.bytes, "expected_seconds": found.plan.seconds}
        if self.error is not None:
            with found.noting("no error"):
                found.costs["error"] = _number(self.error, found.graph)
        if self.training:
            with found.noting("no backward pass"):
                self._plan_both(found, graph)

    def bound(self, graph: Graph) -> Graph:
        """The graph with the sizes that are given, by the user or by the shapes of inputs."""
        known = {*graph.open_sizes, *graph.bound}
        told = {name: size for name, size in self.sizes.items() if name in known}
        graph = graph.bind(**whole_sizes(graph, told))
        leaves = [leaf for leaf in graph.inputs if leaf.name in self.given]
        shapes = [tuple(self.given[leaf.name].shape) for leaf in leaves]
        return graph.bind(**sizes_from_shapes(graph, leaves, shapes))

    def _plan(self, graph: Graph) -> Plan:
        return planned(graph, {}, self.backend, self.device, self.dtype)

    def _plan_both(self, found: Candidate, graph: Graph) -> None:
        """Plans the results and the gradients of the parameters, and counts the bytes kept between them."""
        pairs = PairwiseOrder(profile_of(self.backend, self.device, self.dtype), itemsize(self.dtype))
        joint = joint_graph(graph, leaves_of(graph, None), pairs=pairs).joined(results_of(graph))
        back = plan(graph, **self.target, training=True, compare=False)
        found.both = self._plan(joint)
        kept = sum(size for _, size in back.kept)
        found.costs |= {"expected_training_seconds": found.both.seconds, "kept": kept}

    @property
    def target(self) -> dict[str, Any]:
        """The options of the library for where a graph runs."""
        return {"backend": self.backend, "device": self.device, "dtype": self.dtype}

    def table(self, candidates: Sequence[Candidate], baseline: str | None, measured: bool) -> Sweep:
        """The rows of all graphs, compared with one of them: the first that is not refused if none is named."""
        rows = tuple(each.row for each in candidates)
        pairs = [(each.graph, each.plan) for each in candidates if each.plan is not None]
        at = {name: plan.graph.bound[name] for graph, plan in pairs for name in graph.open_sizes}
        assumed = dict.fromkeys(name for graph, _ in pairs for name in self.bound(graph).open_sizes)
        return Sweep(
            rows=rows,
            baseline=baseline or next(row.name for row in rows if not row.refused),
            backend=self.backend.name,
            device=self.device,
            dtype=self.dtype,
            where=self.backend.version(self.device),
            threads=self.threads,
            clock=self.clock,
            sizes=tuple(at.items()),
            assumed=tuple(assumed),
            rounds=self.rounds if measured else 0,
            certainty=str(pairs[0][1].certainty or ""),
        )

    # ---- times

    def measure(self, candidates: Sequence[Candidate]) -> None:
        """Times a call of each graph, and both passes if these were planned; the graphs take turns."""
        for way in ("seconds", "training_seconds"):
            runs, is_both = dict[str, Callable[[], Any]](), way == "training_seconds"
            for each in candidates:
                if each.plan is not None and (each.both is not None or not is_both):
                    with each.noting("not timed"):
                        run = self.call(each.plan, each.both if is_both else None)
                        run()
                        runs[each.name] = run
            took = timings(runs, self.rounds, clock=self.read)
            for each in candidates:
                if (time := took.get(each.name)) is not None:
                    each.costs |= {way: time.median, f"{way}_low": time.low, f"{way}_high": time.high}

    def call(self, plan: Plan, both: Plan | None) -> Callable[[], Any]:
        """A call of a graph without dropout; or in training, and then the gradients of its parameters.

        Gradients are those of autograd on torch, else equations.

        Args:
            plan: the plan of the graph.
            both: the plan of both passes; None for a forward call.
        """
        with warnings.catch_warnings():  # initial values do not affect times
            warnings.simplefilter("ignore", TensornetWarning)
            if self.backend.name == "torch":
                return self._of_module(plan, both is not None)
            found, own = both or plan, {leaf.name for leaf in plan.graph.leaves}
            ones = {
                each.name: numpy.ones(shape) for each, shape, _ in arguments(found) if each.name not in own
            }
            parameters = init(found.graph, seed=self.seed, **self.target)
            run = compile(found.graph, backend=self.backend, params=parameters)
            mode = {} if both is None else {"training": True}
            return functools.partial(run, *self._inputs(found, ones), **mode)

    def _of_module(self, plan: Plan, is_training: bool) -> Callable[[], Any]:
        import torch

        layer = module(plan.graph, seed=self.seed, device=self.device, dtype=self.dtype).train(is_training)
        inputs = self._inputs(plan, {})
        if not is_training:
            return functools.partial(torch.no_grad()(layer), *inputs)

        def differentiable() -> list[torch.Tensor]:
            made = layer(*inputs)
            return [each for each in (made if isinstance(made, tuple) else (made,)) if each.requires_grad]

        seeds, parameters = [torch.ones_like(each) for each in differentiable()], tuple(layer.parameters())
        return lambda: torch.autograd.grad(differentiable(), parameters, seeds, allow_unused=True)

    def _inputs(self, plan: Plan, more: Mapping[str, Any]) -> list[Any]:
        given = {**self.given, **more}
        taken = [each for each in arguments(plan) if each[0].kind == "input"]
        missing = [each for each in taken if each[0].name not in given]
        arrays = given | drawn(missing, self.backend, self.device, self.seed)
        return [self.backend.asarray(arrays[leaf.name], dtype, self.device) for leaf, _, dtype in taken]


def _number(error: Callable[[Graph], float], graph: Graph) -> float:
    """The error of a graph.

    Raises:
        TensornetError: it is not a number.
    """
    try:
        found = float(error(graph))
    except TensornetError:
        raise
    except (TypeError, ValueError):
        found = math.nan
    if math.isnan(found):
        raise TensornetError("it is not a number")
    return found
