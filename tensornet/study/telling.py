"""The contents of a report, in words and tables: as Markdown, and as an HTML page."""

from __future__ import annotations

import json
import math
import platform
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .page import Model, Section, page
from .pictures import COMPRESSION, pareto_front, pictures_of
from .recipe import Recipe
from .results import Appraisal, RunResult, Summary
from .smaller import MEANINGS, compressed, sections
from .task import Published, Task

__all__ = ["SHARES", "Report"]

OPTIMIZERS = {"adam": "Adam", "adamw": "AdamW", "sgd": "SGD"}

SHARES = ("train_top1", "train_top5", "test_top1", "test_top5")
"""The accuracies of a result."""

UNTOLD = ("batch", "warmup", "smoothing", "clip", "shift", "rotate", "zoom", "flip")
"""The numbers of a recipe that no column shows."""

PUBLISHED = "Beside the published figures"
PUBLISHED_COLUMNS = (
    "model",
    "optimizer",
    "parameters",
    "train top-1",
    "train top-5",
    "test top-1",
    "test top-5",
)

TEXTS = ("name", "classifier", "trained by", "model", "optimizer", "made of", "weight", "shape")
"""The columns that hold texts, not numbers."""

WEIGHTS_TOLD = (
    "Form and rank, and the error ‖W − Ŵ‖ / ‖W‖ in percent; after it, where examples weighed the weight, that of what"
    " it is multiplied by; – stays dense. Of the first seed."
)

TITLES = {
    "pareto": "Test top-1 against parameters",
    "costs": "Test top-1 against what a classifier costs",
    "curves": "Test top-1 by epoch",
    "training": "Each run: top-1 on train and test by epoch",
    COMPRESSION: "Test top-1 compressed, and fine-tuned, against parameters",
}
"""Name of a picture → its alternative text."""


@dataclass(frozen=True)
class Report:
    """A report, as Markdown and as an HTML page."""

    task: Task
    rows: Sequence[Summary]
    environment: Mapping[str, Any]
    costs: Mapping[str, Appraisal]

    @property
    def seeds(self) -> int:
        """The largest number of seeds that a mean is taken over."""
        return max(len(row.runs) for row in self.rows)

    def markdown(self) -> str:
        """`report.md`."""
        parts = (
            [f"# {self.task.title}"],
            self.introduction(),
            _markdown_table(self.columns(), self.results_table()),
            *self._figure("pareto"),
            *self._figure("costs"),
            *self._figure("curves"),
            *self._compressed(),
            *self._published(),
            *self._figure("training"),
            self.reading(),
            ["## Columns"],
            self.meanings(),
            ["## Formulas"],
            [f"- **{row.name}**: {_formula(row.first)}" for row in self.rows if not row.compressions],
            *_set_aside(self.environment["set_aside"]),
            ["## Reproduce"],
            self._reproduction(),
        )
        return "\n\n".join("\n".join(part) for part in parts) + "\n"

    def html(self, pictures: Mapping[str, bytes]) -> str:
        """`report.html`, with all pictures embedded."""
        captions = self.captions()
        tables = [Section("Results", self.columns(), self.results_table()), *sections(self.rows)]
        if self._comparable():
            tables.append(Section(PUBLISHED, PUBLISHED_COLUMNS, self.published_table()))
        return page(
            title=self.task.title,
            introduction=" ".join(self.introduction()),
            tables=tables,
            figures=[(captions[name], pictures[f"{name}.svg"]) for name in pictures_of(self.rows)],
            reading=" ".join(self.reading()),
            meanings=[" ".join(each.split()) for each in "\n".join(self.meanings())[2:].split("\n- ")],
            models=[Model(row.name, self._told(row)) for row in self.rows],
            environment=json.dumps(self.environment, indent=1),
            command=self.command(),
        )

    def _told(self, row: Summary) -> list[tuple[str, str]]:
        """The foldable sections of a model: a heading and a text each."""
        told = [("Parameters", _formula(row.first).replace("`", ""))]
        cost = self.costs.get(row.name)
        if cost is not None:
            told += [("Equations", cost.equations), ("Plan of a mini-batch of training", cost.plan)]
        return told

    def _figure(self, name: str) -> list[list[str]]:
        return [[f"![{TITLES[name]}]({name}.png)"], [f"*{self.captions()[name]}*"]]

    # ------------------------------------------------------------------------ texts

    def introduction(self) -> list[str]:
        """The introduction: the data, and how and where the classifiers were trained."""
        environment = self.environment
        recipe, hardware = environment["recipe"], environment["hardware"]
        used = dict.fromkeys(OPTIMIZERS[row.first.recipe.optimizer] for row in self.rows)
        seeds = environment["seeds"]
        told = f"the seed is {seeds[0]}" if len(seeds) == 1 else f"the seeds are {', '.join(map(str, seeds))}"
        changes = self.changes()
        return [
            f"Classifiers of {environment['data']['about']},",
            f"trained by one schedule: {recipe['epochs']} epochs of {' or '.join(used)} in mini-batches of"
            f" {recipe['batch']}, with",
            f"warm-up and cosine decay, label smoothing {recipe['smoothing']:g}; {told}.",
            *([f"Training images are {changes}, at random."] if changes else []),
            *self._otherwise(),
            f"Computed on {hardware['device']} ({environment['machine']}), {hardware['threads']} thread(s),"
            f" {hardware['processes']} process(es), in {hardware['precision']}.",
        ]

    def _otherwise(self) -> list[str]:
        """Sentences on the rows whose recipe differs from the shared one in numbers that have no column."""
        shared = self.environment["recipe"]
        told: dict[str, list[str]] = {}
        for row in self.rows:
            recipe = row.first.recipe
            others = [
                f"{name.replace('_', ' ')} {getattr(recipe, name):g}"
                for name in UNTOLD
                if getattr(recipe, name) != shared[name]
            ]
            if others:
                told.setdefault(_listed(others), []).append(row.name)
        return [f"Of {_listed(names)}: {others}." for others, names in told.items()]

    def changes(self) -> str:
        """How training images are augmented; empty if they are not."""
        recipe = self.environment["recipe"]
        return ", ".join(
            text
            for amount, text in (
                (recipe["shift"], f"shifted by up to {recipe['shift']:g} pixels"),
                (recipe["rotate"], f"turned by up to {recipe['rotate']:g}°"),
                (recipe["zoom"], f"zoomed by up to {100 * recipe['zoom']:g} %"),
                (recipe["flip"], "mirrored"),
            )
            if amount
        )

    def captions(self) -> dict[str, str]:
        """The caption of each picture."""
        example, changes, several = self.task.example, self.changes(), self.seeds > 1
        tests = f"{self.environment['data']['test']:,} test {example}s, none of them augmented"
        mean = f", mean over {self.seeds} seeds" if several else ""
        bars, bands = (
            ("; bars are a standard deviation", "; bands are a standard deviation") if several else ("", "")
        )
        trained = f"with training {example}s {changes} at random" if changes else "without augmentation"
        measured = (
            f" Latency is that of a prediction for one {example}; what is kept, that of a mini-batch of"
            f" {self.environment['recipe']['batch']} {example}s in training."
            if self.costs
            else ""
        )
        return {
            "pareto": f"Top-1 accuracy on the {tests}, against parameters{mean}{bars}. Trained {trained}.",
            "costs": f"Top-1 accuracy on the {tests}, against what a classifier costs{mean}{bars}.{measured}",
            COMPRESSION: f"Top-1 accuracy on the {tests}, against parameters{mean}{bars}: of each trained classifier"
            " with factors in the place of weights, and after training on from there.",
            "curves": f"Top-1 accuracy on the {tests}, after each epoch{mean}{bands}. Trained {trained}.",
            "training": f"Each classifier, with its parameters: top-1 accuracy on train and test by epoch{mean}"
            f"{bands}. On train it is that of the mini-batches as they were trained on, {trained} and with any"
            " dropout, while the parameters changed.",
        }

    def columns(self) -> tuple[str, ...]:
        """The headings of the table of results."""
        measured = ("ms a step", "ms a prediction", "kept (MB)") if self.costs else ()
        shares = ("top-1 (%)", "top-5 (%)")
        return ("name", "classifier", "trained by", "parameters", "× fewer", "FLOPs", *shares, *measured)

    def results_table(self) -> list[list[str]]:
        """The table of results; names on the Pareto front are bold."""
        front = {row.name for row in pareto_front(self.rows)}
        most = next((row.parameters for row in self.rows if row.first.row == self.task.reference), None)
        lines = []
        for row in self.rows:
            each, cost = row.first, self.costs.get(row.name)
            measured = (
                [f"{cost.step_ms:.2f}", f"{cost.latency_ms:.2f}", f"{cost.kept / 1e6:.3f}"] if cost else []
            )
            lines.append(
                [
                    f"**{each.name}**" if each.name in front else each.name,
                    each.about,
                    _training(row, self.environment["recipe"]["epochs"]),
                    f"{row.parameters:,}",
                    f"{most / row.parameters:.1f}" if most else "–",
                    f"{row.flops:,}",
                    row.told("test_top1"),
                    row.told("test_top5"),
                    *measured,
                ]
            )
        return lines

    def published_table(self) -> list[list[str]]:
        """The published table, followed by the rows that were trained by the study's own recipe."""
        theirs = [
            [f"{each.name} (published)", each.optimizer, f"{each.parameters:,}", *_shares(each)]
            for each in self.task.published
        ]
        ours = [
            [row.name, OPTIMIZERS[row.first.recipe.optimizer], f"{row.parameters:,}", *map(row.told, SHARES)]
            for row in self._comparable()
        ]
        return theirs + ours

    def _comparable(self) -> list[Summary]:
        """The rows trained by the study's own recipe, if there are published figures for the same data."""
        return [row for row in self.rows if self.task.published and self._is_own(row.first)]

    def _is_own(self, run: RunResult) -> bool:
        """Whether a run was trained by the study's own recipe for its row."""
        own = self.task.own_recipe(run.row)
        return own is not None and run.recipe == own.optimized_by(run.recipe.optimizer)

    def _compressed(self) -> list[list[str]]:
        """The tables and the picture of the compressed rows; empty if there are none."""
        parts: list[list[str]] = []
        for number, each in enumerate(sections(self.rows)):
            parts += [[f"## {each.heading}"], [WEIGHTS_TOLD] if number else []]
            parts += [
                _markdown_table(each.columns, each.lines),
                *([] if number else self._figure(COMPRESSION)),
            ]
        return [part for part in parts if part]

    def _published(self) -> list[list[str]]:
        if not self._comparable():
            return []
        source = (
            f"Those of the thesis are its {self.task.source}: its own models, of as many parameters as it prints,"
            " trained its own way on the same images."
        )
        return [[f"## {PUBLISHED}"], [source], _markdown_table(PUBLISHED_COLUMNS, self.published_table())]

    def reading(self) -> list[str]:
        """How to read the numbers: which differences are significant."""
        tested = self.environment["data"]["test"]
        # if no example is wrong, the error of one wrong example: the standard error is not 0
        best = min(max(row.test_top1 for row in self.rows) / 100.0, 1.0 - 1.0 / tested)
        error = 100.0 * math.sqrt(best * (1.0 - best) / tested)
        example, several = self.task.example, self.seeds > 1
        spread = (
            f"and the deviations are those over {self.seeds} seeds: differences of such sizes between rows mean"
            " little."
            if several
            else "and this is one seed: differences of that size between rows mean nothing."
        )
        return [
            "Names in bold are on the Pareto front: no other row is as accurate with as few parameters. One test",
            f"{example} is {100.0 / tested:.2f} points, the standard error of the best accuracy about {error:.1f},",
            f"{spread} Accuracies are those",
            "after the last epoch; no epoch is chosen by its test accuracy.",
            *self._tried(),
        ]

    def _tried(self) -> list[str]:
        """Sentences that name the recipe numbers that were chosen by looking at these examples, and their rows."""
        rows: dict[tuple[str, ...], list[str]] = {}
        for row in self.rows:
            rows.setdefault(self._tried_of(row), []).append(row.name)
        return [
            f"{'' if len(names) == len(self.rows) else f'Of {_listed(names)}: '}{_listed(settings)}"
            f" {'was' if len(settings) == 1 else 'were'} chosen {self.task.caution}, so these accuracies are a"
            " little hopeful."
            for settings, names in rows.items()
            if settings and self.task.caution
        ]

    def _tried_of(self, row: Summary) -> tuple[str, ...]:
        """The numbers of a row's recipe that were tuned on these examples and have not been changed."""
        own = self.task.own_recipe(row.first.row)
        tried = {} if own is None else {name: getattr(own, name) for name in self.task.tried}
        return tuple(
            name.replace("_", " ")
            for name, value in tried.items()
            if value and getattr(row.first.recipe, name) == value
        )

    def meanings(self) -> list[str]:
        """The meaning of each column, as a list."""
        example, reference = self.task.example, self.task.reference
        fewer = (
            [f"- **× fewer**: the parameters of the row `{reference}` divided by these."] if reference else []
        )
        measured = [
            "- **ms a step**: milliseconds of a training step (forward, backward, update) of one mini-batch that",
            "  lies ready, measured apart from training: the classifiers take turns, round after round, after some",
            "  that do not count, and this is the median.",
            f"- **ms a prediction**: milliseconds of a prediction for one {example}, measured likewise.",
            "- **kept (MB)**: megabytes that a step keeps from the forward to the backward pass, for a mini-batch.",
        ]
        seeds = ["- **± (n)**: the mean over n seeds, and the standard deviation among them (by n - 1)."]
        return [
            "- **trained by**: the optimizer, its largest learning rate, and the weight decay; how many epochs, where",
            "  they are others than above. What is compressed is trained on so.",
            "- **parameters**: trainable elements, by formula; equal to the count over the module's parameters.",
            *fewer,
            f"- **FLOPs**: floating-point operations of the contractions for one {example}, forward: those of a",
            f"  mini-batch in the order planned for it, divided by its {example}s;",
            "  a multiplication and an addition are two.",
            f"- **top-1**: percent of test {example}s whose most likely class is right.",
            f"- **top-5**: percent of test {example}s whose five most likely classes hold the right one.",
            f"- **train top-1, top-5**: likewise of the training {example}s, evaluated as the test {example}s are.",
            *(MEANINGS if compressed(self.rows) else []),
            *(seeds if self.seeds > 1 else []),
            *(measured if self.costs else []),
        ]

    def command(self) -> str:
        """The command that reproduces these numbers."""
        environment, task = self.environment, self.task
        shown = {row.first.row for row in self.rows}
        rows = [name for name in task.rows if name in shown]
        command = ["tensornet study", shlex.quote(environment["task"])]
        hardware, seeds = environment["hardware"], environment["seeds"]
        if hardware["processes"] > 1:
            command[0] = f"torchrun --nproc-per-node {hardware['processes']} -m {command[0]}"
        place = environment["data"]["place"]
        command += [f"--data {shlex.quote(place)}"] if isinstance(place, str) else []
        command += [f"--seed {seeds[0]}" if len(seeds) == 1 else f"--seeds {','.join(map(str, seeds))}"]
        command += [f"--threads {hardware['threads']}"]
        command += [f"--device {hardware['device']}", f"--precision {hardware['precision']}"]
        command += [f"--row {name}" for name in rows] if rows != list(task.rows) else []
        used = list(dict.fromkeys(row.first.recipe.optimizer for row in self.rows))
        command += [f"--optimizer {name}" for name in used] if used != list(task.optimizers) else []
        command += [f"--set {name}={value}" for name, value in environment["changes"].items()]
        return " ".join(command)

    def _reproduction(self) -> list[str]:
        """The command, and the versions it was run with."""
        versions = ", ".join(f"{name} {version}" for name, version in self.environment["versions"].items())
        place = self.environment["data"]["place"]
        returned = isinstance(place, Mapping)
        return [
            "All columns but the times come out the same on the same machine, however many runs are trained at once;",
            "another processor, another number of threads, or other versions may round differently.",
            f"Used here: Python {platform.python_version()}, {versions}.",
            *([f"The function `{place['returned by']}` is given as `data`, in Python."] if returned else []),
            "",
            "```console",
            "$ pip install '.[study]'  # in a checkout of tensornet",
            f"$ {self.command()}",
            "```",
        ]


def _markdown_table(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table, with texts aligned to the left and numbers to the right."""
    texts = len([column for column in columns if column in TEXTS])
    rule = "|" + "---|" * texts + "--:|" * (len(columns) - texts)
    return [f"| {' | '.join(columns)} |", rule, *(f"| {' | '.join(line)} |" for line in lines)]


def _formula(result: RunResult) -> str:
    return f"{result.parameters:,} = `{result.formula}`, {result.sizes}"


def _training(row: Summary, epochs: int) -> str:
    """The optimizer, its learning rate and weight decay; and the epochs if they differ from the study's."""
    recipe: Recipe = row.first.recipe
    if not recipe.epochs:
        return "–"
    told = f"{OPTIMIZERS[recipe.optimizer]}, {recipe.learning_rate:g}, {recipe.weight_decay:g}"
    return told if recipe.epochs == epochs else f"{told}, {recipe.epochs} epochs"


def _listed(names: Sequence[str]) -> str:
    """Names as a list: `a, b and c`."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def _shares(row: Published) -> list[str]:
    return [f"{getattr(row, name):.2f}" for name in SHARES]


def _set_aside(names: Sequence[str]) -> list[list[str]]:
    """The section on damaged files; empty if there are none."""
    if not names:
        return []
    told = [
        "These files were not as they were written. They were set aside, and what the rows above needed of",
        "them was computed again; delete them when you like.",
    ]
    return [["## Set aside"], told, [f"- `{name}`" for name in names]]
