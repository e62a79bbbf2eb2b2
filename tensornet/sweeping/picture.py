"""A plot of two costs of every row of a sweep, drawn without a screen and without matplotlib's global state."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import TensornetError, optional
from ..files import whole

SUFFIXES = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
"""The formats of pictures, each with the metadata that leaves out the time of writing."""

INCHES, DOTS = (7.0, 4.6), 160
"""The width and height in inches, and the dots per inch."""

MARKS = ("o", "s", "D", "^", "v", "P", "*", "X")
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", "#000000")
"""Colours that colour-blind readers can distinguish (after Okabe and Ito, 2008)."""

SIDES = ["east", "west", "northeast", "southeast", "northwest", "southwest"]
"""Where from its mark a label is looked for: not above and below, where error bars are."""

NEAR = {"min_distance": 0.012, "max_distance": 0.12, "margin": 0.006, "nbr_candidates": 800}
"""How far from a mark a label is looked for, in parts of the picture."""

LINE = {"linecolor": "0.6", "linewidth": 0.5, "plot_kwargs": {"marker": ""}, "direction": SIDES}
"""A line leads from a mark to its label."""


class Point(NamedTuple):
    """A row in the picture: its position, its group, and its label."""

    x: float
    y: float
    group: str
    label: str


def drawn(
    points: Sequence[Point],
    costs: Mapping[str, tuple[str, str | None]],
    title: str,
    groups: str,
    path: str | os.PathLike[str] | None,
) -> Any:
    """The figure, also written to a file if there is a path; `Sweep.pareto` describes it.

    Args:
        points: the rows.
        costs: for "x" and "y" what it is, and its unit; None for numbers that are written in full.
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
    figure, best = new_figure(INCHES, DOTS), front(points)
    axes = figure.add_subplot()
    x, y, *_ = zip(*best, strict=True)
    axes.step(x, y, where="post", color="0.7", marker="", zorder=1, label="best")
    axes.set_prop_cycle(color=COLOURS, marker=MARKS)
    for group in dict.fromkeys(each.group for each in points):
        x, y, *_ = zip(*(each for each in points if each.group == group), strict=True)
        axes.plot(x, y, linestyle="", markersize=5, zorder=2, label=group or None)
    axes.margins(0.1)
    for letter, (label, unit) in costs.items():
        values = [getattr(each, letter) for each in points]
        axes.set(**{f"{letter}scale": "log" if min(values) > 0 else "linear", f"{letter}label": label})
        _write_out(getattr(axes, f"{letter}axis"), unit, values)
    axes.set_title(title, fontsize=9, loc="left")
    axes.grid(visible=True, which="major", alpha=0.25)
    place = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)}
    axes.legend(title=groups or None, fontsize=8, title_fontsize=8, frameon=False, **place)
    labelled = sorted(points, key=lambda each: each not in best)
    label_points(axes, ((each.x, each.y, each.label) for each in labelled), 7, every=False)
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


def _write_out(axis: Any, unit: str | None, values: Sequence[float]) -> None:
    """Labels an axis with numbers, prefixes and units.

    A short logarithmic axis, of less than three powers of ten, has labels between these too.
    """
    ticker = optional("matplotlib.ticker")
    if axis.get_scale() == "log":
        is_short = max(values) < 1000 * min(values)
        axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5) if is_short else (1,), numticks=20))
        axis.set_minor_formatter(ticker.NullFormatter())
    in_full = ticker.StrMethodFormatter("{x:.3g}")
    axis.set_major_formatter(in_full if unit is None else ticker.EngFormatter(unit))


def label_points(axes: Any, points: Iterable[tuple[float, float, str]], size: float, every: bool) -> None:
    """Labels points, each in a place near by where it covers no mark and no other label.

    Args:
        axes: the axes.
        points: x, y and the label of each.
        size: the size of the font in points.
        every: whether a label for which there is no such place is drawn nevertheless.

    Raises:
        BackendError: textalloc is not installed.
    """
    points = list(points)
    named, marks = [each for each in points if each[2]], [*zip(*points, strict=True)][:2]
    axes.figure.draw_without_rendering()
    if named:
        own = NEAR | LINE | {"textsize": size, "draw_all": every}
        with contextlib.redirect_stdout(None):  # where it tells that no label has a place
            optional("textalloc").allocate(axes, *zip(*named, strict=True), None, *marks, **own)


def new_figure(inches: tuple[float, float], dots: int) -> Any:
    """An empty figure on the Agg canvas, of a size in inches, with so many dots per inch.

    Raises:
        BackendError: matplotlib is not installed.
    """
    figure = optional("matplotlib.figure").Figure(figsize=inches, dpi=dots, layout="constrained")
    optional("matplotlib.backends.backend_agg").FigureCanvasAgg(figure)
    return figure
