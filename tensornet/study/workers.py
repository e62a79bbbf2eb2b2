"""Workers that train runs at once: processes of this machine, or a Dask cluster.

Each opens an executor of `concurrent.futures`. A run that is lost with its worker is submitted again, and resumes
from what the worker kept in the folder.
"""

from __future__ import annotations

import multiprocessing
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from tensornet.errors import TensornetError

from .libraries import library

__all__ = ["Dask", "Processes", "Workers", "on_workers"]

Item = TypeVar("Item")
Result = TypeVar("Result")

TRIES = 8
"""A run is not submitted again after this many lost workers."""


@dataclass(frozen=True)
class Processes:
    """Processes of this machine, each started as a new interpreter (`spawn`).

    All workers have `threads(cores)`, the threads of each if this machine has so many cores, or None if they are
    elsewhere; `lost()`, the errors by which a worker is gone; and `open()`, an executor.

    Attributes:
        number: the number of processes.
    """

    number: int

    def __post_init__(self) -> None:
        if not isinstance(self.number, int) or isinstance(self.number, bool) or self.number < 1:
            raise TensornetError(f"jobs is {self.number}", fix="give a whole number, 1 or more")

    def threads(self, cores: int) -> int:
        """An equal share of the cores for each process."""
        return max(1, cores // self.number)

    def lost(self) -> tuple[type[BaseException], ...]:
        """The error of a broken pool: if one process dies, all futures of the pool are lost."""
        return (BrokenProcessPool,)

    @contextmanager
    def open(self) -> Iterator[Executor]:
        """A pool; its processes are terminated if the block raises an error."""
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
    """Ignores Ctrl-C, which a terminal sends to all processes; the parent ends the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@dataclass(frozen=True)
class Dask:
    """The workers of a Dask cluster; the extra `dask` installs what it needs.

    Attributes:
        address: the address of its scheduler, such as "tcp://127.0.0.1:8786".
    """

    address: str

    def threads(self, cores: int) -> None:
        """None: each worker uses the threads that torch has there; a nanny leaves it one."""

    def lost(self) -> tuple[type[BaseException], ...]:
        """The errors that `distributed` raises if workers died with a task."""
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
            fix = "start `dask scheduler` and `dask worker`, and give the address that it prints"
            raise TensornetError(f"no Dask scheduler answers at {self.address}: {error}", fix=fix) from None
        with client, client.get_executor(pure=False) as executor:
            yield executor


Workers: TypeAlias = Processes | Dask
"""The workers that train runs instead of this process."""


def on_workers(
    workers: Workers,
    function: Callable[[Item], Result],
    items: Sequence[Item],
    done: Callable[[Item, Result], None],
    ready: Callable[[Item], bool] = lambda item: True,
    say: Callable[[str], None] = lambda text: None,
) -> None:
    """Calls a function on each item on workers, and repeats the calls whose workers were lost.

    Args:
        workers: the workers that call it.
        function: importable by name.
        items: the arguments of the calls.
        done: receives each item and its result, in this process, as soon as it is available.
        ready: whether an item can be submitted yet; items may depend on others that are done.
        say: receives a message if a worker was lost.

    Raises:
        TensornetError: a call raised one, or the workers of an item were lost `TRIES` times.
    """
    left, lost = dict.fromkeys(range(len(items)), TRIES), list[BaseException]()
    while left:
        waiting, pending = list(left), dict[Future[Any], int]()
        lost.clear()
        with workers.open() as executor:
            try:
                while pending or (waiting and not lost):
                    try:
                        for number in [each for each in waiting if not lost and ready(items[each])]:
                            pending[executor.submit(_answer, function, items[number])] = number
                            waiting.remove(number)
                        for call in wait(pending, return_when=FIRST_COMPLETED).done:
                            number, result = pending.pop(call), call.result()
                            if isinstance(result, TensornetError):
                                raise result
                            del left[number]
                            done(items[number], result)
                    except workers.lost() as error:
                        lost.append(error)
            finally:
                for call in pending:
                    call.cancel()
        again = left.keys() - waiting
        if left:
            say(f"a worker was lost; of what it did, {len(again)} are asked for again")
        left = {number: tries - (number in again) for number, tries in left.items()}
        if 0 in left.values():
            fix = "look at what ends them: a lack of memory (then fewer at once), or a limit of time"
            raise TensornetError(f"workers end again and again before they are done: {lost[-1]}", fix=fix)


_ALONE = threading.Lock()
"""Thread counts and seeds are global to a process: a worker with several threads computes one thing at a time."""


def _answer(function: Callable[[Item], Result], item: Item) -> Result | TensornetError:
    """The result of a call on a worker; an error of the user is returned as a value."""
    with _ALONE:
        try:
            return function(item)
        except TensornetError as error:
            return error
