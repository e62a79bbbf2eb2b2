"""Options that several commands have in common."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.console import Console

__all__ = ["Backend", "console", "Device", "Dtype", "Inputs", "Json", "Named", "Outputs", "Settings"]
__all__ += ["Sizes", "tell", "tell_json", "Threads"]

Option = typer.Option
Named = Annotated[str, typer.Argument(help="A layer or a model, or equations as for `plan`.")]
Json = Annotated[bool, Option("--json", help="Print JSON for machines; an error stays text, on stderr.")]
_SET = Option("--set", metavar="NAME=VALUE", help="A setting, e.g. `--set ranks=4,4`; repeatable.")
Settings = Annotated[list[str] | None, _SET]
Inputs = Annotated[str, Option(help="The inputs, e.g. `x` or `x[b,n,c],t[b,n]`; all else is a parameter.")]
Outputs = Annotated[str, Option(help="The names of the results; that of the last equation if not given.")]
SIZE = "Sizes of axes, e.g. `b=32,i=8`; repeatable. One not given is 64."
Sizes = Annotated[list[str] | None, Option("--size", metavar="AXIS=SIZE", help=SIZE)]
Backend = Annotated[str, Option(help="numpy, torch, cupy or jax.")]
Device = Annotated[str | None, Option(help="Where to run, e.g. cpu or cuda:0.")]
Dtype = Annotated[str, Option(help="The element type.")]
Threads = Annotated[int | None, Option(min=1, help="Threads of the processor.")]


def console(stderr: bool = False) -> Console:
    """A console that prints text unchanged: `softmax[j]` is not read as markup."""
    return Console(stderr=stderr, soft_wrap=True, markup=False, highlight=False)


def tell(what: Any) -> None:
    """Prints a text or a table, followed by a newline."""
    console().print(what)


def tell_json(document: Any) -> None:
    """Prints dicts, lists, strings and numbers as JSON in ASCII."""
    typer.echo(json.dumps(document, indent=1))
