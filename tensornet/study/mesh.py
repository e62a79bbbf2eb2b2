"""Device meshes: the processes that `torchrun` started train each run of a study together.

The first process runs the study and holds its files. The others train each run with it, and wait for the next.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import Any, TypeVar

from tensornet.errors import TensornetError, TensornetWarning

from .libraries import library

Result = TypeVar("Result")

PATIENCE = timedelta(days=7)
"""How long processes wait for the first, which compresses, measures and writes alone."""


_PROCESSES: ContextVar[tuple[Any, Any] | None] = ContextVar("processes", default=None)
"""The device mesh, and the group of processes by which the first sends the others what it found."""


def own_device(device: str | None) -> str | None:
    """The device of this process: processes of one machine have a GPU each."""
    cuda = library("torch").cuda
    if not cuda.is_available() or not (device or "cuda").startswith("cuda"):
        return device
    cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    return "cuda"


def together(
    mesh: Mapping[str, int], kind: str, study: Callable[[], Result], item: type, train: Callable[[Any], Any]
) -> Result:
    """The result of a study, which runs on the first process of a mesh.

    Args:
        mesh: names and sizes of its axes; empty if this process is alone.
        kind: "cpu" or "cuda".
        study: runs the study; it sends each item as `first(lambda: item)` before it trains it.
        item: the type of an item.
        train: trains an item on the other processes.

    Raises:
        TensornetError: there are more or fewer processes than devices of the mesh, or the study raises it.
    """
    if not mesh:
        return study()
    with _started(mesh, kind):
        if is_first():
            return first(study)
        while isinstance(found := first(study), item):
            train(found)
        return found


@contextmanager
def _started(mesh: Mapping[str, int], kind: str) -> Iterator[None]:
    """Joins the processes that torchrun started; without it, this process is the only one."""
    distributed = library("torch.distributed")
    with ExitStack() as ended:
        if not distributed.is_initialized():
            alone = {"store": distributed.HashStore(), "rank": 0, "world_size": 1}
            alone = {} if "WORLD_SIZE" in os.environ else alone
            distributed.init_process_group("gloo" if kind == "cpu" else "cpu:gloo,cuda:nccl", **alone)
            ended.callback(distributed.destroy_process_group)
        count, found = math.prod(mesh.values()), distributed.get_world_size()
        if count != found:
            axes = ",".join(f"{name}={size}" for name, size in mesh.items())
            fix = f"torchrun --nproc-per-node {count} -m tensornet study … --mesh {axes}"
            raise TensornetError(f"the mesh {axes} is of {count} processes, and {found} run here", fix=fix)
        devices = library("torch.distributed.device_mesh").init_device_mesh
        made = devices(kind, tuple(mesh.values()), mesh_dim_names=tuple(mesh))
        group = distributed.new_group(backend="gloo", timeout=PATIENCE)
        ended.callback(_PROCESSES.reset, _PROCESSES.set((made, group)))
        ended.enter_context(warnings.catch_warnings())  # the last batch of an epoch
        warnings.filterwarnings("ignore", ".*do not divide: each takes all", TensornetWarning)
        yield


def is_first() -> bool:
    """Whether this process holds the files: it is alone, or the first of a mesh."""
    return _PROCESSES.get() is None or library("torch.distributed").get_rank() == 0


def first(function: Callable[..., Result], *arguments: Any) -> Result:
    """The result of a call on the first process, on all of them; all raise its error."""
    processes, found = _PROCESSES.get(), list[Any]([None])
    if is_first():
        try:
            found = [function(*arguments)]
        except TensornetError as error:
            found = [error]
    if processes is not None:
        try:
            library("torch.distributed").broadcast_object_list(found, 0, processes[1])
        except RuntimeError:
            if not isinstance(found[0], TensornetError):  # such an error ended the others
                raise
    if isinstance(found[0], TensornetError):
        raise found[0]
    return found[0]  # type: ignore[no-any-return]


# ---------------------------------------------------------------------------- tensors


def divided(shard: Any) -> dict[str, Any]:
    """The options by which a module is divided on the mesh."""
    processes = _PROCESSES.get()
    return {} if processes is None else {"mesh": processes[0], "shard": shard}


def whole(x: Any) -> Any:
    """A tensor as a whole, if each process holds a part of it."""
    return x.full_tensor() if hasattr(x, "full_tensor") else x


def part_like(x: Any, like: Any) -> Any:
    """The own part of a tensor that is divided as another of its shape is."""
    if not hasattr(like, "placements") or x.shape != like.shape:
        return x
    distribute = library("torch.distributed.tensor").distribute_tensor
    return distribute(x, like.device_mesh, like.placements, src_data_rank=None)
