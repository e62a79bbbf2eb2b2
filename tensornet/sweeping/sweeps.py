"""What a sweep is: a row of costs for each graph, beside one that the others are compared with."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, fields
from html import escape
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from ..display import printable
from ..documents import Part
from ..errors import BackendError, TensornetError
from .columns import COLUMNS, Column, column_named

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType

__all__ = ["Row", "Sweep", "plain"]


WIDE = 240
"""Letters in a line of text, so that none is broken."""


@dataclass(frozen=True)
class Row:
    """What a graph costs; of what was not asked for, or cannot be had, there is nothing.

    Attributes:
        name: what it is called.
        chosen: the settings that it was built with, of those there was to choose from.
        parameters: how many numbers it learns.
        flops: of its contractions, as `tensornet.flop_count` counts them.
        bytes: read and written by the steps of its plan.
        expected_seconds: of a call, by its plan.
        seconds: of a call, measured: the median.
        seconds_low, seconds_high: between which half of the samples lie.
        expected_training_seconds: of a call and the gradients of its parameters, by the plan of both.
        training_seconds, training_seconds_low, training_seconds_high: the same, measured.
        kept: bytes kept from the forward pass to the backward pass, those of what is given not counted.
        error: what the `error` of the sweep said.
        refused: why there is no such graph.
        note: what else there is to say.
    """

    name: str
    chosen: tuple[tuple[str, Any], ...] = ()
    parameters: int | None = None
    flops: int | None = None
    bytes: int | None = None
    expected_seconds: float | None = None
    seconds: float | None = None
    seconds_low: float | None = None
    seconds_high: float | None = None
    expected_training_seconds: float | None = None
    training_seconds: float | None = None
    training_seconds_low: float | None = None
    training_seconds_high: float | None = None
    kept: int | None = None
    error: float | None = None
    refused: str = ""
    note: str = ""

    @property
    def settings(self) -> dict[str, Any]:
        """The settings by name."""
        return dict(self.chosen)

    def value(self, column: str) -> float | None:
        """What stands in a column of `COLUMNS`, if anything does.

        Raises:
            TensornetError: there is no such column.
        """
        found: float | None = getattr(self, column_named(column).name)
        return found


@dataclass(frozen=True)
class Sweep:
    """What each of many graphs costs; made by `tensornet.sweep`, printed as a table.

    Attributes:
        rows: one for each graph, in order.
        baseline: the name of the row that the others are compared with; empty where all are refused.
        backend, device, dtype: where they ran, or would.
        where: the library, its version, and the hardware.
        threads: that ran them, where they were told.
        clock: "wall", or "process" where only time counts that the process had the processor.
        sizes: of open axes, and those that were assumed.
        assumed: the names among them that nobody gave.
        rounds: how often each had its turn; 0 if nothing was measured.
        certainty: how sure the expected times are.
    """

    rows: tuple[Row, ...]
    baseline: str
    backend: str
    device: str
    dtype: str
    where: str = ""
    threads: int | None = None
    clock: str = "wall"
    sizes: tuple[tuple[str, int], ...] = ()
    assumed: tuple[str, ...] = ()
    rounds: int = 0
    certainty: str = ""

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __getitem__(self, name: str) -> Row:
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(name)

    @property
    def settings(self) -> tuple[str, ...]:
        """What there was to choose from."""
        return tuple(dict.fromkeys(name for row in self.rows for name in row.settings))

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns in which anything stands."""
        return tuple(
            each for each in COLUMNS.values() if any(row.value(each.name) is not None for row in self.rows)
        )

    def ratio(self, row: Row, column: str) -> float | None:
        """How many times that of the baseline a cost is, if both are there."""
        mine, theirs = row.value(column), self[self.baseline].value(column) if self.baseline else None
        return mine / theirs if mine is not None and theirs else None

    @property
    def title(self) -> str:
        """Where, and at which sizes."""
        sizes = ", ".join(f"{name}={size:,}" for name, size in self.sizes)
        assumed = f" ({', '.join(self.assumed)} assumed)" if self.assumed else ""
        threads = "" if self.threads is None else f", {self.threads} thread{'s' * (self.threads > 1)}"
        place = f"{self.backend} on {self.device}{threads}, {self.dtype}"
        return f"{place}, at {sizes}{assumed}" if sizes else place

    @property
    def remarks(self) -> tuple[str, ...]:
        """What is to be known of the numbers, and of rows that lack some."""
        told = [f"× is against {self.baseline}"] if self.baseline else []
        if self.rounds:
            clock = ", time of this process" if self.clock == "process" else ""
            turns = f"{self.rounds} turn{'s' * (self.rounds > 1)}"
            told.append(f"measured: medians of {turns}, {self.where}{clock}")
        told += [f"expected times: {self.certainty}"] if self.certainty else []
        told += [f"{row.name} is refused: {row.refused}" for row in self.rows if row.refused]
        return (*told, *(f"{row.name}: {row.note}" for row in self.rows if row.note))

    # ---- as text

    def _shown(self) -> list[list[list[str]]]:
        """The columns as text, the heading first; those that belong together in one list.

        A cost stands beside how many times that of the baseline it is; expected ones where none was measured.
        """
        told = {each.name for each in self.columns}
        blank = ["refused" if row.refused else "" for row in self.rows]
        found = []
        for column in self.columns:
            values = [row.value(column.name) for row in self.rows]
            shown = [
                bare if value is None else column.shown(value)
                for value, bare in zip(values, blank, strict=True)
            ]
            group, blank = [[column.heading, *shown]], [""] * len(self.rows)
            measured = column.name.removeprefix("expected_")
            if column.compared and (measured == column.name or measured not in told):
                ratios = [self.ratio(row, column.name) for row in self.rows]
                group.append(["×", *("" if each is None else _times(each) for each in ratios)])
            found.append(group)
        return found

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """The table; below one another several, where it is too wide for one."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text

        yield Text(self.title)
        names = [Text(printable(row.name)) for row in self.rows]
        for columns in self._fitting(options.max_width):
            table = Table(box=SIMPLE_HEAD, pad_edge=False)
            table.add_column("", no_wrap=True)
            for heading, *_ in columns:
                table.add_column(heading, justify="right", no_wrap=True)
            for number, name in enumerate(names, 1):
                table.add_row(name, *(Text(column[number]) for column in columns))
            yield table
        for remark in self.remarks:
            yield Text(printable(remark))

    def _fitting(self, width: int) -> Iterator[list[list[str]]]:
        """The columns of text, as many in each list as fit beside the names, and at least one cost."""
        start = max(len(row.name) for row in self.rows) + 2
        columns, taken = list[list[str]](), start
        for group in self._shown():
            needed = sum(
                max(len(line) for cell in column for line in cell.split("\n")) + 3 for column in group
            )
            if columns and taken + needed > width:
                yield columns
                columns, taken = [], start
            columns, taken = columns + group, taken + needed
        yield columns

    def __str__(self) -> str:
        from rich.console import Console

        lines = io.StringIO()
        Console(file=lines, width=WIDE, color_system=None).print(self)
        return "\n".join(line.rstrip() for line in lines.getvalue().splitlines())

    def _repr_html_(self) -> str:
        columns = [
            ["", *(row.name for row in self.rows)],
            *(each for group in self._shown() for each in group),
        ]
        head, *body = ([escape(cell) for cell in line] for line in zip(*columns, strict=True))
        lines = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in line)}</tr>" for line in body)
        heads = "".join(f"<th>{cell}</th>" for cell in head)
        remarks = "<br>".join(map(escape, self.remarks))
        caption = f"<caption>{escape(self.title)}</caption>"
        return (
            f"<table>{caption}<thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table><p>{remarks}</p>"
        )

    def csv(self) -> str:
        """The rows as comma-separated values, the settings in columns of their own: seconds, bytes, FLOPs."""
        lines = io.StringIO()
        writer = csv.DictWriter(lines, self._fields, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self._records())
        return lines.getvalue()

    def json(self) -> str:
        """The sweep as JSON; `from_json` reads it back."""
        rows = [
            {"settings": row.settings, **{each: getattr(row, each) for each in _PLAIN}} for row in self.rows
        ]
        head = {
            each.name: getattr(self, each.name) for each in fields(self) if each.name not in ("rows", "sizes")
        }
        return json.dumps({**head, "sizes": dict(self.sizes), "rows": rows}, indent=1)

    @staticmethod
    def from_json(text: str) -> Sweep:
        """The sweep that `json` wrote.

        Raises:
            EquationError: it is none.
        """
        part = Part.of(text, "sweep")
        rounds, threads = part["rounds"].whole(), part["threads"]
        found = Sweep(
            tuple(_read_row(each) for each in part["rows"]),
            part["baseline"].text(),
            part["backend"].text(),
            part["device"].text(),
            part["dtype"].text(),
            part["where"].text(),
            None if threads.is_none else threads.whole(),
            part["clock"].one_of("wall", "process"),
            tuple((name, size.whole()) for name, size in part["sizes"].items()),
            tuple(each.text() for each in part["assumed"]),
            rounds,
            part["certainty"].text(),
        )
        if found.baseline and found.baseline not in [row.name for row in found.rows]:
            raise part["baseline"].fail(f"is '{found.baseline}', which is no row")
        return found

    def dataframe(self) -> Any:
        """The rows as a `pandas.DataFrame`, by name.

        Raises:
            BackendError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise BackendError(f"pandas cannot be imported: {error}", fix="pip install pandas") from None
        return pandas.DataFrame(self._records(), columns=self._fields).set_index("name")

    @property
    def _fields(self) -> list[str]:
        return ["name", *map(_beside, self.settings), *(name for name in _PLAIN if name != "name")]

    def _records(self) -> list[dict[str, Any]]:
        """The rows with their settings beside what they cost."""
        return [
            {_beside(name): value for name, value in row.chosen}
            | {name: getattr(row, name) for name in _PLAIN}
            for row in self.rows
        ]

    # ---- as a picture

    def pareto(
        self, x: str = "parameters", y: str = "seconds", path: str | os.PathLike[str] | None = None
    ) -> Any:
        """A picture of two costs, each row a point with its name, and a line through those that no other beats.

        Args:
            x, y: columns, on logarithmic axes where nothing is 0.
            path: where to write it: PNG, SVG or PDF, as the name ends.

        Returns:
            The figure, a `matplotlib.figure.Figure`.

        Raises:
            TensornetError: there is no such column, nothing stands in it, or the name ends otherwise.
            BackendError: matplotlib is not installed.
        """
        from .picture import Point, drawn

        across, up = column_named(x), column_named(y)
        points = [
            Point(a, b, *self._called(row))
            for row in self.rows
            if (a := row.value(x)) is not None and (b := row.value(y)) is not None
        ]
        if not points:
            told = ", ".join(each.name for each in self.columns)
            raise TensornetError(f"no row has both '{x}' and '{y}'", fix=f"there are {told}")
        first, *rest = self.settings or ("",)
        groups = f"{first}\n(at the points: {', '.join(rest)})" if rest else ""
        return drawn(points, across, up, self.title, groups, path)

    def _called(self, row: Row) -> tuple[str, str]:
        """The group of a row, by the first of several settings, and what tells it apart within that."""
        if len(self.settings) < 2:
            return "", row.name
        if not row.chosen:
            return row.name, ""
        (_, first), *rest = row.chosen
        return str(first), ", ".join(str(value) for _, value in rest)


_PLAIN = tuple(each.name for each in fields(Row) if each.name != "chosen")
"""What a row says besides its settings."""

_TEXTS = ("name", "refused", "note")
_COUNTS = ("parameters", "flops", "bytes", "kept")


def _times(ratio: float) -> str:
    return f"{ratio:.{3 if ratio >= 1 else 2}g}"


def _beside(setting: str) -> str:
    """The column of a setting, apart from those of costs."""
    return f"setting {setting}" if setting in _PLAIN else setting


def _read_row(part: Part) -> Row:
    told: dict[str, Any] = {name: part[name].text() for name in _TEXTS}
    for name in _PLAIN:
        if name not in _TEXTS and not part[name].is_none:
            told[name] = part[name].whole() if name in _COUNTS else part[name].real()
    settings = tuple((name, plain(value.value)) for name, value in part["settings"].items())
    return Row(chosen=settings, **told)


def plain(value: Any) -> Any:
    """A setting as it can be written and read back: what is none of these kinds, as it prints."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Real):  # of NumPy
        return int(value) if isinstance(value, Integral) else float(value)
    return tuple(map(plain, value)) if isinstance(value, list | tuple) else str(value)
