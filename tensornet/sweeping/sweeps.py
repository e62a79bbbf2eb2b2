"""The result of a sweep: a row of costs for each graph, compared with a baseline."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy
from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text as Shown

from ..display import amount, printable, rounded, table
from ..errors import TensornetError, near, optional

WIDE = 240
"""The width of a line of text in characters, wide enough that none is broken."""


@dataclass(frozen=True)
class Column:
    """How a cost is shown.

    Attributes:
        heading: the heading of the column in a table.
        label: the label of the axis in a picture.
        unit: the unit of the values; None for numbers that are written in full.
        compared: whether a table shows the ratio to the baseline too.
    """

    heading: str
    label: str
    unit: str | None = ""
    compared: bool = False

    def shown(self, value: float | None) -> str:
        """The value with its unit; a count is written in full."""
        if value is None or self.unit:
            return "" if value is None else amount(value, self.unit or "")
        return f"{value:,}" if isinstance(value, int) else rounded(value, 3)


def _cost(*column: Any) -> Any:
    """A field of a row that is a column of tables and pictures too."""
    return field(default=None, metadata={"column": Column(*column)})


@dataclass(frozen=True)
class Row:
    """The costs of a graph. A cost that was not required, or is not available, is None.

    Attributes:
        name: the name of the graph.
        chosen: the settings that it was built with.
        parameters: the number of trained elements.
        flops: the FLOPs of its contractions, as `tensornet.flop_count` counts them.
        bytes: the bytes that the steps of its plan read and write.
        expected_seconds: the time of a call, expected from its plan.
        seconds: the measured time of a call: the median.
        seconds_low, seconds_high: the first and the third quartile of the samples.
        expected_training_seconds: the expected time of a call and its parameters' gradients, from the plan of both.
        training_seconds, training_seconds_low, training_seconds_high: the same, measured.
        kept: the bytes kept from the forward pass to the backward pass, without inputs and parameters.
        stored, relative: the bytes of a compressed network, and its time of a call in units of that of the dense one.
        error: the result of the `error` function of the sweep, or the mean error of the weights that were compressed.
        refused: the reason why there is no such graph.
        note: further remarks.
    """

    name: str
    chosen: tuple[tuple[str, Any], ...] = ()
    parameters: int | None = _cost("parameters", "parameters", "", True)
    flops: int | None = _cost("FLOPs", "FLOPs", "FLOP")
    bytes: int | None = _cost("moved", "bytes moved", "B")
    expected_seconds: float | None = _cost("forward,\nexpected", "expected time forward", "s", True)
    seconds: float | None = _cost("forward", "time forward", "s", True)
    seconds_low: float | None = None
    seconds_high: float | None = None
    expected_training_seconds: float | None = _cost(
        "training,\nexpected", "expected training time", "s", True
    )
    training_seconds: float | None = _cost("training", "training time", "s", True)
    training_seconds_low: float | None = None
    training_seconds_high: float | None = None
    kept: int | None = _cost("kept", "bytes kept for the backward pass", "B")
    stored: int | None = _cost("stored", "bytes stored", "B")
    relative: float | None = _cost("time", "time of a call, of the dense one", None)
    error: float | None = _cost("error", "error", None)
    refused: str = ""
    note: str = ""

    @property
    def settings(self) -> dict[str, Any]:
        """The settings by name."""
        return dict(self.chosen)

    @property
    def costs(self) -> dict[str, Any]:
        """The name, the costs and the remarks by name: all but the settings."""
        return {name: value for name, value in vars(self).items() if name != "chosen"}

    def value(self, column: str) -> float | None:
        """The value in a column of `COLUMNS`, or None.

        Raises:
            TensornetError: there is no such column.
        """
        if column not in COLUMNS:
            fix = f"{near(column, COLUMNS)}there are {', '.join(COLUMNS)}"
            raise TensornetError(f"there is no column '{column}'", fix=fix)
        found: float | None = getattr(self, column)
        return found


COLUMNS: dict[str, Column] = {each.name: each.metadata["column"] for each in fields(Row) if each.metadata}
"""The columns that can be shown, compared, and drawn, by name."""


@dataclass(frozen=True)
class Sweep:
    """The costs of many graphs, from `tensornet.sweep`. It prints as a table.

    Attributes:
        rows: one for each graph, in order.
        baseline: the name of the row that the others are compared with; empty for no comparison.
        backend, device, dtype: the library, device and element type of the graphs, timed or not.
        where: the library, its version, and the hardware.
        sizes: the sizes of open axes, given or assumed.
        assumed: the names of the sizes that were not given.
        rounds: the number of turns of each graph; 0 if nothing was measured.
        certainty: the certainty of expected times.
    """

    rows: tuple[Row, ...]
    baseline: str
    backend: str
    device: str
    dtype: str
    where: str = ""
    sizes: tuple[tuple[str, int], ...] = ()
    assumed: tuple[str, ...] = ()
    rounds: int = 0
    certainty: str = ""

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __getitem__(self, name: str) -> Row:
        return {row.name: row for row in self.rows}[name]

    @property
    def settings(self) -> tuple[str, ...]:
        """The names of all settings."""
        return tuple(dict.fromkeys(name for row in self.rows for name in row.settings))

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns that are not empty."""
        return tuple(each for each in COLUMNS if any(row.value(each) is not None for row in self.rows))

    def ratio(self, row: Row, column: str) -> float | None:
        """The ratio of a cost to that of the baseline, or None if one is missing or the baseline's is 0."""
        mine, theirs = row.value(column), self[self.baseline].value(column) if self.baseline else None
        return mine / theirs if mine is not None and theirs else None

    @property
    def title(self) -> str:
        """The backend, device and element type, and the sizes."""
        sizes = ", ".join(f"{name}={size:,}" for name, size in self.sizes)
        assumed = f" ({', '.join(self.assumed)} assumed)" if self.assumed else ""
        place = f"{self.backend} on {self.device}, {self.dtype}"
        return f"{place}, at {sizes}{assumed}" if sizes else place

    @property
    def remarks(self) -> tuple[str, ...]:
        """Remarks on the numbers, and on rows that lack some."""
        told = [f"× is against {self.baseline}"] if self.baseline else []
        if self.rounds:
            turns = f"{self.rounds} turn{'s' * (self.rounds > 1)}"
            told.append(f"measured: medians of {turns}, {self.where}")
        told += [f"expected times: {self.certainty}"] if self.certainty else []
        told += [f"{row.name} is refused: {row.refused}" for row in self.rows if row.refused]
        return (*told, *(f"{row.name}: {row.note}" for row in self.rows if row.note))

    # ---- as text

    def _shown(self) -> Iterator[list[list[str]]]:
        """The columns as text, the heading first. A cost and its ratio to the baseline come together.

        Expected times have a ratio only if no measured ones are shown.
        """
        for name in self.columns:
            column = COLUMNS[name]
            cells = (column.shown(row.value(name)) for row in self.rows)
            if name == "parameters":
                cells = (each or "refused" for each in cells)
            found = [[column.heading, *cells]]
            is_measured = name.removeprefix("expected_") in {*self.columns} - {name}
            if self.baseline and column.compared and not is_measured:
                ratios = [self.ratio(row, name) for row in self.rows]
                shown = ("" if each is None else f"{each:.{3 if each >= 1 else 2}g}" for each in ratios)
                found.append(["×", *shown])
            yield found

    def _table(self, columns: Iterable[list[str]]) -> Table:
        """The table of some columns of text."""
        table, names = Table(box=box.SIMPLE_HEAD, pad_edge=False), [printable(row.name) for row in self.rows]
        head, *body = zip(["", *names], *columns, strict=True)
        for heading in head:
            table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
        for cells in body:
            table.add_row(*map(Shown, cells))
        return table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """The table, split into several below one another if it is too wide."""
        columns, unlimited = list[list[str]](), options.update(width=WIDE)
        yield Shown(self.title)
        for group in self._shown():
            wide = console.measure(self._table([*columns, *group]), options=unlimited).maximum
            if columns and wide > options.max_width:
                yield self._table(columns)
                columns = []
            columns += group
        yield self._table(columns)
        yield from (Shown(printable(remark)) for remark in self.remarks)

    def __str__(self) -> str:
        lines = io.StringIO()
        Console(file=lines, width=WIDE, color_system=None, emoji=False).print(self)
        return "\n".join(line.rstrip() for line in lines.getvalue().splitlines())

    def _repr_html_(self) -> str:
        names = ["", *(row.name for row in self.rows)]
        head, *body = zip(names, *(each for group in self._shown() for each in group), strict=True)
        return table(head, body, "l" + "r" * len(head), self.title, self.remarks)

    def json(self) -> str:
        """The sweep as JSON: its attributes, in seconds, bytes and FLOPs."""
        rows = [{"settings": row.settings, **row.costs} for row in self.rows]
        return json.dumps({**asdict(self), "sizes": dict(self.sizes), "rows": rows}, indent=1)

    def dataframe(self) -> Any:
        """The rows as a `pandas.DataFrame`, indexed by name. A setting has another name than a cost.

        Raises:
            BackendError: pandas is not installed.
        """
        costs = {each.name for each in fields(Row)}
        names = {f"setting {each}" if each in costs else each: each for each in self.settings}
        own = [{name: row.settings.get(each) for name, each in names.items()} for row in self.rows]
        lines = [{"name": row.name} | each | row.costs for row, each in zip(self.rows, own, strict=True)]
        return optional("pandas").DataFrame(lines).set_index("name")

    # ---- as a picture

    def pareto(
        self, x: str = "parameters", y: str = "seconds", path: str | os.PathLike[str] | None = None
    ) -> Any:
        """A plot of two costs, with a point and a label for each row, and a line through the Pareto front.

        Args:
            x, y: the columns, on logarithmic axes if all values are positive.
            path: the file to write, as PNG, SVG or PDF according to its suffix.

        Returns:
            The figure, a `matplotlib.figure.Figure`.

        Raises:
            TensornetError: there is no such column, no row has values in both, or the path has another suffix or
                cannot be written.
            BackendError: matplotlib is not installed.
        """
        from .picture import Point, drawn

        points, several = list[Point](), len(self.settings) > 1
        for row in self.rows:
            first, *rest = [*map(str, row.settings.values())] if several and row.chosen else [row.name]
            named = (first, ", ".join(rest)) if several else ("", row.name)
            if (a := row.value(x)) is not None and (b := row.value(y)) is not None:
                points.append(Point(a, b, *named))
        if not points:
            fix = f"there are {', '.join(self.columns)}"
            raise TensornetError(f"no row has both '{x}' and '{y}'", fix=fix)
        costs = {axis: (COLUMNS[name].label, COLUMNS[name].unit) for axis, name in (("x", x), ("y", y))}
        first, *rest = self.settings or ("",)
        groups = f"{first}\n(at the points: {', '.join(rest)})" if rest else ""
        return drawn(points, costs, self.title, groups, path)


def plain(value: Any) -> Any:
    """A setting in a form that JSON can write and read back. Other objects become their text."""
    if isinstance(value, list | tuple):
        return tuple(map(plain, value))
    value = value.item() if isinstance(value, numpy.generic) else value
    return value if isinstance(value, str | bool | int | float | None) else str(value)
