"""What the command line prints: text for people, JSON for machines."""

from __future__ import annotations

import json
from typing import Any

import typer
from rich.console import Console

__all__ = ["console", "tell", "tell_json"]


def console(stderr: bool = False) -> Console:
    """Where text is printed as it is: `softmax[j]` is no markup."""
    return Console(stderr=stderr, soft_wrap=True, markup=False, highlight=False)


def tell(what: Any) -> None:
    """Prints a text or a table, from a new line."""
    console().print(what)


def tell_json(document: Any) -> None:
    """Prints what is made of dicts, lists, texts and numbers, in letters that every terminal has."""
    typer.echo(json.dumps(document, indent=1))
