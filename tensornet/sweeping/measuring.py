"""Costs of graphs: their plans, calls for timing, where they run, and the clock."""

from __future__ import annotations

import contextlib
import functools
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Any

import numpy

from ..codegen.loading import arguments, drawn
from ..codegen.program import plan, planned
from ..device.calibration import profile_of
from ..device.timing import Clock, timings
from ..dtypes import itemsize
from ..errors import BackendError, ShapeError, TensornetError, TensornetWarning, near
from ..graph.argument_shapes import sizes_from_shapes
from ..graph.formulas import parameter_count
from ..graph.graph import Graph
from ..planning.flops import flop_count
from ..planning.gradients import PairwiseOrder, joint_graph, leaves_of, results_of
from ..planning.planner import NOMINAL, whole_sizes
from ..planning.plans import Plan
from ..protocol import Backend
from ..runtime.compiling import compile, module
from ..runtime.initial_values import init
from .sweeps import Row

__all__ = ["Bench", "Candidate"]


@dataclass(frozen=True)
class Candidate:
    """A graph of a sweep, and its costs.

    Attributes:
        row: its row.
        graph: the graph; None if it is refused, and the row has the reason.
        plan: the plan of the forward pass.
        both: the plan of the forward and the backward pass, if it is required and there is one.
        sizes, assumed: the sizes of open axes, and the names of those that were not given.
    """

    row: Row
    graph: Graph | None = None
    plan: Plan | None = None
    both: Plan | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    assumed: tuple[str, ...] = ()

    def noted(self, note: str) -> Candidate:
        """The same with a further remark."""
        return replace(self, row=replace(self.row, note="; ".join(filter(None, (self.row.note, note)))))


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

    def planned(self, found: Candidate) -> Candidate:
        """A graph with its plans, and its costs before it runs."""
        if found.graph is None:
            return found
        try:
            graph, assumed = self._sized(found.graph)
            forward = self._plan(graph)
        except TensornetError as error:
            return replace(found, row=replace(found.row, refused=error.message))
        costs = {"flops": flop_count(graph), "bytes": forward.bytes, "expected_seconds": forward.seconds}
        row = replace(found.row, parameters=parameter_count(graph), **costs)
        sizes = {name: graph.bound[name] for name in found.graph.open_sizes}
        made = replace(found, row=row, plan=forward, sizes=sizes, assumed=assumed)
        made = self._with_error(made, found.graph)
        try:
            return self._both_ways(made, graph) if self.training else made
        except TensornetError as error:
            return made.noted(f"no backward pass: {error.message}")

    def _sized(self, graph: Graph) -> tuple[Graph, tuple[str, ...]]:
        """The graph with every size bound, and the names of sizes that are assumed."""
        known = {*graph.open_sizes, *graph.bound}
        told = {name: size for name, size in self.sizes.items() if name in known}
        graph = graph.bind(**whole_sizes(graph, told))
        leaves = [leaf for leaf in graph.inputs if leaf.name in self.given]
        shapes = [tuple(self.given[leaf.name].shape) for leaf in leaves]
        graph = graph.bind(**sizes_from_shapes(graph, leaves, shapes))
        return graph.bind(**dict.fromkeys(graph.open_sizes, NOMINAL)), graph.open_sizes

    def _plan(self, graph: Graph) -> Plan:
        return planned(graph, {}, self.backend, self.device, self.dtype)

    def _both_ways(self, found: Candidate, graph: Graph) -> Candidate:
        """With the plan of the results and the gradients of the parameters, and the bytes kept between them."""
        pairs = PairwiseOrder(profile_of(self.backend, self.device, self.dtype), itemsize(self.dtype))
        joint = joint_graph(graph, leaves_of(graph, None), pairs=pairs).joined(results_of(graph))
        target: dict[str, Any] = {"backend": self.backend, "device": self.device, "dtype": self.dtype}
        back, both = plan(graph, **target, training=True, compare=False), self._plan(joint)
        kept = sum(size for _, size in back.kept)
        row = replace(found.row, expected_training_seconds=both.seconds, kept=kept)
        return replace(found, row=row, both=both)

    def _with_error(self, found: Candidate, graph: Graph) -> Candidate:
        """With the error of the graph, or a note that there is none."""
        try:
            error = None if self.error is None else float(self.error(graph))
        except TensornetError as raised:
            return found.noted(f"no error: {raised.message}")
        except (TypeError, ValueError):
            error = math.nan
        if error is not None and math.isnan(error):
            return found.noted("no error: it is not a number")
        return replace(found, row=replace(found.row, error=error))

    # ---- times

    def measured(self, found: Sequence[Candidate]) -> list[Row]:
        """The rows with the time of a call, and of both passes if these were planned."""
        made = {each.row.name: each for each in found}
        for way in ("seconds", "training_seconds"):
            runs = dict[str, Callable[[], Any]]()
            for name, each in made.items():
                if each.plan is None or (each.both is None and way == "training_seconds"):
                    continue
                try:
                    run = self.call(each.plan, each.both if way == "training_seconds" else None)
                    run()
                    runs[name] = run
                except (TensornetError, MemoryError, RuntimeError) as error:
                    if not isinstance(error, TensornetError) and not _is_of_memory(error):
                        raise
                    reason = getattr(error, "message", None) or str(error).partition("\n")[0]
                    made[name] = each.noted(f"not timed: {reason}")
            for name, took in timings(runs, self.rounds, clock=self.read).items():
                times: dict[str, Any] = {way: took.median, f"{way}_low": took.low, f"{way}_high": took.high}
                made[name] = replace(made[name], row=replace(made[name].row, **times))
        return [each.row for each in made.values()]

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
            target: dict[str, Any] = {"backend": self.backend, "dtype": self.dtype, "device": self.device}
            found, own = both or plan, {leaf.name for leaf in plan.graph.leaves}
            ones = {
                each.name: numpy.ones(shape) for each, shape, _ in arguments(found) if each.name not in own
            }
            parameters = init(found.graph, seed=self.seed, **target)
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


def _is_of_memory(error: Exception) -> bool:
    """Whether an error means too little memory. Each library reports this in its own way."""
    told = str(error).lower()
    return isinstance(error, MemoryError) or "memory" in told or "resource_exhausted" in told
