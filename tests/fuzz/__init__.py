"""Random input of every kind, in search of a raw error, a silent change, or no answer.

An attempt makes one input from a generator of its own and gives it to the library. The library may
do as asked or raise an error of its own; anything else is a finding. `python -m tests.fuzz` runs
many attempts, `tests/test_fuzz.py` a few of each kind.
"""

from __future__ import annotations

import random
import traceback
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import tensornet as tn
from tests.conftest import within

PATIENCE = 10
"""Seconds after which an attempt counts as one without an answer."""


class SilentChangeError(Exception):
    """The library answered, and the answer is not what was asked for."""


class Trial:
    """One attempt: its generator, and what it was about, for the report."""

    def __init__(self, seed: str) -> None:
        self.random = random.Random(seed)
        self.notes: list[str] = []

    def note(self, text: object) -> None:
        """Remembers an input, to be shown with a finding."""
        self.notes.append(str(text)[:500])

    def chance(self, share: float) -> bool:
        """True in so many of all cases."""
        return self.random.random() < share


@dataclass(frozen=True)
class Target:
    """A kind of input: one attempt at it, and how many attempts a full run makes."""

    name: str
    attempt: Callable[[Trial], None]
    attempts: int


@dataclass(frozen=True)
class Finding:
    """What went wrong, at which attempt, and the input."""

    number: int
    error: str
    where: str
    notes: tuple[str, ...]

    def __str__(self) -> str:
        shown = "\n".join(f"    | {line}" for note in self.notes for line in note.splitlines())
        return f"  attempt {self.number}: {self.error}\n    at {self.where}\n{shown}"


@dataclass
class Report:
    """How a run of one target went."""

    name: str
    executions: int = 0
    accepted: int = 0
    refused: int = 0
    findings: dict[str, Finding] = field(default_factory=dict)
    """The first of each kind, by where it arose."""


def run(target: Target, attempts: Iterable[int], seed: int = 0) -> Report:
    """Makes the attempts of these numbers; each depends on the seed and its number alone."""
    report = Report(target.name)
    for number in attempts:
        trial = Trial(f"{target.name} {seed} {number}")
        report.executions += 1
        try:
            with within(PATIENCE), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of numbers that are none, by NumPy
                target.attempt(trial)
            report.accepted += 1
        except tn.TensornetError:
            report.refused += 1
        except Exception as error:
            where = _where(error)
            message = f"{type(error).__name__}: {str(error)[:300]}"
            report.findings.setdefault(where, Finding(number, message, where, tuple(trial.notes)))
    return report


def _where(error: Exception) -> str:
    """The last line of the library's own code that was reached; of a silent change, the line that tells."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        frame for frame in frames if "/tests/" not in frame.filename and "site-packages" not in frame.filename
    ]
    frame = own[-1] if own and not isinstance(error, SilentChangeError) else frames[-1]
    file = "/".join(Path(frame.filename).parts[-2:])
    if file.startswith("<"):
        return f"generated code: {frame.line}"
    return f"{file}:{frame.lineno} {frame.name}"
