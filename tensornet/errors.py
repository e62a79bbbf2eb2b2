"""The errors a user can meet: each names the place, the cause and the fix."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = [
    "BackendError",
    "DtypeError",
    "EquationError",
    "Place",
    "ShapeError",
    "TensornetError",
    "TensornetWarning",
    "near",
    "nearest",
    "no_positions",
    "outside",
]


@dataclass(frozen=True)
class Place:
    """A stretch of one line of an equation block: what an error points at."""

    line: str
    number: int
    column: int
    width: int = 1

    def caret(self) -> str:
        """The line with carets under the stretch, numbered from 1."""
        label = f"  line {self.number}: "
        marker = " " * (len(label) + self.column) + "^" * max(1, self.width)
        return f"{label}{self.line}\n{marker}"


class TensornetError(Exception):
    """The base of every error that `tensornet` raises on purpose.

    Args:
        message: what is wrong, in one sentence.
        place: where in the equations, shown with a caret.
        fix: what to write instead.

    Example:
        >>> print(EquationError("axis 'z' is unknown", Place("y[z] = x[b]", 1, 2), "remove it"))
        axis 'z' is unknown
          line 1: y[z] = x[b]
                    ^
        fix: remove it
    """

    def __init__(self, message: str, place: Place | None = None, fix: str = "") -> None:
        self.message, self.place, self.fix = message, place, fix
        super().__init__(_told(message, place, fix))

    def __reduce__(self) -> tuple[type[TensornetError], tuple[str, Place | None, str]]:
        return type(self), (self.message, self.place, self.fix)


class TensornetWarning(UserWarning):
    """What `tensornet` goes on with, and its user should know; told as an error is."""

    def __init__(self, message: str, place: Place | None = None, fix: str = "") -> None:
        super().__init__(_told(message, place, fix))


def _told(message: str, place: Place | None, fix: str) -> str:
    """The message, the line with its caret, and the fix."""
    parts = [message, place.caret() if place is not None else "", f"fix: {fix}" if fix else ""]
    return "\n".join(part for part in parts if part)


class EquationError(TensornetError, ValueError):
    """The text of an equation cannot be read, or means nothing."""


class ShapeError(TensornetError, ValueError):
    """Sizes disagree, or one is missing."""


class DtypeError(TensornetError, TypeError):
    """Element types disagree, or one cannot do what the equations ask of it."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The one of the known names that `name` is a slip away from, in a letter or in its case.

    Names of another length are another word: 'floor' is no slip of 'foo'.
    """
    alike = {each.lower(): each for each in known if abs(len(each) - len(name)) <= max(1, len(name) // 4)}
    found = difflib.get_close_matches(name.lower(), alike, 1, cutoff=0.7)
    return alike[found[0]] if found else None


def near(name: str, known: Iterable[str]) -> str:
    """`did you mean 'heads'? ` where one of the known names is a slip away from `name`, else nothing."""
    found = nearest(name, known)
    return f"did you mean '{found}'? " if found else ""


def outside(name: str, position: int, size: int) -> ShapeError:
    """The error for a position that no dimension has."""
    return ShapeError(
        f"'{name}' holds the position {position}, where there are {size}",
        fix=f"give whole numbers from 0 to {size - 1}" if size else "there is nothing to choose from",
    )


def no_positions(name: str, dtype: str) -> DtypeError:
    """The error for an index that is no array of whole numbers."""
    return DtypeError(f"'{name}' indexes, and holds {dtype}", fix="give whole numbers, such as int64")


class BackendError(TensornetError, RuntimeError):
    """A library or a device is missing, or a backend cannot do what was asked."""
