"""Sharded functions of JAX: `jax.shard_map` over the program that each device runs.

The vjp of each collective is that of `tensornet.ops.collectives`. So a sharded function has its backward pass as a
program of the devices too, and not the one that `jax.shard_map` derives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec
from jax.sharding import Mesh as DeviceMesh

from tensornet.errors import BackendError
from tensornet.graph.graph import Graph
from tensornet.ops.collectives import VJP
from tensornet.runtime.executable import PLANS, Executable
from tensornet.sharding.mesh import Mesh
from tensornet.sharding.placement import Placement
from tensornet.sharding.sharded import Sharded, shard_graph

__all__ = ["FUNCTIONS", "ShardedFunction"]

_AXES: ContextVar[Sequence[str]] = ContextVar("axes", default=())

_RUN: Mapping[str, Callable[[Any, str], Any]] = {
    "all_reduce": jax.lax.psum,
    "vary": lambda x, axis: x,
    "all_gather": jax.lax.all_gather,
    "all_gather_invariant": jax.lax.all_gather,
    "reduce_scatter": lambda x, axis: jax.lax.psum_scatter(x, axis),
    "shard": lambda x, axis: jnp.take(x, jax.lax.axis_index(axis), axis=0),
    "all_to_all": lambda x, axis: jax.lax.all_to_all(x, axis, 0, 0),
}


def _collective(name: str) -> Callable[[Any, int], Any]:
    def run(x: Any, number: int) -> Any:
        axes = _AXES.get()
        if not axes:
            fix = "call the function that tn.compile(graph, backend='jax', mesh=…, shard=…) returns"
            raise BackendError(f"'{name}' runs on a mesh only", fix=fix)
        return _with_vjp(name, axes[int(number)])(x)

    return run


def _with_vjp(name: str, axis: str) -> Any:
    """A collective with the vjp that its placements mean."""
    run = _RUN[name]
    made = jax.custom_vjp(lambda x: run(x, axis))
    made.defvjp(lambda x: (run(x, axis), None), lambda _, g: (_with_vjp(VJP[name], axis)(g),))
    return made


FUNCTIONS: Mapping[str, Callable[[Any, int], Any]] = {name: _collective(name) for name in _RUN}
"""The collectives by the names that generated code calls."""


def _no_second(*_: Any) -> Any:
    """The derivative of a derivative: `jax.shard_map` would take partial cotangents for replicated ones."""
    fix = "compile the graph without mesh=, or take them of the whole on one device"
    raise BackendError("a function on a mesh of JAX has first derivatives only", fix=fix)


class ShardedFunction:
    """A graph divided among the devices of a mesh, called as `f(parameters, *inputs)`; see `tensornet.compile`.

    It takes arrays of any sharding and returns arrays with `NamedSharding`. `jax.jit` and `jax.grad` work on it, but
    not second derivatives.
    """

    def __init__(self, graph: Graph, *, mesh: Any, shard: Any, links: Any = None, **options: Any) -> None:
        if not isinstance(mesh, DeviceMesh):
            raise BackendError(
                f"a function of JAX runs on a mesh of its devices, not on {mesh!r}",
                fix="jax.make_mesh((2, 4), ('data', 'model'))",
            )
        kinds = (AxisType.Auto,) * len(mesh.axis_names)
        self.mesh = DeviceMesh(mesh.devices, mesh.axis_names, axis_types=kinds)
        self._alone = Executable(graph, "jax", **options)
        self.graph, self._shard, self._options = graph, shard, {**options, "params": None}
        self._divided = Mesh.of(mesh, links)
        self._functions: dict[Any, Callable[..., Any]] = {}

    def __call__(self, *arguments: Any) -> Any:
        """Runs the graph on its parameters, unless they are held, and on its inputs; see `Executable`."""
        arrays = self._alone.arrays(*arguments)
        try:
            shapes = tuple(tuple(x.shape) for x in arrays[: len(self.graph.inputs)])
        except AttributeError:
            raise self._alone.not_arrays(arrays) from None
        if shapes not in self._functions:
            if len(self._functions) >= PLANS:
                self._functions.clear()
            self._functions[shapes] = self._made(self.sharded(*shapes))
        names = [leaf.name for leaf in self.graph.parameters]
        parameters = dict(zip(names, arrays[len(shapes) :], strict=True))
        return self._functions[shapes](parameters, *arrays[: len(shapes)])

    def sharded(self, *shapes: Sequence[int]) -> Sharded:
        """The graph of each device and the placements, at some shapes of the inputs."""
        names = [leaf.name for leaf in self.graph.inputs]
        known = dict(zip(names, shapes, strict=True))
        dtype = self._options.get("dtype") or "float32"
        return shard_graph(self.graph, self._divided, self._shard, dtype=dtype, shapes=known)

    def _made(self, sharded: Sharded) -> Any:
        """The function at some shapes, whose backward pass runs on the mesh as well."""
        function = Executable(sharded.local, "jax", **self._options)
        places = sharded.places
        held = {leaf.name: self._spec(places[leaf.name]) for leaf in sharded.graph.parameters}
        given = tuple(self._spec(places[leaf.name]) for leaf in sharded.graph.inputs)
        results = tuple(map(self._spec, sharded.results))
        made = results if len(results) > 1 else results[0]
        apart = PartitionSpec(self.mesh.axis_names)

        def local(parameters: Mapping[str, Any], *inputs: Any) -> Any:
            token = _AXES.set(self.mesh.axis_names)
            try:
                return function(parameters, *inputs)
            finally:
                _AXES.reset(token)

        def on_mesh(run: Callable[..., Any], takes: Any, gives: Any) -> Any:
            return jax.shard_map(run, mesh=self.mesh, in_specs=takes, out_specs=gives, check_vma=False)

        def once(run: Callable[..., Any], takes: Any, gives: Any) -> Any:
            found = jax.custom_vjp(on_mesh(run, takes, gives))
            found.defvjp(_no_second, _no_second)
            return found

        def forward(parameters: Mapping[str, Any], *inputs: Any) -> Any:
            floats = [n for n, x in enumerate(inputs) if jnp.issubdtype(x.dtype, jnp.floating)]

            def run(parameters: Mapping[str, Any], *inputs: Any) -> Any:
                def of(parameters: Mapping[str, Any], *some: Any) -> Any:
                    told = dict(zip(floats, some, strict=True))
                    return local(parameters, *(told.get(n, x) for n, x in enumerate(inputs)))

                found, pull = jax.vjp(of, parameters, *(inputs[n] for n in floats))
                return found, jax.tree.map(lambda x: x[None], pull)

            found, pull = once(run, (held, *given), (made, apart))(parameters, *inputs)
            return found, (pull, dict.fromkeys(floats), len(inputs))

        def backward(kept: Any, cotangent: Any) -> Any:
            pull, floats, count = kept

            def run(pull: Any, cotangent: Any) -> Any:
                return jax.tree.map(lambda x: x[0], pull)(cotangent)

            takes = (held, *(given[n] for n in floats))
            first, *rest = once(run, (apart, made), takes)(pull, cotangent)
            told = dict(zip(floats, rest, strict=True))
            return first, *(told.get(n) for n in range(count))

        whole = jax.custom_vjp(on_mesh(local, (held, *given), made))
        whole.defvjp(forward, backward)
        return jax.jit(whole)

    def _spec(self, place: Placement) -> PartitionSpec:
        """A placement in the terms of JAX."""
        rank = max((each for each in place if isinstance(each, int)), default=-1) + 1
        names = self.mesh.axis_names
        axes = (tuple(a for a, p in zip(names, place, strict=True) if p == d) for d in range(rank))
        return PartitionSpec(*(each or None for each in axes))
