"""Modules on a mesh of devices: parameters are DTensors, and each device runs its part of the graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor

from tensornet.device.cost_model import default_profile
from tensornet.errors import BackendError
from tensornet.graph.graph import Graph
from tensornet.runtime.executable import Executable
from tensornet.sharding.mesh import Mesh
from tensornet.sharding.placement import Placement as Place
from tensornet.sharding.sharded import Sharded, shard_graph

from .collectives import on_mesh
from .module import TensorModule, class_of

__all__ = ["ShardedModule", "make"]


@dataclass(frozen=True)
class _Ready:
    """The part of one device at some shapes."""

    sharded: Sharded
    function: Executable


class ShardedModule(TensorModule):
    """A graph divided among the devices of a mesh. See `tensornet.module`.

    Its parameters are `DTensor`s under the names that they have on one device, with the same initial values for a seed.
    So optimizers, clipping and `torch.distributed.checkpoint` take it like any module. Random masks are drawn whole on
    each device, so that all devices must have the same state of the random generator, as by `torch.manual_seed`.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        mesh: DeviceMesh,
        shard: Any,
        links: Mapping[str, tuple[float, float]] | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(mesh, DeviceMesh):
            fix = "torch.distributed.init_device_mesh('cpu', (2, 4), mesh_dim_names=('data', 'model'))"
            raise BackendError(f"a module runs on a DeviceMesh, not on {mesh!r}", fix=fix)
        super().__init__(graph, **options)
        self._mesh, self._divided = mesh, (Mesh.of(mesh, links), shard)
        self._ready_at: dict[tuple[tuple[int, ...], ...], _Ready] = {}
        found = shard_graph(graph, self._divided[0], shard, sizes=self._options["plan_at"])
        self.places = dict(found.places)
        for name, parameter in list(self.named_parameters()):
            owner, last = self._owner(name)
            held = distribute_tensor(parameter.detach(), mesh, _torch(self.places[name]), src_data_rank=None)
            owner._parameters[last] = torch.nn.Parameter(held, parameter.requires_grad)

    def run(self, *inputs: torch.Tensor) -> Any:
        """Runs the graph on its inputs, in order."""
        ready = self._ready(tuple(tuple(each.shape) for each in inputs))
        names = [leaf.name for leaf in self.graph.inputs]
        given = [self._local(x, ready.sharded.places[name]) for name, x in zip(names, inputs, strict=True)]
        held = {leaf.name: _own(self.get_parameter(leaf.name)) for leaf in self.graph.parameters}
        with on_mesh(self._mesh):
            made = ready.function(held, *given, training=self.training)
        results = made if isinstance(made, tuple) else (made,)
        found = [self._whole(*each) for each in zip(results, ready.sharded.results, strict=True)]
        return tuple(found) if isinstance(made, tuple) else found[0]

    def _ready(self, shapes: tuple[tuple[int, ...], ...]) -> _Ready:
        """The part of this device at some shapes of the inputs; parameters stay where they are."""
        if shapes not in self._ready_at:
            names = [leaf.name for leaf in self.graph.inputs]
            mesh, shard = self._divided
            known = dict(zip(names, shapes, strict=True))
            kept = {leaf.name: self.places[leaf.name] for leaf in self.graph.parameters}
            sharded = shard_graph(self.graph, mesh, shard, shapes=known, kept=kept)
            # processes that measured their devices would exchange tensors in different orders
            profile = default_profile(self._mesh.device_type)
            options = {name: self._options[name] for name in ("memory_limit", "tune", "backward")}
            self._ready_at[shapes] = _Ready(
                sharded, Executable(sharded.local, "torch", profile=profile, **options)
            )
        return self._ready_at[shapes]

    def _local(self, x: torch.Tensor, place: Place) -> torch.Tensor:
        """The own part of an input, which is a DTensor or the same on all devices."""
        if not isinstance(x, DTensor):
            x = DTensor.from_local(x, self._mesh, [Replicate()] * self._mesh.ndim, run_check=False)
        return _own(x.redistribute(placements=_torch(place)))

    def _whole(self, x: torch.Tensor, place: Place) -> DTensor:
        """A result as a DTensor."""
        return DTensor.from_local(x, self._mesh, _torch(place), run_check=False)


def _torch(place: Place) -> list[Placement]:
    """A placement in the terms of torch."""
    return [Shard(each) if isinstance(each, int) else Replicate() for each in place]


def _own(x: Any) -> torch.Tensor:
    """The own part of a DTensor, whose gradient has the same placement."""
    found: torch.Tensor = x.to_local(grad_placements=x.placements)
    return found


def make(graph: Graph, **options: Any) -> ShardedModule:
    """The module of a graph on a mesh."""
    made = class_of(tuple(leaf.name for leaf in graph.inputs), ShardedModule)
    return made(graph, **options)  # type: ignore[return-value]
