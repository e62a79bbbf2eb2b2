"""Showing how far a study has come: bars on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..planning.watching import unwatched
from .results import Epoch

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

__all__ = ["Bars", "bars"]

SECONDS_BETWEEN_LINES = 30.0
"""Where there is no terminal."""


class Bars:
    """A bar over runs and one over the steps of the present run; lines if there is no terminal."""

    def __init__(self, console: Console, shown: Progress | None, runs: int) -> None:
        self._console, self._shown, self._spoke = console, shown, time.monotonic()
        self._over: list[TaskID] = []
        if shown is not None:
            self._over = [shown.add_task("runs", total=runs), shown.add_task("steps", total=None)]

    def begin(self, name: str, done: int, steps: int) -> None:
        """Names the run, and sets the bar of steps."""
        if self._shown is not None:
            self._shown.reset(self._over[1], description=name, completed=done, total=steps)
        if done:
            self._console.print(f"{name}: goes on after step {done:,} of {steps:,}", highlight=False)

    def step(self) -> None:
        """One step more."""
        if self._shown is not None:
            self._shown.advance(self._over[1])

    def epoch(self, name: str, number: int, epoch: Epoch) -> None:
        """One epoch more."""
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
        """One run more."""
        if self._shown is not None:
            self._shown.advance(self._over[0])


@contextmanager
def bars(console: Console, runs: int) -> Iterator[Bars]:
    """Bars for so many runs, gone when they are done."""
    if not console.is_terminal:
        yield Bars(console, None, runs)
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
        yield Bars(console, shown, runs)
