"""Sharded functions of JAX: `jax.shard_map` over the program that each device runs.

JAX keeps in the type of an array along which axes of the mesh it varies. So the collectives of a program are its own,
and so are their derivatives of any order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

import jax
from jax.sharding import AxisType, PartitionSpec
from jax.sharding import Mesh as DeviceMesh

from tensornet.errors import BackendError
from tensornet.graph.graph import Graph
from tensornet.planning.plans import Plan
from tensornet.runtime.executable import PLANS, Executable, not_an_array
from tensornet.sharding.mesh import Mesh, Placement
from tensornet.sharding.sharded import shard_graph

OLDEST = (0, 10)
"""The oldest version of JAX with all collectives between arrays that vary and arrays that do not."""

_MESH: ContextVar[DeviceMesh | None] = ContextVar("mesh", default=None)


def _own(x: Any, axis: str) -> Any:
    return x[jax.lax.axis_index(axis)]


def _shard(x: Any, axis: str) -> Any:
    """The own part of an array, whose cotangents are gathered, and not added up with zeros."""
    made = jax.custom_vjp(lambda x: _own(x, axis))
    made.defvjp(lambda x: (_own(x, axis), None), lambda _, g: (_RUN["all_gather_invariant"](g, axis),))
    return made(x)


_RUN: Mapping[str, Callable[[Any, str], Any]] = {
    "all_reduce": jax.lax.psum,
    "vary": lambda x, axis: jax.lax.pcast(x, axis, to="varying"),
    "all_gather": jax.lax.all_gather,
    "all_gather_invariant": lambda x, axis: jax.lax.all_gather(x, axis, to="invarying"),
    "reduce_scatter": jax.lax.psum_scatter,
    "shard": _shard,
    "all_to_all": lambda x, axis: jax.lax.all_to_all(x, axis, 0, 0),
}


def _collective(name: str) -> Callable[[Any, int], Any]:
    def run(x: Any, number: int) -> Any:
        mesh = _MESH.get()
        if mesh is None:
            fix = "call the function that tn.compile(graph, backend='jax', mesh=…, shard=…) returns"
            raise BackendError(f"'{name}' runs on a mesh only", fix=fix)
        return _RUN[name](x, mesh.axis_names[int(number)])

    return run


FUNCTIONS: Mapping[str, Callable[[Any, int], Any]] = {name: _collective(name) for name in _RUN}
"""The collectives by the names that generated code calls."""


class ShardedFunction(Executable):
    """A graph divided among the devices of a mesh, called as `f(parameters, *inputs)`; see `tensornet.compile`.

    It takes arrays of any sharding and returns arrays with `NamedSharding`. Transforms of JAX work on it.
    """

    def __init__(
        self, graph: Graph, backend: Any, *, mesh: Any, shard: Any, links: Any = None, **options: Any
    ) -> None:
        if not isinstance(mesh, DeviceMesh):
            raise BackendError(
                f"a function of JAX runs on a mesh of its devices, not on {mesh!r}",
                fix="jax.make_mesh((2, 4), ('data', 'model'))",
            )
        if jax.__version_info__ < OLDEST:
            raise BackendError(
                f"JAX {jax.__version__} has not all collectives", fix="pip install 'jax>=0.10'"
            )
        super().__init__(graph, backend, **options)
        kinds = (AxisType.Auto,) * len(mesh.axis_names)
        self.mesh = DeviceMesh(mesh.devices, mesh.axis_names, axis_types=kinds)
        self._told = {"mesh": mesh, "shard": shard, "links": links}
        self._functions: dict[Any, tuple[Executable, Callable[..., Any]]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), **self._told}

    def __repr__(self) -> str:
        axes = ", ".join(f"{name}={size}" for name, size in self.mesh.shape.items())
        return f"<Executable of {self.graph!r} on a mesh of jax, {axes}>"

    @property
    def plan(self) -> Plan:
        """The plan of each device at the last new shapes; of the whole graph on one device if there was no call."""
        found = next(reversed(self._functions.values()), None)
        return super().plan if found is None else found[0].plan

    def run(self, arrays: Any, training: bool = False) -> Any:
        """Runs the graph on inputs and parameters, in order."""
        try:
            shapes = tuple(tuple(x.shape) for x in arrays[: len(self._inputs)])
        except AttributeError:
            raise not_an_array(self.leaves, arrays, self.backend) from None
        if (shapes, training) not in self._functions:
            if len(self._functions) >= PLANS:
                self._functions.clear()
            self._functions[shapes, training] = self._made(shapes, training)
        parameters = dict(zip(self._parameters, arrays[len(shapes) :], strict=True))
        return self._functions[shapes, training][1](parameters, *arrays[: len(shapes)])

    def _made(self, shapes: tuple[Any, ...], training: bool) -> tuple[Executable, Callable[..., Any]]:
        """The program of each device at some shapes, and the function that runs it on all."""
        known, mesh = dict(zip(self._inputs, shapes, strict=True)), Mesh.of(self.mesh, self._told["links"])
        sharded = shard_graph(
            self.graph, mesh, self._told["shard"], dtype=self.dtype or "float32", shapes=known
        )
        options = {"dtype": self.dtype, "memory_limit": self.memory_limit, "backward": self.backward}
        function = Executable(sharded.local, self.backend, **options)  # type: ignore[arg-type]

        def local(parameters: Mapping[str, Any], *inputs: Any) -> Any:
            token = _MESH.set(self.mesh)
            try:
                return function(parameters, *inputs, training=training)
            finally:
                _MESH.reset(token)

        held = {name: self._spec(sharded.places[name]) for name in self._parameters}
        given = tuple(self._spec(sharded.places[name]) for name in self._inputs)
        made = tuple(map(self._spec, sharded.results))
        specs = {"in_specs": (held, *given), "out_specs": made if len(made) > 1 else made[0]}
        return function, jax.jit(jax.shard_map(local, mesh=self.mesh, **specs))

    def _spec(self, place: Placement) -> PartitionSpec:
        """A placement in the terms of JAX."""
        rank = max((each for each in place if isinstance(each, int)), default=-1) + 1
        names = self.mesh.axis_names
        axes = (tuple(a for a, p in zip(names, place, strict=True) if p == d) for d in range(rank))
        return PartitionSpec(*(each or None for each in axes))
