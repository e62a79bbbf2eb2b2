"""The pictures of a study, in the format of a printed paper: PNG, SVG and PDF, a column or a page wide.

They are drawn without a screen and without matplotlib's global state. The colours are those of Okabe and Ito ("Color
Universal Design", 2008), which colour-blind readers can distinguish; marks and line styles differ too.
"""

from __future__ import annotations

import functools
import io
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tensornet.sweeping.picture import COLOURS, SUFFIXES, label_points, new_figure

from .libraries import library
from .results import pareto_front
from .task import Task

__all__ = ["FORMATS", "PICTURES", "draw"]

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
        """A line for each row: means over the seeds, `spread`, `label`, and the number of its kind.

        The spread is the standard deviation over the seeds; of one seed the standard error of the accuracy.
        """
        groups = self.runs.assign(latency_s=1e-3 * self.runs.latency_ms).groupby("name", sort=False)
        points, firsts = groups[[*COSTS, "test_top1"]].mean(), groups.first()
        share = points.test_top1 / 100.0
        points["spread"] = groups.test_top1.std().fillna(100.0 * (share * (1.0 - share) / self.tested) ** 0.5)
        labels = firsts.row.replace(dict(self.task.labels))
        several = firsts.optimizer.nunique() > 1
        points["label"] = labels + (" (" + firsts.optimizer + ")" if several else "")
        points["kind"] = (~firsts.row.isin(self.task.controls)).astype(int).where(firsts.origin.isna(), 2)
        return points

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


def _pareto(shown: _Shown, costs: tuple[str, ...] = ("parameters",)) -> Any:
    """Test top-1 against costs, with the Pareto front: a column wide, or two panels in a row with the same axis."""
    lines, columns = -(-len(costs) // 2), min(2, len(costs))
    width, height = (COLUMN, 2.6) if columns == 1 else (PAGE, 2.4 * lines)
    figure, panels = _figure(width, height, lines, columns, sharey=True)
    for axes, cost in zip(panels.flat, costs, strict=True):
        _against(axes, shown, cost)
    for axes in panels[:, 1:].flat:
        axes.set_ylabel("")
    panels[0][0].legend(loc="lower right")
    for axes, cost in zip(panels.flat, costs, strict=True):
        named = zip(shown.points[cost], shown.points.test_top1, shown.points.label, strict=True)
        label_points(axes, named, FONT - 1, every=True)
    return figure


def _costs(shown: _Shown) -> Any:
    """Test top-1 against each cost that is known: two of them, or all four."""
    return _pareto(shown, tuple(each for each in COSTS if shown.points[each].notna().all()))


def _curves(shown: _Shown) -> Any:
    """Test error by epoch, a line for each row: a page wide, with the legend at the right."""
    figure, ((axes,),) = _figure(PAGE, max(2.6, 0.16 * len(shown.points)))
    for (name, label), style in zip(shown.points.label.items(), itertools.cycle(STYLES), strict=False):
        _line(axes, shown, name, "test", label, *style)
    _by_epoch(axes, "test error (%)")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _training(shown: _Shown) -> Any:
    """A panel for each row, all with the same axes: error on train and test by epoch."""
    count, columns = len(shown.points), min(3, len(shown.points))
    lines = -(-count // columns)
    shared = {"sharex": True, "sharey": True}
    figure, panels = _figure(COLUMN if columns == 1 else PAGE, 1.0 + 1.5 * lines, lines, columns, **shared)
    for axes, (name, point) in zip(panels.flat, shown.points.iterrows(), strict=False):
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


PICTURES: dict[str, Callable[[_Shown], Any]] = {"pareto": _pareto, "costs": _costs, "curves": _curves}
PICTURES |= {"training": _training}
"""Name of the file → the function that draws it."""


# ---------------------------------------------------------------------------- their parts


def _against(axes: Any, shown: _Shown, cost: str) -> None:
    """Draws test top-1 against a cost on a logarithmic axis, with its spread, and the Pareto front."""
    points, (title, unit) = shown.points, COSTS[cost]
    front = pareto_front(points, cost)
    style = {"color": "0.6", "linewidth": 0.8, "zorder": 1, "label": "Pareto front"}
    axes.step(front[cost], front.test_top1, where="post", **style)
    for number, kind in enumerate((*shown.task.kinds, "compressed")):
        rows, (colour, mark) = points[points.kind == number], MARKS[number]
        spread = [rows.spread.clip(upper=rows.test_top1), rows.spread.clip(upper=100.0 - rows.test_top1)]
        look = {"fmt": mark, "color": colour, "label": kind, "zorder": 2, "clip_on": False, "elinewidth": 0.8}
        if len(rows):
            axes.errorbar(rows[cost], rows.test_top1, spread, **look)
    _log_axis(axes, points[cost], unit)
    low, high = (points.test_top1 - points.spread).min(), (points.test_top1 + points.spread).max()
    margin = max(1.0, 0.15 * (high - low))
    limits = (max(0.0, low - margin), min(100.0, high + margin))
    axes.set(ylim=limits, xlabel=title.format(shown.task.example), ylabel="test top-1 (%)")


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
    errors, least = shown.epochs.loc[name][part], 50.0 / shown.tested
    mean, mark = errors["mean"].clip(lower=least), "o" if len(errors) == 1 else None
    axes.plot(errors.index, mean, style, color=colour, marker=mark, label=label)
    if errors["std"].notna().all():
        low, high = (mean - errors["std"]).clip(lower=least), (mean + errors["std"]).clip(upper=100.0)
        axes.fill_between(errors.index, low, high, color=colour, alpha=0.2, linewidth=0)


def _by_epoch(axes: Any, title: str) -> None:
    """Sets a logarithmic axis of errors, and one of whole epochs."""
    ticker = library("matplotlib.ticker")
    axes.set_yscale("log")
    axes.set_ylim(top=min(100.0, axes.get_ylim()[1]))
    axes.yaxis.set(major_locator=ticker.LogLocator(subs=(1, 2, 5)), minor_locator=ticker.NullLocator())
    axes.yaxis.set_major_formatter(ticker.StrMethodFormatter("{x:g}"))
    axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    axes.set(xlabel="epoch", ylabel=title)


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
