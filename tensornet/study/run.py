"""Running a study: keeps the finished runs, trains the others, and writes all results."""

from __future__ import annotations

import functools
import json
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import tensornet as tn
from tensornet.codec import Part, read, write
from tensornet.codegen.program import check_undivided
from tensornet.display import printable
from tensornet.errors import TensornetError
from tensornet.files import Store, check_writable
from tensornet.sharding.mesh import Mesh

from .arrays import Data, name_of
from .compressing import CompressedRow, check_row
from .configuration import Subject, examples_of, located
from .jobs import Job, Run, Workers, appraisals, on_workers, settings_of, train_job, train_on_worker
from .libraries import NEEDED, library, versions
from .mesh import first, own_device, together
from .report import table, write_outputs
from .results import Appraisal, RunResult, RunStore
from .task import OPTIMIZERS, check_classifier, checked_seeds
from .training import Hardware


def run_study(
    folder: Path,
    *,
    task: str | Path = "digits",
    data: Data | Path = None,
    epochs: int | None = None,
    seed: int | None = None,
    seeds: int | Sequence[int] | None = None,
    rows: Sequence[str] | None = None,
    optimizers: Sequence[str] | None = None,
    recipe: Mapping[str, Any] | None = None,
    device: str | None = None,
    threads: int | None = None,
    precision: str = "auto",
    measure: bool = True,
    workers: Workers | None = None,
    mesh: Mapping[str, int] | None = None,
    shard: Any = "auto",
    console: Console | None = None,
) -> list[RunResult]:
    """Trains the classifiers of a task on its examples and writes the results into a folder.

    A finished run with the same settings is kept if the folder already holds it. An interrupted run resumes
    from its checkpoint and ends in the same numbers. Writes `results.json`, `results.csv`,
    `report.md`, `report.html`, pictures as PNG, SVG and PDF, and for each run
    `runs/<name>.seed<n>.<fingerprint>.safetensors`, its result and its weights. They show every finished run
    with these settings and seeds, including those of earlier calls. With `workers`, several runs are trained at
    once.

    Args:
        folder: created if it does not exist.
        task: "digits", "text" or "thesis", or a TOML file that describes a study. Other arguments given here
            override the file.
        data: the source of the examples, as the task takes it: a name, a folder, or the user's own arrays. These
            are a file `.npz` with `x_train`, `y_train`, `x_test` and `y_test` (`numpy.savez` writes it), or a
            function that returns the four, in this order or as a dict. Examples are along the first axis, with a
            class for each. "digits" takes arrays of any shape, "thesis" images (n, H, W), (n, C, H, W) or
            (n, H, W, C).
        epochs: passes over the training examples; those of the task's recipe if not given.
        seed: for the split, the initial values, the mini-batches and everything else that is random. If not
            given, the seeds of the file, else 0.
        seeds: a list of seeds, or their number, counted from 0; each row is trained with each seed.
        rows: names of rows of the task, all if not given.
        optimizers: "adamw", "adam", "sgd"; those of the task if not given.
        recipe: other numbers for the recipe, by name.
        device: a torch device name; if not given, the first CUDA device if there is one, else the CPU.
        threads: threads of each process on the CPU; if not given, the task's number or a share of the cores.
        precision: "float32", "bfloat16", or "auto": bfloat16 on a GPU that supports it.
        measure: whether to measure times, apart from training, and to report the bytes kept for gradients.
        workers: train several runs at once: `Processes(2)`, `Dask(address)`. If not given, this process trains
            one run after the other.
        mesh: `{"data": 2, "model": 2}`: the processes that `torchrun` started, as many, train each run together. Each
            of them calls this function. A run goes on with other meshes, to the same numbers but for rounding.
        shard: what is divided along which axis of the mesh, as for `tensornet.module`.
        console: where progress is shown; standard output if not given.

    Returns:
        The results of these rows in the task's order, and those of each row in the order of the seeds.

    Raises:
        BackendError: PyTorch, scikit-learn or matplotlib is missing, or there is no such device.
        TensornetError: a row is unknown, a number is out of range, the folder cannot be written.
        KeyboardInterrupt: after the message that says how to resume.
    """
    subject = Subject.of(task, data)
    changes = dict(recipe or {}) | ({} if epochs is None else {"epochs": epochs})
    runs = _runs(subject, rows, optimizers, changes)
    if seed is not None and seeds is not None:
        raise TensornetError("seed and seeds are both given", fix="give one of them")
    given = seeds if seed is None else [seed]
    chosen = subject.seeds if given is None else checked_seeds(given)
    for name in NEEDED:  # none is missing after minutes of training
        library(name)
    examples_of.cache_clear()
    threads = subject.task.threads if threads is None else threads
    if mesh is not None and workers is not None:
        raise TensornetError("mesh and workers are both given", fix="give one of them")
    hardware = _hardware(subject, workers, device if mesh is None else own_device(device), threads, precision)
    if mesh is None:
        check_undivided(shard, None)
    else:
        made = Mesh.of(mesh)
        hardware = replace(hardware, mesh=dict(zip(made.axes, made.shape, strict=True)), shard=shard)
    here = Path(folder).absolute() if workers else Path(folder)
    study = _Study(here, subject, changes, chosen, hardware, console or Console(), workers)
    return together(hardware.mesh, hardware.kind, lambda: study.all(runs, measure), Job, train_on_worker)


def results_folder(task: str | Path, data: Data | Path = None) -> Path:
    """The default folder for results: one for each task and data set, or one for each study file."""
    subject = Subject.of(task, data)
    return Path(f"study-{Path(task).stem if subject.path else subject.task.name}")


def _hardware(
    subject: Subject, workers: Workers | None, device: str | None, threads: int | None, precision: str
) -> Hardware:
    """The hardware that computes the runs: of this machine, or of the workers.

    Raises:
        TensornetError: workers cannot be used, or cannot call the function that the data come from.
    """
    if workers is None:
        return Hardware.chosen(device, threads, precision)
    try:
        pickle.dumps(subject)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        fix = "define it in a module of its own, or leave the workers out"
        raise TensornetError(f"workers cannot call {name_of(subject.data)}: {error}", fix=fix) from None
    share = workers.threads(Hardware.chosen("cpu").threads)
    chosen = functools.partial(Hardware.chosen, threads=threads or share, precision=precision)
    if share is not None:
        return chosen(device)
    found: list[Hardware] = []
    on_workers(workers, chosen, [device], lambda _, there: found.append(there))
    return found[0]


def _runs(
    subject: Subject, rows: Sequence[str] | None, optimizers: Sequence[str] | None, changes: Mapping[str, Any]
) -> list[Run]:
    """The runs of these rows, and of those that they compress, with these optimizers, in the order of the task."""
    if "optimizer" in changes:
        raise TensornetError("the optimizer is not a number of the recipe", fix="choose it by --optimizer")
    task = subject.task

    def run(name: str, optimizer: str) -> Run:
        row, own = task.rows[name], {**task.overrides.get(name, {}), **changes}
        called = name if task.optimizers == (optimizer,) else f"{name}-{optimizer}"
        if isinstance(row, CompressedRow):
            origin = run(row.origin, optimizer)
            return Run(called, name, origin.recipe.changed(own, 0), origin)
        recipe = task.recipe.changed(getattr(row, "recipe", {})).optimized_by(optimizer)
        return Run(called, name, recipe.changed(own))

    names = _among(task.rows, rows, "row")
    names += [each.origin for name in names if isinstance(each := task.rows[name], CompressedRow)]
    chosen = _among(OPTIMIZERS, task.optimizers if optimizers is None else optimizers, "optimizer")
    return [run(name, optimizer) for name in _among(task.rows, names, "row") for optimizer in chosen]


def _among(known: Mapping[str, Any], wanted: Sequence[str] | None, what: str) -> list[str]:
    """The wanted names, in the order of `known`; all of them if `wanted` is None."""
    names = list(known) if wanted is None else [wanted] if isinstance(wanted, str) else list(wanted)
    unknown = [f"the study has no {what} '{name}'" for name in names if name not in known]
    if unknown or not names:
        raise TensornetError((unknown or [f"no {what} is chosen"])[0], fix=f"choose of {', '.join(known)}")
    return [name for name in known if name in names]


@dataclass(frozen=True)
class _Study:
    """The settings that all runs share: folder, subject, changes of the recipe, seeds, hardware, workers."""

    folder: Path
    subject: Subject
    changes: Mapping[str, Any]
    seeds: tuple[int, ...]
    hardware: Hardware
    console: Console
    workers: Workers | None

    def all(self, runs: Sequence[Run], measure: bool) -> list[RunResult]:
        """Checks, trains and writes these runs."""
        self.check(runs)
        check_writable(self.folder / "runs" / "run")
        results = self.run(runs)
        self.write(results, measure)
        return results

    def check(self, runs: Sequence[Run]) -> None:
        """Raises now the errors that would otherwise appear only after other runs were trained."""
        examples, task, hardware = self.subject.examples(self.seeds[0]), self.subject.task, self.hardware
        flat = examples.standard is None or examples.train_inputs[0].ndim < 3
        if flat and any(run.recipe.augments for run in runs):
            told = f"a{'n' * (task.example[0] in 'aei')} {task.example} is not shifted, turned, zoomed or mirrored"
            raise TensornetError(told, fix="leave these settings out")
        for name in dict.fromkeys(run.of for run in runs):
            row = task.rows[name]
            with located(task.places.get(name, f"row {name}")):
                if isinstance(row, CompressedRow):
                    check_row(row, task.build(task.rows[row.origin], examples))
                    continue
                graph = task.build(row, examples)
                check_classifier(graph, examples)
                if hardware.mesh:
                    tn.plan(examples.behind_standard(graph), mesh=hardware.mesh, shard=hardware.shard)

    def environment(self) -> dict[str, Any]:
        """The values that numbers depend on besides the run: seeds, recipe, data, hardware, versions."""
        subject, data, hardware = self.subject, self.subject.data, self.hardware
        axes = ",".join(f"{name}={size}" for name, size in hardware.mesh.items())
        division = {"mesh": axes, "shard": hardware.shard, "threads": hardware.threads} if axes else {}
        place = {"returned by": name_of(data)} if callable(data) else data
        return {
            "task": subject.path or subject.name,
            **({"seed": self.seeds[0]} if len(self.seeds) == 1 else {}),
            "seeds": list(self.seeds),
            "recipe": asdict(subject.task.recipe.changed(self.changes)),
            "changes": dict(self.changes),
            "data": {"place": place, **subject.examples(self.seeds[0]).described()},
            "hardware": {**hardware.described(), **division},
            "machine": hardware.machine,
            "versions": versions(),
        }

    def jobs(self, runs: Sequence[Run]) -> Iterator[Job]:
        """A job for each run and seed; jobs of one seed come together, as they share examples.

        A compressed run comes after the run that it compresses.
        """
        for seed in self.seeds:
            for run in sorted(runs, key=lambda run: run.origin is not None):
                settings = settings_of(self.subject, run, seed, self.hardware)
                yield Job(self.folder, self.subject, run, seed, self.hardware, settings)

    def run(self, runs: Sequence[Run]) -> list[RunResult]:
        """The results of these runs, loaded from the folder or trained now."""
        jobs = list(self.jobs(runs))
        done = {self._name(job): each for job in jobs if (each := self._finished(job)) is not None}
        if done:
            self._say(f"kept, finished before: {', '.join(done)}")
        try:
            self._train([job for job in jobs if self._name(job) not in done], done)
        except KeyboardInterrupt:
            told = f"stopped: {len(done)} of {len(jobs)} runs are finished and kept in {self.folder}"
            told += "; give the same command again to resume"
            self._say(told)
            raise
        return self._in_order(runs, done.values())

    def write(self, results: Sequence[RunResult], measure: bool) -> None:
        """Writes these results, and those of other runs that the folder holds, and shows them."""
        others = _runs(self.subject, None, tuple(OPTIMIZERS), self.changes)
        known = {(result.name, result.seed): result for result in results}
        found = [known.get((job.run.name, job.seed)) or self._finished(job) for job in self.jobs(others)]
        results = self._in_order(others, filter(None, found))
        costs = self._costs(others, results) if measure else {}
        task = self.subject.task.of(self.subject.examples(self.seeds[0]))
        write_outputs(self.folder, task, results, self.environment(), costs)
        self._say(f"{table(task, results, costs)}\nresults in {self.folder}")

    def _in_order(self, runs: Sequence[Run], results: Iterable[RunResult]) -> list[RunResult]:
        """The results sorted by run, then by seed."""
        names = [run.name for run in runs]
        return sorted(results, key=lambda each: (names.index(each.name), self.seeds.index(each.seed)))

    def _costs(self, runs: Sequence[Run], results: Sequence[RunResult]) -> dict[str, Appraisal]:
        """The costs of the classifiers of these results, by the name of the run; measured before, or now."""
        made = {each.name: each.compression for each in reversed(results)}
        timed = tuple((next(self.jobs([run])), made[run.name]) for run in runs if run.name in made)
        settings = {"machine": self.hardware.machine, "runs": [job.settings for job, _ in timed]}
        kept, key = Store(self.folder, "measured", 1), json.dumps(settings, sort_keys=True)
        found = kept.read(key)
        if found is None:
            self._say(f"{len(timed)} classifiers are timed, in turns")
            costs: list[Appraisal] = []
            if self.workers is None or self.workers.threads(1) is not None:  # here
                costs += appraisals(timed)
            else:
                on_workers(self.workers, appraisals, [timed], lambda _, these: costs.extend(these))
            found = list(map(write, costs))
            kept.write(key, found)
        read_ones = (read(Appraisal, Part(each, "measurement")) for each in found)
        return {each.name: each for each in read_ones}

    def _name(self, job: Job, run: Run | None = None) -> str:
        """The name of the run of a job, or of the run it is made of; with its seed if there are several seeds."""
        name = (run or job.run).name
        return name if len(self.seeds) == 1 else f"{name} (seed {job.seed})"

    def _finished(self, job: Job) -> RunResult | None:
        return RunStore(self.folder, self._say).load(job.run.name, job.settings)

    def _train(self, jobs: Sequence[Job], done: dict[str, RunResult]) -> None:
        """Trains these runs here or on workers; each is kept, on disk and in `done`, as soon as it is finished."""
        if not jobs:
            return
        with _shown(self.console, len(jobs)) as (show, ended):

            def finished(job: Job, result: RunResult) -> None:
                name = self._name(job)
                if self.workers is not None and self._finished(job) != result:
                    told = f"a worker finished {name}, and {self.folder} does not hold it"
                    raise TensornetError(told, fix="give an --out that every worker sees")
                done[name] = result
                ended()
                if not self.console.is_terminal:
                    accuracy = f"test top-1 {result.test_top1:.2f} %, top-5 {result.test_top5:.2f} %"
                    self._say(f"{name}: {result.parameters:,} parameters, {accuracy}")

            def ready(job: Job) -> bool:
                return job.run.origin is None or self._name(job, job.run.origin) in done

            if self.workers is not None:
                on_workers(self.workers, train_on_worker, jobs, finished, ready, self._say)
                return
            for job in jobs:
                progress = functools.partial(show, self._name(job))
                finished(job, train_job(first(lambda each: each, job), self._say, progress))

    def _say(self, text: str) -> None:
        self.console.print(printable(text), markup=False, highlight=False, soft_wrap=True)


@contextmanager
def _shown(console: Console, runs: int) -> Iterator[tuple[Callable[..., None], Callable[[], None]]]:
    """A bar over runs, and one over the steps of the run that this process trains: how each is advanced."""
    columns = (TextColumn("{task.description:<24}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        of_runs, of_steps = bars.add_task("runs", total=runs), bars.add_task("", visible=False)

        def show(name: str, step: int, steps: int, top1: float | None) -> None:
            told = name if top1 is None else f"{name} {top1:.1f} %"
            bars.update(of_steps, completed=step, total=steps, description=told, visible=True)

        yield show, lambda: bars.advance(of_runs)
