"""Output of the command line: text for people, JSON for programs."""

from __future__ import annotations

import json
from typing import Any

import typer
from rich.console import Console

__all__ = ["console", "tell", "tell_json"]


def console(stderr: bool = False) -> Console:
    """A console that prints text unchanged: `softmax[j]` is not read as markup."""
    return Console(stderr=stderr, soft_wrap=True, markup=False, highlight=False)


def tell(what: Any) -> None:
    """Prints a text or a table, followed by a newline."""
    console().print(what)


def tell_json(document: Any) -> None:
    """Prints dicts, lists, strings and numbers as JSON in ASCII."""
    typer.echo(json.dumps(document, indent=1))
