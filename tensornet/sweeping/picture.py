"""A plot of two costs of every row of a sweep, drawn without a screen and without matplotlib's global state."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import BackendError, TensornetError
from ..files import whole
from .columns import Column

__all__ = ["Point", "drawn", "front"]

SUFFIXES = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
"""The formats of pictures, each with the metadata that leaves out the time of writing."""

INCHES, DOTS = (7.0, 4.6), 160
"""The width and height in inches, and the dots per inch."""

MARKS = "osD^vP*X"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", "#000000")
"""Colours that colour-blind readers can distinguish (after Okabe and Ito, 2008)."""

BESIDE = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)}
"""The position of the legend."""

SIDES = (
    ((5, 0), "left", "center"),
    ((-5, 0), "right", "center"),
    ((0, 5), "center", "bottom"),
    ((0, -5), "center", "top"),
    ((4, 6), "left", "bottom"),
    ((-4, -6), "right", "top"),
)
"""The positions of a label next to its point, in points, and its alignment. It is left out if none is free."""


class Point(NamedTuple):
    """A row in the picture: its position, its group, and its label."""

    x: float
    y: float
    group: str
    label: str


def drawn(
    points: Sequence[Point],
    x: Column,
    y: Column,
    title: str,
    groups: str,
    path: str | os.PathLike[str] | None,
) -> Any:
    """The figure, also written to a file if there is a path; `Sweep.pareto` describes it.

    Args:
        points: the rows.
        x, y: the columns along the axes.
        title: the title of the figure.
        groups: the title of the legend.
        path: the file to write.

    Raises:
        TensornetError: the path has another suffix, or cannot be written.
        BackendError: matplotlib is not installed.
    """
    suffix = None if path is None else Path(path).suffix.lower()
    if suffix is not None and suffix not in SUFFIXES:
        raise TensornetError(f"a picture is no '{suffix}'", fix=f"use {', '.join(SUFFIXES)}")
    figure = _figure()
    axes = figure.add_subplot()
    _draw(axes, points)
    axes.margins(0.1)
    for letter, column in (("x", x), ("y", y)):
        values = [getattr(each, letter) for each in points]
        axes.set(**{f"{letter}scale": "log" if min(values) > 0 else "linear", f"{letter}label": column.label})
        _write_out(getattr(axes, f"{letter}axis"), column, values)
    axes.set_title(title, fontsize=9, loc="left")
    axes.grid(visible=True, which="major", alpha=0.25)
    axes.legend(title=groups or None, fontsize=8, title_fontsize=8, frameon=False, **BESIDE)
    _label(axes, points)
    if path is not None and suffix is not None:
        with whole(Path(path)) as half:
            figure.savefig(half, metadata=SUFFIXES[suffix])
    return figure


def front(points: Sequence[Point]) -> list[Point]:
    """The Pareto front: each of its points costs less in y than all points that cost no more in x."""
    found: list[Point] = []
    for point in sorted(points):
        if not found or point.y < found[-1].y:
            found.append(point)
    return found


def _draw(axes: Any, points: Sequence[Point]) -> None:
    """Draws the points by group, and a line through the Pareto front."""
    x, y, *_ = zip(*front(points), strict=True)
    axes.step(x, y, where="post", color="0.7", zorder=1, label="best")
    for number, group in enumerate(dict.fromkeys(each.group for each in points)):
        x, y, *_ = zip(*sorted(each for each in points if each.group == group), strict=True)
        look = {
            "color": COLOURS[number % len(COLOURS)],
            "marker": MARKS[number % len(MARKS)],
            "linestyle": "",
        }
        axes.plot(x, y, **look, markersize=5, zorder=2, label=group or None)


def _write_out(axis: Any, column: Column, values: Sequence[float]) -> None:
    """Labels an axis with numbers, prefixes and units.

    A short logarithmic axis, of less than three powers of ten, has labels between these too.
    """
    from matplotlib import ticker

    if axis.get_scale() == "log":
        is_short = max(values) < 1000 * min(values)
        axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5) if is_short else (1,), numticks=20))
        axis.set_minor_formatter(ticker.NullFormatter())
    is_count = column.unit or column.name == "parameters"
    in_full = ticker.StrMethodFormatter("{x:.3g}")
    axis.set_major_formatter(ticker.EngFormatter(column.unit) if is_count else in_full)


def _label(axes: Any, points: Sequence[Point]) -> None:
    """Labels the points, the Pareto front first, each on a side where the label covers no other."""
    from matplotlib.transforms import Bbox

    figure = axes.figure
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    places = [axes.transData.transform((each.x, each.y)) for each in points]
    taken = [Bbox.from_extents(across - 5, up - 5, across + 5, up + 5) for across, up in places]
    best = front(points)
    for point in sorted(points, key=lambda each: each not in best):
        for offset, across, up in SIDES:
            look: dict[str, Any] = {"ha": across, "va": up, "fontsize": 7, "textcoords": "offset points"}
            text = axes.annotate(point.label, (point.x, point.y), offset, **look)
            box = text.get_window_extent(renderer)
            if not any(box.overlaps(other) for other in taken):
                taken.append(box)
                break
            text.remove()


def _figure() -> Any:
    """An empty figure on the Agg canvas."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        fix = "pip install matplotlib"
        raise BackendError(f"matplotlib cannot be imported: {error}", fix=fix) from None
    figure = Figure(figsize=INCHES, dpi=DOTS, layout="constrained")
    FigureCanvasAgg(figure)
    return figure
