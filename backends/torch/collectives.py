"""Collectives of `torch.distributed` with their vjp, for the programs of sharded graphs.

The axis of the devices is the first of a tensor. Each function finds the groups of the mesh in the context `on_mesh`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, TypeAlias

import torch
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh

from tensornet.errors import BackendError
from tensornet.ops.collectives import VJP
from tensornet.sharding.mesh import Mesh as Sizes

# the names of PyTorch 2.12, and those of later ones
_gather = getattr(distributed, "all_gather_single", distributed.all_gather_into_tensor)
_scatter = getattr(distributed, "reduce_scatter_single", distributed.reduce_scatter_tensor)

Mesh: TypeAlias = "DeviceMesh | Sizes"
"""The devices, or the sizes of a mesh for tensors without values."""

_MESH: ContextVar[Mesh | None] = ContextVar("mesh", default=None)


@contextlib.contextmanager
def on_mesh(mesh: Mesh) -> Iterator[None]:
    """Runs collectives on a mesh."""
    token = _MESH.set(mesh)
    try:
        yield
    finally:
        _MESH.reset(token)


def _all_reduce(x: torch.Tensor, mesh: DeviceMesh, axis: int) -> torch.Tensor:
    made = x.clone(memory_format=torch.contiguous_format)
    distributed.all_reduce(made, group=mesh.get_group(axis))
    return made


def _all_gather(x: torch.Tensor, mesh: DeviceMesh, axis: int) -> torch.Tensor:
    made = x.new_empty((mesh.size(axis), *x.shape))
    _gather(made.view(-1), x.contiguous().view(-1), group=mesh.get_group(axis))
    return made


def _reduce_scatter(x: torch.Tensor, mesh: DeviceMesh, axis: int) -> torch.Tensor:
    made = x.new_empty(x.shape[1:])
    _scatter(made.view(-1), x.contiguous().view(-1), group=mesh.get_group(axis))
    return made


def _all_to_all(x: torch.Tensor, mesh: DeviceMesh, axis: int) -> torch.Tensor:
    made = torch.empty_like(x, memory_format=torch.contiguous_format)
    distributed.all_to_all_single(made.view(-1), x.contiguous().view(-1), group=mesh.get_group(axis))
    return made


def _shard(x: torch.Tensor, mesh: DeviceMesh, axis: int) -> torch.Tensor:
    return x[mesh.get_local_rank(axis)].clone()


def _same(x: torch.Tensor, mesh: DeviceMesh, axis: int) -> torch.Tensor:
    return x.view_as(x)


_RUN: Mapping[str, Callable[[torch.Tensor, DeviceMesh, int], torch.Tensor]] = {
    "all_reduce": _all_reduce,
    "vary": _same,
    "all_gather": _all_gather,
    "all_gather_invariant": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "shard": _shard,
    "all_to_all": _all_to_all,
}


class _Collective(torch.autograd.Function):
    """A collective with its vjp, which is another one."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, name: str, mesh: Mesh, axis: int) -> torch.Tensor:
        ctx.told = name, mesh, axis
        if isinstance(mesh, DeviceMesh) and not x.is_meta:
            return _RUN[name](x, mesh, axis)
        return _without_values(x, name, mesh.shape[axis])

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[Any, ...]:
        name, mesh, axis = ctx.told
        return _Collective.apply(g, VJP[name], mesh, axis), None, None, None  # type: ignore[no-untyped-call]


def _without_values(x: torch.Tensor, name: str, count: int) -> torch.Tensor:
    """The result of a collective on a tensor whose shape alone matters."""
    if name == "vary":
        return x.view_as(x)
    if name.startswith("all_gather"):
        return x.new_empty((count, *x.shape))
    return x.new_empty(x.shape[1:] if name in ("reduce_scatter", "shard") else x.shape)


def _run(name: str, x: torch.Tensor, axis: int) -> torch.Tensor:
    mesh = _MESH.get()
    if mesh is None:
        fix = "run the module that tn.module(graph, mesh=…, shard=…) returns"
        raise BackendError(f"'{name}' runs on a mesh only", fix=fix)
    found: torch.Tensor = _Collective.apply(x, name, mesh, int(axis))  # type: ignore[no-untyped-call]
    return found


FUNCTIONS = {name: functools.partial(_run, name) for name in _RUN}
"""The collectives by the names that generated code calls."""
