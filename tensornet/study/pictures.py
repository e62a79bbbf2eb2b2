"""The pictures of a study, in the format of a printed paper: PNG, SVG and PDF, a column or a page wide.

They are drawn without a screen and without matplotlib's global state. The colours are those of Okabe and Ito ("Color
Universal Design", 2008), which colour-blind readers can distinguish; marks and line styles differ too.
"""

from __future__ import annotations

import functools
import io
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tensornet.sweeping.picture import SUFFIXES, label_points, new_figure

from .libraries import library
from .results import epochs_of, pareto_front
from .task import Task

__all__ = ["FORMATS", "PICTURES", "draw"]

FORMATS = ("png", "svg", "pdf")

COLUMN, PAGE = 3.4, 7.0
"""Inches: the width of one column of a paper, and of both columns."""

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#999999"
COLOURS = (BLUE, ORANGE, GREEN, "#CC79A7", "#56B4E9", "#E69F00", "#000000")
LINES = ("-", "--", ":", "-.")
MARKS = ((BLUE, "o"), (ORANGE, "s"), (GREEN, "^"))
"""Colour and mark of controls, of other rows, and of compressed ones."""

FONT = 7.0
"""Points."""

SCALES = {"latency_ms": 1e-3}
"""Column → the factor to the unit of its axis."""

DPI = 300


@dataclass(frozen=True)
class _Shown:
    """The contents of a picture.

    Attributes:
        task: the task of the study.
        runs: a line for each run.
        tested: the number of test examples.
    """

    task: Task
    runs: Any
    tested: int

    @functools.cached_property
    def points(self) -> Any:
        """A line for each row: means over the seeds, `spread`, `label`, and the number of its kind.

        The spread is the standard deviation over the seeds; of one seed the standard error of the accuracy.
        """
        groups = self.runs.groupby("name", sort=False)
        figures = ["parameters", "flops", "latency_ms", "kept", "test_top1", "compressed_top1"]
        points = groups[figures].mean()
        share = points.test_top1 / 100.0
        error = 100.0 * (share * (1.0 - share) / self.tested) ** 0.5
        points["spread"] = groups.test_top1.std().fillna(error)
        firsts = groups.first()
        several = firsts.optimizer.nunique() > 1
        points["label"] = firsts.row.map(self.task.label) + (" (" + firsts.optimizer + ")" if several else "")
        points["kind"] = (~firsts.row.isin(self.task.controls)).astype(int).where(firsts.origin.isna(), 2)
        return points

    @functools.cached_property
    def epochs(self) -> Any:
        """Mean and deviation over the seeds of the error by epoch, by name, part and epoch."""
        epochs = epochs_of(self.runs)
        errors = {part: 100.0 - epochs[f"{part}_top1"] for part in ("train", "test")}
        grouped = epochs.assign(**errors).groupby(["name", "epoch"], sort=False)
        return grouped[["train", "test"]].agg(["mean", "std"])


def draw(task: Task, runs: Any, tested: int) -> dict[str, bytes]:
    """Draws every picture in every format: name of the file → its bytes.

    Args:
        task: the task of the study.
        runs: a line for each run, of `runs_of`.
        tested: the number of test examples.
    """
    # rows that were not trained at all may be far below; they have a picture of their own
    trained = runs[[bool(each.history) for each in runs.result]]
    usual, whole = _Shown(task, trained if len(trained) else runs, tested), _Shown(task, runs, tested)
    rc = {"font.size": FONT, "svg.hashsalt": "tensornet", "pdf.fonttype": 42, "axes.linewidth": 0.6}
    contents, made = {"compression": whole}, runs.origin.notna().any()
    with library("matplotlib").rc_context(rc):
        return {
            f"{name}.{kind}": content
            for name in PICTURES
            if made or name != "compression"
            for kind, content in _saved(PICTURES[name](contents.get(name, usual))).items()
        }


# ---------------------------------------------------------------------------- each picture


def _pareto(shown: _Shown) -> Any:
    """Test top-1 against parameters, with the Pareto front: a column wide."""
    figure, ((axes,),) = _figure(COLUMN, 2.6)
    _against(axes, shown, "parameters", "parameters")
    axes.legend(loc="lower right", frameon=False)
    _label(axes, shown.points, "parameters")
    return figure


def _costs(shown: _Shown) -> Any:
    """Test top-1 against each cost: a page wide, two panels in a row, with a shared accuracy axis."""
    costs = {
        "parameters": ("parameters", ""),
        "flops": (f"FLOPs for one {shown.task.example}", ""),
        "latency_ms": (f"latency for one {shown.task.example}", "s"),
        "kept": ("kept for gradients, a mini-batch", "B"),
    }
    known = [each for each in costs if shown.points[each].notna().all()]
    figure, panels = _figure(PAGE, 1.2 * len(known), len(known) // 2, 2, sharey=True)
    for axes, cost in zip(panels.flat, known, strict=True):
        _against(axes, shown, cost, *costs[cost])
    for axes in panels[:, 1]:
        axes.set_ylabel("")
    panels[0][0].legend(loc="lower right", frameon=False)
    for axes, cost in zip(panels.flat, known, strict=True):
        _label(axes, shown.points, cost)
    return figure


def _compression(shown: _Shown) -> Any:
    """Test top-1 of all rows, for compressed ones before and after fine-tuning: a column wide."""
    figure, ((axes,),) = _figure(COLUMN, 2.6)
    _against(axes, shown, "parameters", "parameters")
    made = shown.points[shown.points.kind == 2]
    axes.vlines(made.parameters, made.compressed_top1, made.test_top1, GREEN, ":", linewidth=0.8, zorder=1)
    style = {"color": GREEN, "markerfacecolor": "white", "markersize": 3.5, "clip_on": False}
    axes.plot(made.parameters, made.compressed_top1, "^", **style, label="not fine-tuned", zorder=3)
    low = min(made.compressed_top1.min(), axes.get_ylim()[0] + 1.0)
    axes.set_ylim(max(0.0, low - 1.0))
    axes.legend(loc="best", frameon=False)
    _label(axes, shown.points, "parameters")
    return figure


def _curves(shown: _Shown) -> Any:
    """Test error by epoch, a line for each row: a page wide, with the legend at the right."""
    figure, ((axes,),) = _figure(PAGE, max(2.6, 0.16 * len(shown.points)))
    styles = itertools.product(LINES, COLOURS)
    rows = shown.points.label.items()
    for (name, label), (line, colour) in zip(rows, itertools.cycle(styles), strict=False):
        _line(axes, shown, name, "test", label, colour, line)
    _by_epoch(axes, "test error (%)")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    return figure


def _training(shown: _Shown) -> Any:
    """A panel for each row, all with the same axes: error on train and test by epoch."""
    count = len(shown.points)
    columns = min(3, count)
    lines = -(-count // columns)
    width = COLUMN if columns == 1 else PAGE
    figure, panels = _figure(width, 1.0 + 1.5 * lines, lines, columns, sharex=True, sharey=True)
    for axes, (name, point) in zip(panels.flat, shown.points.iterrows(), strict=False):
        _line(axes, shown, name, "train", "train", BLUE, "--")
        _line(axes, shown, name, "test", "test", ORANGE, "-")
        axes.set_title(f"{point.label}: {round(point.parameters):,} parameters", fontsize=FONT)
    for axes in panels.flat[:count]:
        _by_epoch(axes, "error (%)")
        axes.label_outer()
    for axes in panels.flat[count:]:
        axes.set_axis_off()
    for axes in panels.flat[count - columns : count]:  # the last of each column
        axes.tick_params(labelbottom=True)
        axes.set_xlabel("epoch")
    panels[0][0].legend(loc="upper right", frameon=False)
    return figure


PICTURES: dict[str, Callable[[_Shown], Any]] = {"pareto": _pareto, "costs": _costs, "curves": _curves}
PICTURES |= {"training": _training, "compression": _compression}
"""Name of the file → the function that draws it; the last is drawn only if a row is compressed."""


# ---------------------------------------------------------------------------- their parts


def _against(axes: Any, shown: _Shown, cost: str, title: str, unit: str = "") -> None:
    """Draws test top-1 against a cost on a logarithmic axis, with its spread, and the Pareto front."""
    points, scale = shown.points, SCALES.get(cost, 1.0)
    front = pareto_front(points, cost)
    style = {"color": GREY, "linewidth": 0.8, "zorder": 1, "label": "Pareto front"}
    axes.step(front[cost] * scale, front.test_top1, where="post", **style)
    for number, kind in enumerate((*shown.task.kinds, "compressed")):
        rows, (colour, mark) = points[points.kind == number], MARKS[number]
        spread = [rows.spread.clip(upper=rows.test_top1), rows.spread.clip(upper=100.0 - rows.test_top1)]
        look = {"fmt": mark, "color": colour, "label": kind, "zorder": 2, "clip_on": False}
        if len(rows):
            sizes = {"markersize": 3.5, "elinewidth": 0.8, "capsize": 1.5}
            axes.errorbar(rows[cost] * scale, rows.test_top1, spread, **look, **sizes)
    _log_axis(axes, points[cost] * scale, unit)
    low, high = (points.test_top1 - points.spread).min(), (points.test_top1 + points.spread).max()
    margin = max(1.0, 0.15 * (high - low))
    axes.set(ylim=(max(0.0, low - margin), min(100.0, high + margin)), xlabel=title, ylabel="test top-1 (%)")
    axes.grid(visible=True, alpha=0.25, linewidth=0.4)


def _log_axis(axes: Any, values: Any, unit: str) -> None:
    """Sets a logarithmic x axis around these values, with few tick labels: 500, 1 k, 20 M; and a place for 0."""
    ticker, positive = library("matplotlib.ticker"), values[values > 0]
    least, most = (positive.min() / 1.7, positive.max() * 2.2) if len(positive) else (0.5, 2.0)
    zero = len(positive) < len(values)
    axes.set_xscale("symlog", linthresh=least, linscale=0.2) if zero else axes.set_xscale("log")
    axes.set_xlim(-0.3 * least if zero else least, most)
    powers = range(math.floor(math.log10(least)), math.ceil(math.log10(most)) + 1)
    fine = [step * 10.0**power for power in powers for step in (1, 2, 5)]
    inside = [tick for tick in fine if least <= tick <= most]
    ticks = inside if len(inside) <= 6 else [tick for tick in inside if f"{tick:e}".startswith("1")]
    axes.xaxis.set_major_locator(ticker.FixedLocator([0.0] * zero + ticks))
    axes.xaxis.set_major_formatter(ticker.EngFormatter(unit))
    axes.xaxis.set_minor_locator(ticker.NullLocator())


def _line(axes: Any, shown: _Shown, name: Any, part: str, label: str, colour: str, style: str) -> None:
    """Draws the mean error by epoch, in a band of one deviation on each side; 0 as half an example."""
    if name not in shown.epochs.index.get_level_values("name"):
        return
    errors, least = shown.epochs.loc[name][part], 50.0 / shown.tested
    mark = "o" if len(errors) == 1 else None
    mean = errors["mean"].clip(lower=least)
    axes.plot(errors.index, mean, style, color=colour, marker=mark, markersize=3, linewidth=1.0, label=label)
    if errors["std"].notna().all():
        low, high = (mean - errors["std"]).clip(lower=least), (mean + errors["std"]).clip(upper=100.0)
        axes.fill_between(errors.index, low, high, color=colour, alpha=0.2, linewidth=0)


def _by_epoch(axes: Any, title: str) -> None:
    """Sets a logarithmic axis of errors, and one of whole epochs."""
    ticker = library("matplotlib.ticker")
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.set_ylim(low, min(100.0, high))
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(ticker.StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_locator(ticker.NullLocator())
    axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    axes.set(xlabel="epoch", ylabel=title)
    axes.grid(visible=True, alpha=0.25, linewidth=0.4)


def _label(axes: Any, points: Any, cost: str) -> None:
    """Labels the points."""
    named = zip(points[cost] * SCALES.get(cost, 1.0), points.test_top1, points.label, strict=True)
    label_points(axes, named, FONT - 1, every=True)


def _figure(width: float, height: float, lines: int = 1, columns: int = 1, **shared: bool) -> tuple[Any, Any]:
    """A figure of this size in inches, on an Agg canvas, and its panels by line and column."""
    figure = new_figure((width, height), DPI)
    return figure, figure.subplots(lines, columns, squeeze=False, **shared)


def _saved(figure: Any) -> dict[str, bytes]:
    """The figure in each format."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # the layout is computed, once for all formats
    found = {kind: io.BytesIO() for kind in FORMATS}
    for kind, buffer in found.items():
        figure.savefig(
            buffer, format=kind, metadata=SUFFIXES[f".{kind}"]
        )  # without dates: always the same bytes
    return {kind: buffer.getvalue() for kind, buffer in found.items()}
