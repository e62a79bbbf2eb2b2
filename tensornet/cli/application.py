"""The application: registers the commands, and turns errors into messages and exit codes."""

from __future__ import annotations

import io
import itertools
import re
import sys
import warnings
from typing import Annotated, Any

import typer

from .. import __version__
from ..display import printable
from ..errors import TensornetError, TensornetWarning
from .compress import compress
from .functions import calibrate, functions
from .graphs import count, draw, plan, sweep
from .options import console
from .study import study

app = typer.Typer(
    name="tensornet",
    help="Layers as equations: their formulas, their plans, and what compression costs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (plan, count, draw, sweep, compress, functions, study, calibrate):
    app.command()(command)


def main() -> None:
    """Runs the command line. An error of the user ends it with one message and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that lacks µ shows ?
    warnings.showwarning = _show_warning
    try:
        app()
    except TensornetError as error:
        console(stderr=True).print(printable(f"error: {error}"))
        sys.exit(2)
    except SystemExit as stop:
        pairs = itertools.pairwise(sys.argv)
        sizes = [each for before, each in pairs if before[:1] != "-" and re.fullmatch(r"\w+=\w+", each)]
        if stop.code == 2 and sizes:
            console(stderr=True).print(f"fix: give sizes by an option, --size {','.join(sizes)}")
        raise


_SHOWN_BY_PYTHON = warnings.showwarning


def _show_warning(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
    """Prints a warning of the library like its errors, without a location in the source."""
    if issubclass(category, TensornetWarning):
        console(stderr=True).print(printable(f"warning: {message}"))
    else:
        _SHOWN_BY_PYTHON(message, category, *place, **more)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tensornet {__version__}")
        raise typer.Exit


Version = typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")


@app.callback()
def _options(version: Annotated[bool, Version] = False) -> None:
    """The options of `tensornet` itself."""
