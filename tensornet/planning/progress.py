"""Progress of planning, shown at a terminal.

Nothing is shown if standard error is not a terminal. For a quick plan, `rich` is not even loaded.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.live import Live

__all__ = ["measuring", "say", "unwatched", "watched"]

PATIENCE = 2.0
"""Seconds after which progress is shown."""

_line = threading.Lock()
"""A terminal has one progress line, whichever thread plans."""


class _Watch:
    """The progress of the current plan, shown from another thread once it takes long."""

    def __init__(self) -> None:
        self.doing, self._began = "planning", time.monotonic()
        self._turn, self._over = threading.Lock(), False
        self._live: Live | None = None

    def __rich__(self) -> str:
        """The text that is shown. `rich` reads it for each frame."""
        return f"{self.doing}, {time.monotonic() - self._began:.1f} s"

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
    """Shows the progress of a plan made in this context. One made within another is part of that one."""
    watch = _watch.get()
    if watch is not None:
        watch.doing = "planning"
    if watch is not None or not _is_terminal():
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


def measuring(done: int, total: int) -> None:
    """Reports that candidates are being timed, and how many of their turns are over."""
    watch = _watch.get()
    if watch is not None:
        watch.doing = f"measuring: {done} of {total} turns"


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
