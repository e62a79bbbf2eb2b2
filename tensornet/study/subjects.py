"""The subjects of studies, by name or by a file, as values that another process can take."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

from tensornet.errors import TensornetError

from .arrays import Data
from .digits import digits
from .task import Examples, Task
from .text import text
from .thesis import thesis
from .written import StudyFile

__all__ = ["TASKS", "Subject", "forget_examples"]

TASKS: dict[str, Callable[[Data], Task]] = {
    "digits": digits,
    "text": text,
    "thesis": thesis,
}
"""The tasks, by name; the thesis is a separate study for each data set."""


@dataclass(frozen=True)
class Subject:
    """The subject of a study.

    Attributes:
        name: one of `TASKS`.
        data: where the examples come from, as the task takes it.
        written: the changes of the task by a file.
    """

    name: str
    data: Data = None
    written: StudyFile | None = None

    def task(self) -> Task:
        """The task.

        Raises:
            TensornetError: there is no task of this name, or the file requires something that the task lacks.
        """
        if self.name not in TASKS:
            message, fix = f"there is no study '{self.name}'", f"choose of {', '.join(TASKS)}"
            if self.written is not None:
                message = f"{self.written.path}: study: {message}"
            raise TensornetError(message, fix=fix if self.written else f"{fix}, or give a file, as my.toml")
        base = TASKS[self.name](self.data)
        return base if self.written is None else self.written.of(base)

    def examples(self, seed: int) -> Examples:
        """The examples of a seed; those of the last call are cached."""
        return _examples(self.name, self.data, seed if self.task().splits else 0)


@functools.lru_cache(maxsize=1)
def _examples(name: str, data: Data, seed: int) -> Examples:
    return TASKS[name](data).load(seed, data)


def forget_examples() -> None:
    """Clears the cache, so that examples are loaded again at the next call."""
    _examples.cache_clear()
