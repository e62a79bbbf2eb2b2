"""Calls of graphs for timing: the functions to call, where they run, and the clock."""

from __future__ import annotations

import contextlib
import functools
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy

from ..codegen.loading import arguments, drawn
from ..codegen.program import plan, planned
from ..device.calibration import profile_of
from ..device.timing import Clock
from ..dtypes import itemsize
from ..errors import BackendError, TensornetError, TensornetWarning
from ..graph.graph import Graph
from ..planning.gradients import PairwiseOrder, joint_graph, leaves_of, results_of
from ..planning.plans import Plan
from ..protocol import Backend
from ..runtime.compiling import compile, module
from ..runtime.initial_values import init

__all__ = ["Place"]


@dataclass(frozen=True)
class Place:
    """The backend and device where graphs run, and the clock.

    Attributes:
        backend, device, dtype: the library, the device as the library names it, and the element type.
        threads: the number of threads of the processor, on torch; its default if not given.
        clock: "wall", or "process", which counts only the time in which this process runs.
        seed: the seed of random arrays.
        rounds: the number of turns of each graph.
    """

    backend: Backend
    device: str
    dtype: str
    threads: int | None
    clock: str
    seed: int
    rounds: int

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

    # ---- plans and calls

    def planned(self, graph: Graph) -> Plan:
        """The plan of a graph."""
        return planned(graph, {}, self.backend, self.device, self.dtype)

    def planned_both_ways(self, graph: Graph) -> tuple[Plan, int]:
        """The plan of the results and the gradients of the parameters as one graph, and the bytes kept between them."""
        pairs = PairwiseOrder(profile_of(self.backend, self.device, self.dtype), itemsize(self.dtype))
        joint = joint_graph(graph, leaves_of(graph, None), pairs=pairs).joined(results_of(graph))
        target: dict[str, Any] = {"backend": self.backend, "device": self.device, "dtype": self.dtype}
        back = plan(graph, **target, training=True, compare=False)
        return self.planned(joint), sum(size for _, size in back.kept)

    def call(self, plan: Plan, both: Plan | None, given: Mapping[str, Any]) -> Callable[[], Any]:
        """A call of a graph without dropout; or in training, and then the gradients of its parameters.

        Gradients are those of autograd on torch, else equations.

        Args:
            plan: the plan of the graph.
            both: the plan of both passes; None for a forward call.
            given: the given inputs; others are random.
        """
        with warnings.catch_warnings():  # initial values do not affect times
            warnings.simplefilter("ignore", TensornetWarning)
            if self.backend.name == "torch":
                return self._of_module(plan, both is not None, given)
            target: dict[str, Any] = {"backend": self.backend, "dtype": self.dtype, "device": self.device}
            found, own = both or plan, {leaf.name for leaf in plan.graph.leaves}
            ones = {
                each.name: numpy.ones(shape) for each, shape, _ in arguments(found) if each.name not in own
            }
            parameters = init(found.graph, seed=self.seed, **target)
            run = compile(found.graph, backend=self.backend, params=parameters)
            mode = {} if both is None else {"training": True}
            return functools.partial(run, *self._inputs(found, {**given, **ones}), **mode)

    def _of_module(self, plan: Plan, is_training: bool, given: Mapping[str, Any]) -> Callable[[], Any]:
        import torch

        layer = module(plan.graph, seed=self.seed, device=self.device, dtype=self.dtype).train(is_training)
        inputs = self._inputs(plan, given)
        if not is_training:
            return functools.partial(torch.no_grad()(layer), *inputs)

        def differentiable() -> list[torch.Tensor]:
            made = layer(*inputs)
            return [each for each in (made if isinstance(made, tuple) else (made,)) if each.requires_grad]

        seeds, parameters = [torch.ones_like(each) for each in differentiable()], tuple(layer.parameters())
        return lambda: torch.autograd.grad(differentiable(), parameters, seeds, allow_unused=True)

    def _inputs(self, plan: Plan, given: Mapping[str, Any]) -> list[Any]:
        taken = [each for each in arguments(plan) if each[0].kind == "input"]
        missing = [each for each in taken if each[0].name not in given]
        arrays = {**given, **drawn(missing, self.backend, self.device, self.seed)}
        return [self.backend.asarray(arrays[leaf.name], dtype, self.device) for leaf, _, dtype in taken]
