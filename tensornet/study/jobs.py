"""Runs as values, which this process or another trains to the same numbers, and the workers that train several at once.

Workers are processes of this machine, or a Dask cluster: each opens an executor of `concurrent.futures`. A run that is
lost with its worker is submitted again, and resumes from what the worker kept in the folder.
"""

from __future__ import annotations

import functools
import multiprocessing
import signal
import threading
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import tensornet as tn
from tensornet.errors import TensornetError, checked_number

from .compressing import classifier, compressed_start
from .configuration import Subject
from .libraries import library, versions
from .mesh import first, is_first
from .results import Appraisal, Compression, RunResult, RunStore, load_trained
from .task import Recipe
from .training import Hardware, Progress, TrainingRun, sizes_of_batch, train

ROUNDS = 9
"""Measured turns of each classifier."""


@dataclass(frozen=True)
class Run:
    """A row of a task, and how it is trained.

    Attributes:
        name: the row, and the optimizer if there are several.
        of: the row.
        recipe: how it is trained.
        origin: the run whose classifier it compresses, if any.
    """

    name: str
    of: str
    recipe: Recipe
    origin: Run | None = None


@dataclass(frozen=True)
class Job:
    """A run with one seed, and everything that is needed to train it.

    Attributes:
        folder: the folder of the study, which all processes share.
        subject: the subject of the study.
        run: the run.
        seed: the seed of everything that is random.
        hardware: the hardware that computes it.
        settings: everything that its numbers depend on; a process that finds other settings does not train it.
    """

    folder: Path
    subject: Subject
    run: Run
    seed: int
    hardware: Hardware
    settings: Mapping[str, Any]


def settings_of(subject: Subject, run: Run, seed: int, hardware: Hardware) -> dict[str, Any]:
    """Everything that the numbers of a run depend on."""
    return {
        "name": run.name,
        "row": asdict(subject.task.rows[run.of]),
        "trained": asdict(run.recipe),
        "task": subject.name,
        "seed": seed,
        "data": subject.examples(seed).described(),
        "hardware": hardware.described(),
        "versions": versions(),
    } | ({"from": settings_of(subject, run.origin, seed, hardware)} if run.origin else {})


def train_job(job: Job, say: Callable[[str], None], progress: Progress | None = None) -> RunResult:
    """Trains a run, or resumes it from its checkpoint, and keeps the result in the folder.

    The processes of a mesh call it together; the first keeps the files.

    Args:
        job: the run.
        say: receives a message if a file is damaged, or the run resumes.
        progress: receives the progress before every step.

    Raises:
        TensornetError: the run fails, or the run that it compresses is not finished.
    """
    run, settings, store = job.run, job.settings, RunStore(job.folder, say)
    task, examples = job.subject.task, job.subject.examples(job.seed)
    graph = task.build(task.rows[(run.origin or run).of], examples)
    how = (examples, run.recipe, job.seed, job.hardware)
    training = TrainingRun(run.name, run.of, task.rows[run.of].about, graph, *how)
    if run.origin:
        training = replace(training, **first(_compressed, job, training, run.origin, store))
    trained = train(training, store.file(run.name, settings, "checkpoint"), progress)
    if is_first():
        store.save(trained, settings)
    return trained.result


def _compressed(job: Job, training: TrainingRun, origin: Run, store: RunStore) -> dict[str, Any]:
    """The compressed classifier of another run, as attributes of the run that trains it.

    Raises:
        TensornetError: that run is not finished, or the budget cannot be met.
    """
    settings = job.settings["from"]
    found, file = store.load(origin.name, settings), store.file(origin.name, settings)
    if found is None:
        fix = "give the command again"
        raise TensornetError(f"{job.run.name} is made of {origin.name}, which is not finished", fix=fix)
    task = job.subject.task
    return compressed_start(training, task.rows[job.run.of], task, found, load_trained(file.path))


def train_on_worker(job: Job) -> RunResult:
    """`train_job` in another process.

    Raises:
        TensornetError: this process finds other data or versions than the process that submitted the job.
    """
    found = settings_of(job.subject, job.run, job.seed, job.hardware)
    for name, value in job.settings.items():
        if found[name] != value:
            told = f"a worker would train {job.run.name} with other {name}: {found[name]}, not {value}"
            fix = "install the same versions on every machine, and let them see the same data"
            raise TensornetError(told, fix=fix)
    return train_job(job, lambda text: None)


# ---------------------------------------------------------------------------- costs


def appraisals(made: tuple[tuple[Job, Compression | None], ...]) -> tuple[Appraisal, ...]:
    """The costs of classifiers: times, measured in turns by `tensornet.sweep`, and the bytes that training keeps.

    Args:
        made: the job of each classifier, and how it was compressed, if it was.
    """
    (first, _), *_ = made
    task, examples, hardware = first.subject.task, first.subject.examples(first.seed), first.hardware
    graphs = {job.run.name: classifier(task, task.rows[job.run.of], examples, how) for job, how in made}

    def sizes(batch: int) -> dict[str, Any]:
        return dict(ChainMap(*(sizes_of_batch(graph, examples, batch) for graph in graphs.values())))

    batch, where, found = first.run.recipe.batch, hardware.device, list[Appraisal]()
    sweep = functools.partial(tn.sweep, graphs, device=where, dtype=hardware.precision, rounds=ROUNDS)
    with hardware.reproducible():
        steps, single = sweep(training=True, **sizes(batch)), sweep(**sizes(1))
        for (name, graph), step, one in zip(graphs.items(), steps, single, strict=True):
            at = sizes_of_batch(graph, examples, batch)
            plan: Any = tn.plan(graph, backend="torch", device=where, training=True, **at)
            seconds = (1e3 * (step.training_seconds or 0.0), 1e3 * (one.seconds or 0.0))
            found.append(Appraisal(name, str(graph), str(plan), sum(n for _, n in plan.kept), *seconds))
    return tuple(found)


# ---------------------------------------------------------------------------- workers

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
        checked_number(self.number, "jobs", 1, whole=True)

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
        ignored = (signal.SIGINT, signal.SIG_IGN)  # Ctrl-C comes to all; the parent ends the others
        pool = ProcessPoolExecutor(self.number, spawn, signal.signal, ignored)
        try:
            yield pool
        except BaseException:
            for each in set(multiprocessing.active_children()) - others:
                each.terminate()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


@dataclass(frozen=True)
class Dask:
    """The workers of a Dask cluster; the extra `dask` installs what it needs.

    Attributes:
        address: the address of its scheduler, such as `tcp://127.0.0.1:8786`.
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
