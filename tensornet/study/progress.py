"""Showing the progress of a study: bars on a terminal, occasional lines elsewhere."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..planning.progress import unwatched
from .store import write_whole

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

__all__ = ["SECONDS_BETWEEN_NOTES", "Shown", "noted", "shown"]

SECONDS_BETWEEN_LINES = 30.0
"""The time between two lines, if there is no terminal."""

SECONDS_BETWEEN_NOTES = 1.0
"""The time between two progress notes of another process."""


class Shown:
    """A bar over runs, and one over the steps of each run that is trained; lines if there is no terminal."""

    def __init__(self, console: Console, drawn: Progress, runs: int) -> None:
        self._console, self._drawn, self._spoke = console, drawn, time.monotonic()
        self._runs = drawn.add_task("runs", total=runs)
        self._bars: dict[str, TaskID] = {}

    def show(self, name: str, step: int, steps: int, top1: float | None = None) -> None:
        """Shows how many of its steps a run has made, and its newest test accuracy in percent."""
        if name not in self._bars:
            self._bars[name] = self._drawn.add_task(name)
        accuracy = "" if top1 is None else f" {top1:.1f} %"
        line = f"{name}: step {step:,} of {steps:,}{accuracy and f', test top-1{accuracy}'}"
        described: dict[str, Any] = {"description": f"{name}{accuracy}"} if accuracy else {}
        self._drawn.update(self._bars[name], completed=step, total=steps, line=line, **described)
        if not self._console.is_terminal and time.monotonic() - self._spoke >= SECONDS_BETWEEN_LINES:
            self._spoke = time.monotonic()
            runs, *others = self._drawn.tasks
            lines = "; ".join(
                [f"{runs.completed} of {runs.total} runs", *(bar.fields["line"] for bar in others)]
            )
            self._console.print(lines, markup=False, highlight=False, soft_wrap=True)

    def end(self, name: str) -> None:
        """Removes the bar of a finished run, and advances the bar of runs."""
        self._drawn.advance(self._runs)
        if name in self._bars:
            self._drawn.remove_task(self._bars.pop(name))

    def read(self, name: str, path: Path) -> None:
        """Shows what `noted` wrote for a run; nothing if it has written nothing yet."""
        with suppress(OSError, ValueError, TypeError):
            self.show(name, *json.loads(path.read_bytes()))


def noted(path: Path) -> Callable[[int, int, float | None], None]:
    """Writes the progress of a run to a file, from which another process shows it."""
    written = [-SECONDS_BETWEEN_NOTES]

    def note(*progress: float | None) -> None:
        if time.monotonic() - written[0] >= SECONDS_BETWEEN_NOTES:
            write_whole(path, json.dumps(progress).encode())
            written[0] = time.monotonic()

    return note


@contextmanager
def shown(console: Console, runs: int) -> Iterator[Shown]:
    """The progress of this many runs, which disappears at the end of the block."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description:<24}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    hidden = not console.is_terminal
    with unwatched(), Progress(*columns, console=console, transient=True, disable=hidden) as drawn:
        yield Shown(console, drawn, runs)
