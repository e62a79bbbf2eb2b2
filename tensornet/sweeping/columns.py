"""The columns of a sweep: the costs that it reports for every graph."""

from __future__ import annotations

from dataclasses import dataclass

from ..display import amount, rounded
from ..errors import TensornetError, near

__all__ = ["COLUMNS", "Column", "column_named"]


@dataclass(frozen=True)
class Column:
    """A cost that a sweep reports for every graph.

    Attributes:
        name: the name of the attribute of a row.
        heading: the heading of the column in a table.
        label: the label of the axis in a picture.
        unit: the unit of the values.
        compared: whether a table shows the ratio to the baseline too.
    """

    name: str
    heading: str
    label: str
    unit: str = ""
    compared: bool = False

    def shown(self, value: float) -> str:
        """The value with its unit; a count is written in full."""
        if self.unit:
            return amount(value, self.unit)
        return f"{value:,}" if isinstance(value, int) else rounded(value, 3)


COLUMNS = {
    each.name: each
    for each in (
        Column("parameters", "parameters", "parameters", compared=True),
        Column("flops", "FLOPs", "FLOPs", "FLOP"),
        Column("bytes", "moved", "bytes moved", "B"),
        Column("expected_seconds", "forward,\nexpected", "expected time forward", "s", True),
        Column("seconds", "forward", "time forward", "s", True),
        Column("expected_training_seconds", "training,\nexpected", "expected time both ways", "s", True),
        Column("training_seconds", "training", "time both ways", "s", True),
        Column("kept", "kept", "bytes kept for the backward pass", "B"),
        Column("error", "error", "error"),
    )
}
"""The columns that can be shown, compared, and drawn, by name."""


def column_named(name: str) -> Column:
    """The column of that name.

    Raises:
        TensornetError: there is none.
    """
    if name not in COLUMNS:
        fix = f"{near(name, COLUMNS)}there are {', '.join(COLUMNS)}"
        raise TensornetError(f"there is no column '{name}'", fix=fix)
    return COLUMNS[name]
