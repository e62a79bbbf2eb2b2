"""Report tables of compressed rows: accuracy before and after compression, after fine-tuning; each weight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .page import Section
from .results import CompressedWeight, Summary, told

__all__ = ["MEANINGS", "compressed", "sections"]

TABLE = "Compressed"
COLUMNS = (
    "name",
    "made of",
    "parameters",
    "of before (%)",
    "logits' error (%)",
    "weights' error (%)",
    "before (%)",
    "compressed (%)",
    "fine-tuned (%)",
)

WEIGHTS = "What each weight was given"

MEANINGS = (
    "- **made of**: the run whose trained classifier was compressed, of the same seed.",
    "- **of before**: parameters, as percent of those of that classifier.",
    "- **logits' error**: ‖y − ŷ‖ / ‖y‖ of the logits y of the test examples, before fine-tuning.",
    "- **weights' error**: the root of the mean of (‖W − Ŵ‖ / ‖W‖)² over the weights that were looked at.",
    "- **before, compressed, fine-tuned**: percent of test examples whose most likely class is right: of the",
    "  classifier it was made of, with factors in the place of weights, and trained on from there.",
)
"""The meaning of each column of the first table."""


def compressed(rows: Sequence[Summary]) -> list[Summary]:
    """The rows that are compressed."""
    return [row for row in rows if row.compressions]


def sections(rows: Sequence[Summary]) -> list[Section]:
    """The tables of the compressed rows; empty if there are none."""
    found = compressed(rows)
    if not found:
        return []
    names = [row.name for row in found]
    return [
        Section(TABLE, COLUMNS, [_line(row) for row in found]),
        Section(WEIGHTS, ("weight", "shape", *names), _weights(found)),
    ]


def _line(row: Summary) -> list[str]:
    made = row.compressions
    before = sum(each.parameters for each in made)
    tuned = row.told("test_top1") if row.first.recipe.epochs else "–"
    return [
        row.name,
        made[0].origin,
        f"{row.parameters:,}",
        f"{100.0 * sum(each.parameters for each in row.runs) / before:.1f}",
        told([100.0 * each.error for each in made]),
        told([100.0 * each.weight_error for each in made]),
        told([each.before_top1 for each in made]),
        told([each.test_top1 for each in made]),
        tuned,
    ]


def _weights(rows: Sequence[Summary]) -> list[list[str]]:
    """A line for each weight: its form, ranks and errors in the first run of each row."""
    given: list[dict[str, CompressedWeight]] = [
        {each.path: each for each in row.compressions[0].weights} for row in rows
    ]
    shapes: dict[str, Any] = {path: each.shape for weights in given for path, each in weights.items()}
    return [
        [f"`{path}`", "×".join(map(str, shape)), *(_cell(weights.get(path)) for weights in given)]
        for path, shape in shapes.items()
    ]


def _cell(weight: CompressedWeight | None) -> str:
    """The form and ranks of a weight, with its errors in percent."""
    if weight is None or weight.form == "dense":
        return "–"
    ranks = "×".join(map(str, weight.ranks))
    output = "" if weight.output_error is None else f" / {100.0 * weight.output_error:.1f}"
    return f"{weight.form} {ranks}: {100.0 * weight.error:.1f}{output}".replace(" :", ":")
