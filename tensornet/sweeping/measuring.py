"""Calls of graphs for timing: the functions to call, where they run, and the clock."""

from __future__ import annotations

import contextlib
import functools
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy

from ..codegen.loading import arguments, drawn
from ..device.timing import Clock
from ..errors import BackendError, TensornetError, TensornetWarning
from ..graph.graph import Graph
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
    """

    backend: Backend
    device: str
    dtype: str
    threads: int | None
    clock: str
    seed: int

    def check(self) -> None:
        """Raises an error for an unknown device or clock, and for threads or a clock that cannot be used here."""
        self.backend.check_device(self.device)
        if self.threads is not None and (type(self.threads) is not int or self.threads < 1):
            raise TensornetError(f"threads is {self.threads!r}", fix="give a whole number, 1 or more")
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
        if self.threads is None:
            yield
            return
        import torch

        before = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    @property
    def read(self) -> Clock:
        """The clock."""
        now = time.process_time if self.clock == "process" else time.perf_counter
        return Clock(now, functools.partial(self.backend.synchronize, self.device))

    # ---- calls

    def call(self, plan: Plan, both: Plan | None, given: Mapping[str, Any]) -> Callable[[], Any]:
        """A call of a graph without dropout; or in training, and then the gradients of its parameters.

        Gradients are those of autograd on torch, else equations.

        Args:
            plan: the plan of the graph.
            both: the plan of both passes; None for a forward call.
            given: the given inputs; others are random.
        """
        is_training = both is not None
        if self.backend.name == "torch":
            return self._module(plan, is_training, given)
        found = both or plan
        own = {leaf.name for leaf in plan.graph.leaves}
        seeds = {leaf.name: numpy.ones(shape) for leaf, shape, _ in arguments(found) if leaf.name not in own}
        run, inputs = self._function(found.graph), self._inputs(found, {**given, **seeds})
        return functools.partial(run, *inputs, **({"training": True} if is_training else {}))

    def _module(self, plan: Plan, is_training: bool, given: Mapping[str, Any]) -> Callable[[], Any]:
        import torch

        with _whatever_the_start():
            layer = module(plan.graph, seed=self.seed, device=self.device, dtype=self.dtype).train(
                is_training
            )
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
        missing = (each for each in taken if each[0].name not in given)
        arrays = drawn(missing, self.backend, self.device, self.seed)
        return [
            self.backend.asarray(given[leaf.name], dtype, self.device)
            if leaf.name in given
            else arrays[leaf.name]
            for leaf, _, dtype in taken
        ]

    def _function(self, graph: Graph) -> Callable[..., Any]:
        with _whatever_the_start():
            target: dict[str, Any] = {"backend": self.backend, "dtype": self.dtype, "device": self.device}
            parameters = init(graph, seed=self.seed, **target)
        return compile(graph, backend=self.backend, params=parameters)


@contextlib.contextmanager
def _whatever_the_start() -> Iterator[None]:
    """A context without warnings about initial values, which do not affect times."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TensornetWarning)
        yield
