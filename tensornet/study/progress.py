"""Showing the progress of a study: bars on a terminal, occasional lines elsewhere."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..planning.progress import unwatched
from .files import remove, write_whole
from .results import Epoch
from .schema import read

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

__all__ = ["Bars", "Noted", "Watch", "bars", "watch"]

SECONDS_BETWEEN_LINES = 30.0
"""The time between two lines, if there is no terminal."""

SECONDS_BETWEEN_NOTES = 1.0
"""The time between two progress notes of another process."""


class Bars:
    """A bar over runs and one over the steps of the present run; lines if there is no terminal."""

    def __init__(self, console: Console, shown: Progress | None, runs: int) -> None:
        self._console, self._shown, self._spoke = console, shown, time.monotonic()
        self._over: list[TaskID] = []
        if shown is not None:
            self._over = [shown.add_task("runs", total=runs), shown.add_task("steps", total=None)]

    def begin(self, name: str, done: int, steps: int) -> None:
        """Shows the name of the run, and resets the bar of steps."""
        if self._shown is not None:
            self._shown.reset(self._over[1], description=name, completed=done, total=steps)
        if done:
            self._console.print(f"{name}: goes on after step {done:,} of {steps:,}", highlight=False)

    def step(self) -> None:
        """Advances the bar of steps."""
        if self._shown is not None:
            self._shown.advance(self._over[1])

    def epoch(self, name: str, number: int, epoch: Epoch) -> None:
        """Shows the test accuracy after an epoch."""
        if self._shown is not None:
            told = f"{name} {epoch.test_top1:.1f} %"
            self._shown.update(self._over[1], description=told)
        elif time.monotonic() - self._spoke >= SECONDS_BETWEEN_LINES:
            self._spoke = time.monotonic()
            self._console.print(
                f"{name}: epoch {number}, loss {epoch.train_loss:.3f}, test top-1 {epoch.test_top1:.2f} %",
                highlight=False,
                soft_wrap=True,
            )

    def end(self) -> None:
        """Advances the bar of runs."""
        if self._shown is not None:
            self._shown.advance(self._over[0])


@contextmanager
def bars(console: Console, runs: int) -> Iterator[Bars]:
    """Bars for this many runs, which disappear at the end of the block."""
    with _drawn(console) as shown:
        yield Bars(console, shown, runs)


@dataclass(frozen=True)
class _Note:
    """The progress of a run: steps done, all steps, and the newest test accuracy, in percent."""

    done: int = 0
    steps: int = 0
    top1: float = 0.0


class Noted:
    """Writes the progress of a run to a file, from which another process shows it."""

    def __init__(self, path: Path) -> None:
        self._path, self._note, self._written = path, _Note(), -SECONDS_BETWEEN_NOTES

    def begin(self, name: str, done: int, steps: int) -> None:
        """Notes that a run starts, or resumes after `done` of its steps."""
        self._set(_Note(done, steps))

    def step(self) -> None:
        """Notes one more step."""
        self._set(replace(self._note, done=self._note.done + 1))

    def epoch(self, name: str, number: int, epoch: Epoch) -> None:
        """Notes the test accuracy after an epoch."""
        self._set(replace(self._note, top1=epoch.test_top1))

    def end(self) -> None:
        """Removes the file, as the run is finished."""
        remove(self._path)

    def _set(self, note: _Note) -> None:
        self._note = note
        if time.monotonic() - self._written >= SECONDS_BETWEEN_NOTES:
            write_whole(self._path, json.dumps(asdict(note)).encode())
            self._written = time.monotonic()


def _noted(path: Path) -> _Note | None:
    """The note in a file; None if the file is missing or invalid."""
    try:
        return read(_Note, json.loads(path.read_bytes()))
    except (OSError, ValueError):
        return None


class Watch:
    """A bar over runs, and one for each run that another process trains; lines if there is no terminal."""

    def __init__(self, console: Console, shown: Progress | None, runs: Mapping[str, Path]) -> None:
        self._console, self._shown, self._left = console, shown, dict(runs)
        self._runs, self._spoke, self._looked = len(runs), time.monotonic(), 0.0
        self._bars: dict[str, TaskID] = {}
        self._over = None if shown is None else shown.add_task("runs", total=len(runs))

    def look(self) -> None:
        """Shows the progress of the runs, at most once a second."""
        if time.monotonic() - self._looked < SECONDS_BETWEEN_NOTES:
            return
        self._looked = time.monotonic()
        found = {name: note for name, path in self._left.items() if (note := _noted(path)) is not None}
        if self._shown is not None:
            for name, note in found.items():
                told = f"{name} {note.top1:.1f} %" if note.top1 else name
                if name not in self._bars:
                    self._bars[name] = self._shown.add_task(name)
                self._shown.update(self._bars[name], description=told, completed=note.done, total=note.steps)
        elif time.monotonic() - self._spoke >= SECONDS_BETWEEN_LINES:
            self._spoke = time.monotonic()
            lines = [f"{name}: step {note.done:,} of {note.steps:,}" for name, note in found.items()]
            head = f"{self._runs - len(self._left)} of {self._runs} runs"
            self._console.print("; ".join([head, *lines]), highlight=False, soft_wrap=True)

    def end(self, name: str) -> None:
        """Removes the bar of a finished run, and advances the bar of runs."""
        remove(self._left.pop(name))
        if self._shown is not None and self._over is not None:
            self._shown.advance(self._over)
            if name in self._bars:
                self._shown.remove_task(self._bars.pop(name))


@contextmanager
def watch(console: Console, runs: Mapping[str, Path]) -> Iterator[Watch]:
    """The progress of runs in other processes, read from their files; it disappears at the end of the block."""
    try:
        with _drawn(console) as shown:
            yield Watch(console, shown, runs)
    finally:
        for path in runs.values():  # left by runs that were stopped
            remove(path)


@contextmanager
def _drawn(console: Console) -> Iterator[Progress | None]:
    """The display that bars are drawn on; None if there is no terminal."""
    if not console.is_terminal:
        yield None
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description:<24}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with unwatched(), Progress(*columns, console=console, transient=True) as shown:
        yield shown
