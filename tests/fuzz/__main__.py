"""`python -m tests.fuzz`: many attempts of each kind, a table, and every finding with its input."""

from __future__ import annotations

import os
from typing import Annotated

os.environ.setdefault("TENSORNET_CALIBRATE", "0")

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from tensornet.lowering import contractions

from ..differential import survey
from . import Report, run
from .targets import TARGETS

contractions.NODE = 0.0  # small programs try what large ones do


def main(
    names: Annotated[
        list[str] | None, typer.Argument(help=f"Of {', '.join(TARGETS)}; all if not given.")
    ] = None,
    share: Annotated[float, typer.Option(help="The share of a full run to make.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Another seed makes other attempts.")] = 0,
    programs: Annotated[
        int, typer.Option(help="So many programs against the oracle alone, and how they went by cause.")
    ] = 0,
    attempt: Annotated[int | None, typer.Option(help="One attempt alone, by its number.")] = None,
) -> None:
    """Gives the library random input of every kind; exit code 1 if anything was found."""
    console = Console()
    if programs:
        numbers = range(programs) if attempt is None else range(attempt, attempt + 1)
        found = survey(
            seed,
            numbers,
            told=lambda text: console.print(text, markup=False, highlight=False, soft_wrap=True),
        )
        console.print(str(found), markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(int(bool(found.findings)))
    reports: list[Report] = []
    for name in names or TARGETS:
        target = TARGETS[name]
        numbers = (
            range(max(1, round(share * target.attempts))) if attempt is None else range(attempt, attempt + 1)
        )
        reports.append(run(target, track(numbers, name, console=console, transient=True), seed))
        for finding in reports[-1].findings.values():
            console.print(str(finding), markup=False, highlight=False, soft_wrap=True)
    console.print(_table(reports))
    raise typer.Exit(int(any(report.findings for report in reports)))


def _table(reports: list[Report]) -> Table:
    table = Table("input", "executions", "accepted", "refused", "findings")
    for each in reports:
        row = (each.executions, each.accepted, each.refused, len(each.findings))
        table.add_row(each.name, *(f"{number:,}" for number in row))
    return table


app = typer.Typer(pretty_exceptions_enable=False)
app.command()(main)
app()
