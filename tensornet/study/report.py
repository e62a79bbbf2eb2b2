"""What the study writes: results.json, results.csv, report.md with two pictures, and a table."""

from __future__ import annotations

import csv
import io
import json
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .pictures import curves_picture, pareto_front, pareto_picture
from .store import write_whole
from .task import Task
from .training import RunResult

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["table", "write_outputs"]

COLUMNS = (
    "name",
    "about",
    "formula",
    "sizes",
    "parameters",
    "counted",
    "flops",
    "test_top1",
    "test_top5",
    "step_ms",
)
"""The columns of results.csv: the fields of a result, all but its history."""


def write_outputs(
    folder: Path, task: Task, results: Sequence[RunResult], environment: Mapping[str, Any]
) -> None:
    """Writes all files of results, each whole or not at all.

    Raises:
        TensornetError: the folder cannot be written.
    """
    contents = {
        "results.json": _json(results, environment).encode(),
        "results.csv": _csv(results).encode(),
        "pareto.png": pareto_picture(results),
        "curves.png": curves_picture(results),
        "report.md": _markdown(task, results, environment).encode(),
    }
    for name, content in contents.items():
        write_whole(folder / name, content)


def table(task: Task, results: Sequence[RunResult]) -> Table:
    """The results as a table for the terminal."""
    from rich.table import Table
    from rich.text import Text

    shown = Table(title=task.title, title_justify="left")
    shown.add_column("name", no_wrap=True)
    shown.add_column("parameters\nby formula")
    for heading in ("\nby count", "\nFLOPs", "top-1\n(%)", "top-5\n(%)", "ms a\nstep"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for each in results:
        shown.add_row(
            each.name,
            Text(f"{each.parameters:,} = {each.formula}", no_wrap=True, overflow="ellipsis"),
            f"{each.counted:,}",
            f"{each.flops:,}",
            f"{each.test_top1:.1f}",
            f"{each.test_top5:.1f}",
            f"{each.step_ms:.2f}",
        )
    return shown


def _json(results: Sequence[RunResult], environment: Mapping[str, Any]) -> str:
    described = {
        "python": platform.python_version(),
        "epochs": environment["recipe"]["epochs"],
        **environment,
    }
    document = {
        "format": "tensornet.study.results",
        "environment": described,
        "results": [asdict(each) for each in results],
    }
    return json.dumps(document, indent=1) + "\n"


def _csv(results: Sequence[RunResult]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([getattr(each, name) for name in COLUMNS] for each in results)
    return buffer.getvalue()


def _markdown(task: Task, results: Sequence[RunResult], environment: Mapping[str, Any]) -> str:
    formulas = [
        f"- **{each.name}**: {each.parameters:,} = `{each.formula}`, {each.sizes}" for each in results
    ]
    parts = (
        [f"# {task.title}"],
        _introduction(environment),
        _results_table(results),
        ["![Test top-1 against parameters](pareto.png)"],
        ["![Test top-1 by epoch](curves.png)"],
        _reading(task, results, environment["data"]["test"]),
        ["## Columns"],
        _meanings(task.example),
        ["## Formulas"],
        formulas,
        ["## Reproduce"],
        _reproduction(task, results, environment),
    )
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def _introduction(environment: Mapping[str, Any]) -> list[str]:
    recipe = environment["recipe"]
    return [
        f"Classifiers of {environment['data']['about']},",
        f"trained by one recipe: {recipe['epochs']} epochs of AdamW in mini-batches of {recipe['batch']}, learning",
        f"rate {recipe['learning_rate']:g} with warm-up and cosine decay, weight decay",
        f"{recipe['weight_decay']:g}, label smoothing {recipe['smoothing']:g}; the seed is {environment['seed']}.",
    ]


def _results_table(results: Sequence[RunResult]) -> list[str]:
    """The rows of the report; bold on the Pareto front."""
    front = {each.name for each in pareto_front(results)}
    dense = next((each.parameters for each in results if each.name == "dense"), None)
    lines = [
        "| name | classifier | parameters | × fewer | FLOPs | top-1 (%) | top-5 (%) | ms a step |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for each in results:
        name = f"**{each.name}**" if each.name in front else each.name
        fewer = f"{dense / each.parameters:.1f}" if dense else "–"
        lines.append(
            f"| {name} | {each.about} | {each.parameters:,} | {fewer} | {each.flops:,}"
            f" | {each.test_top1:.1f} | {each.test_top5:.1f} | {each.step_ms:.2f} |"
        )
    return lines


def _reading(task: Task, results: Sequence[RunResult], tested: int) -> list[str]:
    """What the numbers can bear."""
    best = max(each.test_top1 for each in results) / 100.0
    error = 100.0 * math.sqrt(best * (1.0 - best) / tested)
    return [
        "Names in bold are on the Pareto front: no other row is as accurate with as few parameters. One test",
        f"{task.example} is {100.0 / tested:.2f} points, the standard error of the best accuracy {error:.1f},",
        "and this is one seed: differences of that size between rows mean nothing. Accuracies are those",
        "after the last epoch; no epoch is chosen by its test accuracy.",
        *([task.caution] if task.caution else []),
    ]


def _meanings(example: str) -> list[str]:
    return [
        "- **parameters**: trainable elements, by formula; equal to the count over the module's parameters.",
        "- **× fewer**: the parameters of the row `dense` divided by these.",
        f"- **FLOPs**: floating-point operations of the contractions for one {example}, forward: those of a",
        f"  mini-batch in the order planned for it, divided by its {example}s;",
        "  a multiplication and an addition are two.",
        f"- **top-1**: percent of test {example}s whose most likely class is right.",
        f"- **top-5**: percent of test {example}s whose five most likely classes hold the right one.",
        "- **ms a step**: median milliseconds of a training step (forward, backward, update) of one",
        "  mini-batch, on one thread of the machine that ran it.",
    ]


def _reproduction(task: Task, results: Sequence[RunResult], environment: Mapping[str, Any]) -> list[str]:
    names = [each.name for each in results]
    rows = "" if names == list(task.rows) else f", rows={names!r}"
    place = environment["data"]["place"]
    subject = "" if task.name == "digits" else f"task={task.name!r}, "
    subject += f"data={place!r}, " if place else ""
    settings = f"{subject}epochs={environment['recipe']['epochs']}, seed={environment['seed']}{rows}"
    used = ", ".join(f"{name} {version}" for name, version in environment["versions"].items())
    return [
        "`pip install 'tensornet-einsum[study]'` and run the lines below. All columns but the time come out",
        "the same on the same machine; another processor, or other versions, may round differently.",
        f"Used here: Python {platform.python_version()}, {used}.",
        "",
        "```python",
        "from pathlib import Path",
        "from tensornet.study import run_study",
        "",
        f"run_study(Path('results'), {settings})",
        "```",
    ]
