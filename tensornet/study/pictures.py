"""The pictures of a study, in the format of a printed paper: PNG, SVG and PDF, a column or a page wide.

They are drawn without a screen and without matplotlib's global state. The colours are those of Okabe and Ito ("Color
Universal Design", 2008), which colour-blind readers can distinguish; marks and line styles differ too.
"""

from __future__ import annotations

import functools
import io
import itertools
from dataclasses import dataclass
from typing import Any

from tensornet.sweeping.picture import COLOURS, SUFFIXES, label_points, new_figure

from .libraries import library
from .results import pareto_front
from .task import Task

FORMATS = ("png", "svg", "pdf")

COLUMN, PAGE = 3.4, 7.0
"""Inches: the width of one column of a paper, and of both columns."""

BLUE, ORANGE, GREEN, *_ = COLOURS
STYLES = tuple(itertools.product(("-", "--", ":", "-."), COLOURS))
"""Style and colour of the lines of a picture, in their order."""

MARKS = ((BLUE, "o"), (ORANGE, "s"), (GREEN, "^"))
"""Colour and mark of controls, of other rows, and of compressed ones."""

FONT, DPI = 7.0, 300
"""The size of the letters in points, and the dots per inch."""

RC = {
    **{"font.size": FONT, "axes.titlesize": FONT, "axes.linewidth": 0.6, "legend.frameon": False},
    **{"axes.grid": True, "grid.alpha": 0.25, "grid.linewidth": 0.4},
    **{"lines.linewidth": 1.0, "lines.markersize": 3.5, "errorbar.capsize": 1.5},
    **{"svg.hashsalt": "tensornet", "pdf.fonttype": 42},
}
"""The look of all pictures; the last two make the same picture the same bytes, with text that can be searched."""

COSTS = {
    "parameters": ("parameters", ""),
    "flops": ("FLOPs for one {}", ""),
    "latency_s": ("latency for one {}", "s"),
    "kept": ("kept for gradients, a mini-batch", "B"),
}
"""Column → what it is, and its unit."""


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
        """A line for each row: means over the seeds, `error`, `spread`, `label`, and the number of its kind.

        The error is that of the test, 0 as half an example. The spread is the standard deviation over the seeds; of one
        seed the standard error of the accuracy.
        """
        groups = self.runs.assign(latency_s=1e-3 * self.runs.latency_ms).groupby("name", sort=False)
        points, firsts = groups[[*COSTS, "test_top1"]].mean(), groups.first()
        share = points.test_top1 / 100.0
        points["error"] = (100.0 - points.test_top1).clip(lower=self.least)
        points["spread"] = groups.test_top1.std().fillna(100.0 * (share * (1.0 - share) / self.tested) ** 0.5)
        labels = firsts.row.replace(dict(self.task.labels))
        several = firsts.optimizer.nunique() > 1
        points["label"] = labels + (" (" + firsts.optimizer + ")" if several else "")
        points["kind"] = (~firsts.row.isin(self.task.controls)).astype(int).where(firsts.origin.isna(), 2)
        return points

    @property
    def least(self) -> float:
        """The least error that is drawn, in percent: half a test example."""
        return 50.0 / self.tested

    @functools.cached_property
    def epochs(self) -> Any:
        """Mean and deviation over the seeds of the error by epoch, by name, part and epoch."""
        entries = [(run.name, n, each) for run in self.runs.result for n, each in enumerate(run.history, 1)]
        lines = [(name, n, 100.0 - each.train_top1, 100.0 - each.test_top1) for name, n, each in entries]
        frame = library("pandas").DataFrame(lines, columns=["name", "epoch", "train", "test"])
        return frame.groupby(["name", "epoch"], sort=False).agg(["mean", "std"])


def draw(task: Task, runs: Any, tested: int) -> dict[str, bytes]:
    """Draws every picture in every format: name of the file → its bytes.

    Args:
        task: the task of the study.
        runs: a line for each run, of `runs_of`.
        tested: the number of test examples.
    """
    shown = _Shown(task, runs, tested)
    with library("matplotlib").rc_context(RC):
        saved = {name: _saved(picture(shown)) for name, picture in PICTURES.items()}
    return {f"{name}.{kind}": each[kind] for name, each in saved.items() for kind in FORMATS}


# ---------------------------------------------------------------------------- each picture


def _costs(shown: _Shown) -> Any:
    """Test error against each cost that is known, with the Pareto front: two panels in a row, with the same axis."""
    points, costs = shown.points, [each for each in COSTS if shown.points[each].notna().all()]
    figure, panels = _figure(PAGE, 2.4 * len(costs) / 2, len(costs) // 2, 2, sharey=True)
    for axes, cost in zip(panels.flat, costs, strict=True):
        _against(axes, shown, cost)
    _by_error(panels[0][0], "test error (%)")
    for axes in panels[:, 1:].flat:
        axes.set_ylabel("")
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
    for axes, cost in zip(panels.flat, costs, strict=True):
        label_points(axes, zip(points[cost], points.error, points.label, strict=True), FONT - 1, every=True)
    return figure


def _curves(shown: _Shown) -> Any:
    """Test error by epoch, a line for each row: a page wide, with the legend at the right."""
    figure, ((axes,),) = _figure(PAGE, max(2.6, 0.16 * len(shown.points)))
    for (name, label), style in zip(shown.points.label.items(), itertools.cycle(STYLES), strict=False):
        _line(axes, shown, name, "test", label, *style)
    _by_epoch(axes, "test error (%)")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _training(shown: _Shown) -> Any:
    """A panel for each row that was trained, all with the same axes: error on train and test by epoch."""
    trained = shown.points[shown.points.index.isin(shown.epochs.index.get_level_values("name"))]
    count, columns = max(1, len(trained)), min(3, max(1, len(trained)))
    lines = -(-count // columns)
    shared = {"sharex": True, "sharey": True}
    figure, panels = _figure(COLUMN if columns == 1 else PAGE, 1.0 + 1.5 * lines, lines, columns, **shared)
    for axes, (name, point) in zip(panels.flat, trained.iterrows(), strict=False):
        _line(axes, shown, name, "train", "train", "--", BLUE)
        _line(axes, shown, name, "test", "test", "-", ORANGE)
        axes.set_title(f"{point.label}: {round(point.parameters):,} parameters")
    for number, axes in enumerate(panels.flat):
        _by_epoch(axes, "error (%)")
        axes.label_outer()
        axes.set_axis_off() if number >= count else None
        if count - columns <= number < count:  # the last of each column
            axes.tick_params(labelbottom=True)
            axes.set_xlabel("epoch")
    panels[0][0].legend(loc="upper right")
    return figure


PICTURES = {"costs": _costs, "curves": _curves, "training": _training}
"""Name of the file → the function that draws it."""


# ---------------------------------------------------------------------------- their parts


def _against(axes: Any, shown: _Shown, cost: str) -> None:
    """Draws the test error against a cost on logarithmic axes, with its spread, and the Pareto front."""
    points, (title, unit) = shown.points, COSTS[cost]
    front = pareto_front(points, cost)
    style = {"color": "0.6", "linewidth": 0.8, "zorder": 1, "label": "Pareto front"}
    axes.step(front[cost], front.error, where="post", **style)
    for number, kind in enumerate((*shown.task.kinds, "compressed")):
        rows, (colour, mark) = points[points.kind == number], MARKS[number]
        ends = [
            (rows.error - rows.spread).clip(lower=shown.least),
            (rows.error + rows.spread).clip(upper=100.0),
        ]
        look = {"fmt": mark, "color": colour, "label": kind, "zorder": 2, "elinewidth": 0.8}
        if len(rows):
            axes.errorbar(rows[cost], rows.error, [rows.error - ends[0], ends[1] - rows.error], **look)
    _log_axis(axes, points[cost], unit)
    axes.set_xlabel(title.format(shown.task.example))


def _log_axis(axes: Any, values: Any, unit: str) -> None:
    """Sets a logarithmic x axis around these values, with few tick labels: 500, 1 k, 20 M; and a place for 0."""
    ticker, positive = library("matplotlib.ticker"), values[values > 0]
    least, most = (positive.min() / 1.7, positive.max() * 2.2) if len(positive) else (0.5, 2.0)
    axes.set_xscale("symlog", linthresh=least, linscale=0.2)  # logarithmic from the least value on
    axes.set_xlim(-0.3 * least if len(positive) < len(values) else least, most)
    subs = (1, 2, 5) if most < 100 * least else (1,)
    locator = ticker.SymmetricalLogLocator(axes.xaxis.get_transform(), subs)
    axes.xaxis.set(major_locator=locator, minor_locator=ticker.NullLocator())
    axes.xaxis.set_major_formatter(ticker.EngFormatter(unit))


def _line(axes: Any, shown: _Shown, name: Any, part: str, label: str, style: str, colour: str) -> None:
    """Draws the mean error by epoch, in a band of one deviation on each side; 0 as half an example."""
    if name not in shown.epochs.index.get_level_values("name"):
        return
    errors = shown.epochs.loc[name][part]
    mean, mark = errors["mean"].clip(lower=shown.least), "o" if len(errors) == 1 else None
    axes.plot(errors.index, mean, style, color=colour, marker=mark, label=label)
    if errors["std"].notna().all():
        low, high = (mean - errors["std"]).clip(lower=shown.least), (mean + errors["std"]).clip(upper=100.0)
        axes.fill_between(errors.index, low, high, color=colour, alpha=0.2, linewidth=0)


def _by_error(axes: Any, title: str) -> None:
    """Sets a logarithmic axis of errors."""
    ticker = library("matplotlib.ticker")
    axes.set_yscale("log")
    axes.set_ylim(top=min(100.0, axes.get_ylim()[1]))
    low, high = axes.get_ylim()
    subs = (1, 2, 5) if high > 5 * low else (1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9)
    axes.yaxis.set(major_locator=ticker.LogLocator(subs=subs), minor_locator=ticker.NullLocator())
    axes.yaxis.set_major_formatter(ticker.StrMethodFormatter("{x:g}"))
    axes.set_ylabel(title)


def _by_epoch(axes: Any, title: str) -> None:
    """Sets an axis of errors, and one of whole epochs."""
    _by_error(axes, title)
    axes.xaxis.set_major_locator(library("matplotlib.ticker").MaxNLocator(integer=True))
    axes.set_xlabel("epoch")


def _figure(width: float, height: float, lines: int = 1, columns: int = 1, **shared: bool) -> tuple[Any, Any]:
    """A figure of this size in inches, on an Agg canvas, and its panels by line and column."""
    figure = new_figure((width, height), DPI)
    return figure, figure.subplots(lines, columns, squeeze=False, **shared)


def _saved(figure: Any) -> dict[str, bytes]:
    """The figure in each format, without dates: always the same bytes."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # the layout is computed, once for all formats
    found = {kind: io.BytesIO() for kind in FORMATS}
    for kind, buffer in found.items():
        figure.savefig(buffer, format=kind, metadata=SUFFIXES[f".{kind}"])
    return {kind: buffer.getvalue() for kind, buffer in found.items()}
