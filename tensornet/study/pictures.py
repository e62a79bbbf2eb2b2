"""The pictures of a study, drawn without a screen and without matplotlib's global state."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from .libraries import library
from .results import Epoch, RunResult

__all__ = ["curves_picture", "pareto_front", "pareto_picture", "training_picture"]


def pareto_front(results: Sequence[RunResult]) -> list[RunResult]:
    """The results that no other beats: each is more accurate than all with as few parameters."""
    front: list[RunResult] = []
    for result in sorted(results, key=lambda each: (each.parameters, -each.test_top1)):
        if not front or result.test_top1 > front[-1].test_top1:
            front.append(result)
    return front


def pareto_picture(results: Sequence[RunResult]) -> bytes:
    """Test top-1 (percent) against parameters (log scale), the Pareto front drawn, as PNG."""
    figure = _figure(8, 5)
    axes = figure.add_subplot()
    front = pareto_front(results)
    axes.step(
        [each.parameters for each in front],
        [each.test_top1 for each in front],
        where="post",
        color="0.6",
        zorder=1,
        label="Pareto front",
    )
    for kind, colour in (("dense", "tab:blue"), ("tensorized", "tab:orange")):
        chosen = [each for each in results if _kind(each) == kind]
        if chosen:
            counts, accuracies = [each.parameters for each in chosen], [each.test_top1 for each in chosen]
            axes.scatter(counts, accuracies, color=colour, zorder=2, label=kind)
    _log_axis(axes)
    axes.margins(x=0.15, y=0.12)
    _label(axes, results)
    axes.set_xlabel("parameters")
    axes.set_ylabel("test top-1 (%)")
    axes.grid(visible=True, which="both", alpha=0.2)
    axes.legend(loc="lower right")
    return _png(figure)


def curves_picture(results: Sequence[RunResult]) -> bytes:
    """Test top-1 (percent) by epoch, a line for each run, as PNG."""
    figure = _figure(8, 5)
    axes = figure.add_subplot()
    colours = library("matplotlib").colormaps["tab10"]
    for number, result in enumerate(results):
        accuracies = [epoch.test_top1 for epoch in result.history]
        axes.plot(
            range(1, len(accuracies) + 1),
            accuracies,
            color=colours(number % 10),
            linestyle="-" if number < 10 else "--",
            marker="o" if len(accuracies) == 1 else None,
            linewidth=1.2,
            label=result.name,
        )
    _from_settled(axes, [epoch.test_top1 for each in results for epoch in _settled(each)])
    axes.set_xlabel("epoch")
    axes.set_ylabel("test top-1 (%)")
    axes.grid(visible=True, alpha=0.2)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    return _png(figure)


def training_picture(results: Sequence[RunResult]) -> bytes:
    """A panel for each run: top-1 (percent) on train and test by epoch, as PNG."""
    columns = min(3, len(results))
    rows = -(-len(results) // columns)
    figure = _figure(4 * columns, 2.8 * rows)
    for number, result in enumerate(results, 1):
        axes = figure.add_subplot(rows, columns, number)
        epochs = range(1, len(result.history) + 1)
        mark = "o" if len(epochs) == 1 else None
        axes.plot(epochs, [each.train_top1 for each in result.history], label="train", marker=mark)
        axes.plot(epochs, [each.test_top1 for each in result.history], label="test", marker=mark)
        _from_settled(axes, [top1 for each in _settled(result) for top1 in (each.train_top1, each.test_top1)])
        axes.set_title(f"{result.name}, {result.parameters:,} parameters", fontsize=9)
        axes.set_xlabel("epoch", fontsize=8)
        axes.set_ylabel("top-1 (%)", fontsize=8)
        axes.tick_params(labelsize=8)
        axes.grid(visible=True, alpha=0.2)
        axes.legend(loc="lower right", fontsize=8)
    return _png(figure)


def _settled(result: RunResult) -> Sequence[Epoch]:
    """The epochs after the first fifth."""
    return result.history[len(result.history) // 5 :]


def _from_settled(axes: Any, accuracies: Sequence[float]) -> None:
    """Limits for these: the first epochs, near chance, would press what matters into the top of the picture."""
    axes.set_ylim(max(0.0, min(accuracies) - 3.0), 100.5)
    axes.xaxis.get_major_locator().set_params(integer=True)


def _kind(result: RunResult) -> str:
    return "dense" if result.name.startswith(("dense", "swin")) else "tensorized"


def _log_axis(axes: Any) -> None:
    """A logarithmic x axis with numbers written out: 200, 500, 1,000."""
    ticker = library("matplotlib.ticker")
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(ticker.StrMethodFormatter("{x:,.0f}"))
    axes.xaxis.set_minor_locator(ticker.NullLocator())


def _label(axes: Any, results: Sequence[RunResult]) -> None:
    """Names the points, each label on the first side of its point where it covers no other."""
    figure = axes.figure
    renderer = figure.canvas.get_renderer()
    figure.canvas.draw()
    taken = [_around(axes.transData.transform((each.parameters, each.test_top1))) for each in results]
    for result in results:
        point = (result.parameters, result.test_top1)
        for offset, horizontal, vertical in _SIDES:
            text = axes.annotate(
                result.name, point, offset, textcoords="offset points", ha=horizontal, va=vertical, fontsize=8
            )
            box = text.get_window_extent(renderer)
            if not any(box.overlaps(other) for other in taken):
                break
            if (offset, horizontal, vertical) != _SIDES[-1]:
                text.remove()
        taken.append(box)


_SIDES = (
    ((6, -8), "left", "center"),
    ((6, 8), "left", "center"),
    ((-6, -8), "right", "center"),
    ((-6, 8), "right", "center"),
    ((6, 0), "left", "center"),
    ((-6, 0), "right", "center"),
    ((0, -7), "center", "top"),
    ((0, 7), "center", "bottom"),
    ((6, -18), "left", "center"),
    ((6, 18), "left", "center"),
)
"""Where a label may stand: offset in points, alignment; below the front first, where no line runs."""


def _around(centre: Any) -> Any:
    """The box, in pixels, of the mark of a point."""
    x, y = centre
    return library("matplotlib.transforms").Bbox.from_extents(x - 6, y - 6, x + 6, y + 6)


def _figure(width: float, height: float) -> Any:
    """A figure of that size in inches on the Agg canvas."""
    figure = library("matplotlib.figure").Figure(figsize=(width, height), dpi=120, layout="constrained")
    library("matplotlib.backends.backend_agg").FigureCanvasAgg(figure)
    return figure


def _png(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()
