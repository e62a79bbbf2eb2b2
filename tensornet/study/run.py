"""Running the study: what is finished is kept, the rest is trained, then all is written down."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensornet.errors import TensornetError

from .data import Digits, load_digits
from .libraries import check_libraries, versions
from .report import table, write_outputs
from .rows import STUDY, build_graph
from .store import RunStore
from .training import RECIPE, Recipe, RunResult, train

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

__all__ = ["run_study"]


def run_study(
    folder: Path,
    *,
    epochs: int | None = None,
    seed: int = 0,
    rows: Sequence[str] | None = None,
    fresh: bool = False,
    console: Console | None = None,
) -> list[RunResult]:
    """Trains the classifiers of `STUDY` on the digits and writes the results into a folder.

    A run that the folder holds already, with the same settings, is kept. Writes `results.json`,
    `results.csv`, `report.md`, `pareto.png`, `curves.png` and `runs/<name>.json`. They show every
    row that is finished with this seed and recipe, those of an earlier call too.

    Args:
        folder: made if it is not there.
        epochs: passes over the training images; those of the recipe (60) if not given.
        seed: for the split, the initial values and the mini-batches.
        rows: names in `STUDY`, all if not given.
        fresh: whether runs in the folder are done anew.
        console: where progress is shown; standard output if not given.

    Returns:
        The results of these rows, in their order in `STUDY`.

    Raises:
        BackendError: PyTorch, scikit-learn or matplotlib is missing.
        TensornetError: a row is unknown, a number is out of range, the folder cannot be written.
        KeyboardInterrupt: after the message that says how to resume.
    """
    from rich.console import Console

    names = _chosen(rows)
    study = _Study(Path(folder), _recipe(epochs), _checked_seed(seed), console or Console())
    check_libraries()
    results = study.run(names, fresh)
    known = study.with_others(results)
    write_outputs(study.folder, known, study.environment())
    study.console.print(table(known))
    study.console.print(f"results in {study.folder}", markup=False, highlight=False, soft_wrap=True)
    return results


def _chosen(rows: Sequence[str] | None) -> list[str]:
    wanted = list(STUDY) if rows is None else [rows] if isinstance(rows, str) else list(rows)
    for name in wanted:
        if name not in STUDY:
            raise TensornetError(f"the study has no row '{name}'", fix=f"choose of {', '.join(STUDY)}")
    if not wanted:
        raise TensornetError("no row is chosen", fix=f"choose of {', '.join(STUDY)}")
    return [name for name in STUDY if name in wanted]


def _recipe(epochs: int | None) -> Recipe:
    if epochs is None:
        return RECIPE
    if epochs < 1:
        raise TensornetError(f"epochs is {epochs}", fix="give 1 or more")
    return replace(RECIPE, epochs=epochs)


def _checked_seed(seed: int) -> int:
    if not 0 <= seed < 2**32:
        raise TensornetError(f"seed is {seed}", fix="give 0 to 4294967295")
    return seed


@dataclass(frozen=True)
class _Study:
    """A folder, the recipe and the seed: what all rows share."""

    folder: Path
    recipe: Recipe
    seed: int
    console: Console

    def environment(self) -> dict[str, Any]:
        """What the numbers depend on beside the row: seed, recipe, versions."""
        return {"seed": self.seed, "recipe": asdict(self.recipe), "versions": versions()}

    def settings(self, name: str) -> dict[str, Any]:
        """All that the numbers of a row depend on."""
        return {"name": name, "row": asdict(STUDY[name]), **self.environment()}

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
        """These results and those of the other rows that the folder holds, in the order of `STUDY`."""
        store, known = RunStore(self.folder), {result.name: result for result in results}
        found = [known.get(name) or store.load(name, self.settings(name)) for name in STUDY]
        return [result for result in found if result is not None]

    def _train(self, names: Sequence[str], done: dict[str, RunResult], store: RunStore) -> None:
        """Trains these rows; each is kept, on disk and in `done`, as soon as it is finished."""
        if not names:
            return
        digits = load_digits(self.seed)
        with _progress(self.console, len(names), self.recipe.epochs) as progress:
            for name in names:
                result = self._train_one(name, digits, progress)
                store.save(result, self.settings(name))
                done[name] = result
                if not self.console.is_terminal:
                    self._say(_line(result))

    def _train_one(self, name: str, digits: Digits, progress: _Bars) -> RunResult:
        progress.begin(name)
        row = STUDY[name]
        result = train(
            name,
            row.about,
            build_graph(row),
            digits,
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
