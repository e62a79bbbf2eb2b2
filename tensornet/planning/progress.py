"""Progress of planning, shown at a terminal.

Nothing is shown where standard error is no terminal, and nothing is loaded for a plan that is soon made.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING

from ..contraction.layout_search import Choose, Order, Problem
from ..language.equation import Equation
from ..language.expression import Contraction, Expression, is_scalar

if TYPE_CHECKING:
    from rich.live import Live

__all__ = ["counted", "measuring", "say", "unwatched", "watched"]

PATIENCE = 2.0
"""Seconds after which it is shown."""

PLANNING = "planning", "contractions"
"""What is done, and of what things, unless something else is told."""

_line = threading.Lock()
"""A terminal has one such line, whichever thread plans."""


class _Watch:
    """How far the plan has come that is being made, shown from another thread once it takes long."""

    def __init__(self) -> None:
        self._done = self._total = 0
        self._what = PLANNING
        self._turn, self._over = threading.Lock(), False
        self._live: Live | None = None

    def __rich__(self) -> str:
        """What is shown, asked for with each frame."""
        doing, things = self._what
        if not self._total:
            return doing
        return f"{doing}: {min(self._done, self._total)} of {self._total} {things}"

    def measure(self, done: int, total: int) -> None:
        """So many turns are over, of those in which candidates are timed."""
        self._what, self._done, self._total = ("measuring", "turns"), done, total

    def expect(self, count: int) -> None:
        """So many contractions more are to be ordered; after candidates were timed, so many at all."""
        if self._what != PLANNING:
            self._what, self._done, self._total = PLANNING, 0, 0
        self._total += count

    def step(self) -> None:
        """One contraction more has its order."""
        self._done += 1

    def show(self) -> None:
        """Shows it, unless all is over or the line is taken."""
        from rich.console import Console
        from rich.live import Live
        from rich.spinner import Spinner

        console = Console(stderr=True)
        with self._turn:
            if self._over or console.is_dumb_terminal or not _line.acquire(blocking=False):
                return
            # what others print meanwhile stays where they print it
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
        """Takes the line away."""
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
    """Lets a plan be watched while it is made; one made within another counts with it."""
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
    """The choice, seen by whoever watches: for each contraction in equations that are about to be lowered."""
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
    """Says to whoever watches that plans are being timed, and how far that has come."""
    watch = _watch.get()
    if watch is not None:
        watch.measure(done, total)


def say(text: str) -> None:
    """Tells a person at a terminal something in a line that stays."""
    if _is_terminal():
        print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def unwatched() -> Iterator[None]:
    """Keeps the terminal for whoever shows something else on it."""
    mine = _line.acquire(blocking=False)
    try:
        yield
    finally:
        if mine:
            _line.release()


def _is_terminal() -> bool:
    """Whether a person may see what goes to standard error; it may be closed, or be none."""
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):
        return False


def _is_contraction(part: Expression) -> bool:
    """Whether it sums a product of several tensors."""
    return (
        isinstance(part, Contraction)
        and bool(part.summed)
        and sum(not is_scalar(f) for f in part.factors) > 1
    )


def _sums(problem: Problem) -> bool:
    return any(axis not in problem.kept for layout in problem.layouts for axis in layout)
