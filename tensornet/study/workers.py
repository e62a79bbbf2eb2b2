"""Who trains runs at once: processes of this machine, a Dask cluster, or what `submitit` starts under Slurm.

Each is an executor that takes functions and gives futures, as those of `concurrent.futures`. What is
lost with a worker is asked for again, and goes on from what the worker kept in the folder.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from tensornet.errors import TensornetError

from .libraries import library

__all__ = ["Dask", "Processes", "Submitit", "Workers", "on_workers"]

Item = TypeVar("Item")
Result = TypeVar("Result")

SECONDS_BETWEEN_LOOKS = 0.1
"""At the futures."""

TRIES = 8
"""A run whose workers are lost so often is not asked for again."""


class Future(Protocol):
    """What will be the result of a function."""

    def done(self) -> bool:
        """Whether it is there, or will never be."""

    def result(self) -> Any:
        """The result, or the error there was."""

    def cancel(self) -> Any:
        """It is no longer wanted."""


class Executor(Protocol):
    """What calls functions elsewhere."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Future:
        """Asks for a call."""


class Workers(Protocol):
    """Where runs are trained, beside this process."""

    @property
    def are_here(self) -> bool:
        """Whether they are processes of this machine."""

    def threads(self, cores: int) -> int | None:
        """The threads of each, where this machine has so many cores; nothing for what the worker has."""

    def lost(self) -> tuple[type[BaseException], ...]:
        """The errors that say that a worker is gone, and nothing about what it did."""

    def open(self) -> Any:
        """A context with an executor."""


@dataclass(frozen=True)
class Processes:
    """So many processes of this machine, each started anew (`spawn`).

    Attributes:
        number: how many.
    """

    number: int

    def __post_init__(self) -> None:
        if not isinstance(self.number, int) or isinstance(self.number, bool) or self.number < 1:
            raise TensornetError(f"jobs is {self.number}", fix="give a whole number, 1 or more")

    @property
    def are_here(self) -> bool:
        """They are."""
        return True

    def threads(self, cores: int) -> int:
        """The cores are divided among them."""
        return max(1, cores // self.number)

    def lost(self) -> tuple[type[BaseException], ...]:
        """With one process all futures of the pool are lost."""
        return (BrokenProcessPool,)

    @contextmanager
    def open(self) -> Iterator[Executor]:
        """A pool, whose processes are ended if the block is left by an error."""
        others = set(multiprocessing.active_children())
        spawn = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(self.number, mp_context=spawn, initializer=_leave_interrupts_to_the_parent)
        try:
            yield pool
        except BaseException:
            for each in set(multiprocessing.active_children()) - others:
                each.terminate()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _leave_interrupts_to_the_parent() -> None:
    """A terminal sends Ctrl-C to all; the parent ends the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@dataclass(frozen=True)
class Dask:
    """The workers of a Dask cluster; the extra `dask` installs what it needs.

    Attributes:
        address: of its scheduler, as "tcp://127.0.0.1:8786".
    """

    address: str

    @property
    def are_here(self) -> bool:
        """They may be anywhere."""
        return False

    def threads(self, cores: int) -> None:
        """Those that torch has there; a nanny leaves it one."""
        return

    def lost(self) -> tuple[type[BaseException], ...]:
        """What `distributed` raises when workers died with a task."""
        scheduler, client = library("distributed.scheduler"), library("distributed.client")
        return (scheduler.KilledWorker, client.FutureCancelledError)

    @contextmanager
    def open(self) -> Iterator[Executor]:
        """An executor of a client of the cluster.

        Raises:
            TensornetError: there is no scheduler at the address.
        """
        try:
            client = library("distributed").Client(self.address, set_as_default=False)
        except (OSError, ValueError, TypeError) as error:
            raise TensornetError(
                f"no Dask scheduler answers at {self.address}: {error}",
                fix="start `dask scheduler` and `dask worker`, and give the address that it prints",
            ) from None
        with client, client.get_executor(pure=False) as executor:
            yield executor


@dataclass(frozen=True)
class Submitit:
    """Jobs of Slurm, or processes, that `submitit` starts; the extra `slurm` installs what it needs.

    Attributes:
        folder: for the scripts and logs of the jobs; every machine sees the same.
        cluster: "slurm", or "local" for processes of this machine.
        resources: what is asked for each run, as `submitit.AutoExecutor.update_parameters` takes it:
            `timeout_min`, `slurm_partition`, `gpus_per_node`, `mem_gb`, and `cpus_per_task`, the threads
            of each run.
    """

    folder: Path
    cluster: str = "slurm"
    resources: Mapping[str, Any] = field(default_factory=dict)

    @property
    def are_here(self) -> bool:
        """Slurm may start them anywhere."""
        return self.cluster == "local"

    def threads(self, cores: int) -> int:
        """Those that are asked for."""
        return int(self.resources.get("cpus_per_task", 1))

    def lost(self) -> tuple[type[BaseException], ...]:
        """A job that ended without a result."""
        return (library("submitit").core.utils.UncompletedJobError,)

    @contextmanager
    def open(self) -> Iterator[Executor]:
        """An executor of `submitit`.

        Raises:
            TensornetError: there is no such cluster here, or no such resource.
        """
        try:
            executor = library("submitit").AutoExecutor(folder=self.folder, cluster=self.cluster)
            executor.update_parameters(**{"name": "tensornet", "cpus_per_task": 1, **self.resources})
        except (RuntimeError, NameError, ValueError, TypeError) as error:
            raise TensornetError(
                f"submitit cannot use '{self.cluster}' so: {error}",
                fix="where there is Slurm, name what its partitions take; elsewhere --submitit local",
            ) from None
        yield executor


def on_workers(
    workers: Workers,
    function: Callable[[Item], Result | TensornetError],
    items: Sequence[Item],
    done: Callable[[Item, Result], None],
    look: Callable[[], None] = lambda: None,
    ready: Callable[[Item], bool] = lambda item: True,
    say: Callable[[str], None] = lambda text: None,
) -> None:
    """Calls a function of each item on workers, those whose workers were lost again.

    Args:
        workers: who calls it.
        function: one that can be imported by name; it returns its errors.
        items: that it is called with.
        done: told each item and its result, here, as soon as it is there.
        look: called now and then meanwhile.
        ready: whether an item can be asked for, now that others are done.
        say: told when something was lost.

    Raises:
        TensornetError: one was returned, or the workers of an item are lost again and again.
    """
    left = dict.fromkeys(range(len(items)), TRIES)
    while left:
        lost: BaseException | None = None
        with workers.open() as executor:
            pending: dict[int, Future] = {}
            waiting = list(left)
            try:
                while pending or (waiting and lost is None):
                    try:
                        for number in [number for number in waiting if lost is None and ready(items[number])]:
                            pending[number] = executor.submit(function, items[number])
                            waiting.remove(number)
                    except workers.lost() as error:
                        lost = error
                    for number in [number for number, future in pending.items() if future.done()]:
                        try:
                            result = pending.pop(number).result()
                        except workers.lost() as error:
                            lost = error
                            continue
                        if isinstance(result, TensornetError):
                            raise result
                        del left[number]
                        done(items[number], result)
                    look()
                    time.sleep(SECONDS_BETWEEN_LOOKS)
            except BaseException:
                for future in pending.values():
                    future.cancel()
                raise
        again = left.keys() - waiting
        if left:
            say(f"a worker was lost; of what it did, {len(again)} are asked for again")
        left = {number: tries - (number in again) for number, tries in left.items()}
        if left and min(left.values()) == 0:
            raise TensornetError(
                f"workers end again and again before they are done: {lost}",
                fix="look at what ends them: a lack of memory (then fewer at once), or a limit of time",
            )
