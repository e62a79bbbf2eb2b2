"""The outputs of a study: results.json, results.csv, a report as Markdown and as an HTML page, and a table.

What a report says is written in `report.md.jinja`, and what is around it on the page in `report.html.jinja`.
"""

from __future__ import annotations

import base64
import json
import platform
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tensornet.display import printable

from .jobs import ROUNDS
from .libraries import library
from .pictures import FORMATS, PICTURES, draw
from .results import COLUMNS, SHARES, Appraisal, RunResult, pareto_front, runs_of, told, write_whole
from .task import Recipe, Task

OPTIMIZERS = {"adam": "Adam", "adamw": "AdamW", "sgd": "SGD", "–": "–"}
TEXTS = ("name", "classifier", "trained by", "model", "optimizer", "made of")
"""The columns that hold texts, not numbers."""

_DRAWN = tuple(f"{name}.{kind}" for name in PICTURES for kind in FORMATS)
OUTPUTS = ("results.json", "results.csv", *_DRAWN, "report.md", "report.html")
"""The files of results; not every study has all pictures."""

Line = dict[str, str]
"""A line of a table: heading → cell."""

Results = Sequence[RunResult]
Costs = Mapping[str, Appraisal]
"""The runs, and by the name of a run what its classifier costs."""


def write_outputs(
    folder: Path, task: Task, results: Results, environment: Mapping[str, Any], costs: Costs
) -> None:
    """Writes all files of results, each whole or not at all.

    Args:
        folder: the folder of the files.
        task: the task of the study.
        results: every run that is shown.
        environment: the values that numbers depend on besides the runs.
        costs: name of a run → the costs of its classifier; empty if they were not measured.

    Raises:
        TensornetError: the folder cannot be written.
    """
    runs, environment = runs_of(results, costs), {"python": platform.python_version(), **environment}
    pictures = draw(task, runs, environment["data"]["test"])
    markdown = report(task, runs, environment)
    renderer = library("markdown_it").MarkdownIt("commonmark", {"html": False, "xhtmlOut": False})
    body = renderer.enable("table").render(markdown)
    for name in PICTURES:
        source = base64.b64encode(pictures.get(f"{name}.svg", b"")).decode()
        body = body.replace(f'src="{name}.png"', f'src="data:image/svg+xml;base64,{source}"')
    values = {"models": costs.values(), "environment": json.dumps(environment, indent=1)}
    page = _filled("report.html.jinja", title=task.title, body=body, **values)
    document = {
        "format": "tensornet.study.results",
        "environment": environment,
        "results": [asdict(each) for each in results],
        "summary": [_summary(*group) for group in runs.groupby("name", sort=False)],
        "measured": [asdict(each) for each in costs.values()],
    }
    contents = {
        "results.json": json.dumps(document, indent=1) + "\n",
        "results.csv": printable(runs[list(COLUMNS)].to_csv(index=False)),
        "report.md": printable(markdown),
        "report.html": printable(page),
    }
    for name, content in {**pictures, **{name: text.encode() for name, text in contents.items()}}.items():
        write_whole(folder / name, content)


def _filled(template: str, **values: Any) -> str:
    """A template of this folder with these values."""
    jinja2 = library("jinja2")
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    strict = {"trim_blocks": True, "lstrip_blocks": True, "undefined": jinja2.StrictUndefined}
    return str(jinja2.Environment(loader=loader, **strict).get_template(template).render(**values)) + "\n"


def _summary(name: str, group: Any) -> dict[str, Any]:
    """The means and standard deviations over the seeds."""
    shares = group[list(SHARES)].agg(["mean", "std"]).fillna(0.0).rename({"std": "deviation"})
    return {"name": name, "seeds": group.seed.tolist(), **shares.to_dict()}


def table(task: Task, results: Results, costs: Costs | None = None) -> str:
    """The results as a table for the terminal; for several seeds, mean ± standard deviation and their number.

    If rows are compressed, their accuracy before fine-tuning is shown too.
    """
    runs = runs_of(results, costs or {})
    lines = library("pandas").DataFrame(_results(task, runs, asdict(task.recipe)))
    lines["name"] = lines.name.str.strip("*")
    columns = ["name", "parameters", "FLOPs", "top-1 (%)", "top-5 (%)", *(["ms a step"] if costs else [])]
    if runs.origin.notna().any():
        columns[3:5] = ["compressed", "top-1 (%)"]
        lines["compressed"] = [told(each.compressed_top1.dropna()) for each in _groups(runs)[0].values()]
    return printable(f"{task.title}\n{lines[columns].to_string(index=False)}")


def _groups(runs: Any) -> tuple[dict[str, Any], dict[str, RunResult]]:
    """The runs by name, and of each name that with the first seed, for what is the same with all."""
    groups = dict(list(runs.groupby("name", sort=False)))
    return groups, {name: group.result.iloc[0] for name, group in groups.items()}


def report(task: Task, runs: Any, environment: Mapping[str, Any]) -> str:
    """`report.md`: the tables of these runs, their pictures, how to read them and how to reproduce them."""
    groups, firsts = _groups(runs)
    made = [name for name, each in firsts.items() if each.compression]
    tested = environment["data"]["test"]
    best = max(group.test_top1.mean() for group in groups.values()) / 100.0
    best = min(best, 1.0 - 1.0 / tested)  # if no example is wrong, the error of one wrong example
    return _filled(
        "report.md.jinja",
        **environment,
        **{name: getattr(task, name) for name in ("title", "example", "caution", "source", "reference")},
        rounds=ROUNDS,
        texts=TEXTS,
        measured=runs.kept.notna().any(),
        spread=len(runs) > len(groups),
        optimizers=list(dict.fromkeys(OPTIMIZERS[each.recipe.optimizer] for each in firsts.values())),
        results=_results(task, runs, environment["recipe"]),
        compressed=[_compressed(name, groups[name], firsts[name]) for name in made],
        published=[] if environment["changes"] else _published(task, groups, firsts),
        error=100.0 * (best * (1.0 - best) / tested) ** 0.5,
        tried=[name.replace("_", " ") for name in task.tried if getattr(task.recipe, name)],
        formulas={name: each for name, each in firsts.items() if name not in made},
        command=_command(task, list(firsts.values()), environment),
    )


# ---------------------------------------------------------------------------- tables


def _results(task: Task, runs: Any, recipe: Mapping[str, Any]) -> list[Line]:
    """The table of results; names on the Pareto front are bold."""
    groups, firsts = _groups(runs)
    means = runs.groupby("name", sort=False).mean(numeric_only=True)
    front, lines = set(pareto_front(means).index), []
    most = next((means.parameters[name] for name, each in firsts.items() if each.row == task.reference), 0)
    for name, group in groups.items():
        count, flops = means.parameters[name], means.flops[name]
        line = {"name": f"**{name}**" if name in front else name, "classifier": firsts[name].about}
        line |= {"trained by": _training(firsts[name].recipe, recipe), "parameters": f"{round(count):,}"}
        line |= {"× fewer": f"{most / count:.1f}" if most else "–", "FLOPs": f"{round(flops):,}"}
        line |= {"top-1 (%)": told(group.test_top1), "top-5 (%)": told(group.test_top5)}
        if means.kept.notna()[name]:
            line |= {"ms a step": f"{means.step_ms[name]:.2f}"}
            line |= {"ms a prediction": f"{means.latency_ms[name]:.2f}"}
            line |= {"kept (MB)": f"{means.kept[name] / 1e6:.3f}"}
        lines.append(line)
    return lines


def _training(recipe: Recipe, shared: Mapping[str, Any]) -> str:
    """The optimizer, its learning rate and weight decay, and what else differs from the study's recipe."""
    if not recipe.epochs:
        return "–"
    own = ("optimizer", "learning_rate", "weight_decay")
    others = {name: each for name, each in asdict(recipe).items() if each != shared[name] and name not in own}
    first = f"{OPTIMIZERS[recipe.optimizer]}, {recipe.learning_rate:g}, {recipe.weight_decay:g}"
    rest = [f"{each} epochs" if name == "epochs" else f"{name} {each:g}" for name, each in others.items()]
    return ", ".join([first, *rest])


def _compressed(name: str, group: Any, first: RunResult) -> Line:
    """Accuracy before and after compression and after fine-tuning, and the errors."""
    before = sum(each.compression.parameters for each in group.result)
    return {
        "name": name,
        "made of": group.origin.iloc[0],
        "parameters": f"{round(group.parameters.mean()):,}",
        "of before (%)": f"{100.0 * group.parameters.sum() / before:.1f}",
        "logits' error (%)": told(100.0 * group.error),
        "weights' error (%)": told(100.0 * group.weight_error),
        "before (%)": told(group.before_top1),
        "compressed (%)": told(group.compressed_top1),
        "fine-tuned (%)": told(group.test_top1) if first.recipe.epochs else "–",
    }


def _published(task: Task, groups: Mapping[str, Any], firsts: Mapping[str, RunResult]) -> list[Line]:
    """The published table, and these rows below it; empty if nothing is published on these data."""
    rows = [
        (f"{name} (published)", by, count, *(f"{share:.2f}" for share in shares))
        for name, by, count, *shares in task.published
    ]
    for name, each in firsts.items() if rows else ():
        group = groups[name]
        shares = (told(group[share]) for share in SHARES)
        rows.append((name, each.recipe.optimizer, round(group.parameters.mean()), *shares))
    heads = ("model", "optimizer", "parameters", "train top-1", "train top-5", "test top-1", "test top-5")
    shown = ((name, OPTIMIZERS.get(by, by), f"{count:,}", *shares) for name, by, count, *shares in rows)
    return [dict(zip(heads, cells, strict=True)) for cells in shown]


# ---------------------------------------------------------------------------- texts


def _command(task: Task, firsts: Sequence[RunResult], environment: Mapping[str, Any]) -> str:
    """The command that reproduces these numbers."""
    hardware, seeds, place = environment["hardware"], environment["seeds"], environment["data"]["place"]
    command = ["tensornet study", shlex.quote(environment["task"])]
    command += [f"--data {shlex.quote(place)}"] if isinstance(place, str) else []
    command += [f"--seed{'s' if len(seeds) > 1 else ''} {','.join(map(str, seeds))}"]
    named = ("threads", "device", "precision", "mesh")
    command += [f"--{name} {hardware[name]}" for name in named if name in hardware]
    shown = {each.row for each in firsts}
    rows = [name for name in task.rows if name in shown]
    command += [f"--row {name}" for name in rows] if rows != list(task.rows) else []
    used = list(dict.fromkeys(each.recipe.optimizer for each in firsts))
    command += [f"--optimizer {name}" for name in used] if used != list(task.optimizers) else []
    return " ".join([*command, *(f"--set {name}={value}" for name, value in environment["changes"].items())])
