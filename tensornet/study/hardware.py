"""The hardware of a run: the device, its threads and precision, and the processes that share the run."""

from __future__ import annotations

import os
import platform
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tensornet.errors import BackendError, TensornetError

from .libraries import library

__all__ = ["PRECISIONS", "Hardware", "processes"]

PRECISIONS = ("auto", "float32", "bfloat16")
"""The precisions for the contractions of a step; parameters stay in float32."""

MOST_THREADS = 1024
"""The most threads of one process; a system that cannot start them kills the process during an import."""


@dataclass(frozen=True)
class Hardware:
    """A device, and the rank of this process among those that train together.

    Attributes:
        device: the torch device name, such as "cpu" or "cuda:0".
        threads: threads of one process on the CPU.
        precision: "float32", or the type in which autocast computes contractions.
        processes: the number of processes that share each mini-batch.
        rank: the number of this process, from 0; only the first one writes files and messages.
        machine: a description of the machine for readers.
    """

    device: str = "cpu"
    threads: int = 1
    precision: str = "float32"
    processes: int = 1
    rank: int = 0
    machine: str = field(default="", compare=False)

    @classmethod
    def chosen(
        cls, device: str | None = None, threads: int | None = None, precision: str = "auto"
    ) -> Hardware:
        """The required hardware; by default the first CUDA device if there is one, else the CPU, and all cores.

        Raises:
            BackendError: the device does not exist.
            TensornetError: the precision or the number of threads is invalid.
        """
        torch = library("torch")
        group = torch.distributed
        world, rank = (group.get_world_size(), group.get_rank()) if group.is_initialized() else (1, 0)
        device = str(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        if device == "cuda":
            device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}"
        try:
            torch.zeros(1, device=device).item()
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise BackendError(f"there is no device '{device}': {reason}", fix="give --device cpu") from None
        if threads is not None and (type(threads) is not int or not 1 <= threads <= MOST_THREADS):
            raise TensornetError(f"threads is {threads}", fix=f"give a whole number, 1 to {MOST_THREADS}")
        if precision not in PRECISIONS:
            raise TensornetError(
                f"there is no precision '{precision}'", fix=f"choose of {', '.join(PRECISIONS)}"
            )
        on_cuda = device.startswith("cuda")
        if precision == "auto":
            precision = "bfloat16" if on_cuda and torch.cuda.is_bf16_supported() else "float32"
        machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
        if on_cuda:
            machine = f"{torch.cuda.get_device_name(device)}, {machine}"
        return cls(device, threads or torch.get_num_threads(), precision, world, rank, machine)

    @property
    def kind(self) -> str:
        """The kind of device: "cpu" or "cuda"."""
        return self.device.partition(":")[0]

    def described(self) -> dict[str, Any]:
        """The properties that numbers depend on."""
        return {"device": self.kind} | {
            name: getattr(self, name) for name in ("threads", "precision", "processes")
        }

    def autocast(self) -> Any:
        """The context in which the forward pass runs."""
        torch = library("torch")
        reduced = self.precision != "float32"
        return torch.autocast(self.kind, getattr(torch, self.precision), enabled=reduced)

    def wait(self) -> None:
        """Waits until the device has finished its work, so that measured times include it."""
        if self.kind == "cuda":
            library("torch").cuda.synchronize(self.device)

    def total(self, values: Any) -> Any:
        """The sum of a tensor over the processes."""
        if self.processes > 1:
            library("torch").distributed.all_reduce(values)
        return values

    def agreed(self, value: Any) -> Any:
        """The value of the first process, in all processes."""
        said = [value]
        if self.processes > 1:
            library("torch").distributed.broadcast_object_list(said, src=0)
        return said[0]

    @contextmanager
    def reproducible(self) -> Iterator[None]:
        """Sets deterministic algorithms, this number of threads, plans by built-in constants; restores all at the end.

        Sums split over another number of threads, or in an order chosen for a measured device, round differently.
        """
        torch = library("torch")
        threads, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
        warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
        fixed = {"TENSORNET_CALIBRATE": "0", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
        kept = {name: os.environ.get(name) for name in fixed}
        torch.set_num_threads(self.threads)
        torch.use_deterministic_algorithms(True, warn_only=self.kind != "cpu")
        os.environ.update(fixed)
        try:
            with torch.random.fork_rng(devices=[] if self.kind == "cpu" else None):
                yield
        finally:
            torch.use_deterministic_algorithms(strict, warn_only=warn_only)
            torch.set_num_threads(threads)
            for name, value in kept.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


@contextmanager
def processes() -> Iterator[None]:
    """Joins the processes that `torchrun` started, while the study runs; without `torchrun` it does nothing."""
    torch = library("torch")
    started = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()
    if not started or torch.distributed.is_initialized():
        yield
        return
    on_cuda = torch.cuda.is_available()
    if on_cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.distributed.init_process_group("cpu:gloo,cuda:nccl" if on_cuda else "gloo")
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()
