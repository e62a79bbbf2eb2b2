"""Running the study: what is finished is kept, the rest is trained, then all is written down."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensornet.errors import TensornetError

from .libraries import check_libraries, versions
from .report import table, write_outputs
from .rows import DIGITS
from .store import RunStore
from .task import Examples, Task
from .text import TEXT
from .training import Recipe, RunResult, train

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

__all__ = ["TASKS", "run_study"]

TASKS = {task.name: task for task in (DIGITS, TEXT)}
"""What can be studied, by name."""


def run_study(
    folder: Path,
    *,
    task: str = "digits",
    data: str | None = None,
    epochs: int | None = None,
    seed: int = 0,
    rows: Sequence[str] | None = None,
    fresh: bool = False,
    console: Console | None = None,
) -> list[RunResult]:
    """Trains the classifiers of a task on its examples and writes the results into a folder.

    A run that the folder holds already, with the same settings, is kept. Writes `results.json`,
    `results.csv`, `report.md`, `pareto.png`, `curves.png` and `runs/<name>.json`. They show every
    row that is finished with this seed and recipe, those of an earlier call too.

    Args:
        folder: made if it is not there.
        task: "digits" or "text".
        data: where the examples come from, as the task takes it.
        epochs: passes over the training examples; those of the task's recipe if not given.
        seed: for the split, the initial values and the mini-batches.
        rows: names among the rows of the task, all if not given.
        fresh: whether runs in the folder are done anew.
        console: where progress is shown; standard output if not given.

    Returns:
        The results of these rows, in their order in the task.

    Raises:
        BackendError: PyTorch, scikit-learn or matplotlib is missing.
        TensornetError: a row is unknown, a number is out of range, the folder cannot be written.
        KeyboardInterrupt: after the message that says how to resume.
    """
    from rich.console import Console

    if task not in TASKS:
        raise TensornetError(f"there is no study '{task}'", fix=f"choose of {', '.join(TASKS)}")
    subject = TASKS[task]
    names, recipe = _chosen(subject, rows), _recipe(subject, epochs)
    seed = _checked_seed(seed)
    check_libraries()
    RunStore(Path(folder)).prepare()
    examples = subject.load(seed, data)
    study = _Study(Path(folder), subject, examples, data, recipe, seed, console or Console())
    results = study.run(names, fresh)
    known = study.with_others(results)
    write_outputs(study.folder, subject, known, study.environment())
    study.console.print(table(subject, known))
    study.console.print(f"results in {study.folder}", markup=False, highlight=False, soft_wrap=True)
    return results


def _chosen(task: Task, rows: Sequence[str] | None) -> list[str]:
    wanted = list(task.rows) if rows is None else [rows] if isinstance(rows, str) else list(rows)
    for name in wanted:
        if name not in task.rows:
            raise TensornetError(f"the study has no row '{name}'", fix=f"choose of {', '.join(task.rows)}")
    if not wanted:
        raise TensornetError("no row is chosen", fix=f"choose of {', '.join(task.rows)}")
    return [name for name in task.rows if name in wanted]


def _recipe(task: Task, epochs: int | None) -> Recipe:
    if epochs is None:
        return task.recipe
    if epochs < 1:
        raise TensornetError(f"epochs is {epochs}", fix="give 1 or more")
    return replace(task.recipe, epochs=epochs)


def _checked_seed(seed: int) -> int:
    if not 0 <= seed < 2**32:
        raise TensornetError(f"seed is {seed}", fix="give 0 to 4294967295")
    return seed


@dataclass(frozen=True)
class _Study:
    """A folder, the task, its examples, the recipe and the seed: what all rows share."""

    folder: Path
    task: Task
    examples: Examples
    data: str | None
    recipe: Recipe
    seed: int
    console: Console

    def environment(self) -> dict[str, Any]:
        """What the numbers depend on beside the row: seed, recipe, versions."""
        counts = {"train": len(self.examples.train_labels), "test": len(self.examples.test_labels)}
        return {
            "seed": self.seed,
            "recipe": asdict(self.recipe),
            "data": {"place": self.data, "about": self.examples.about, **counts},
            "versions": versions(),
        }

    def settings(self, name: str) -> dict[str, Any]:
        """All that the numbers of a row depend on."""
        return {"name": name, "row": asdict(self.task.rows[name]), **self.environment()}

    def run(self, names: Sequence[str], fresh: bool) -> list[RunResult]:
        """The results of these rows, found in the folder or trained now."""
        store = RunStore(self.folder)
        store.prepare()
        found = {} if fresh else {name: store.load(name, self.settings(name)) for name in names}
        done = {name: result for name, result in found.items() if result is not None}
        if done:
            self._say(f"kept, finished before: {', '.join(done)}")
        try:
            self._train([name for name in names if name not in done], done, store)
        except KeyboardInterrupt:
            self._say(
                f"stopped: {len(done)} of {len(names)} runs are finished and kept in {self.folder};"
                " give the same command again to resume"
            )
            raise
        return [done[name] for name in names]

    def with_others(self, results: Sequence[RunResult]) -> list[RunResult]:
        """These results and those of the other rows that the folder holds, in the order of the task."""
        store, known = RunStore(self.folder), {result.name: result for result in results}
        found = [known.get(name) or store.load(name, self.settings(name)) for name in self.task.rows]
        return [result for result in found if result is not None]

    def _train(self, names: Sequence[str], done: dict[str, RunResult], store: RunStore) -> None:
        """Trains these rows; each is kept, on disk and in `done`, as soon as it is finished."""
        if not names:
            return
        with _progress(self.console, len(names), self.recipe.epochs) as progress:
            for name in names:
                result = self._train_one(name, progress)
                store.save(result, self.settings(name))
                done[name] = result
                if not self.console.is_terminal:
                    self._say(_line(result))

    def _train_one(self, name: str, progress: _Bars) -> RunResult:
        progress.begin(name)
        row = self.task.rows[name]
        result = train(
            name,
            row.about,
            self.task.build(row, self.examples),
            self.examples,
            recipe=self.recipe,
            seed=self.seed,
            on_epoch=progress.epoch,
        )
        progress.end()
        return result

    def _say(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)


def _line(result: RunResult) -> str:
    return (
        f"{result.name}: {result.parameters:,} parameters, test top-1 {result.test_top1:.1f} %,"
        f" top-5 {result.test_top5:.1f} %, {result.step_ms:.2f} ms a step"
    )


class _Bars:
    """A bar over rows and one over the epochs of the present row; nothing without a terminal."""

    def __init__(self, bars: Progress | None, rows: int, epochs: int) -> None:
        self._bars, self._epochs = bars, epochs
        self._over: list[TaskID] = []
        if bars is not None:
            self._over = [bars.add_task("rows", total=rows), bars.add_task("epochs", total=epochs)]

    def begin(self, name: str) -> None:
        """Names the row and empties the bar of epochs."""
        if self._bars is not None:
            self._bars.reset(self._over[1], description=name, total=self._epochs)

    def epoch(self) -> None:
        """One epoch more."""
        if self._bars is not None:
            self._bars.advance(self._over[1])

    def end(self) -> None:
        """One row more."""
        if self._bars is not None:
            self._bars.advance(self._over[0])


@contextmanager
def _progress(console: Console, rows: int, epochs: int) -> Iterator[_Bars]:
    if not console.is_terminal:
        yield _Bars(None, rows, epochs)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:<14}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        yield _Bars(bars, rows, epochs)
