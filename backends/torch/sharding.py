"""Modules on a mesh of devices: parameters are DTensors, and each device runs its part of the graph."""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor

from tensornet.device.cost_model import default_profile
from tensornet.errors import BackendError, TensornetError
from tensornet.graph.graph import Graph
from tensornet.planning.plans import Plan
from tensornet.runtime.executable import PLANS, Executable
from tensornet.sharding.mesh import Mesh
from tensornet.sharding.mesh import Placement as Place
from tensornet.sharding.sharded import Sharded, shard_graph

from ..loops import as_tuple
from . import module
from .collectives import on_mesh
from .module import TensorModule, backend


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
        if options.get("tune") is not None:
            raise BackendError(
                "processes that time plans would choose other ones each, and wait for each other",
                fix="leave tune= out: on a mesh all plan by built-in constants",
            )
        super().__init__(graph, **options)
        self._mesh, self._divided = mesh, (Mesh.of(mesh, links), shard)
        self._ready_at: dict[tuple[tuple[int, ...], ...], _Ready] = {}
        self._dtype = backend.dtype(next(self.parameters(), torch.empty(())))
        found = shard_graph(graph, self._divided[0], shard, dtype=self._dtype, sizes=self._options["plan_at"])
        self.places = dict(found.places)
        for name, parameter in list(self.named_parameters()):
            owner, last = self._owner(name)
            held = self._distributed(name, parameter.detach())
            owner._parameters[last] = torch.nn.Parameter(held, parameter.requires_grad)

    def _distributed(self, name: str, whole: torch.Tensor) -> DTensor:
        """A parameter as a DTensor, given the same value on all devices."""
        return distribute_tensor(whole, self._mesh, _torch(self.places[name]), src_data_rank=None)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        """Takes whole tensors too, the same on all devices."""
        for name, parameter in self.named_parameters():
            held = state_dict.get(prefix + name)
            if (
                isinstance(held, torch.Tensor)
                and not isinstance(held, DTensor)
                and held.shape == parameter.shape
            ):
                state_dict[prefix + name] = self._distributed(name, held.to(parameter.device))
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def reset_parameters(
        self, seed: int | None = None, *, device: Any = None, dtype: str | None = None
    ) -> None:
        """Draws all parameters again, the same on all devices: without a `seed`, their generators must agree."""
        with torch.no_grad():
            for name, array in self._drawn(seed, dtype or "float64").items():
                self.get_parameter(name).copy_(self._distributed(name, array))

    def run(self, *inputs: torch.Tensor) -> Any:
        """Runs the graph on its inputs, in order."""
        for leaf, x in zip(self.graph.inputs, inputs, strict=True):
            if not isinstance(x, torch.Tensor):
                what = f"'{leaf.name}' is a {type(x).__name__}, not a tensor of torch"
                raise BackendError(what, fix="pass the same tensor on each process, or a DTensor")
        asked = self._asked(self._standing()) if self._places.blocks else frozenset()
        if asked:
            raise BackendError(
                f"the block '{min(asked)}' was replaced, hooked or wrapped, and on a mesh all blocks are one program",
                fix="change the graph before tn.module, or hook the whole module",
            )
        ready = self._ready(inputs)
        names = [leaf.name for leaf in self.graph.inputs]
        given = [self._local(x, ready.sharded.places[name]) for name, x in zip(names, inputs, strict=True)]
        held = {leaf.name: _own(self.get_parameter(leaf.name)) for leaf in self.graph.parameters}
        with on_mesh(self._mesh), _by_rank():
            made = ready.function(held, *given, training=self.training)
        found = [self._whole(*each) for each in zip(as_tuple(made), ready.sharded.results, strict=True)]
        return tuple(found) if isinstance(made, tuple) else found[0]

    def _ready(self, inputs: Sequence[torch.Tensor]) -> _Ready:
        """The part of this device at the shapes of the inputs; parameters stay where they are."""
        shapes = tuple(tuple(each.shape) for each in inputs)
        if shapes not in self._ready_at:
            _check_equal(self._mesh, [leaf.name for leaf in self.graph.inputs], inputs)
            if len(self._ready_at) >= PLANS:
                self._ready_at.clear()
            names = [leaf.name for leaf in self.graph.inputs]
            mesh, shard = self._divided
            known = dict(zip(names, shapes, strict=True))
            kept = {leaf.name: self.places[leaf.name] for leaf in self.graph.parameters}
            sharded = shard_graph(self.graph, mesh, shard, dtype=self._dtype, shapes=known, kept=kept)
            # processes that measured their devices would exchange tensors in different orders
            profile = default_profile(self._mesh.device_type)
            options = {name: self._options[name] for name in ("memory_limit", "tune", "backward")}
            self._ready_at[shapes] = _Ready(
                sharded, Executable(sharded.local, backend, profile=profile, **options)
            )
        return self._ready_at[shapes]

    @property
    def plan(self) -> Plan:
        """The plan of this device at the last new shapes; of the whole graph on one device if there was no call."""
        found = next(reversed(self._ready_at.values()), None)
        return super().plan if found is None else found.function.plan

    def __reduce__(self) -> tuple[Any, ...]:
        made, given, state = super().__reduce__()
        return made, given, {**state, "_ready_at": {}}

    def _local(self, x: torch.Tensor, place: Place) -> torch.Tensor:
        """The own part of an input, which is a DTensor or the same on all devices."""
        if not isinstance(x, DTensor):
            x = DTensor.from_local(x, self._mesh, [Replicate()] * self._mesh.ndim, run_check=False)
        return _own(x.redistribute(placements=_torch(place)))

    def _whole(self, x: torch.Tensor, place: Place) -> DTensor:
        """A result as a DTensor."""
        return DTensor.from_local(x, self._mesh, _torch(place), run_check=False)


def _check_equal(mesh: DeviceMesh, names: Sequence[str], inputs: Sequence[torch.Tensor]) -> None:
    """Raises an error on all processes if an input is another tensor on one. It is checked once for new shapes."""
    held = [(tuple(x.shape), None if isinstance(x, DTensor) else _digest(x)) for x in inputs]
    every = [(distributed.get_rank(), held)]
    for axis in range(mesh.ndim):
        found: list[Any] = [None] * mesh.size(axis)
        distributed.all_gather_object(found, every, mesh.get_group(axis))
        every = [each for several in found for each in several]
    first, expected = min(every)
    for rank, held in every:
        for name, own, other in zip(names, held, expected, strict=True):
            if own != other:
                raise BackendError(
                    f"'{name}' is not the same tensor on the processes {first} and {rank}",
                    fix="pass the same tensor on each process, or a DTensor of the parts",
                )


def _digest(x: torch.Tensor) -> str:
    held = x.detach().cpu().contiguous().view(-1).view(torch.uint8)
    return hashlib.sha256(held.numpy().data).hexdigest()


@contextlib.contextmanager
def _by_rank() -> Iterator[None]:
    """Tells in an error which process raised it: it may be the only one."""
    try:
        yield
    except TensornetError as error:
        what = f"{error.message}, on process {distributed.get_rank()} of {distributed.get_world_size()}"
        waits = "leave the error uncaught: the others wait for this process until torchrun ends them"
        raise type(error)(
            what, error.place, f"{error.fix}; {waits}" if error.fix else waits, error.see
        ) from None


def _torch(place: Place) -> list[Placement]:
    """A placement in the terms of torch."""
    return [Shard(each) if isinstance(each, int) else Replicate() for each in place]


def _own(x: Any) -> torch.Tensor:
    """The own part of a DTensor, whose gradient has the same placement."""
    found: torch.Tensor = x.to_local(grad_placements=x.placements)
    return found


make = functools.partial(module.make, base=ShardedModule)
"""The module of a graph on a mesh."""
