"""The outputs of a study: results.json, results.csv, report.md and report.html with pictures, and a table."""

from __future__ import annotations

import csv
import io
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensornet.display import printable

from .files import set_aside, set_aside_in, write_whole
from .pictures import COMPRESSION, FORMATS, PICTURES, draw
from .results import Appraisal, Compression, RunResult, Summary, summaries, told
from .smaller import compressed
from .task import Task
from .telling import SHARES, Report

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["table", "write_outputs"]

_MODEL = (
    "name",
    "seed",
    "about",
    "optimizer",
    "learning_rate",
    "weight_decay",
    "formula",
    "sizes",
    "parameters",
)
_FIGURES = ("counted", "flops", "train_top1", "train_top5", "test_top1", "test_top5")
_COSTS = ("step_ms", "latency_ms", "kept")
_COMPRESSION = ("origin", "before_top1", "compressed_top1", "error", "weight_error")
COLUMNS = _MODEL + _FIGURES + _COSTS + _COMPRESSION
"""The columns of results.csv: those of a result, its recipe, its measured costs, and its compression."""

_DRAWN = tuple(f"{name}.{kind}" for name in (*PICTURES, COMPRESSION) for kind in FORMATS)
OUTPUTS = ("results.json", "results.csv", *_DRAWN, "report.md", "report.html")
"""The files of results, in the order they are written; not every study has all pictures."""


def write_outputs(
    folder: Path,
    task: Task,
    results: Sequence[RunResult],
    environment: Mapping[str, Any],
    costs: Mapping[str, Appraisal] | None = None,
) -> None:
    """Writes all files of results, each whole or not at all.

    Args:
        folder: the folder of the files.
        task: the task of the study.
        results: every run that is shown.
        environment: the values that numbers depend on besides the runs.
        costs: name of a run → the costs of its classifier, if they were measured.

    Raises:
        TensornetError: the folder cannot be written.
    """
    for name in OUTPUTS:
        if (folder / name).is_dir():
            set_aside(folder / name)
    aside = [*set_aside_in(folder), *set_aside_in(folder / "runs")]
    environment = {**environment, "set_aside": [str(path.relative_to(folder)) for path in aside]}
    report = Report(task, summaries(results), environment, costs or {})
    pictures = draw(task, results, report.costs)
    contents = {
        "results.json": _json(results, environment, report.costs).encode(),
        "results.csv": printable(_csv(results, report.costs)).encode(),
        **pictures,
        "report.md": printable(report.markdown()).encode(),
        "report.html": printable(report.html(pictures)).encode(),
    }
    for name in OUTPUTS:
        if name in contents:
            write_whole(folder / name, contents[name])


LONGEST = 60
"""If all formulas have more characters, they are in the report, but not in the table."""


NARROW = 100
"""A terminal with fewer columns has no room for formulas."""


def table(
    task: Task,
    results: Sequence[RunResult],
    costs: Mapping[str, Appraisal] | None = None,
    width: int = NARROW,
) -> Table:
    """The results as a table for the terminal; for several seeds, mean ± standard deviation and their number.

    If rows are compressed, their accuracy before fine-tuning replaces the top-5 accuracy.
    """
    from rich.table import Table
    from rich.text import Text

    shown = Table(title=task.title, title_justify="left")
    shown.add_column("name", no_wrap=True)
    rows = summaries(results)
    one_seed = all(len(row.runs) == 1 for row in rows)  # with several seeds the figures need the room
    with_formulas = one_seed and width >= NARROW and any(len(each.formula) <= LONGEST for each in results)
    if with_formulas:
        shown.add_column("parameters\nby formula")
    shown.add_column("\nby count" if with_formulas else "para-\nmeters", justify="right", no_wrap=True)
    made = compressed(rows)
    headings = ["\nFLOPs", *(["com-\npressed", "top-1\n(%)"] if made else ["top-1\n(%)", "top-5\n(%)"])]
    for heading in (*headings, *(["ms a\nstep"] if costs else [])):
        shown.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        each = row.first
        formula = Text(printable(f"{each.parameters:,} = {each.formula}"), no_wrap=True, overflow="ellipsis")
        shown.add_row(
            printable(each.name),
            *([formula] if with_formulas else []),
            f"{round(row.mean('counted')):,}",
            f"{row.flops:,}",
            *([_compressed(row)] if made else []),
            row.told("test_top1"),
            *([] if made else [row.told("test_top5")]),
            *([f"{costs[row.name].step_ms:.2f}"] if costs else []),
        )
    return shown


def _compressed(row: Summary) -> str:
    """The accuracy of a compressed row before fine-tuning; empty for other rows."""
    return told([each.test_top1 for each in row.compressions]) if row.compressions else ""


def _json(
    results: Sequence[RunResult], environment: Mapping[str, Any], costs: Mapping[str, Appraisal]
) -> str:
    described = {"python": platform.python_version(), **environment}
    document = {
        "format": "tensornet.study.results",
        "environment": described,
        "results": [asdict(each) for each in results],
        "summary": [_summary(row) for row in summaries(results)],
        "measured": [asdict(each) for each in costs.values()],
    }
    return json.dumps(document, indent=1) + "\n"


def _summary(row: Summary) -> dict[str, Any]:
    """The means and standard deviations over the seeds."""
    shares = {name: {"mean": row.mean(name), "deviation": row.deviation(name)} for name in SHARES}
    return {"name": row.name, "seeds": [each.seed for each in row.runs], **shares}


def _csv(results: Sequence[RunResult], costs: Mapping[str, Appraisal]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(COLUMNS)
    for each in results:
        measured = asdict(costs[each.name]) if each.name in costs else {}
        row = {**measured, **asdict(each.recipe), **asdict(each), **_compression(each.compression)}
        writer.writerow([row.get(name, "") for name in COLUMNS])
    return buffer.getvalue()


def _compression(made: Compression | None) -> dict[str, Any]:
    if made is None:
        return {}
    figures = {"compressed_top1": made.test_top1, "weight_error": made.weight_error}
    return {"origin": made.origin, "before_top1": made.before_top1, "error": made.error, **figures}
