"""Errors and warnings: each names the place, the cause and the fix."""

from __future__ import annotations

import contextlib
import difflib
import functools
import importlib
import inspect
import math
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

PAGE = "tensornet functions"
"""The command that prints the reference of the language, to which errors point: whoever installed it has it."""


@dataclass(frozen=True)
class Place:
    """A span of one line of an equation block, to which an error points."""

    line: str
    number: int
    column: int
    width: int = 1

    @property
    def text(self) -> str:
        """The text of the span."""
        return self.line[self.column : self.column + self.width]

    def caret(self) -> str:
        """The line, numbered from 1, with carets under the span."""
        label = f"  line {self.number}: "
        marker = " " * (len(label) + self.column) + "^" * max(1, self.width)
        return f"{label}{self.line}\n{marker}"


class TensornetError(Exception):
    """The base class of every error that `tensornet` raises on purpose.

    Args:
        message: what is wrong, in one sentence.
        place: the place in the equations, shown with a caret.
        fix: what to write instead.
        see: the section of the reference page about it.

    Example:
        >>> print(EquationError("axis 'z' is unknown", Place("y[z] = x[b]", 1, 2), "remove it", "axes"))
        axis 'z' is unknown
          line 1: y[z] = x[b]
                    ^
        fix: remove it
        see: tensornet functions axes
    """

    def __init__(self, message: str, place: Place | None = None, fix: str = "", see: str = "") -> None:
        self.message, self.place, self.fix, self.see = message, place, fix, see
        super().__init__(_told(message, place, fix, see))

    def __reduce__(self) -> tuple[type[TensornetError], tuple[str, Place | None, str, str]]:
        return type(self), (self.message, self.place, self.fix, self.see)

    def point_at(self, section: str) -> None:
        """Sets the section of the reference page, unless the error names one already."""
        if not self.see:
            self.see = section
            self.args = (_told(self.message, self.place, self.fix, section),)


class TensornetWarning(UserWarning):
    """A problem that does not stop `tensornet`, but that the user should know. It is worded like an error."""

    def __init__(self, message: str, place: Place | None = None, fix: str = "") -> None:
        super().__init__(_told(message, place, fix))


def warn(warning: TensornetWarning) -> None:
    """Issues a warning at the line outside of the library that led to it."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and f"{frame.f_globals.get('__name__', '')}.".startswith(
        f"{__package__}."
    ):
        frame, level = frame.f_back, level + 1
    warnings.warn(warning, stacklevel=level)


@contextlib.contextmanager
def unwarned() -> Iterator[None]:
    """A context without warnings of this library, where they would tell nobody anything."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TensornetWarning)
        yield


def _told(message: str, place: Place | None, fix: str, see: str = "") -> str:
    """The message, the line with its caret, the fix, and the section of the reference page."""
    parts = [message, place.caret() if place is not None else "", f"fix: {fix}" if fix else ""]
    parts.append(f"see: {PAGE} {see}" if see else "")
    return "\n".join(part for part in parts if part)


class EquationError(TensornetError, ValueError):
    """The text of an equation cannot be parsed, or has no meaning."""


class ShapeError(TensornetError, ValueError):
    """Sizes disagree, or one is missing."""


class DtypeError(TensornetError, TypeError):
    """Element types disagree, or one does not support what the equations compute."""


class ArgumentError(TensornetError, TypeError):
    """A call lacks an argument, or has one that the function does not take."""


def check_signature(function: Callable[..., Any], error: Exception, named: Mapping[str, Any]) -> None:
    """Raises an error that says what a function takes, unless the function itself raised the given one.

    Args:
        function: the called function.
        error: what the call raised, caught in the frame of the call.
        named: the arguments that were given by name.
    """
    if isinstance(error, TensornetError):
        return
    takes = inspect.signature(function).parameters
    if isinstance(error, TypeError) and error.__traceback__ and error.__traceback__.tb_next is None:
        unknown = next((name for name in named if name not in takes), "")
        message = f"{function.__name__} has no argument {unknown}=" if unknown else str(error)
        raise ArgumentError(message, fix=f"{near(unknown, takes)}it takes {', '.join(takes)}") from None
    for name, value in named.items():
        kinds = (
            [_KINDS.get(each) for each in str(takes[name].annotation).split(" | ")] if name in takes else []
        )
        if kinds and all(kinds) and not isinstance(value, tuple(filter(None, kinds))):
            message = f"{name}= is a {type(value).__name__}, which {function.__name__} cannot use"
            raise ArgumentError(
                message, fix=f"give {takes[name].annotation.replace(' | ', ' or ')}"
            ) from error


_KINDS: Mapping[str, type] = {
    "bool": Integral,
    "int": Integral,
    "float": Real,
    "str": str,
    "None": type(None),
}
"""The types of settings, as signatures spell them."""


def check_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """A decorator: a call that does not fit the signature raises an error that says what the function takes."""

    @functools.wraps(function)
    def calling(*arguments: P.args, **options: P.kwargs) -> R:
        try:
            return function(*arguments, **options)
        except (TypeError, ValueError, RuntimeError) as error:
            check_signature(function, error, options)
            raise

    return calling


def told_in(section: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator: errors of the function point to this section of the reference page, unless they name another."""

    def around(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def pointing(*arguments: P.args, **options: P.kwargs) -> R:
            try:
                return function(*arguments, **options)
            except TensornetError as error:
                error.point_at(section)
                raise

        return pointing

    return around


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` is likely a typo of: a wrong letter, two letters swapped, or another case.

    Names of a very different length are other words: 'floor' is no typo of 'foo'.
    """
    alike = {each.lower(): each for each in known if abs(len(each) - len(name)) <= max(1, len(name) // 4)}
    swapped = [each for each in alike if len(each) > 2 and sorted(each) == sorted(name.lower())]
    found = swapped or difflib.get_close_matches(name.lower(), alike, 1, cutoff=0.7)
    return alike[found[0]] if found else None


def near(name: str, known: Iterable[str]) -> str:
    """`did you mean 'heads'? ` if `name` is likely a typo of a known name, else the empty text."""
    found = nearest(name, known)
    return f"did you mean '{found}'? " if found else ""


def path_of(given: object) -> Path:
    """The path of a file. Raises an error if the value is no path."""
    if not isinstance(given, str | PathLike):
        raise TensornetError(f"{given!r} names no file", fix="give a path, as text or as a pathlib.Path")
    return Path(given)


def by_name(given: object, what: str, example: str) -> Mapping[str, Any]:
    """A mapping from names to values, empty for None. Raises an error for anything else.

    Args:
        given: the argument to check.
        what: the plural noun for it in the error: `the constants`.
        example: an example of a valid argument.
    """
    if given is not None and not isinstance(given, Mapping):
        raise EquationError(
            f"{what} are a {type(given).__name__}, not values by their names", fix=f"give {example}"
        )
    for name in (name for name in given or {} if not isinstance(name, str)):
        raise EquationError(f"{what} are named by {name!r}, which is no text", fix=f"give {example}")
    return given or {}


def names_in(given: Any, what: str, least: int = 0) -> tuple[str, ...]:
    """Names or patterns of names, from a text or a list of texts. Raises an error for anything else.

    Args:
        given: the argument to check.
        what: the plural noun for what has these names.
        least: how many there have to be.
    """
    found = given.replace(",", " ").split() if isinstance(given, str) else given
    is_named = isinstance(found, Sequence) and all(isinstance(each, str) for each in found)
    if not is_named or len(found) < least:
        raise EquationError(f"{what} are given by name, not {given!r}", fix='write "A B" or ["A", "B"]')
    return tuple(found)


def checked_call(given: Any, name: str, takes: str) -> Any:
    """A function that a caller may leave out. Raises an error if the value cannot be called.

    Args:
        given: the argument to check.
        name: its name.
        takes: what it is called with.
    """
    if given is not None and not callable(given):
        raise TensornetError(f"{name}={given!r} cannot be called", fix=f"give a function of {takes}")
    return given


def checked_number(
    given: Any, name: str, least: float | None = 0, most: float = math.inf, whole: bool = False, fix: str = ""
) -> Any:
    """A finite number within bounds. Raises an error for anything else; a truth value is no number.

    Args:
        given: the argument to check.
        name: its name.
        least, most: the bounds; None for a number that has to be larger than 0.
        whole: whether it has to be an integer.
        fix: what to give, if that is more than the bounds say.
    """
    is_number = isinstance(given, Integral if whole else Real) and not isinstance(given, bool)
    low = "above 0" if least is None else f"from {least:,.15g}"
    if (
        not is_number
        or not (given > 0 if least is None else given >= least)
        or not given <= most
        or given == math.inf
    ):
        kind = "a whole number" if whole else "a number"
        high = f" to {most:,.15g}" if most < math.inf else ""
        raise ShapeError(f"{name} is {given!r}", fix=fix or f"give {kind} {low}{high}")
    return int(given) if whole else given


def check_inside(name: str, low: int, high: int, size: int) -> None:
    """Raises a ShapeError if the least or the greatest position is outside its dimension."""
    if low < 0 or high >= size:
        raise ShapeError(
            f"'{name}' holds the position {low if low < 0 else high}, where there are {size}",
            fix=f"give whole numbers from 0 to {size - 1}" if size else "there is nothing to choose from",
        )


def no_positions(name: str, dtype: str) -> DtypeError:
    """The error for an index that is not an array of integers."""
    return DtypeError(f"'{name}' indexes, and holds {dtype}", fix="give whole numbers, such as int64")


class BackendError(TensornetError, RuntimeError):
    """A library or a device is missing, or a backend does not support an operation."""


def optional(name: str, fix: str = "", what: str = "") -> Any:
    """A module of a library that only some calls need.

    Args:
        name: the name to import.
        fix: how to install it, if that is not by its own name.
        what: the subject of the message, if that is not its own name.

    Raises:
        BackendError: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package, *_ = name.split(".")
        told = f"{what or package} cannot be imported: {error}"
        raise BackendError(told, fix=fix or f"pip install {package}") from None
