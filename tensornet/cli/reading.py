"""What is written on the command line: equations, sizes, settings."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import EquationError, ShapeError

if TYPE_CHECKING:
    from ..graph.graph import Graph

__all__ = [
    "choices",
    "equations_of",
    "graph_of",
    "pairs",
    "says_equations",
    "settings_of",
    "sizes_of",
]


def graph_of(
    name: str, settings: list[str] | None, inputs: str, outputs: str, size: list[str] | None
) -> Graph:
    """A layer or a model by its name and settings, or by its equations and sizes."""
    import tensornet as tn

    if says_equations(name):
        if settings:
            raise ShapeError("--set is for layers and models by name", fix="say sizes of axes by --size")
        return tn.layer(equations_of(name), inputs=inputs, outputs=outputs, **sizes_of(size, tn.layer))
    graph = tn.models.create(name, **settings_of(settings))
    return graph.bind(**sizes_of(size, graph.bind))


def says_equations(text: str) -> bool:
    """Whether an argument is equations, or where they are, and no name of a layer."""
    return "=" in text or text == "-" or Path(text).suffix != "" or Path(text).is_file()


def equations_of(text: str) -> str:
    """The equations that an argument says: itself, those in a file, or standard input."""
    if text == "-":
        return _standard_input()
    if "=" in text:
        return "\n".join(each.strip() for each in text.split(";"))
    try:
        return Path(text).read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        raise EquationError(
            f"'{text}' is no equation, and no file of such: {reason}", fix="write name[axes] = expression"
        ) from None


def _standard_input() -> str:
    """The equations piped in.

    Raises:
        EquationError: they are no text.
    """
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        found = f"byte {error.object[error.start]:#04x} at position {error.start}"
        raise EquationError(
            f"standard input is no text in UTF-8: {found}", fix="pipe equations in, one a line"
        ) from None


def pairs(texts: Iterable[str], what: str) -> dict[str, str]:
    """`b=32` and the like, each name once."""
    found: dict[str, str] = {}
    for text in texts:
        name, sign, value = (each.strip() for each in text.partition("="))
        if not sign or not name or not value:
            raise ShapeError(f"'{text}' is not {what}", fix=f"write {what}")
        if found.setdefault(name, value) != value:
            raise ShapeError(f"'{name}' is given twice: {found[name]} and {value}", fix="give it once")
    return found


def sizes_of(texts: list[str] | None, call: Callable[..., Any]) -> dict[str, Any]:
    """`b=32,c=4` and the like, for a call that has options too; a size may be an expression such as 4*D."""
    from ..language.parser import parse_size

    given = pairs((part for text in texts or () for part in text.split(",")), "AXIS=SIZE")
    taken = inspect.getfullargspec(call)
    for name, value in given.items():
        if name in (*taken.args, *taken.kwonlyargs):
            fix = f"write its size among the equations: {name}: {value}"
            raise ShapeError(f"an axis called '{name}' cannot be sized by an option", fix=fix)
    return {name: parse_size(value) for name, value in given.items()}


def settings_of(texts: Iterable[str] | None) -> dict[str, Any]:
    """`ranks=4,4` and the like, each value as Python."""
    return {name: _setting(value) for name, value in pairs(texts or (), "NAME=VALUE").items()}


def choices(text: str) -> list[Any]:
    """What stands between the commas of a text, those inside of brackets left alone."""
    return [_setting(each.strip()) for each in re.split(r",(?![^(\[]*[)\]])", text)]


def _setting(value: str) -> Any:
    """A number, a list, a truth value or a word; any other expression is a symbolic size."""
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    try:
        return ast.literal_eval(f"({value})")
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return value
