"""The command of the suites: what is asked for, the tables, the JSON, and what is kept under `results/`."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from .suite import MODES, OURS, Place, Row, Suite, measured
from .timing import geometric_mean

__all__ = ["run"]

RESULTS = Path(__file__).parent / "results"
WIDTH = 150
"""Characters of a line where the output is no terminal."""

LIBRARIES = ("torch", "numpy", "opt_einsum", "tensorly", "tensorly-torch", "transformers", "cupy")


def run(*suites: Suite) -> None:
    """Runs suites as the command line asks for."""

    def command(
        only: Annotated[
            list[str] | None,
            typer.Option(metavar="TEXT", help="Only cases whose names hold this; repeatable."),
        ] = None,
        rounds: Annotated[int, typer.Option(min=1, help="Samples of each contestant.")] = 15,
        threads: Annotated[
            int | None, typer.Option(min=1, help="Threads of the processor; torch's own choice if not given.")
        ] = None,
        measure: Annotated[
            list[str] | None,
            typer.Option(help="forward or backward (which is both ways); repeatable; all if not given."),
        ] = None,
        mode: Annotated[
            list[str] | None, typer.Option(help=f"One of {', '.join(MODES)}; repeatable; eager if not given.")
        ] = None,
        compile: Annotated[bool, typer.Option("--compile", help="Under torch.compile too.")] = False,
        device: Annotated[str, typer.Option(help="Where: cpu, or cuda:0.")] = "cpu",
        dtype: Annotated[str, typer.Option(help="The element type: float32, bfloat16 …")] = "float32",
        tiny: Annotated[
            bool, typer.Option("--tiny", help="Small sizes, to see that all run and agree.")
        ] = False,
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON in the place of tables.")] = False,
        save: Annotated[bool, typer.Option("--save", help=f"Keep the JSON in {RESULTS.name}/.")] = False,
    ) -> None:
        if threads is not None:
            torch.set_num_threads(threads)
        modes = [*(mode or ["eager"]), *(["compile"] if compile else [])]
        place = Place(device, getattr(torch, dtype))
        documents = []
        for suite in suites:
            rows = _rows(
                suite, place, only or [""], tuple(measure or ("forward", "backward")), modes, rounds, tiny
            )
            document = {"suite": suite.name, **_circumstances(place), "rows": [asdict(row) for row in rows]}
            documents.append(document)
            if save:
                _save(document)
            if not as_json and rows:
                _print(suite, rows, place)
        if as_json:
            print(json.dumps(documents, indent=1))

    command.__doc__ = "\n".join(f"{suite.name}: {suite.title}." for suite in suites)
    typer.run(command)


def _rows(
    suite: Suite,
    place: Place,
    only: Iterable[str],
    measures: tuple[str, ...],
    modes: Iterable[str],
    rounds: int,
    tiny: bool,
) -> list[Row]:
    cases = [
        case
        for case in (suite.tiny if tiny else suite.cases)
        if any(text.lower() in case.name.lower() for text in only)
    ]
    columns = (TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn())
    rows: list[Row] = []
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(suite.name, total=len(cases))
        for case in cases:
            progress.update(task, description=f"{suite.name}: {case.name}")
            for mode in modes:
                rows += measured(case, place, measures, mode, rounds)
            progress.advance(task)
    return rows


# ---------------------------------------------------------------------------- what is printed and kept


def _print(suite: Suite, rows: list[Row], place: Place) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row.seconds))
    peers = [name for name in names if name != OURS]
    kept = any(row.kept for row in rows)
    where = f"{place.device}, {torch.get_num_threads()} threads, {str(place.dtype).removeprefix('torch.')}"
    told = "median ms; × how many times as long as ours" + ("; MiB kept for backward" if kept else "")
    table = Table(title=f"{suite.name}: {suite.title} ({where})\n{told}", title_justify="left")
    table.add_column("case", no_wrap=True)
    table.add_column("", no_wrap=True)
    for heading in (*names, *(f"× {name}" for name in peers), *(f"MiB {name}" for name in names if kept)):
        table.add_column(heading, justify="right")
    for row in rows:
        ratios = row.ratios()
        cells = [f"{1e3 * row.seconds[name].median:.2f}" if name in row.seconds else "" for name in names]
        cells += [f"{ratios[name]:.2f}" if name in ratios else "" for name in peers]
        cells += [f"{row.kept[name] / 2**20:.1f}" if name in row.kept else "" for name in names if kept]
        what = row.measure if row.mode == "eager" else f"{row.measure}, {row.mode}"
        table.add_row(row.case, what, *cells)
    console = Console()
    console = console if console.is_terminal else Console(width=WIDTH)
    console.print(table)
    for line in _summary(rows, peers):
        console.print(line, highlight=False)


def _summary(rows: list[Row], peers: Iterable[str]) -> Iterable[str]:
    """The mean and the least ratio against each peer, of each kind of row."""
    for mode, measure in dict.fromkeys((row.mode, row.measure) for row in rows):
        for peer in peers:
            found = [
                row.ratios()[peer]
                for row in rows
                if (row.mode, row.measure) == (mode, measure) and peer in row.seconds
            ]
            if found:
                mean, least = geometric_mean(found), min(found)
                yield f"{measure}, {mode}, against {peer}: {mean:.2f} in geometric mean, {least:.2f} at least"


def _circumstances(place: Place) -> dict[str, Any]:
    """With what, where and beside what it was measured."""
    return {
        "device": torch.cuda.get_device_name(place.device) if place.cuda else _processor(),
        "threads": torch.get_num_threads(),
        "dtype": str(place.dtype).removeprefix("torch."),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "versions": {"python": platform.python_version(), **_versions()},
    }


def _processor() -> str:
    """The processor in words."""
    described = Path("/proc/cpuinfo")
    lines = described.read_text(encoding="utf-8").splitlines() if described.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{os.cpu_count()} × {names[0] if names else platform.machine()}"


def _versions() -> dict[str, str]:
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _save(document: Mapping[str, Any]) -> None:
    """Writes a document where the next of its kind replaces it."""
    RESULTS.mkdir(exist_ok=True)
    where = "cpu" if "×" in document["device"] else document["device"].lower().replace(" ", "-")
    name = f"{document['suite']}-{where}-{document['dtype']}-{document['threads']}.json"
    (RESULTS / name).write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
