"""The subject of a study, by name or by a file, as a value that another process can take."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tensornet.errors import TensornetError

from .arrays import Data
from .digits import digits
from .task import Examples, Task
from .text import text
from .thesis import thesis
from .written import StudyFile, read_study

__all__ = ["TASKS", "Subject", "forget_examples"]

TASKS: dict[str, Callable[[Data], Task]] = {"digits": digits, "text": text, "thesis": thesis}
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

    @classmethod
    def of(cls, task: str | Path, data: Data | Path = None) -> Subject:
        """The subject of a study, which is given by its name or by its file.

        Raises:
            TensornetError: the file does not describe a study.
        """
        data = data if data is None or callable(data) else str(data)
        if not str(task).endswith(".toml"):
            return cls(str(task), data)
        written = read_study(task)
        return cls(written.study, data or written.data, written)

    @property
    def task(self) -> Task:
        """The task.

        Raises:
            TensornetError: there is no task of this name, or the file requires something that the task lacks.
        """
        if self.name not in TASKS:
            message, fix = f"there is no study '{self.name}'", f"choose of {', '.join(TASKS)}"
            if self.written is not None:
                raise TensornetError(f"{self.written.path}: study: {message}", fix=fix)
            raise TensornetError(message, fix=f"{fix}, or give a file, as my.toml")
        base = TASKS[self.name](self.data)
        return base if self.written is None else self.written.of(base)

    def examples(self, seed: int) -> Examples:
        """The examples of a seed; those of the last call are cached."""
        return _examples(self.name, self.data, seed if TASKS[self.name](self.data).splits else 0)


@functools.lru_cache(maxsize=1)
def _examples(name: str, data: Data, seed: int) -> Examples:
    return TASKS[name](data).load(seed, data)


def forget_examples() -> None:
    """Clears the cache, so that examples are loaded again at the next call."""
    _examples.cache_clear()
