"""Options that several commands have in common, how their texts are parsed, and how commands answer."""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from ..errors import EquationError, ShapeError

if TYPE_CHECKING:
    from ..graph.graph import Graph

Option = typer.Option
Texts = list[str] | None
Named = Annotated[str, typer.Argument(help="A layer or a model, or equations as for `plan`.")]
Json = Annotated[bool, Option("--json", help="Print JSON for machines; an error stays text, on stderr.")]
_SET = Option("--set", metavar="NAME=VALUE", help="A setting, e.g. `--set ranks=4,4`; repeatable.")
Settings = Annotated[Texts, _SET]
Inputs = Annotated[str, Option(help="The inputs, e.g. `x` or `x[b,n,c],t[b,n]`; all else is a parameter.")]
Outputs = Annotated[str, Option(help="The names of the results; that of the last equation if not given.")]
_SIZE = "Sizes of axes, e.g. `b=32,i=8`; repeatable. One not given is 64."
Sizes = Annotated[Texts, Option("--size", metavar="AXIS=SIZE", help=_SIZE)]
Backend = Annotated[str, Option(help="numpy, torch, cupy or jax.")]
Device = Annotated[str | None, Option(help="Where to run, e.g. cpu or cuda:0.")]
Dtype = Annotated[str, Option(help="The element type.")]
Threads = Annotated[int | None, Option(min=1, help="Threads of the processor.")]


def console(stderr: bool = False) -> Console:
    """A console that prints text unchanged: `softmax[j]` is not read as markup, nor `:x:` as a sign."""
    return Console(stderr=stderr, soft_wrap=True, markup=False, emoji=False, highlight=False)


def tell(*what: Any) -> None:
    """Prints texts or tables, each followed by a newline."""
    for each in what:
        console().print(each)


def answer(as_json: bool, document: Any, *what: Any) -> None:
    """Prints a document as JSON in ASCII, unless it is JSON already, what is no JSON as text; or texts and tables."""
    if as_json:
        typer.echo(document if isinstance(document, str) else json.dumps(document, indent=1, default=str))
    else:
        tell(*what)


# ---------------------------------------------------------------------------- parsing


def graph_of(name: str, settings: Texts, inputs: str, outputs: str, size: Texts) -> Graph:
    """The graph of a layer or a model, from its name and settings or from equations, with sizes bound."""
    import tensornet as tn

    if not says_equations(name):
        graph = tn.models.create(name, **settings_of(settings))
        return graph.bind(**sizes_of(size, graph.bind))
    if settings:
        raise ShapeError("--set is for layers and models by name", fix="say sizes of axes by --size")
    return tn.layer(equations_of(name), inputs=inputs, outputs=outputs, **sizes_of(size, tn.layer))


def says_equations(text: str) -> bool:
    """Whether an argument is equations, a file of them or `-`, instead of the name of a layer."""
    return "=" in text or text == "-" or Path(text).suffix != "" or Path(text).is_file()


def equations_of(text: str) -> str:
    """The equations of an argument: its text, the contents of a file, or standard input for `-`.

    Raises:
        EquationError: there is no such file, or what is read is not UTF-8.
    """
    if "=" in text:
        return "\n".join(each.strip() for each in text.split(";"))
    try:
        read = sys.stdin.buffer.read() if text == "-" else Path(text).read_bytes()
        return read.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        where = "standard input" if text == "-" else f"'{text}'"
        found = f"byte {error.object[error.start]:#04x} at position {error.start}"
        told, fix = f"{where} is no text in UTF-8: {found}", "give equations, one a line"
    except OSError as error:
        told = f"'{text}' is no equation, and no file of such: {error.strerror}"
        fix = "write name[axes] = expression"
    raise EquationError(told, fix=fix)


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


def sizes_of(texts: Texts, call: Callable[..., Any]) -> dict[str, Any]:
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
