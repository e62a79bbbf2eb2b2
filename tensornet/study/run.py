"""Running a study: what is finished is kept, the rest is trained, then all is written down."""

from __future__ import annotations

import io
import numbers
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensornet.errors import TensornetError
from tensornet.terminal import printable

from .digits import DIGITS
from .hardware import Hardware, processes
from .libraries import check_libraries, versions
from .progress import Bars, bars
from .recipe import OPTIMIZERS, Recipe
from .report import table, write_outputs
from .results import RunResult, Trained
from .store import RunStore
from .task import Examples, Task
from .text import TEXT
from .thesis import thesis
from .training import train

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["TASKS", "results_folder", "run_study"]

TASKS: dict[str, Callable[[str | None], Task]] = {
    "digits": lambda data: DIGITS,
    "text": lambda data: TEXT,
    "thesis": thesis,
}
"""What can be studied, by name; the thesis is a study of its own for each data set."""


def run_study(
    folder: Path,
    *,
    task: str = "digits",
    data: str | None = None,
    epochs: int | None = None,
    seed: int = 0,
    rows: Sequence[str] | None = None,
    optimizers: Sequence[str] | None = None,
    recipe: Mapping[str, Any] | None = None,
    device: str | None = None,
    threads: int | None = None,
    precision: str = "auto",
    fresh: bool = False,
    console: Console | None = None,
) -> list[RunResult]:
    """Trains the classifiers of a task on its examples and writes the results into a folder.

    A run that the folder holds already, with the same settings, is kept; one that was interrupted
    goes on from its checkpoint and ends in the same numbers. Writes `results.json`, `results.csv`,
    `report.md`, `pareto.png`, `curves.png`, `training.png`, and for each run `runs/<name>.<fingerprint>.json`
    and its weights as safetensors. They show every run that is finished with these settings, those of an
    earlier call too. Started by `torchrun`, the processes share each mini-batch.

    Args:
        folder: made if it is not there.
        task: "digits", "text" or "thesis".
        data: where the examples come from, as the task takes it.
        epochs: passes over the training examples; those of the task's recipe if not given.
        seed: for the split, the initial values, the mini-batches and all else that is random.
        rows: names among the rows of the task, all if not given.
        optimizers: "adamw", "adam", "sgd"; those of the task if not given.
        recipe: other numbers for the recipe, by name.
        device: as torch names it; the first CUDA device if there is one, else the CPU.
        threads: of each process on the CPU; as the task says if not given.
        precision: "float32", "bfloat16", "float16", or "auto" for bfloat16 where a GPU has it.
        fresh: whether runs in the folder are done anew.
        console: where progress is shown; standard output if not given.

    Returns:
        The results of these rows, in their order in the task.

    Raises:
        BackendError: PyTorch, scikit-learn or matplotlib is missing, or there is no such device.
        TensornetError: a row is unknown, a number is out of range, the folder cannot be written.
        KeyboardInterrupt: after the message that says how to resume.
    """
    from rich.console import Console

    data = None if data is None else str(data)
    subject = _task(task, data)
    changes = dict(recipe or {}) | ({} if epochs is None else {"epochs": epochs})
    runs = _runs(subject, rows, optimizers, changes)
    seed = _checked_seed(seed)
    check_libraries()
    with processes():
        hardware = Hardware.chosen(device, subject.threads if threads is None else threads, precision)
        if hardware.rank:
            console = Console(file=io.StringIO())
        else:
            RunStore(Path(folder)).prepare()
        examples = subject.load(seed, data)
        if examples.standard is None and any(run.recipe.augments for run in runs):
            raise TensornetError(
                f"a {subject.example} is not shifted, turned, zoomed or mirrored",
                fix="leave these settings out",
            )
        study = _Study(
            Path(folder), task, subject, examples, data, changes, seed, hardware, console or Console()
        )
        results = study.run(runs, fresh)
        if not hardware.rank:
            study.write(results)
    return results


@dataclass(frozen=True)
class _Run:
    """A row of a task, and how it is trained."""

    name: str
    of: str
    row: Any
    recipe: Recipe


def results_folder(task: str, data: str | None = None) -> Path:
    """Where the results of a study go if nothing is said: a folder for each task and data set."""
    return Path(f"study-{_task(task, data).name}")


def _task(name: str, data: str | None) -> Task:
    if name not in TASKS:
        raise TensornetError(f"there is no study '{name}'", fix=f"choose of {', '.join(TASKS)}")
    return TASKS[name](data)


def _runs(
    task: Task,
    rows: Sequence[str] | None,
    optimizers: Sequence[str] | None,
    changes: Mapping[str, Any],
) -> list[_Run]:
    """The runs of these rows by these optimizers, in the order of the task."""
    names = _among(task.rows, rows, "row")
    chosen = _among(OPTIMIZERS, task.optimizers if optimizers is None else optimizers, "optimizer")
    return [
        _Run(
            name if task.optimizers == (optimizer,) else f"{name}-{optimizer}",
            name,
            task.rows[name],
            _recipe(task.recipe.changed(task.changes(task.rows[name])).optimized_by(optimizer), changes),
        )
        for name in names
        for optimizer in chosen
    ]


def _among(known: Mapping[str, Any], wanted: Sequence[str] | None, what: str) -> list[str]:
    """Those that are wanted, in the order they are known; all if nothing is said."""
    names = list(known) if wanted is None else [wanted] if isinstance(wanted, str) else list(wanted)
    for name in names:
        if name not in known:
            raise TensornetError(f"the study has no {what} '{name}'", fix=f"choose of {', '.join(known)}")
    if not names:
        raise TensornetError(f"no {what} is chosen", fix=f"choose of {', '.join(known)}")
    return [name for name in known if name in names]


def _recipe(recipe: Recipe, changes: Mapping[str, Any]) -> Recipe:
    if "optimizer" in changes:
        raise TensornetError("the optimizer is not a number of the recipe", fix="choose it by --optimizer")
    return recipe.changed(changes)


def _checked_seed(seed: int) -> int:
    if not isinstance(seed, numbers.Integral) or not 0 <= seed < 2**32:
        raise TensornetError(f"seed is {seed}", fix="give a whole number, 0 to 4294967295")
    return int(seed)


@dataclass(frozen=True)
class _Study:
    """A folder, the task, its examples, what is changed of its recipe, the seed, the hardware: what runs share."""

    folder: Path
    called: str
    task: Task
    examples: Examples
    data: str | None
    changes: Mapping[str, Any]
    seed: int
    hardware: Hardware
    console: Console

    @property
    def store(self) -> RunStore:
        """The runs in the folder."""
        return RunStore(self.folder, self._say)

    def environment(self) -> dict[str, Any]:
        """What the numbers depend on beside the run: seed, recipe, data, hardware, versions."""
        counts = {"train": len(self.examples.train_labels), "test": len(self.examples.test_labels)}
        return {
            "task": self.called,
            "seed": self.seed,
            "recipe": asdict(_recipe(self.task.recipe, self.changes)),
            "changes": dict(self.changes),
            "data": {"place": self.data, "about": self.examples.about, **counts},
            "hardware": self.hardware.described(),
            "machine": self.hardware.machine(),
            "versions": versions(),
        }

    def settings(self, run: _Run) -> dict[str, Any]:
        """All that the numbers of a run depend on."""
        settings = {"name": run.name, "row": asdict(run.row), "trained": asdict(run.recipe)}
        environment = self.environment()
        del environment["data"]["place"]  # the same files in another place change nothing
        shared = {name: environment[name] for name in ("task", "seed", "data", "hardware", "versions")}
        return {**settings, **shared}

    def run(self, runs: Sequence[_Run], fresh: bool) -> list[RunResult]:
        """The results of these runs, found in the folder or trained now."""
        if fresh and not self.hardware.rank:
            for run in runs:
                self.store.remove(run.name, self.settings(run))
        found = {} if self.hardware.rank else {run.name: self._finished(run) for run in runs}
        done = {name: result for name, result in found.items() if result is not None}
        done = self.hardware.agreed(done)
        if done:
            self._say(f"kept, finished before: {', '.join(done)}")
        try:
            self._train([run for run in runs if run.name not in done], done)
        except KeyboardInterrupt:
            self._say(
                f"stopped: {len(done)} of {len(runs)} runs are finished and kept in {self.folder};"
                f" give the same command again{', without --fresh,' if fresh else ''} to resume"
            )
            raise
        return [done[run.name] for run in runs]

    def write(self, results: Sequence[RunResult]) -> None:
        """Writes these results, and those of other runs that the folder holds, and shows them."""
        known = {result.name: result for result in results}
        others = _runs(self.task, None, tuple(OPTIMIZERS), self.changes)
        found = [known.get(run.name) or self._finished(run) for run in others]
        shown = [result for result in found if result is not None]
        write_outputs(self.folder, self.task, shown, self.environment())
        self.console.print(table(self.task, shown))
        self._say(f"results in {self.folder}")

    def _finished(self, run: _Run) -> RunResult | None:
        return self.store.load(run.name, self.settings(run))

    def _train(self, runs: Sequence[_Run], done: dict[str, RunResult]) -> None:
        """Trains these runs; each is kept, on disk and in `done`, as soon as it is finished."""
        if not runs:
            return
        with bars(self.console, len(runs)) as progress:
            for run in runs:
                trained = self._train_one(run, progress)
                done[run.name] = trained.result
                progress.end()
                if not self.console.is_terminal:
                    self._say(_line(trained.result))

    def _train_one(self, run: _Run, progress: Bars) -> Trained:
        settings, first = self.settings(run), not self.hardware.rank
        checkpoints = self.store.checkpoints(run.name, settings)
        with self.store.training(run.name, settings) if first else nullcontext():
            trained = train(
                run.name,
                run.of,
                run.row.about,
                self.task.build(run.row, self.examples),
                self.examples,
                recipe=run.recipe,
                seed=self.seed,
                hardware=self.hardware,
                checkpoints=checkpoints,
                progress=progress,
            )
            if first:
                self.store.save(trained, settings)
                checkpoints.remove()
        return trained

    def _say(self, text: str) -> None:
        self.console.print(printable(text), markup=False, highlight=False, soft_wrap=True)


def _line(result: RunResult) -> str:
    return (
        f"{result.name}: {result.parameters:,} parameters, test top-1 {result.test_top1:.2f} %,"
        f" top-5 {result.test_top5:.2f} %, {result.step_ms:.2f} ms a step"
    )
