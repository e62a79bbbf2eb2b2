"""Showing the progress of a study: bars on a terminal, occasional lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..planning.progress import unwatched

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

__all__ = ["Shown", "shown"]

SECONDS_BETWEEN_LINES = 30.0
"""The time between two lines, if there is no terminal."""


class Shown:
    """A bar over runs, and one over the steps of the run that this process trains; lines if there is no terminal."""

    def __init__(self, console: Console, drawn: Progress, runs: int) -> None:
        self._console, self._drawn, self._spoke = console, drawn, time.monotonic()
        self._runs = drawn.add_task("runs", total=runs)
        self._steps = drawn.add_task("", visible=False)

    def show(self, name: str, step: int, steps: int, top1: float | None = None) -> None:
        """Shows how many of its steps a run has made, and its newest test accuracy in percent."""
        accuracy = "" if top1 is None else f" {top1:.1f} %"
        self._drawn.update(
            self._steps, completed=step, total=steps, description=f"{name}{accuracy}", visible=True
        )
        if not self._console.is_terminal and time.monotonic() - self._spoke >= SECONDS_BETWEEN_LINES:
            self._spoke, runs = time.monotonic(), self._drawn.tasks[0]
            line = f"{runs.completed} of {runs.total} runs; {name}: step {step:,} of {steps:,}"
            line += accuracy and f", test top-1{accuracy}"
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def end(self) -> None:
        """Advances the bar of runs."""
        self._drawn.advance(self._runs)


@contextmanager
def shown(console: Console, runs: int) -> Iterator[Shown]:
    """The progress of this many runs, which disappears at the end of the block."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description:<24}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    hidden = not console.is_terminal
    with unwatched(), Progress(*columns, console=console, transient=True, disable=hidden) as drawn:
        yield Shown(console, drawn, runs)
