"""Results as data frames of pandas: a line for each run, or for each epoch of each, and what varies over the seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from .libraries import library
from .results import Appraisal, RunResult

__all__ = ["COLUMNS", "SHARES", "epochs_of", "pareto_front", "runs_of", "told"]

SHARES = ("train_top1", "train_top5", "test_top1", "test_top5")
"""The accuracies of a result."""

COLUMNS = (
    *(
        "name",
        "seed",
        "about",
        "optimizer",
        "learning_rate",
        "weight_decay",
        "formula",
        "sizes",
        "parameters",
    ),
    *("counted", "flops", *SHARES, "step_ms", "latency_ms", "kept"),
    *("origin", "before_top1", "compressed_top1", "error", "weight_error"),
)
"""The columns of results.csv: those of a result, its recipe, its measured costs, and its compression."""


def runs_of(results: Sequence[RunResult], costs: Mapping[str, Appraisal]) -> Any:
    """A line for each run, with `COLUMNS`, and `row` and `result`."""
    lines = []
    for each in results:
        line = {**asdict(each.recipe), **asdict(each), "result": each}
        line |= asdict(costs[each.name]) if each.name in costs else {}
        if (made := each.compression) is not None:
            line |= {name: getattr(made, name) for name in ("origin", "before_top1", "error", "weight_error")}
            line |= {"compressed_top1": made.test_top1}
        lines.append(line)
    return library("pandas").DataFrame(lines).reindex(columns=[*COLUMNS, "row", "result"])


def epochs_of(runs: Any) -> Any:
    """A line for each epoch of each run, from 1, with its figures."""
    lines = [
        {"name": each.name, "epoch": number, **asdict(epoch)}
        for each in runs.result
        for number, epoch in enumerate(each.history, 1)
    ]
    return library("pandas").DataFrame(lines)


def pareto_front(points: Any, cost: str = "parameters") -> Any:
    """The Pareto front: the lines that are more accurate than all others that cost no more."""
    ordered = points.sort_values([cost, "test_top1"], ascending=[True, False], kind="stable")
    best = ordered.test_top1.cummax().shift(fill_value=-1.0)
    return ordered[ordered.test_top1 > best]


def told(values: Any) -> str:
    """The text of a figure, which has a value for each seed: `97.20`, or for several `97.20 ± 0.31 (3)`.

    Example:
        >>> import pandas
        >>> told(pandas.Series([97.2])), told(pandas.Series([97.0, 98.0]))
        ('97.20', '97.50 ± 0.71 (2)')
    """
    mean = f"{values.mean():.2f}" if len(values) else ""
    return mean if len(values) < 2 else f"{mean} ± {values.std():.2f} ({len(values)})"
