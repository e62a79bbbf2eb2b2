"""Rows that are compressed: the trained classifier of another row, with factors in place of weights.

run of the other row, with the same optimizer and seed → budget, calibration → classifier, its parameters, its errors
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import tensornet as tn
from tensornet.compression.allocating import Allotted
from tensornet.compression.compressed import Compressed
from tensornet.compression.compressing import included
from tensornet.errors import unwarned
from tensornet.fitting.approximating import Misfit
from tensornet.weights.factorizations import form_named

from .libraries import library
from .results import CompressedWeight, Compression, RunResult
from .task import Examples, Task
from .training import TrainingRun, logits_of, right_ones, sizes_of_batch

BUDGETS = ("parameters", "flops", "seconds", "error")
"""The quantities that a budget may limit, as `tensornet.compress` takes them."""

DENSE = "dense"
"""The form of an unchanged weight."""


@dataclass(frozen=True)
class CompressedRow:
    """A row that compresses the trained classifier of another row.

    Attributes:
        about: a short description.
        origin: the name of the other row.
        budget: one of `BUDGETS`.
        amount: the limit: a fraction of the classifier's cost, or an absolute number.
        settings: method, modes, include, exclude and uniform, as `tensornet.compress` takes them.
        calibrate: the number of training examples used for calibration; 0 for none.
    """

    about: str
    origin: str
    budget: str
    amount: float
    settings: Mapping[str, Any] = field(default_factory=dict)
    calibrate: int = 0


def check_row(row: CompressedRow, origin: tn.Graph) -> None:
    """Raises an error if a form is unknown, or if a pattern matches no parameter of the other row."""
    for method in row.settings.get("method", ()):
        form_named(method)
    names, patterns = [leaf.name for leaf in origin.parameters], row.settings.get("include", ("*",))
    what = f"parameter of '{row.origin}'"
    included(names, patterns, row.settings.get("exclude", ()), what, "parameters")


def classifier(task: Task, row: Any, examples: Examples, compression: Compression | None = None) -> tn.Graph:
    """The classifier of a row; in a compressed row, each weight has the form that it was given."""
    if not isinstance(row, CompressedRow):
        return task.build(row, examples)
    assert compression is not None
    given = [each for each in compression.weights if each.form != DENSE]
    weights = {each.path: (each.form, each.ranks or "same") for each in given}
    graph = task.build(task.rows[row.origin], examples)
    if not weights:
        return graph
    with unwarned():
        return tn.substitute(graph, weights, modes=row.settings.get("modes"))


def compressed_start(
    run: TrainingRun, row: CompressedRow, task: Task, origin: RunResult, trained: tuple[tn.Graph, Any]
) -> dict[str, Any]:
    """Compresses a trained classifier, and measures what that loses on the test examples.

    Args:
        run: how the compressed classifier is trained.
        row: how it is compressed.
        task: the task of the study.
        origin: the result of the run of the other row.
        trained: its classifier, which takes the inputs as they are in the examples, and its parameters.

    Returns:
        The classifier, its parameters and its compression, as attributes of the run.

    Raises:
        TensornetError: the budget cannot be met.
    """
    graph, parameters = trained
    examples, hardware = run.examples, run.hardware
    timed = row.budget in ("flops", "seconds")
    sizes: dict[str, Any] = sizes_of_batch(graph, examples, run.recipe.batch) if timed else {}
    sizes |= {row.budget: row.amount, "calibrate": _calibration(run, row.calibrate)}
    # sums split over another number of threads round differently
    with hardware.reproducible(), library("threadpoolctl").threadpool_limits(hardware.threads):
        small: Compressed = tn.compress(graph, parameters, **row.settings, **sizes)
        before, after = (_logits(run, *each) for each in (trained, (small.model, small.params)))
    top1, top5 = (100.0 * float(each) / len(after) for each in right_ones(after, examples.test_labels))
    error = float((after - before).norm() / before.norm())
    weights = tuple(_weight(each, small.misfits.get(each.path)) for each in small.allocation.rows)
    counts = (origin.name, origin.parameters, origin.test_top1, origin.test_top5, top1, top5)
    compression = Compression(*counts, error, weights)
    graph = classifier(task, row, examples, compression)
    return {"classifier": graph, "start": small.params, "compression": compression}


def _calibration(run: TrainingRun, count: int) -> list[tuple[Any, ...]] | None:
    """Mini-batches of so many training examples, drawn by the seed; None if there are none."""
    if not count:
        return None
    torch, examples = library("torch"), run.examples
    draw = torch.Generator().manual_seed(run.seed)
    chosen = torch.randperm(len(examples.train_labels), generator=draw)[:count]
    inputs = (tuple(each[part] for each in examples.train_inputs) for part in chosen.split(run.recipe.batch))
    return list(map(examples.batch, inputs))


def _logits(run: TrainingRun, graph: tn.Graph, parameters: Any) -> Any:
    """The logits of a classifier for the test examples."""
    module = tn.module(graph, params=parameters, dtype="float32").to(run.hardware.device)
    return logits_of(module, run, run.examples.test_inputs)


def _weight(row: Allotted, misfit: Misfit | None) -> CompressedWeight:
    level = row.level
    ranks = level.rank if isinstance(level.rank, tuple) else ()
    errors = (0.0, None) if misfit is None else (misfit.weight, misfit.output)
    return CompressedWeight(row.path, row.shape, level.method or DENSE, ranks, level.parameters, *errors)
