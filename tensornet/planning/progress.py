"""Progress of planning, shown at a terminal.

Nothing is shown if standard error is not a terminal. For a quick plan, `rich` is not even loaded.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING

from ..contraction.pairs import Choose, Order, Problem
from ..language.equation import Equation
from ..language.expression import Contraction, Expression, is_scalar

if TYPE_CHECKING:
    from rich.live import Live

__all__ = ["counted", "measuring", "say", "unwatched", "watched"]

PATIENCE = 2.0
"""Seconds after which progress is shown."""

PLANNING = "planning", "contractions"
"""The activity shown by default, and the noun for what it counts."""

_line = threading.Lock()
"""A terminal has one progress line, whichever thread plans."""


class _Watch:
    """The progress of the current plan, shown from another thread once it takes long."""

    def __init__(self) -> None:
        self._done = self._total = 0
        self._what = PLANNING
        self._turn, self._over = threading.Lock(), False
        self._live: Live | None = None

    def __rich__(self) -> str:
        """The text that is shown. `rich` reads it for each frame."""
        doing, things = self._what
        if not self._total:
            return doing
        return f"{doing}: {min(self._done, self._total)} of {self._total} {things}"

    def measure(self, done: int, total: int) -> None:
        """Records how many of the turns in which candidates are timed are over."""
        self._what, self._done, self._total = ("measuring", "turns"), done, total

    def expect(self, count: int) -> None:
        """Adds contractions to be ordered. After candidates were timed, counting starts again at zero."""
        if self._what != PLANNING:
            self._what, self._done, self._total = PLANNING, 0, 0
        self._total += count

    def step(self) -> None:
        """Counts one more contraction as ordered."""
        self._done += 1

    def show(self) -> None:
        """Shows the progress, unless planning is over or another watch has the line."""
        from rich.console import Console
        from rich.live import Live
        from rich.spinner import Spinner

        console = Console(stderr=True)
        with self._turn:
            if self._over or console.is_dumb_terminal or not _line.acquire(blocking=False):
                return
            # other output meanwhile is not redirected
            self._live = Live(
                Spinner("dots", self),
                console=console,
                refresh_per_second=10,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()

    def end(self) -> None:
        """Removes the progress line."""
        with self._turn:
            self._over = True
            if self._live is not None:
                try:
                    self._live.stop()
                finally:
                    _line.release()


_watch: ContextVar[_Watch | None] = ContextVar("watch", default=None)


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Shows the progress of a plan made in this context. A plan made within another counts towards that one."""
    if _watch.get() is not None or not _is_terminal():
        yield
        return
    watch = _Watch()
    token, timer = _watch.set(watch), threading.Timer(PATIENCE, watch.show)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        _watch.reset(token)
        timer.cancel()
        watch.end()


def counted(equations: Iterable[Equation], choose: Choose) -> Choose:
    """The choice, with progress reported for each contraction in equations that are about to be lowered."""
    watch = _watch.get()
    if watch is None:
        return choose
    parts = (part for equation in equations for part in equation.parts)
    watch.expect(sum(map(_is_contraction, parts)))

    def choice(problem: Problem) -> Order:
        order = choose(problem)
        if _sums(problem):
            watch.step()
        return order

    return choice


def measuring(done: int, total: int) -> None:
    """Reports that plans are being timed, and how far that has come."""
    watch = _watch.get()
    if watch is not None:
        watch.measure(done, total)


def say(text: str) -> None:
    """Prints a line that stays, if standard error is a terminal."""
    if _is_terminal():
        print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def unwatched() -> Iterator[None]:
    """Reserves the terminal line for other output."""
    mine = _line.acquire(blocking=False)
    try:
        yield
    finally:
        if mine:
            _line.release()


def _is_terminal() -> bool:
    """Whether standard error is a terminal. It may also be closed, or None."""
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):
        return False


def _is_contraction(part: Expression) -> bool:
    """Whether a part of an expression sums a product of several tensors."""
    return (
        isinstance(part, Contraction)
        and bool(part.summed)
        and sum(not is_scalar(f) for f in part.factors) > 1
    )


def _sums(problem: Problem) -> bool:
    return any(axis not in problem.kept for layout in problem.layouts for axis in layout)
