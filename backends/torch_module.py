"""A graph as a `torch.nn.Module`."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch

from tensornet.dtypes import element_type
from tensornet.emitting.spelling import identifier
from tensornet.errors import DtypeError, EquationError
from tensornet.graph.graph import Graph
from tensornet.graph.initialise import init
from tensornet.planning.planner import whole_sizes
from tensornet.protocol import load_backend
from tensornet.running.executable import Executable, constant_array, define, fitting

__all__ = ["TensorModule", "make"]

backend = load_backend("torch")


class TensorModule(torch.nn.Module):
    """Holds the parameters of a graph under its names and runs it; see `tensornet.module`."""

    def __init__(
        self,
        graph: Graph,
        *,
        seed: int | None = None,
        device: Any = None,
        dtype: str | None = None,
        memory_limit: int | None = None,
        params: Mapping[str, Any] | None = None,
        plan_at: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__()
        self.graph = graph
        self._options: dict[str, Any] = {
            "memory_limit": memory_limit,
            "plan_at": whole_sizes(graph, plan_at or {}),
        }
        self._parameter_names = [leaf.name for leaf in graph.parameters]
        self._constant_names = [leaf.name for leaf in graph.constants]
        dtype = None if dtype is None else element_type(dtype)
        if device is not None:
            backend.check_device(str(device))
        if params is None:
            dtype = dtype or "float32"
            self.reset_parameters(seed, device=device, dtype=dtype)
        else:
            for path, array in fitting(graph, params, backend, dtype, device).items():
                self._fill(path, _trainable(path, array))
            first = next(self.parameters(), None)
            dtype = dtype or ("float32" if first is None else backend.dtype(first))
        for leaf in graph.constants:
            value = constant_array(leaf, backend, dtype, device)
            owner, name = self._owner(leaf.name)
            owner.register_buffer(name, value, persistent=False)
        self._build()

    def reset_parameters(
        self, seed: int | None = None, *, device: Any = None, dtype: str | None = None
    ) -> None:
        """Starts anew from the derived distribution; `seed` reproduces, none draws from torch's generator."""
        number = int(torch.randint(2**31, ()).item()) if seed is None else seed
        for path, array in init(self.graph, seed=number, backend=backend, dtype=dtype or "float64").items():
            self._fill(path, array.to(device))

    def _fill(self, path: str, array: torch.Tensor) -> None:
        """Puts values into a parameter, made if need be."""
        owner, name = self._owner(path)
        known = owner._parameters.get(name)
        if known is None and hasattr(owner, name):
            raise EquationError(
                f"'{path}' cannot name a parameter of a torch module: '{name}' is taken there",
                fix="give the parameter, or its scope, another name",
            )
        if known is not None:
            with torch.no_grad():
                known.copy_(array)
        else:
            owner.register_parameter(name, torch.nn.Parameter(array))

    def _owner(self, path: str) -> tuple[torch.nn.Module, str]:
        """The submodule that holds a scoped name, made if need be, and the last part of the name."""
        *scopes, name = path.split(".")
        owner: torch.nn.Module = self
        for scope in scopes:
            if scope not in owner._modules:
                if hasattr(owner, scope):
                    raise EquationError(
                        f"'{path}' cannot be held by a torch module: '{scope}' is taken there",
                        fix="choose another scope",
                    )
                owner.add_module(scope, torch.nn.Module())
            owner = owner._modules[scope]  # type: ignore[assignment]
        return owner, name

    def _build(self) -> None:
        self._executable = Executable(self.graph, backend, **self._options)
        self._owners = [self._owner(path) for path in self._parameter_names]
        self._buffer_owners = [self._owner(path) for path in self._constant_names]
        first = next(self.parameters(), None)
        device = "cpu" if first is None else str(first.device)
        dtype = "float32" if first is None else str(first.dtype).removeprefix("torch.")
        self._traced = self._executable.planned(self._options["plan_at"], device, dtype)

    def run(self, *inputs: torch.Tensor) -> Any:
        """Runs the graph on its inputs, in order; `forward` calls it by their names."""
        parameters = [owner._parameters[name] for owner, name in self._owners]
        constants = [owner._buffers[name] for owner, name in self._buffer_owners]
        options = {"training": self.training} if self._executable.takes_training else {}
        if torch.compiler.is_compiling():
            return self._traced(*inputs, *parameters, *constants, **options)
        function = self._executable.function([*inputs, *parameters])
        return function(*inputs, *parameters, *constants, **options)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Moves and converts all as any module; floating constants are rounded by the code, where they meet."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        first = next(self.parameters(), None)
        for leaf in self.graph.constants:
            owner, name = self._owner(leaf.name)
            buffer = owner._buffers[name]
            assert buffer is not None
            dtype = backend.dtype(buffer if first is None else first)
            owner._buffers[name] = constant_array(leaf, backend, dtype, str(buffer.device))
        return self

    @property
    def plan(self) -> Any:
        """The plan last made."""
        return self._executable.plan

    def extra_repr(self) -> str:
        """The equations."""
        lines = [str(equation) for equation in self.graph.equations]
        return "\n".join(lines if len(lines) <= 12 else [*lines[:11], f"… {len(lines) - 11} more"])

    def __reduce__(self) -> tuple[Any, ...]:
        state = {name: value for name, value in self.__dict__.items() if name not in _REBUILT}
        return _blank, (tuple(leaf.name for leaf in self.graph.inputs),), state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._build()


_REBUILT = ("_executable", "_traced", "_owners", "_buffer_owners")
"""What is made from the graph and the parameters, and so neither copied nor stored."""


def _trainable(name: str, array: torch.Tensor) -> torch.Tensor:
    """A copy to train."""
    if not (array.is_floating_point() or array.is_complex()):
        raise DtypeError(
            f"the parameter '{name}' holds {backend.dtype(array)}, which cannot be trained",
            fix="give dtype=, or floating arrays",
        )
    return array.detach().clone()


@functools.lru_cache(maxsize=256)
def _class_of(inputs: tuple[str, ...]) -> type[TensorModule]:
    """The module class whose `forward` takes these inputs by name, as `torch.export` wants it."""
    taken = {"self"}
    names = ", ".join(identifier(name, taken) for name in inputs)
    source = f"def forward(self, {names}):\n    return self.run({names})\n"
    forward = define(source, f"forward({names})", "forward", {})
    return type("TensorModule", (TensorModule,), {"forward": forward, "__module__": __name__})


def _blank(inputs: tuple[str, ...]) -> TensorModule:
    """A module to be filled by `__setstate__`."""
    made = _class_of(inputs)
    return made.__new__(made)


def make(graph: Graph, **options: Any) -> TensorModule:
    """The module of a graph."""
    return _class_of(tuple(leaf.name for leaf in graph.inputs))(graph, **options)
