"""Modules: a graph as a `torch.nn.Module`."""

from __future__ import annotations

import functools
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from tensornet.codegen.context import identifier
from tensornet.codegen.function import LoadedProgram, Place, constant_array, define
from tensornet.codegen.program import check_tuning
from tensornet.display import Memory, in_bytes
from tensornet.dtypes import element_type
from tensornet.errors import DtypeError, EquationError
from tensornet.graph.argument_shapes import least_lengths
from tensornet.graph.graph import Graph
from tensornet.planning.planner import whole_sizes
from tensornet.protocol import load_backend
from tensornet.runtime.compiling import fitting
from tensornet.runtime.executable import Executable, Ready, check_backward
from tensornet.runtime.initial_values import init

from .call_cache import GuardedCache
from .products import is_recorded

backend = load_backend("torch")


class TensorModule(torch.nn.Module):
    """Holds the parameters of a graph under their names and runs the graph. See `tensornet.module`.

    Each scope that calls a block has a submodule for the block, at that path. A submodule can run on its
    own. The calling module runs a block as a module if the block is called several times, has hooks or
    was replaced. It plans all other blocks together with the equations around them.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        seed: int | None = None,
        device: Any = None,
        dtype: str | None = None,
        memory_limit: Memory | None = None,
        params: Mapping[str, Any] | None = None,
        plan_at: Mapping[str, int] | None = None,
        tune: str | None = None,
        backward: str = "planned",
    ) -> None:
        super().__init__()
        check_tuning(tune)
        check_backward(backward)
        options = {"memory_limit": in_bytes(memory_limit), "tune": tune, "backward": backward}
        self._assemble(graph, whole_sizes(graph, {} if plan_at is None else plan_at), options)
        dtype = None if dtype is None else element_type(dtype)
        if device is not None:
            backend.check_device(str(device))
        if params is None:
            dtype = dtype or str(torch.get_default_dtype()).removeprefix("torch.")
            for path, array in self._drawn(seed, dtype).items():
                self._fill(path, backend.asarray(array, device=device))
        else:
            for path, array in fitting(graph, params, backend, dtype, device).items():
                self._fill(path, _trainable(path, array))
            first = next(self.parameters(), None)
            dtype = dtype or ("float32" if first is None else backend.dtype(first))
        for leaf in graph.constants:
            value = constant_array(leaf, backend, dtype, device)
            owner, name = self._owner(leaf.name)
            owner.register_buffer(name, value, persistent=False)

    # ---- the modules of blocks

    def _assemble(self, graph: Graph, plan_at: Mapping[str, int], options: Mapping[str, Any]) -> None:
        """Creates the modules of the blocks that the graph calls, without parameters."""
        self.graph = graph
        self._options: dict[str, Any] = {**options, "plan_at": plan_at}
        self._arranged: dict[frozenset[str], _Arranged] = {}
        self._traced: _Arranged | None = None
        self._places = _Places(graph)
        scopes: dict[str, Graph] = {}
        for call in graph.calls:
            scopes.setdefault(call.scope, call.graph)
        numbered = _numbered(scopes)
        for scope in scopes:  # in the order of the calls, but each after the scopes around it
            for each in (*(other for other in scopes if scope.startswith(f"{other}.")), scope):
                at = {name: size for name, size in plan_at.items() if name in scopes[each].open_sizes}
                owner, name = self._owner(each, numbered)
                if name not in owner._modules:
                    owner.add_module(name, _of_block(scopes[each], at, options))

    def _standing(self) -> list[torch.nn.Module | None]:
        """The current modules at the paths of the graph, the module itself first. None where one was removed."""
        found: list[torch.nn.Module | None] = [self]
        for parent, name in self._places.below:
            above = found[parent]
            found.append(None if above is None else above._modules.get(name))
        return found

    def _asked(self, standing: Sequence[torch.nn.Module | None]) -> frozenset[str]:
        """The scopes of the blocks that must be computed by their modules."""
        blocks = self._places.blocks
        return frozenset([scope for at, scope, block in blocks if _runs_itself(standing[at], block)])

    def reset_parameters(
        self, seed: int | None = None, *, device: Any = None, dtype: str | None = None
    ) -> None:
        """Draws all parameters again. A `seed` makes this reproducible; without one, torch's generator is used.

        The distribution is derived from the graph. Parameters that no longer exist, as in replaced blocks, are skipped.
        """
        standing = self._standing()
        for path, array in self._drawn(seed, dtype or "float64").items():
            at, name = self._places.of(path)
            owner = standing[at]
            known = None if owner is None else owner._parameters.get(name)
            if known is not None:
                with torch.no_grad():
                    known.copy_(backend.asarray(array, device=device))

    def _drawn(self, seed: int | None, dtype: str) -> dict[str, torch.Tensor]:
        """Initial values, by the names of the parameters."""
        number = int(torch.randint(2**31, (), device="cpu").item()) if seed is None else seed
        return init(self.graph, seed=number, backend=backend, dtype=dtype)

    def _fill(self, path: str, array: torch.Tensor) -> None:
        """Registers an array as the parameter at a path."""
        owner, name = self._owner(path)
        if hasattr(owner, name):
            raise EquationError(
                f"'{path}' cannot name a parameter of a torch module: '{name}' is taken there",
                fix="give the parameter, or its scope, another name",
            )
        owner.register_parameter(name, torch.nn.Parameter(array))

    def _owner(self, path: str, numbered: Container[str] = ()) -> tuple[torch.nn.Module, str]:
        """The submodule that holds a scoped name, created if needed, and the last part of the name.

        A submodule whose children are numbered is a `ModuleList`.
        """
        *scopes, name = path.split(".")
        owner: torch.nn.Module = self
        for depth, scope in enumerate(scopes, 1):
            if scope not in owner._modules:
                if hasattr(owner, scope):
                    raise EquationError(
                        f"'{path}' cannot be held by a torch module: '{scope}' is taken there",
                        fix="choose another scope",
                    )
                listed = ".".join(scopes[:depth]) in numbered
                owner.add_module(scope, torch.nn.ModuleList() if listed else torch.nn.Module())
            owner = owner._modules[scope]  # type: ignore[assignment]
        return owner, name

    # ---- running

    def run(self, *inputs: torch.Tensor) -> Any:
        """Runs the graph on its inputs, in order. `forward` takes them by name and calls this."""
        places, is_traced = self._places, is_dynamo_compiling()
        standing: Sequence[Any] = self._standing() if places.below else (self,)
        if is_traced:
            found = self._recorded(inputs)
        else:
            asked = self._asked(standing) if places.blocks else _NONE
            found = self._arranged.get(asked) or self._arrange(asked)
        if found.needed and any(standing[at] is None for at in found.needed):
            raise found.gone(self, standing)
        try:
            arrays = [*inputs, *[standing[at]._parameters[name] for at, name in found.parameters]]
        except KeyError:  # in a replica, or where one is computed from others
            held = [getattr(standing[at], name) for at, name in found.parameters]
            arrays = [*inputs, *map(held_value, held)]
        ready = found.traced if is_traced else found.calls.last(arrays) or found.find(self, inputs, arrays)
        if ready.more:
            arrays += found.more(ready, standing)
        if found.takes_training:
            return ready.function(*arrays, training=self.training)
        return ready.function(*arrays)

    def _recorded(self, inputs: Sequence[torch.Tensor]) -> _Arranged:
        """Prepares the plan that a compiler or `torch.jit.trace` is about to record."""
        given = [(x.device, x.dtype, _known_shape(x)) for x in inputs]
        self._get_ready(*(each for told in given for each in told))
        assert self._traced is not None
        for number, at, least, told in self._traced.least:
            torch._check(inputs[number].shape[at] >= least, lambda told=told: told)  # type: ignore[no-untyped-call]
        return self._traced

    def _arrange(self, asked: frozenset[str]) -> _Arranged:
        self._arranged[asked] = found = _Arranged(self, asked)
        return found

    def _get_ready(self, *given: Any) -> int:
        """Prepares the plan that a compiler is about to trace, for the given shapes.

        Args:
            *given: device, element type and shape of each input. The shape is None if it is left open.
        """
        asked = self._asked(self._standing())
        found = self._arranged.get(asked) or self._arrange(asked)
        arrays = [(each.device, each.dtype) for each in self.parameters()]
        arrays += zip(given[::3], given[1::3], strict=True)
        numbers = (dtype for _, dtype in arrays if dtype.is_floating_point or dtype.is_complex)
        device = str(arrays[0][0]) if arrays else backend.device()
        found.trace(device, str(next(numbers, torch.float32)).removeprefix("torch."), given[2::3])
        self._traced = found
        return 0

    # `torch.compiler.assume_constant_result` does this too, but loads the compiler: it delays the first call by most of
    # a second
    _get_ready._dynamo_marked_constant = True  # type: ignore[attr-defined]

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Moves and converts as any module does. Floating constants keep float32 or wider: the code rounds at use."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        first = next(self.parameters(), None)
        standing = self._standing()
        for leaf in self.graph.constants:
            at, name = self._places.of(leaf.name)
            owner = standing[at]
            buffer = None if owner is None else owner._buffers.get(name)
            if owner is not None and buffer is not None:
                dtype = backend.dtype(buffer if first is None else first)
                owner._buffers[name] = constant_array(leaf, backend, dtype, str(buffer.device))
        self._arranged.clear()  # also drops the tables on the old device
        return self

    @property
    def plan(self) -> Any:
        """The last plan."""
        asked = self._asked(self._standing())
        return (self._arranged.get(asked) or self._arrange(asked)).plan

    def extra_repr(self) -> str:
        """The equations, and the calls of blocks."""
        lines = self.graph.body_lines()
        return "\n".join(lines if len(lines) <= 12 else [*lines[:11], f"… {len(lines) - 11} more"])

    def __reduce__(self) -> tuple[Any, ...]:
        state = {name: value for name, value in self.__dict__.items() if name not in _REBUILT}
        return _blank, (tuple(leaf.name for leaf in self.graph.inputs), type(self).__bases__[0]), state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._arranged, self._traced, self._places = {}, None, _Places(self.graph)


def held_value(held: Any) -> torch.Tensor:
    """A parameter, or what stands in its place: a module that makes it."""
    return held() if isinstance(held, torch.nn.Module) else held  # type: ignore[no-any-return]


_NONE = frozenset[str]()
"""No scopes: the usual case."""

_REBUILT = ("_arranged", "_traced", "_places")
"""Attributes that are rebuilt from the graph and the parameters, and therefore neither copied nor stored."""


class _Arranged(Executable):
    """One way to run a module: an executable whose constants and blocks are taken from the module at each call.

    Attributes:
        parameters: module number and name of each parameter that the function takes.
        needed: the numbers of the modules that must be there.
        traced: what a compiler traces.
        least: how long slices need the dimensions of inputs, which no other check compares in a compiled module.
    """

    calls: GuardedCache
    traced: Ready
    least: list[tuple[int, int, int, str]]

    def __init__(self, module: TensorModule, asked: frozenset[str]) -> None:
        within = module._options["memory_limit"] is not None and not asked  # one plan, to keep the limit
        super().__init__(module.graph, backend, around=None if within else asked, **module._options)
        self._places = {leaf.name: module._places.of(leaf.name) for leaf in self.leaves}
        self._blocks = [module._places.at[scope] for scope in self.scopes]
        self.parameters = [self._places[leaf.name] for leaf in self.leaves if leaf.kind == "parameter"]
        held = {self._places[leaf.name][0] for leaf in self.leaves if leaf.kind != "input"}
        self.needed = sorted({*self._blocks, *held} - {0})

    def find(self, module: TensorModule, inputs: Sequence[torch.Tensor], arrays: Sequence[Any]) -> Ready:
        """The function for arrays that are not like those of the last call."""
        return module._recorded(inputs).traced if is_recorded() else self.ready(arrays)

    def more(self, ready: Ready, standing: Sequence[Any]) -> list[Any]:
        """What a function takes besides inputs and parameters: constants, tables and blocks."""
        tables = self.tables(ready.program, ready.place) if ready.tables is None else ready.tables
        read = [standing[at]._buffers[name] for at, name in ready.constants]
        return [*read, *tables, *[standing[at] for at in self._blocks]]

    def _constants_on(self, program: LoadedProgram, place: Place) -> tuple[tuple[int, str], ...]:
        """Module number and name of each constant that a program reads at each call, except those of blocks."""
        names = (leaf.name for leaf in program.plan.constants)
        return tuple(self._places[name] for name in names if name in self._places)

    def trace(self, device: str, dtype: str, shapes: Sequence[tuple[int, ...] | None]) -> None:
        """Finds the function that a compiler traces: by a plan for the shapes of the inputs. If some shape is open, it
        takes the last plan, or one for any sizes if there is none."""
        told = [shape for shape in shapes if shape is not None]
        program = self.last(device, dtype, closed=True, shapes=told if len(told) == len(shapes) else None)
        self.traced = self._ready_at(program, Place(device, dtype, ()))
        self.least = [(*each, f"a slice needs {each[-1]} positions") for each in least_lengths(self.graph)]

    def gone(self, module: TensorModule, standing: Sequence[Any]) -> EquationError:
        gone = {at for at in self.needed if standing[at] is None}
        names = ", ".join(f"'{path}'" for path, at in module._places.at.items() if at in gone)
        return EquationError(
            f"the graph needs {names}, and no module is there",
            fix="put a module there, or build one of a graph without it",
        )


class _Places:
    """The tree of the modules of a graph, numbered so that each parent comes before its children.

    Attributes:
        at: the number of each path. The module itself is 0.
        below: for each other module, the number of its parent, and its name there.
        blocks: number, scope and graph of each module of a block.
    """

    def __init__(self, graph: Graph) -> None:
        blocks = _by_scope(graph)
        self.at = {"": 0}
        self.below: list[tuple[int, str]] = []
        for path in [*blocks, *(leaf.name.rpartition(".")[0] for leaf in graph.leaves)]:
            self._number(path)
        self.blocks = [(self.at[scope], scope, block) for scope, block in blocks.items()]

    def of(self, leaf: str) -> tuple[int, str]:
        """The number of the module that holds a leaf, and its name there."""
        scope, _, name = leaf.rpartition(".")
        return self.at[scope], name

    def _number(self, path: str) -> int:
        if path not in self.at:
            above, _, name = path.rpartition(".")
            self.below.append((self._number(above), name))
            self.at[path] = len(self.below)
        return self.at[path]


def _by_scope(graph: Graph) -> dict[str, Graph]:
    """The block of the module under each scope, including scopes inside of blocks."""
    found: dict[str, Graph] = {}
    for call in sorted(graph.calls, key=lambda call: call.scope.count(".")):
        if call.scope not in found:
            inside = {f"{call.scope}.{scope}": block for scope, block in _by_scope(call.graph).items()}
            found = {call.scope: call.graph, **inside, **found}
    return found


def _known_shape(x: torch.Tensor) -> tuple[int, ...] | None:
    """The shape of a tensor that a compiler traces, if it compiles for that shape only. Else None."""
    if not torch.compiler.is_compiling():
        return None
    from torch.fx.experimental.symbolic_shapes import has_static_value  # loads sympy

    for size in x.shape:
        if not has_static_value(size):
            return None
    return tuple(x.shape)


def _runs_itself(module: torch.nn.Module | None, block: Graph) -> bool:
    """Whether a module may do more than its block: it was wrapped or replaced, or has hooks."""
    if module is None:
        return False
    held = module.__dict__
    return bool(
        type(module).__module__ != __name__
        or held["graph"] is not block
        or "forward" in held
        or held["_forward_hooks"]
        or held["_forward_pre_hooks"]
        or held["_backward_hooks"]
        or held["_backward_pre_hooks"]
    )


def _numbered(scopes: Iterable[str]) -> frozenset[str]:
    """The paths whose children are named 0, 1, 2, … in order."""
    below: dict[str, dict[str, None]] = {}
    for scope in scopes:
        names = scope.split(".")
        for depth in range(1, len(names)):
            below.setdefault(".".join(names[:depth]), {})[names[depth]] = None
    return frozenset(
        path for path, names in below.items() if list(names) == [str(n) for n in range(len(names))]
    )


def _of_block(block: Graph, plan_at: Mapping[str, int], options: Mapping[str, Any]) -> TensorModule:
    """The module of a block, still without its parameters."""
    made = class_of(tuple(leaf.name for leaf in block.inputs))
    module = made.__new__(made)
    torch.nn.Module.__init__(module)
    module._assemble(block, plan_at, options)
    return module


def _trainable(name: str, array: torch.Tensor) -> torch.Tensor:
    """A copy of an array, to be trained. Raises an error if the array is neither floating nor complex."""
    if not (array.is_floating_point() or array.is_complex()):
        raise DtypeError(
            f"the parameter '{name}' holds {backend.dtype(array)}, which cannot be trained",
            fix="give dtype=, or floating arrays",
        )
    return array.detach().clone()


@functools.lru_cache(maxsize=256)
def class_of(inputs: tuple[str, ...], base: type[TensorModule] = TensorModule) -> type[TensorModule]:
    """The module class whose `forward` takes these inputs by name, as `torch.export` requires."""
    taken = {"self"}
    names = ", ".join(identifier(name, taken) for name in inputs)
    source = f"def forward(self, {names}):\n    return self.run({names})\n"
    forward = define(source, f"forward({names})", "forward", {})
    return type(base.__name__, (base,), {"forward": forward, "__module__": base.__module__})


def _blank(inputs: tuple[str, ...], base: Any) -> TensorModule:
    """An empty module, which `__setstate__` fills."""
    made = class_of(inputs, base)
    return made.__new__(made)


def make(graph: Graph, base: Any = TensorModule, **options: Any) -> TensorModule:
    """The module of a graph."""
    return class_of(tuple(leaf.name for leaf in graph.inputs), base)(graph, **options)
