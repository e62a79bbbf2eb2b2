"""What the study writes: results.json, results.csv, report.md with three pictures, and a table."""

from __future__ import annotations

import csv
import io
import json
import math
import platform
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensornet.terminal import printable

from .files import set_aside, set_aside_in, write_whole
from .pictures import curves_picture, pareto_front, pareto_picture, training_picture
from .recipe import Recipe
from .results import RunResult
from .task import Published, Task

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["table", "write_outputs"]

_MODEL = ("name", "about", "optimizer", "learning_rate", "weight_decay", "formula", "sizes", "parameters")
_FIGURES = ("counted", "flops", "train_top1", "train_top5", "test_top1", "test_top5", "step_ms")
COLUMNS = _MODEL + _FIGURES
"""The columns of results.csv: of a result, or of the recipe it was trained by."""


OUTPUTS = ("results.json", "results.csv", "pareto.png", "curves.png", "training.png", "report.md")
"""The files of results, in the order they are written."""


def write_outputs(
    folder: Path, task: Task, results: Sequence[RunResult], environment: Mapping[str, Any]
) -> None:
    """Writes all files of results, each whole or not at all.

    Raises:
        TensornetError: the folder cannot be written.
    """
    for name in OUTPUTS:
        if (folder / name).is_dir():
            set_aside(folder / name)
    aside = [*set_aside_in(folder), *set_aside_in(folder / "runs")]
    environment = {**environment, "set_aside": [str(path.relative_to(folder)) for path in aside]}
    contents = {
        "results.json": _json(results, environment).encode(),
        "results.csv": printable(_csv(results)).encode(),
        "pareto.png": pareto_picture(results),
        "curves.png": curves_picture(results),
        "training.png": training_picture(results),
        "report.md": printable(_markdown(task, results, environment)).encode(),
    }
    for name in OUTPUTS:
        write_whole(folder / name, contents[name])


LONGEST = 60
"""Where all formulas have more characters they are in the report, but not in the table."""


def table(task: Task, results: Sequence[RunResult]) -> Table:
    """The results as a table for the terminal."""
    from rich.table import Table
    from rich.text import Text

    shown = Table(title=task.title, title_justify="left")
    shown.add_column("name", no_wrap=True)
    with_formulas = any(len(each.formula) <= LONGEST for each in results)
    if with_formulas:
        shown.add_column("parameters\nby formula")
    shown.add_column("\nby count" if with_formulas else "para-\nmeters", justify="right", no_wrap=True)
    for heading in ("\nFLOPs", "top-1\n(%)", "top-5\n(%)", "ms a\nstep"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for each in results:
        formula = Text(printable(f"{each.parameters:,} = {each.formula}"), no_wrap=True, overflow="ellipsis")
        shown.add_row(
            printable(each.name),
            *([formula] if with_formulas else []),
            f"{each.counted:,}",
            f"{each.flops:,}",
            f"{each.test_top1:.2f}",
            f"{each.test_top5:.2f}",
            f"{each.step_ms:.2f}",
        )
    return shown


def _json(results: Sequence[RunResult], environment: Mapping[str, Any]) -> str:
    described = {"python": platform.python_version(), **environment}
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
    rows = [{**asdict(each.recipe), **asdict(each)} for each in results]
    writer.writerows([row[name] for name in COLUMNS] for row in rows)
    return buffer.getvalue()


def _markdown(task: Task, results: Sequence[RunResult], environment: Mapping[str, Any]) -> str:
    formulas = [
        f"- **{each.name}**: {each.parameters:,} = `{each.formula}`, {each.sizes}" for each in results
    ]
    parts = (
        [f"# {task.title}"],
        _introduction(results, environment),
        _results_table(task, results),
        ["![Test top-1 against parameters](pareto.png)"],
        ["![Test top-1 by epoch](curves.png)"],
        *_published(task, results),
        ["![Each run: top-1 on train and test by epoch](training.png)"],
        _reading(task, results, environment["data"]["test"]),
        ["## Columns"],
        _meanings(task),
        ["## Formulas"],
        formulas,
        *_set_aside(environment["set_aside"]),
        ["## Reproduce"],
        _reproduction(task, results, environment),
    )
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


OPTIMIZERS = {"adam": "Adam", "adamw": "AdamW", "sgd": "SGD"}


def _introduction(results: Sequence[RunResult], environment: Mapping[str, Any]) -> list[str]:
    recipe, hardware = environment["recipe"], environment["hardware"]
    used = " or ".join(dict.fromkeys(OPTIMIZERS[each.recipe.optimizer] for each in results))
    changes = [
        text
        for amount, text in (
            (recipe["shift"], f"shifted by up to {recipe['shift']:g} pixels"),
            (recipe["rotate"], f"turned by up to {recipe['rotate']:g}°"),
            (recipe["zoom"], f"zoomed by up to {100 * recipe['zoom']:g} %"),
            (recipe["flip"], "mirrored"),
        )
        if amount
    ]
    return [
        f"Classifiers of {environment['data']['about']},",
        f"trained by one schedule: {recipe['epochs']} epochs of {used} in mini-batches of {recipe['batch']}, with",
        f"warm-up and cosine decay, label smoothing {recipe['smoothing']:g}; the seed is {environment['seed']}.",
        *([f"Training images are {', '.join(changes)}, at random."] if changes else []),
        f"Computed on {hardware['device']} ({environment['machine']}), {hardware['threads']} thread(s),"
        f" {hardware['processes']} process(es), in {hardware['precision']}.",
    ]


def _results_table(task: Task, results: Sequence[RunResult]) -> list[str]:
    """The rows of the report; bold on the Pareto front."""
    front = {each.name for each in pareto_front(results)}
    most = next((each.parameters for each in results if each.row == task.reference), None)
    lines = [
        "| name | classifier | trained by | parameters | × fewer | FLOPs | top-1 (%) | top-5 (%) | ms a step |",
        "|---|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for each in results:
        name = f"**{each.name}**" if each.name in front else each.name
        fewer = f"{most / each.parameters:.1f}" if most else "–"
        lines.append(
            f"| {name} | {each.about} | {_training(each.recipe)} | {each.parameters:,} | {fewer} | {each.flops:,}"
            f" | {each.test_top1:.2f} | {each.test_top5:.2f} | {each.step_ms:.2f} |"
        )
    return lines


def _training(recipe: Recipe) -> str:
    return f"{OPTIMIZERS[recipe.optimizer]}, {recipe.learning_rate:g}, {recipe.weight_decay:g}"


def _published(task: Task, results: Sequence[RunResult]) -> list[list[str]]:
    """The published table, and these runs as its further rows."""
    if not task.published:
        return []
    lines = [
        "| model | optimizer | parameters | train top-1 | train top-5 | test top-1 | test top-5 |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    for each in task.published:
        lines.append(f"| {each.name} (published) | {each.optimizer} {_figures(each)}")
    for result in results:
        lines.append(f"| {result.name} | {OPTIMIZERS[result.recipe.optimizer]} {_figures(result)}")
    return [["## Beside the published figures"], [f"Those of the thesis are its {task.source}."], lines]


def _figures(each: Published | RunResult) -> str:
    shares = (each.train_top1, each.train_top5, each.test_top1, each.test_top5)
    return f"| {each.parameters:,} | {' | '.join(f'{share:.2f}' for share in shares)} |"


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


def _meanings(task: Task) -> list[str]:
    example = task.example
    return [
        "- **trained by**: the optimizer, its largest learning rate, and the weight decay.",
        "- **parameters**: trainable elements, by formula; equal to the count over the module's parameters.",
        *(
            [f"- **× fewer**: the parameters of the row `{task.reference}` divided by these."]
            if task.reference
            else []
        ),
        f"- **FLOPs**: floating-point operations of the contractions for one {example}, forward: those of a",
        f"  mini-batch in the order planned for it, divided by its {example}s;",
        "  a multiplication and an addition are two.",
        f"- **top-1**: percent of test {example}s whose most likely class is right.",
        f"- **top-5**: percent of test {example}s whose five most likely classes hold the right one.",
        f"- **train top-1, top-5**: likewise of the training {example}s, evaluated as the test {example}s are.",
        "- **ms a step**: milliseconds of a training step (mini-batch, forward, backward, update), the mean",
        "  over an epoch, the median over epochs, on the machine that ran it.",
    ]


def _set_aside(names: Sequence[str]) -> list[list[str]]:
    """Which files were damaged, if any."""
    if not names:
        return []
    told = [
        "These files were not as they were written. They were set aside, and what the rows above needed of",
        "them was computed again; delete them when you like.",
    ]
    return [["## Set aside"], told, [f"- `{name}`" for name in names]]


def _reproduction(task: Task, results: Sequence[RunResult], environment: Mapping[str, Any]) -> list[str]:
    """The command, and the versions it was run with."""
    shown = {each.row for each in results}
    rows = [name for name in task.rows if name in shown]
    command = ["tensornet study", environment["task"]]
    if environment["hardware"]["processes"] > 1:
        command[0] = f"torchrun --nproc-per-node {environment['hardware']['processes']} -m {command[0]}"
    place, hardware = environment["data"]["place"], environment["hardware"]
    command += [f"--data {shlex.quote(place)}"] if place else []
    command += [f"--seed {environment['seed']}", f"--threads {hardware['threads']}"]
    command += [f"--device {hardware['device']}", f"--precision {hardware['precision']}"]
    command += [f"--row {name}" for name in rows] if rows != list(task.rows) else []
    used = list(dict.fromkeys(each.recipe.optimizer for each in results))
    command += [f"--optimizer {name}" for name in used] if used != list(task.optimizers) else []
    command += [f"--set {name}={value}" for name, value in environment["changes"].items()]
    versions = ", ".join(f"{name} {version}" for name, version in environment["versions"].items())
    return [
        "All columns but the time come out the same on the same machine; another processor, or other",
        "versions, may round differently.",
        f"Used here: Python {platform.python_version()}, {versions}.",
        "",
        "```console",
        "$ pip install '.[study]'  # in a checkout of tensornet",
        f"$ {' '.join(command)}",
        "```",
    ]
