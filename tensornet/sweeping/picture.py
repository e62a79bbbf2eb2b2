"""A plot of two costs of every row of a sweep, drawn without a screen and without matplotlib's global state."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import BackendError, TensornetError
from ..files import whole

__all__ = ["SUFFIXES", "Point", "drawn", "front", "label_points", "new_figure"]

SUFFIXES = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
"""The formats of pictures, each with the metadata that leaves out the time of writing."""

INCHES, DOTS = (7.0, 4.6), 160
"""The width and height in inches, and the dots per inch."""

MARKS = "osD^vP*X"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", "#000000")
"""Colours that colour-blind readers can distinguish (after Okabe and Ito, 2008)."""

BESIDE = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)}
"""The position of the legend."""

PLACES = tuple(
    (distance * math.cos(math.radians(angle)), distance * math.sin(math.radians(angle)))
    for distance in (5.0, 8.0, 12.0, 18.0, 25.0)
    for angle in (-45, 45, -135, 135, 0, 180, -90, 90)
)
"""Offsets of a label in points: the nearest first, at equal distance those where no front passes."""


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
    figure = new_figure(INCHES, DOTS)
    axes = figure.add_subplot()
    _draw(axes, points)
    axes.margins(0.1)
    for letter, (label, unit) in costs.items():
        values = [getattr(each, letter) for each in points]
        axes.set(**{f"{letter}scale": "log" if min(values) > 0 else "linear", f"{letter}label": label})
        _write_out(getattr(axes, f"{letter}axis"), unit, values)
    axes.set_title(title, fontsize=9, loc="left")
    axes.grid(visible=True, which="major", alpha=0.25)
    axes.legend(title=groups or None, fontsize=8, title_fontsize=8, frameon=False, **BESIDE)
    best = front(points)
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


def _draw(axes: Any, points: Sequence[Point]) -> None:
    """Draws the points by group, and a line through the Pareto front."""
    x, y, *_ = zip(*front(points), strict=True)
    axes.step(x, y, where="post", color="0.7", zorder=1, label="best")
    for number, group in enumerate(dict.fromkeys(each.group for each in points)):
        x, y, *_ = zip(*sorted(each for each in points if each.group == group), strict=True)
        colour, mark = COLOURS[number % len(COLOURS)], MARKS[number % len(MARKS)]
        axes.plot(x, y, mark, color=colour, markersize=5, zorder=2, label=group or None)


def _write_out(axis: Any, unit: str | None, values: Sequence[float]) -> None:
    """Labels an axis with numbers, prefixes and units.

    A short logarithmic axis, of less than three powers of ten, has labels between these too.
    """
    from matplotlib import ticker

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
    renderer, inside, far = axes.figure.canvas.get_renderer(), axes.get_window_extent(), 1e4
    marks = axes.transData.transform([(x, y) for x, y, _ in points])
    reach = 1.4 * size
    taken: list[Any] = [(x - reach, y - reach, x + reach, y + reach) for x, y in marks]
    taken += [legend.get_window_extent(renderer).extents] if (legend := axes.get_legend()) else []
    taken += [(at, -far, at + far, far) for at in (inside.x1, inside.x0 - far)]
    taken += [(-far, at, far, at + far) for at in (inside.y1, inside.y0 - far)]
    look: dict[str, Any] = {"textcoords": "offset points", "fontsize": size, "va": "center"}
    for x, y, label in points:
        texts = [axes.annotate(label, (x, y), place, ha=_side(place[0]), **look) for place in PLACES]
        boxes = np.array([text.get_window_extent(renderer).extents for text in texts])
        covers = _common(boxes, np.array(taken)).sum(1)
        best = int(covers.argmin())
        if every or not covers[best]:
            taken.append(boxes[best])
            texts.pop(best).set_in_layout(False)  # labels do not shrink the axes
        for text in texts:
            text.remove()


def _side(offset: float) -> str:
    """The horizontal alignment, by which a label extends away from its point."""
    return "center" if abs(offset) < 1e-6 else "left" if offset > 0 else "right"


def _common(boxes: Any, others: Any) -> Any:
    """The area that each box has in common with each other one; a box is its left, lower, right and upper end."""
    boxes = boxes[:, None]
    sides = np.minimum(boxes[..., 2:], others[:, 2:]) - np.maximum(boxes[..., :2], others[:, :2])
    return sides.clip(min=0.0).prod(-1).round(3)


def new_figure(inches: tuple[float, float], dots: int) -> Any:
    """An empty figure on the Agg canvas, of a size in inches, with so many dots per inch.

    Raises:
        BackendError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        fix = "pip install matplotlib"
        raise BackendError(f"matplotlib cannot be imported: {error}", fix=fix) from None
    figure = Figure(figsize=inches, dpi=dots, layout="constrained")
    FigureCanvasAgg(figure)
    return figure
