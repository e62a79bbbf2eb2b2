"""A plot of two costs of every row of a sweep, drawn without a screen and without matplotlib's global state."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import TensornetError, optional
from ..files import whole

SUFFIXES = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
"""The formats of pictures, each with the metadata that leaves out the time of writing."""

INCHES, DOTS = (7.0, 4.6), 160
"""The width and height in inches, and the dots per inch."""

MARKS = ("o", "s", "D", "^", "v", "P", "*", "X")
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", "#000000")
"""Colours that colour-blind readers can distinguish (after Okabe and Ito, 2008)."""

PLACES = tuple(itertools.product((5.0, 8.0, 12.0, 18.0, 25.0, 35.0), (-45, 45, -135, 135, 0, 180, -90, 90)))
"""Places of a label: its distance in points, and its direction in degrees. The nearest are first, at equal distance
those where no front passes."""

NEAR = 8.0
LEADER = {"arrowstyle": "-", "color": "0.6", "linewidth": 0.5, "shrinkA": 0.0}
"""A line leads from a mark to a label that is farther away than this."""


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
    """Labels points, each in the nearest place where it covers least of marks, labels, legend and the frame.

    Args:
        axes: the axes.
        points: x, y and the label of each.
        size: the size of the font in points.
        every: whether a label that covers something is drawn nevertheless.
    """
    points = list(points)
    axes.figure.draw_without_rendering()
    inside, far = axes.get_window_extent(), 1e4
    marks = axes.transData.transform([(x, y) for x, y, _ in points])
    taken = [*np.hstack([marks - 1.4 * size, marks + 1.4 * size])]
    taken += [legend.get_window_extent().extents] if (legend := axes.get_legend()) else []
    taken += [(at, -far, at + far, far) for at in (inside.x1, inside.x0 - far)]
    taken += [(-far, at, far, at + far) for at in (inside.y1, inside.y0 - far)]
    for x, y, label in points:
        text = axes.annotate(label, (x, y), (0, 0), textcoords="offset points", fontsize=size, va="center")
        covers = [_covered(text, place, np.array(taken)) for place in PLACES]
        least = min(covers)
        place = PLACES[covers.index(least)]
        _covered(text, place, np.array(taken))
        if every or not least:
            taken.append(text.get_window_extent().extents)
            text.set_in_layout(False)  # labels do not shrink the axes
            if place[0] > NEAR:
                at = text.get_position()
                axes.annotate("", (x, y), at, textcoords="offset points", arrowprops=LEADER, in_layout=False)
        else:
            text.remove()


def _covered(text: Any, place: tuple[float, float], others: Any) -> float:
    """Moves a label to a place. Returns the area that it covers of boxes: left, lower, right and upper ends."""
    distance, angle = place
    right, up = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    side = "center" if abs(right) < 1e-6 else "left" if right > 0 else "right"
    text.set(position=(distance * right, distance * up), horizontalalignment=side)
    box = text.get_window_extent().extents
    sides = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
    return float(sides.clip(min=0.0).prod(-1).sum().round(3))


def new_figure(inches: tuple[float, float], dots: int) -> Any:
    """An empty figure on the Agg canvas, of a size in inches, with so many dots per inch.

    Raises:
        BackendError: matplotlib is not installed.
    """
    figure = optional("matplotlib.figure").Figure(figsize=inches, dpi=dots, layout="constrained")
    optional("matplotlib.backends.backend_agg").FigureCanvasAgg(figure)
    return figure
