"""The command of the suites: what is asked for, the tables, the JSON, and what is kept under `results/`."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import statistics
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tensornet.display import printable

from .suite import CLOSE, EVERY, MODES, OURS, SIZES, Place, Row, Suite, measured
from .work import Ceilings, ceilings

__all__ = ["app", "run"]

RESULTS = Path(__file__).parent / "results"
WIDTH = 150
"""Characters of a line where the output is no terminal."""

LIBRARIES = ("torch", "numpy", "opt_einsum", "tensorly", "tensorly-torch", "transformers", "cupy")


@dataclass(frozen=True)
class Asked:
    """What the command line asks for."""

    place: Place
    only: tuple[str, ...]
    measures: tuple[str, ...]
    modes: tuple[str, ...]
    rounds: int
    size: str
    work: bool


def run(*suites: Suite) -> None:
    """Runs suites as the command line asks for."""
    app(*suites)()


def app(*suites: Suite) -> typer.Typer:
    """The command that runs suites."""
    made = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

    @made.command(help="\n\n".join(f"{suite.name}: {suite.title}." for suite in suites))
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
            typer.Option(
                help="forward, backward (both ways) or step (and AdamW); repeatable; all if not given."
            ),
        ] = None,
        mode: Annotated[
            list[str] | None, typer.Option(help=f"One of {', '.join(MODES)}; repeatable; eager if not given.")
        ] = None,
        compile: Annotated[bool, typer.Option("--compile", help="Under torch.compile too.")] = False,
        device: Annotated[str, typer.Option(help="Where: cpu, or cuda:0.")] = "cpu",
        dtype: Annotated[str, typer.Option(help="The element type: float32, bfloat16 …")] = "float32",
        size: Annotated[
            str,
            typer.Option(help="usual; tiny, to see that all run and agree; large, to keep a GPU busy."),
        ] = "usual",
        work: Annotated[
            bool,
            typer.Option("--work", help="Count calls, FLOPs and bytes too, and measure what the device can."),
        ] = False,
        clock: Annotated[
            str,
            typer.Option(
                help="wall, or process: only time that this process had the processor, where others use it too."
            ),
        ] = "wall",
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON in the place of tables.")] = False,
        save: Annotated[bool, typer.Option("--save", help=f"Keep the JSON in {RESULTS.name}/.")] = False,
    ) -> None:
        if threads is not None:
            torch.set_num_threads(threads)
        asked = Asked(
            place=_place(device, dtype, clock),
            only=tuple(only or ("",)),
            measures=tuple(measure or EVERY),
            modes=(*(mode or ("eager",)), *(("compile",) if compile else ())),
            rounds=rounds,
            size=size,
            work=work,
        )
        _check(asked)
        warnings.filterwarnings("ignore", module="torch._dynamo")  # of what it meets in others' libraries
        most = ceilings(device, asked.place.dtype, asked.place.clock) if work else None
        documents = []
        for suite in suites:
            circumstances = _circumstances(asked, most)
            rows = _rows(suite, asked)
            documents.append({"suite": suite.name, **circumstances, "rows": [asdict(row) for row in rows]})
            if save:
                _save(documents[-1])
            if not as_json and rows:
                _print(suite, rows, asked.place, most)
        if as_json:
            print(json.dumps(documents, indent=1))
        if any(row["failed"] for document in documents for row in document["rows"]):
            raise typer.Exit(1)

    return made


def _place(device: str, dtype: str, clock: str) -> Place:
    found = getattr(torch, dtype, None)
    if found not in CLOSE:
        raise typer.BadParameter(
            f"{dtype}: there is {', '.join(Place(dtype=each).type_name for each in CLOSE)}"
        )
    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise typer.BadParameter(f"there is no device '{device}'") from None
    if kind == "cuda":
        if not torch.cuda.is_available():
            raise typer.BadParameter(f"{device}: torch.cuda.is_available() is False")
        torch.cuda.set_device(device)
    if clock not in ("wall", "process"):
        raise typer.BadParameter(f"{clock}: there is wall, process")
    if clock == "process" and (kind == "cuda" or torch.get_num_threads() > 1):
        raise typer.BadParameter("process: such time is that of one thread of the processor; add --threads 1")
    return Place(device, found, clock == "process")


def _check(asked: Asked) -> None:
    for given, known in ((asked.measures, EVERY), (asked.modes, MODES), ((asked.size,), SIZES)):
        for name in given:
            if name not in known:
                raise typer.BadParameter(f"{name}: there is {', '.join(known)}")
    if "graphs" in asked.modes and not asked.place.cuda:
        raise typer.BadParameter("graphs: CUDA graphs need a CUDA device")


def _rows(suite: Suite, asked: Asked) -> list[Row]:
    cases = [
        case
        for case in suite.cases[asked.size]
        if any(text.lower() in case.name.lower() for text in asked.only)
    ]
    columns = (TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn())
    rows: list[Row] = []
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(suite.name, total=len(cases))
        for case in cases:
            progress.update(task, description=f"{suite.name}: {case.name}")
            for mode in asked.modes:
                rows += measured(case, asked.place, asked.measures, mode, asked.rounds, asked.work)
            progress.advance(task)
    return rows


# ---------------------------------------------------------------------------- what is printed and kept


def _print(suite: Suite, rows: list[Row], place: Place, most: Ceilings | None) -> None:
    console = Console()
    console = console if console.is_terminal else Console(width=WIDTH)
    where = f"{place.device}, {torch.get_num_threads()} threads, {place.type_name}"
    where += ", time of this process" if place.alone else ""
    measured_rows = [row for row in rows if not row.failed]
    if measured_rows:
        console.print(_times(f"{suite.name}: {suite.title} ({where})", measured_rows))
        for line in _summary(measured_rows):
            console.print(line, highlight=False)
    if most is not None and measured_rows:
        console.print(_done(measured_rows, most))
    for row in rows:
        if row.failed:
            told = f"{row.case}, {row.measure}, {row.mode}: {row.failed}"
            console.print(printable(told), style="red", markup=False, highlight=False)


def _times(title: str, rows: list[Row]) -> Table:
    """Seconds, ratios, bytes kept."""
    names = list(dict.fromkeys(name for row in rows for name in row.seconds))
    peers = [name for name in names if name != OURS]
    kept = any(row.kept for row in rows)
    told = "median ms; × how many times as long as ours" + ("; MiB kept for backward" if kept else "")
    table = Table(title=f"{title}\n{told}", title_justify="left")
    table.add_column("case", overflow="fold", min_width=28)
    table.add_column("", no_wrap=True)
    for heading in (*names, *(f"× {name}" for name in peers), *(f"MiB {name}" for name in names if kept)):
        table.add_column(heading, justify="right", min_width=5)
    for row in rows:
        ratios = row.ratios()
        cells = [_milliseconds(row.seconds[name].median) if name in row.seconds else "" for name in names]
        cells += [f"{ratios[name]:.2f}" if name in ratios else "" for name in peers]
        cells += [f"{row.kept[name] / 2**20:.1f}" if name in row.kept else "" for name in names if kept]
        table.add_row(row.case, _how(row), *cells)
    return table


def _milliseconds(seconds: float) -> str:
    """Three digits or more."""
    shown = 1e3 * seconds
    return f"{shown:,.{3 if shown < 1 else 2 if shown < 10 else 1 if shown < 100 else 0}f}"


def _how(row: Row) -> str:
    return row.measure if row.mode == "eager" else f"{row.measure}, {row.mode}"


def _summary(rows: list[Row]) -> Iterator[str]:
    """The mean and the least ratio against each peer, and against the best, of each kind of row."""
    for how in dict.fromkeys(_how(row) for row in rows):
        ratios = [row.ratios() for row in rows if _how(row) == how]
        found = {
            peer: [each[peer] for each in ratios if peer in each]
            for peer in dict.fromkeys(peer for each in ratios for peer in each)
        }
        if len(found) > 1:
            found["the best of these"] = [min(each.values()) for each in ratios]
        for peer, each in found.items():
            mean, least = statistics.geometric_mean(each), min(each)
            yield f"{how}, against {peer}: {mean:.2f} in geometric mean, {least:.2f} at least"


def _done(rows: list[Row], most: Ceilings) -> Table:
    """Calls, FLOPs and bytes, and what share of the device's rates they reach."""
    product, copy = f"{most.flops / 1e9:,.0f} GFLOP/s", f"{most.bandwidth / 1e9:,.0f} GB/s"
    told = f"work; a large matrix product does {product}, a large copy {copy}"
    table = Table(title=told, title_justify="left")
    table.add_column("case", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("by", no_wrap=True)
    for heading in ("calls", "views", "GFLOP", "GFLOP/s", "%", "MB moved", "GB/s", "%"):
        table.add_column(heading, justify="right")
    for row in rows:
        for name, work in row.work.items():
            seconds = row.seconds[name].median
            shares = [
                (f"{amount / seconds / 1e9:,.1f}", f"{100 * amount / seconds / ceiling:.0f}")
                for amount, ceiling in ((work.flops, most.flops), (work.moved, most.bandwidth))
            ]
            flops, moved = f"{work.flops / 1e9:,.3f}", f"{work.moved / 1e6:,.1f}"
            table.add_row(
                row.case,
                _how(row),
                name,
                str(work.calls),
                str(work.views),
                flops,
                *shares[0],
                moved,
                *shares[1],
            )
    return table


def _circumstances(asked: Asked, most: Ceilings | None) -> dict[str, Any]:
    """With what, where and beside what it is measured."""
    place = asked.place
    return {
        "size": asked.size,
        "device": torch.cuda.get_device_name(place.device) if place.cuda else _processor(),
        "threads": torch.get_num_threads(),
        "dtype": place.type_name,
        "clock": "process" if place.alone else "wall",
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "calibrated": os.environ.get("TENSORNET_CALIBRATE") != "0",
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "versions": {"python": platform.python_version(), **_versions()},
        **({} if most is None else {"ceilings": asdict(most)}),
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
    """Writes a document to where those of its kind are; rows measured before, and not now, stay in it."""
    RESULTS.mkdir(exist_ok=True)
    where = "cpu" if "×" in document["device"] else document["device"].lower().replace(" ", "-")
    kept = (document["suite"], document["size"], where, document["dtype"], document["threads"])
    path = RESULTS / f"{'-'.join(map(str, kept))}.json"
    if not document["rows"]:
        return
    known = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
    now = {_told(row) for row in document["rows"]}
    rows = [*(row for row in known if _told(row) not in now), *document["rows"]]
    whole = {**document, "rows": rows}
    path.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _told(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["case"], row["measure"], row["mode"]
