"""Running a study: keeps the finished runs, trains the others, and writes all results."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensornet as tn
from tensornet.display import printable
from tensornet.errors import TensornetError

from .appraising import Wanted, appraise, appraise_on_worker, keep_appraisals, kept_appraisals
from .arrays import Data, name_of
from .compressing import CompressedRow, check_row
from .hardware import Hardware, Place, processes
from .jobs import Job, Run, counts, settings_of, train_job, train_on_worker
from .libraries import check_libraries, versions
from .progress import bars, watch
from .recipe import OPTIMIZERS, Recipe
from .report import table, write_outputs
from .results import Appraisal, RunResult
from .seeds import checked_seeds
from .store import RunStore
from .subjects import TASKS, Subject, forget_examples
from .task import Examples, Task
from .workers import Workers, on_workers
from .written import check_classifier, read_study

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["TASKS", "results_folder", "run_study"]


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
    fresh: bool = False,
    measure: bool = True,
    workers: Workers | None = None,
    console: Console | None = None,
) -> list[RunResult]:
    """Trains the classifiers of a task on its examples and writes the results into a folder.

    A finished run with the same settings is kept if the folder already holds it. An interrupted run resumes
    from its checkpoint and ends in the same numbers. Writes `results.json`, `results.csv`,
    `report.md`, `report.html`, pictures as PNG, SVG and PDF, and for each run
    `runs/<name>.seed<n>.<fingerprint>.json` and its weights as safetensors. They show every finished run
    with these settings and seeds, including those of earlier calls. If `torchrun` starts the processes, they
    share each mini-batch; with `workers`, several whole runs are trained at once.

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
        precision: "float32", "bfloat16", "float16", or "auto": bfloat16 on a GPU that supports it.
        fresh: whether runs that the folder holds are trained again.
        measure: whether to measure times, apart from training, and to report the bytes kept for gradients.
        workers: train several runs at once: `Processes(2)`, `Dask(address)`, `Submitit(folder)`. If not
            given, this process trains one run after the other.
        console: where progress is shown; standard output if not given.

    Returns:
        The results of these rows in the task's order, and those of each row in the order of the seeds.

    Raises:
        BackendError: PyTorch, scikit-learn or matplotlib is missing, or there is no such device.
        TensornetError: a row is unknown, a number is out of range, the folder cannot be written.
        KeyboardInterrupt: after the message that says how to resume.
    """
    from rich.console import Console

    subject = subject_of(task, data)
    studied = subject.task()
    changes = dict(recipe or {}) | ({} if epochs is None else {"epochs": epochs})
    runs = _runs(studied, rows, optimizers, changes)
    chosen = _seeds(subject, seed, seeds)
    check_libraries()
    forget_examples()
    if workers is not None:
        _check_sent(subject)
    with processes():
        place = _place(workers, device, studied.threads if threads is None else threads, precision)
        hardware = place.hardware
        if hardware.rank:
            console = Console(file=io.StringIO())
        else:
            RunStore(Path(folder)).prepare()
        study = _Study(
            Path(folder).absolute() if workers else Path(folder),
            subject,
            studied,
            changes,
            chosen,
            place,
            console or Console(),
            workers,
        )
        study.check(runs)
        results = study.run(runs, fresh)
        if not hardware.rank:
            study.write(results, measure and hardware.processes == 1)
    return results


def results_folder(task: str | Path, data: Data | Path = None) -> Path:
    """The default folder for results: one for each task and data set, or one for each study file."""
    subject = subject_of(task, data)
    return Path(f"study-{Path(task).stem if subject.written else subject.task().name}")


def subject_of(task: str | Path, data: Data | Path = None) -> Subject:
    """The subject of a study, which is given by its name or by its file.

    Raises:
        TensornetError: the file does not describe a study.
    """
    data = data if data is None or callable(data) else str(data)
    if not str(task).endswith(".toml"):
        return Subject(str(task), data)
    written = read_study(task)
    return Subject(written.study, data or written.data, written)


def _a(noun: str) -> str:
    """A noun with its article: `a text`, `an example`."""
    return f"{'an' if noun[0] in 'aei' else 'a'} {noun}"


def _check_sent(subject: Subject) -> None:
    """Raises an error if the data come from a function that another process cannot call."""
    try:
        pickle.dumps(subject)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise TensornetError(
            f"workers cannot call {name_of(subject.data)}: {error}",
            fix="define it in a module of its own, or leave the workers out",
        ) from None


def _seeds(subject: Subject, seed: int | None, seeds: int | Sequence[int] | None) -> tuple[int, ...]:
    """The seeds that are given, else those of the file, else 0."""
    if seed is not None and seeds is not None:
        raise TensornetError("seed and seeds are both given", fix="give one of them")
    if seeds is not None:
        return checked_seeds(seeds)
    if seed is not None:
        return checked_seeds([seed])
    return subject.written.seeds if subject.written else (0,)


def _place(workers: Workers | None, device: str | None, threads: int | None, precision: str) -> Place:
    """The place where runs are computed: this machine, or that of the workers."""
    if workers is None:
        return Place.chosen(device, threads, precision)
    here = Place.chosen(device if workers.are_here else "cpu", threads, "auto")
    if here.hardware.processes > 1:
        raise TensornetError("torchrun and workers do not go together", fix="leave one of them out")
    threads = threads or workers.threads(here.hardware.threads)
    if workers.are_here:
        return Place.chosen(device, threads, precision)
    found: list[Place] = []
    on_workers(workers, Place.on_worker, [(device, threads, precision)], lambda _, place: found.append(place))
    return found[0]


def _runs(
    task: Task,
    rows: Sequence[str] | None,
    optimizers: Sequence[str] | None,
    changes: Mapping[str, Any],
) -> list[Run]:
    """The runs of these rows with these optimizers, in the order of the task."""
    names = _with_origins(task, _among(task.rows, rows, "row"))
    chosen = _among(OPTIMIZERS, task.optimizers if optimizers is None else optimizers, "optimizer")
    return [_run(task, name, optimizer, changes) for name in names for optimizer in chosen]


def _run(task: Task, name: str, optimizer: str, changes: Mapping[str, Any]) -> Run:
    """The run of a row with an optimizer; a compressed row also has the run that it compresses."""
    row = task.rows[name]
    recipe = _recipe(
        task.recipe.changed(task.changes(row)).optimized_by(optimizer),
        {**task.overrides.get(name, {}), **changes},
        0 if isinstance(row, CompressedRow) else 1,
    )
    origin = _run(task, row.origin, optimizer, changes) if isinstance(row, CompressedRow) else None
    return Run(name if task.optimizers == (optimizer,) else f"{name}-{optimizer}", name, recipe, origin)


def _with_origins(task: Task, names: Sequence[str]) -> list[str]:
    """These rows, and the rows that some of them compress, in the order of the task."""
    origins = [row.origin for row in map(task.rows.__getitem__, names) if isinstance(row, CompressedRow)]
    return [name for name in task.rows if name in names or name in origins]


def _among(known: Mapping[str, Any], wanted: Sequence[str] | None, what: str) -> list[str]:
    """The wanted names, in the order of `known`; all of them if `wanted` is None."""
    names = list(known) if wanted is None else [wanted] if isinstance(wanted, str) else list(wanted)
    for name in names:
        if name not in known:
            raise TensornetError(f"the study has no {what} '{name}'", fix=f"choose of {', '.join(known)}")
    if not names:
        raise TensornetError(f"no {what} is chosen", fix=f"choose of {', '.join(known)}")
    return [name for name in known if name in names]


def _recipe(recipe: Recipe, changes: Mapping[str, Any], epochs: int = 1) -> Recipe:
    """A recipe with other numbers; `epochs` is the least number of epochs allowed."""
    if "optimizer" in changes:
        raise TensornetError("the optimizer is not a number of the recipe", fix="choose it by --optimizer")
    return recipe.changed(changes, epochs)


@dataclass(frozen=True)
class _Study:
    """The settings that all runs share: folder, subject, task, changes of the recipe, seeds, place, workers."""

    folder: Path
    subject: Subject
    task: Task
    changes: Mapping[str, Any]
    seeds: tuple[int, ...]
    place: Place
    console: Console
    workers: Workers | None

    @property
    def store(self) -> RunStore:
        """The runs in the folder."""
        return RunStore(self.folder, self._say)

    @property
    def hardware(self) -> Hardware:
        """The hardware that computes the runs."""
        return self.place.hardware

    def check(self, runs: Sequence[Run]) -> None:
        """Raises now the errors that would otherwise appear only after other runs were trained."""
        examples = self.subject.examples(self.seeds[0])
        flat = examples.standard is None or examples.train_inputs[0].ndim < 3
        if flat and any(run.recipe.augments for run in runs):
            raise TensornetError(
                f"{_a(self.task.example)} is not shifted, turned, zoomed or mirrored",
                fix="leave these settings out",
            )
        for name in dict.fromkeys(run.of for run in runs):
            with self._located(name):
                self._check_row(self.task.rows[name], examples)

    def _check_row(self, row: Any, examples: Examples) -> None:
        """Raises an error unless a row can be trained on these examples."""
        if isinstance(row, CompressedRow):
            check_row(row, self.task.build(self.task.rows[row.origin], examples))
            return
        graph = self.task.build(row, examples)
        check_classifier(graph, examples)
        if self.workers is None or self.workers.are_here:
            self.hardware.check_room(int(tn.parameter_count(graph)))

    @contextmanager
    def _located(self, row: str) -> Iterator[None]:
        """Puts the row in front of an error, or the file and the key if the study comes from a file."""
        written, place = self.subject.written, f"row {row}"
        if written is not None:
            place = f"{written.path}: {written.key_of(self.task.rows[row], row)}"
        try:
            yield
        except TensornetError as error:
            raise type(error)(f"{place}: {error.message}", error.place, error.fix) from None

    def environment(self) -> dict[str, Any]:
        """The values that numbers depend on besides the run: seeds, recipe, data, hardware, versions."""
        examples, written = self.subject.examples(self.seeds[0]), self.subject.written
        data = self.subject.data
        place = {"returned by": name_of(data)} if callable(data) else data
        return {
            "task": self.subject.name if written is None else written.path,
            **({"seed": self.seeds[0]} if len(self.seeds) == 1 else {}),
            "seeds": list(self.seeds),
            "recipe": asdict(_recipe(self.task.recipe, self.changes)),
            "changes": dict(self.changes),
            "data": {"place": place, "about": examples.about, **counts(examples)},
            "hardware": self.hardware.described(),
            "machine": self.place.machine,
            "versions": versions(),
        }

    def jobs(self, runs: Sequence[Run]) -> Iterator[Job]:
        """A job for each run and seed; jobs of one seed come together, as they share examples.

        A compressed run comes after the run that it compresses.
        """
        for seed in self.seeds:
            examples = self.subject.examples(seed)
            for run in sorted(runs, key=lambda run: run.origin is not None):
                settings = settings_of(self.subject, self.task, run, seed, examples, self.hardware)
                yield Job(self.folder, self.subject, run, seed, self.hardware, settings)

    def run(self, runs: Sequence[Run], fresh: bool) -> list[RunResult]:
        """The results of these runs, loaded from the folder or trained now."""
        jobs = list(self.jobs(runs))
        if fresh and not self.hardware.rank:
            for job in jobs:
                self.store.remove(job.run.name, job.settings)
        found = {} if self.hardware.rank else {self._name(job): self._finished(job) for job in jobs}
        done = {name: result for name, result in found.items() if result is not None}
        done = self.hardware.agreed(done)
        if done:
            self._say(f"kept, finished before: {', '.join(done)}")
        try:
            self._train([job for job in jobs if self._name(job) not in done], done)
        except KeyboardInterrupt:
            self._say(
                f"stopped: {len(done)} of {len(jobs)} runs are finished and kept in {self.folder};"
                f" give the same command again{', without --fresh,' if fresh else ''} to resume"
            )
            raise
        return self._in_order(runs, done.values())

    def write(self, results: Sequence[RunResult], measure: bool) -> None:
        """Writes these results, and those of other runs that the folder holds, and shows them."""
        known = {(result.name, result.seed): result for result in results}
        others = _runs(self.task, None, tuple(OPTIMIZERS), self.changes)
        found = [known.get((job.run.name, job.seed)) or self._finished(job) for job in self.jobs(others)]
        shown = self._in_order(others, [result for result in found if result is not None])
        costs = self._costs(others, shown) if measure else {}
        task = self.task.of(self.subject.examples(self.seeds[0]))
        write_outputs(self.folder, task, shown, self.environment(), costs)
        self.console.print(table(task, shown, costs, self.console.width))
        self._say(f"results in {self.folder}")

    def _in_order(self, runs: Sequence[Run], results: Iterable[RunResult]) -> list[RunResult]:
        """The results sorted by run, then by seed."""
        names = [run.name for run in runs]
        return sorted(results, key=lambda each: (names.index(each.name), self.seeds.index(each.seed)))

    def _costs(self, runs: Sequence[Run], results: Sequence[RunResult]) -> dict[str, Appraisal]:
        """The costs of the classifiers of these results, by the name of the run; measured before, or now."""
        seed = self.seeds[0]
        compressions = {each.name: each.compression for each in reversed(results)}
        runs = [run for run in runs if run.name in compressions]
        examples = self.subject.examples(seed)
        settings = {
            "machine": self.place.machine,
            "runs": [
                settings_of(self.subject, self.task, run, seed, examples, self.hardware) for run in runs
            ],
        }
        found = list(kept_appraisals(self.folder, settings, self._say))
        if not found:
            self._say(f"{len(runs)} classifiers are timed, in turns")
            wanted = Wanted(self.subject, tuple(runs), compressions, seed, self.hardware)
            if self.workers is None or self.workers.are_here:
                found.extend(appraise(wanted))
            else:
                on_workers(self.workers, appraise_on_worker, [wanted], lambda _, costs: found.extend(costs))
            keep_appraisals(self.folder, found, settings)
        return {each.name: each for each in found}

    def _name(self, job: Job) -> str:
        """The name of a run, with its seed if there are several seeds."""
        return self._named(job.run, job.seed)

    def _named(self, run: Run, seed: int) -> str:
        return run.name if len(self.seeds) == 1 else f"{run.name} (seed {seed})"

    def _finished(self, job: Job) -> RunResult | None:
        return self.store.load(job.run.name, job.settings)

    def _train(self, jobs: Sequence[Job], done: dict[str, RunResult]) -> None:
        """Trains these runs; each is kept, on disk and in `done`, as soon as it is finished."""
        if not jobs:
            return
        if self.workers is not None:
            self._train_elsewhere(self.workers, jobs, done)
            return
        with bars(self.console, len(jobs)) as progress:
            for job in jobs:
                done[self._name(job)] = result = train_job(job, self.store, progress)
                progress.end()
                self._tell(job, result)

    def _train_elsewhere(self, workers: Workers, jobs: Sequence[Job], done: dict[str, RunResult]) -> None:
        with watch(self.console, {self._name(job): job.progress for job in jobs}) as shown:

            def finished(job: Job, result: RunResult) -> None:
                if self._finished(job) != result:
                    raise TensornetError(
                        f"a worker finished {self._name(job)}, and {self.folder} does not hold it",
                        fix="give an --out that every worker sees",
                    )
                done[self._name(job)] = result
                shown.end(self._name(job))
                self._tell(job, result)

            def ready(job: Job) -> bool:
                return job.run.origin is None or self._named(job.run.origin, job.seed) in done

            on_workers(workers, train_on_worker, jobs, finished, shown.look, ready, self._say)

    def _tell(self, job: Job, result: RunResult) -> None:
        if not self.console.is_terminal:
            self._say(
                f"{self._name(job)}: {result.parameters:,} parameters, test top-1 {result.test_top1:.2f} %,"
                f" top-5 {result.test_top5:.2f} %"
            )

    def _say(self, text: str) -> None:
        self.console.print(printable(text), markup=False, highlight=False, soft_wrap=True)
