"""Parsing of arguments of the command line: equations, sizes, settings."""

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

__all__ = ["choices", "equations_of", "graph_of", "pairs", "says_equations", "settings_of", "sizes_of"]


def graph_of(
    name: str, settings: list[str] | None, inputs: str, outputs: str, size: list[str] | None
) -> Graph:
    """The graph of a layer or a model, from its name and settings or from equations, with sizes bound."""
    import tensornet as tn

    if says_equations(name):
        if settings:
            raise ShapeError("--set is for layers and models by name", fix="say sizes of axes by --size")
        return tn.layer(equations_of(name), inputs=inputs, outputs=outputs, **sizes_of(size, tn.layer))
    graph = tn.models.create(name, **settings_of(settings))
    return graph.bind(**sizes_of(size, graph.bind))


def says_equations(text: str) -> bool:
    """Whether an argument is equations, a file of them or `-`, instead of the name of a layer."""
    return "=" in text or text == "-" or Path(text).suffix != "" or Path(text).is_file()


def equations_of(text: str) -> str:
    """The equations of an argument: its text, the contents of a file, or standard input for `-`."""
    if text == "-":
        return _standard_input()
    if "=" in text:
        return "\n".join(each.strip() for each in text.split(";"))
    try:
        return Path(text).read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        fix = "write name[axes] = expression"
        raise EquationError(f"'{text}' is no equation, and no file of such: {reason}", fix=fix) from None


def _standard_input() -> str:
    """The equations on standard input.

    Raises:
        EquationError: the input is not UTF-8.
    """
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        found = f"byte {error.object[error.start]:#04x} at position {error.start}"
        fix = "pipe equations in, one a line"
        raise EquationError(f"standard input is no text in UTF-8: {found}", fix=fix) from None


def pairs(texts: Iterable[str], what: str) -> dict[str, str]:
    """Names and values in texts such as `b=32`; each name has one value."""
    found: dict[str, str] = {}
    for text in texts:
        name, sign, value = (each.strip() for each in text.partition("="))
        if not sign or not name or not value:
            raise ShapeError(f"'{text}' is not {what}", fix=f"write {what}")
        if found.setdefault(name, value) != value:
            raise ShapeError(f"'{name}' is given twice: {found[name]} and {value}", fix="give it once")
    return found


def sizes_of(texts: list[str] | None, call: Callable[..., Any]) -> dict[str, Any]:
    """The sizes in texts such as `b=32,c=4`, for a call that has other options; a size may be an expression: 4*D."""
    from ..language.parser import parse_size

    given = pairs((part for text in texts or () for part in text.split(",")), "AXIS=SIZE")
    taken = inspect.getfullargspec(call)
    for name, value in given.items():
        if name in (*taken.args, *taken.kwonlyargs):
            fix = f"write its size among the equations: {name}: {value}"
            raise ShapeError(f"an axis called '{name}' cannot be sized by an option", fix=fix)
    return {name: parse_size(value) for name, value in given.items()}


def settings_of(texts: Iterable[str] | None) -> dict[str, Any]:
    """The settings in texts such as `ranks=4,4`, with Python values."""
    return {name: _setting(value) for name, value in pairs(texts or (), "NAME=VALUE").items()}


def choices(text: str) -> list[Any]:
    """The values between the commas of a text; commas inside brackets do not separate."""
    return [_setting(each.strip()) for each in re.split(r",(?![^(\[]*[)\]])", text)]


def _setting(value: str) -> Any:
    """A setting as a number, a tuple, a boolean or, for a word or a symbolic size, the text itself."""
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    try:
        return ast.literal_eval(f"({value})")
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return value
