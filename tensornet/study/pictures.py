"""The pictures of a study, in the format of a printed paper: PNG, SVG and PDF, a column or a page wide.

They are drawn without a screen and without matplotlib's global state. The colours are those of Okabe and Ito ("Color
Universal Design", 2008), which colour-blind readers can distinguish; marks and line styles differ too. Bars and bands
are a standard deviation over the seeds.
"""

from __future__ import annotations

import io
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from .libraries import library
from .results import Appraisal, RunResult, Summary, summaries
from .smaller import compressed
from .task import Task

__all__ = ["COMPRESSION", "FORMATS", "PICTURES", "draw", "pareto_front", "pictures_of"]

FORMATS = ("png", "svg", "pdf")

COLUMN, PAGE = 3.4, 7.0
"""Inches: the width of one column of a paper, and of both columns."""

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#999999"
COLOURS = (BLUE, ORANGE, GREEN, "#CC79A7", "#56B4E9", "#E69F00", "#000000")
LINES = ("-", "--", ":", "-.")

FONT = 7.0
"""Points."""

DPI = 300


class _Point(Protocol):
    @property
    def parameters(self) -> int: ...

    @property
    def test_top1(self) -> float: ...


Point = TypeVar("Point", bound=_Point)


def pareto_front(
    results: Sequence[Point], cost: Callable[[Point], float] = lambda each: each.parameters
) -> list[Point]:
    """The Pareto front: the results that are more accurate than all others that cost no more."""
    front: list[Point] = []
    for result in sorted(results, key=lambda each: (cost(each), -each.test_top1)):
        if not front or result.test_top1 > front[-1].test_top1:
            front.append(result)
    return front


def draw(task: Task, results: Sequence[RunResult], costs: Mapping[str, Appraisal]) -> dict[str, bytes]:
    """Draws every picture in every format: name of the file → its bytes."""
    rows = summaries(results)
    # rows that were not trained at all may be far below; they have a picture of their own
    trained = [row for row in rows if row.first.history] or rows
    shown = {name: _Shown(task, trained if name in PICTURES else rows, costs) for name in pictures_of(rows)}
    rc = {"font.size": FONT, "svg.hashsalt": "tensornet", "pdf.fonttype": 42, "axes.linewidth": 0.6}
    with library("matplotlib").rc_context(rc):
        return {
            f"{name}.{kind}": content
            for name, picture in pictures_of(rows).items()
            for kind, content in _saved(picture(shown[name])).items()
        }


@dataclass(frozen=True)
class _Shown:
    """The contents of a picture: the rows of a task, and their costs if these were measured."""

    task: Task
    rows: Sequence[Summary]
    costs: Mapping[str, Appraisal]

    def name(self, row: Summary) -> str:
        """The name of a row in a picture: its label, and the optimizer if there are several."""
        label, optimizer = self.task.label(row.first.row), row.first.recipe.optimizer
        several = len({each.first.recipe.optimizer for each in self.rows}) > 1
        return f"{label} ({optimizer})" if several else label

    def kinds(self) -> list[tuple[str, list[Summary], str, str]]:
        """The kinds of rows (controls, others, compressed) with their name, colour and mark."""
        made = compressed(self.rows)
        controls = [each for each in self.rows if each.first.row in self.task.controls and each not in made]
        others = [each for each in self.rows if each not in controls and each not in made]
        control, other = self.task.kinds
        kinds = [
            (control, controls, BLUE, "o"),
            (other, others, ORANGE, "s"),
            ("compressed", made, GREEN, "^"),
        ]
        return [kind for kind in kinds if kind[1]]


@dataclass(frozen=True)
class _Cost:
    """A cost (less is better): the title of its axis, its unit, and its value for a row."""

    title: str
    unit: str
    of: Callable[[Summary], float]


def _costs(shown: _Shown) -> list[_Cost]:
    costs = shown.costs
    found = [
        _Cost("parameters", "", lambda row: row.parameters),
        _Cost(f"FLOPs for one {shown.task.example}", "", lambda row: row.flops),
    ]
    if costs:
        latency = _Cost(
            f"latency for one {shown.task.example}", "s", lambda row: costs[row.name].latency_ms / 1e3
        )
        kept = _Cost("kept for gradients, a mini-batch", "B", lambda row: max(1, costs[row.name].kept))
        found += [latency, kept]
    return found


# ---------------------------------------------------------------------------- each picture


def _pareto(shown: _Shown) -> Any:
    """Test top-1 against parameters, with the Pareto front: a column wide."""
    figure = _figure(COLUMN, 2.6)
    axes = figure.add_subplot()
    _against(axes, shown, _costs(shown)[0])
    axes.set_ylabel("test top-1 (%)")
    axes.legend(loc="lower right", frameon=False)
    _label(axes, _points(shown, _costs(shown)[0]))
    return figure


def _all_costs(shown: _Shown) -> Any:
    """Test top-1 against each cost: a page wide, two panels in a row, with a shared accuracy axis."""
    costs = _costs(shown)
    lines = len(costs) // 2
    figure = _figure(PAGE, 2.4 * lines)
    panels = figure.subplots(lines, 2, sharey=True, squeeze=False)
    for axes, cost in zip(panels.flat, costs, strict=True):
        _against(axes, shown, cost)
    for line in panels:
        line[0].set_ylabel("test top-1 (%)")
    panels[0][0].legend(loc="lower right", frameon=False)
    for axes, cost in zip(panels.flat, costs, strict=True):
        _label(axes, _points(shown, cost))
    return figure


def _compression(shown: _Shown) -> Any:
    """Test top-1 of all rows, for compressed ones before and after fine-tuning: a column wide."""
    figure = _figure(COLUMN, 2.6)
    axes = figure.add_subplot()
    _against(axes, shown, _costs(shown)[0])
    rows = compressed(shown.rows)
    means = [statistics.fmean(each.test_top1 for each in row.compressions) for row in rows]
    for row, mean in zip(rows, means, strict=True):
        axes.plot([row.parameters] * 2, [mean, row.test_top1], ":", color=GREEN, linewidth=0.8, zorder=1)
    style = {"color": GREEN, "markerfacecolor": "white", "markersize": 3.5, "clip_on": False}
    axes.plot([row.parameters for row in rows], means, "^", **style, label="not fine-tuned", zorder=3)
    _limit(axes, [(mean, 0.0) for mean in (*means, *(row.test_top1 for row in shown.rows))], 0.15)
    axes.set_ylabel("test top-1 (%)")
    axes.legend(loc="best", frameon=False)
    return figure


def _curves(shown: _Shown) -> Any:
    """Test top-1 by epoch, a line for each row: a page wide, with the legend at the right."""
    figure = _figure(PAGE, max(2.6, 0.16 * len(shown.rows)))
    axes = figure.add_subplot()
    for number, row in enumerate(shown.rows):
        style = LINES[number // len(COLOURS) % len(LINES)]
        _line(axes, row, "test_top1", shown.name(row), COLOURS[number % len(COLOURS)], style)
    _limit(axes, [each for row in shown.rows for each in _settled(row, "test_top1")])
    _by_epoch(axes)
    axes.set_xlabel("epoch")
    axes.set_ylabel("test top-1 (%)")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    return figure


def _training(shown: _Shown) -> Any:
    """A panel for each row, all with the same axes: top-1 on train and test by epoch."""
    columns = min(3, len(shown.rows))
    lines = -(-len(shown.rows) // columns)
    figure = _figure(COLUMN if columns == 1 else PAGE, 1.0 + 1.5 * lines)
    panels = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    for axes, row in zip(panels.flat, shown.rows, strict=False):
        _line(axes, row, "train_top1", "train", BLUE, "--")
        _line(axes, row, "test_top1", "test", ORANGE, "-")
        axes.set_title(f"{shown.name(row)}: {row.parameters:,}", fontsize=FONT)
        _by_epoch(axes)
    _limit(panels[0][0], [each for row in shown.rows for part in PARTS for each in _settled(row, part)])
    for axes in panels.flat[len(shown.rows) :]:
        axes.set_axis_off()
    for axes in panels.flat[max(0, len(shown.rows) - columns) : len(shown.rows)]:  # the last of each column
        axes.tick_params(labelbottom=True)
        axes.set_xlabel("epoch")
    for line in panels:
        line[0].set_ylabel("top-1 (%)")
    panels[0][0].legend(loc="lower right", frameon=False)
    return figure


PICTURES: dict[str, Callable[[_Shown], Any]] = {
    "pareto": _pareto,
    "costs": _all_costs,
    "curves": _curves,
    "training": _training,
}
"""Name of the file → the function that draws it."""

COMPRESSION = "compression"
"""The name of the picture that exists only if a row is compressed."""


def pictures_of(rows: Sequence[Summary]) -> dict[str, Callable[[_Shown], Any]]:
    """The pictures of these rows: name of the file → the function that draws it."""
    return {**PICTURES, COMPRESSION: _compression} if compressed(rows) else PICTURES


PARTS = ("train_top1", "test_top1")


# ---------------------------------------------------------------------------- their parts


def _against(axes: Any, shown: _Shown, cost: _Cost) -> None:
    """Draws test top-1 against a cost on a logarithmic axis, and the Pareto front."""
    front = pareto_front(shown.rows, cost.of)
    axes.step(
        [cost.of(each) for each in front],
        [each.test_top1 for each in front],
        where="post",
        color=GREY,
        linewidth=0.8,
        zorder=1,
        label="Pareto front",
    )
    for kind, rows, colour, mark in shown.kinds():
        axes.errorbar(
            [cost.of(each) for each in rows],
            [each.test_top1 for each in rows],
            _beside([(each.test_top1, each.deviation("test_top1")) for each in rows]),
            fmt=mark,
            color=colour,
            markersize=3.5,
            elinewidth=0.8,
            capsize=1.5,
            zorder=2,
            label=kind,
            clip_on=False,
        )
    _log_axis(axes, [cost.of(each) for each in shown.rows], cost.unit)
    _limit(axes, [(each.test_top1, each.deviation("test_top1")) for each in shown.rows], 0.15)
    axes.set_xlabel(cost.title)
    axes.grid(visible=True, alpha=0.25, linewidth=0.4)


def _points(shown: _Shown, cost: _Cost) -> list[tuple[float, float, str]]:
    """The coordinates of each row, and its name."""
    return [(cost.of(each), each.test_top1, shown.name(each)) for each in shown.rows]


def _line(axes: Any, row: Summary, figure: str, label: str, colour: str, style: str) -> None:
    """Draws the mean by epoch, in a band of one deviation on each side."""
    curve = row.curve(figure)
    epochs = range(1, len(curve) + 1)
    means = [mean for mean, _ in curve]
    mark = "o" if len(curve) == 1 else None
    axes.plot(
        epochs,
        means,
        style,
        color=colour,
        marker=mark,
        markersize=3,
        linewidth=1.0,
        label=label,
    )
    if len(row.runs) > 1:
        below, above = _beside(curve)
        low = [mean - each for mean, each in zip(means, below, strict=True)]
        high = [mean + each for mean, each in zip(means, above, strict=True)]
        axes.fill_between(epochs, low, high, color=colour, alpha=0.2, linewidth=0)


def _beside(shares: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """The lengths of the error bars below and above the means, clipped to 0 and 100 %."""
    below = [min(mean, deviation) for mean, deviation in shares]
    return below, [min(100.0 - mean, deviation) for mean, deviation in shares]


def _settled(row: Summary, figure: str) -> Sequence[tuple[float, float]]:
    """The epochs after the first fifth; the earlier ones, near chance, would squeeze the others to the top."""
    curve = row.curve(figure)
    return curve[len(curve) // 5 :]


def _limit(axes: Any, shares: Sequence[tuple[float, float]], room: float = 0.08) -> None:
    """Sets the y limits around means and deviations in percent, within 0 and 100."""
    least = min(mean - deviation for mean, deviation in shares)
    most = max(mean + deviation for mean, deviation in shares)
    margin = max(1.0, room * (most - least))
    axes.set_ylim(max(0.0, least - margin), min(100.0, most + margin))


def _by_epoch(axes: Any) -> None:
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(visible=True, alpha=0.25, linewidth=0.4)


def _log_axis(axes: Any, values: Sequence[float], unit: str) -> None:
    """Sets a logarithmic x axis around these values, with few tick labels: 500, 1 k, 20 M."""
    ticker = library("matplotlib.ticker")
    least, most = min(values) / 1.7, max(values) * 2.2
    axes.set_xscale("log")
    axes.set_xlim(least, most)
    axes.xaxis.set_major_locator(ticker.FixedLocator(_ticks(least, most)))
    axes.xaxis.set_major_formatter(ticker.EngFormatter(unit))
    axes.xaxis.set_minor_locator(ticker.NullLocator())


def _ticks(least: float, most: float) -> list[float]:
    """The ticks in between: 1, 2 and 5 times powers of ten; only the powers if that gives more than six."""
    powers = range(math.floor(math.log10(least)), math.ceil(math.log10(most)) + 1)
    fine = [
        step * 10.0**power for power in powers for step in (1, 2, 5) if least <= step * 10.0**power <= most
    ]
    return fine if len(fine) <= 6 else [10.0**power for power in powers if least <= 10.0**power <= most]


def _label(axes: Any, points: Sequence[tuple[float, float, str]]) -> None:
    """Labels the points: each label in the nearest of the places with least overlap of marks, labels and legend."""
    figure = axes.figure
    renderer = figure.canvas.get_renderer()
    figure.draw_without_rendering()
    inside = axes.get_window_extent(renderer)
    taken = [_around(axes.transData.transform((x, y)), figure.dpi) for x, y, _ in points]
    legend = axes.get_legend()
    taken += [] if legend is None else [legend.get_window_extent(renderer)]
    for x, y, name in points:
        text = axes.annotate(name, (x, y), (0, 0), textcoords="offset points", fontsize=FONT - 1)
        text.set_in_layout(False)  # labels do not shrink the axes
        boxes = {place: _box(text, place, renderer) for place in _PLACES}
        best = min(_PLACES, key=lambda place: _overlap(boxes[place], taken, inside))
        taken.append(_box(text, best, renderer))
        if best.distance > NEAR:
            line = {"arrowstyle": "-", "color": GREY, "linewidth": 0.4, "shrinkA": 0, "shrinkB": 2}
            place = {"xytext": best.offset, "textcoords": "offset points", "ha": best.side, "va": "center"}
            axes.annotate("", (x, y), **place, arrowprops=line).set_in_layout(False)


@dataclass(frozen=True)
class _Place:
    """A candidate place for a label: its distance from the point, in points, and its angle in degrees."""

    distance: float
    angle: float

    @property
    def offset(self) -> tuple[float, float]:
        """The offset to the right and up, in points."""
        turn = math.radians(self.angle)
        return self.distance * math.cos(turn), self.distance * math.sin(turn)

    @property
    def side(self) -> str:
        """The horizontal alignment, by which the label extends away from the point."""
        right = self.offset[0]
        return "center" if abs(right) < 1e-6 else "left" if right > 0 else "right"


NEAR = 8.0
"""Points; a label farther away has a line to its mark."""

_PLACES = tuple(
    _Place(distance, angle)
    for distance in (5.0, 7.0, 12.0, 18.0, 25.0, 33.0)
    for angle in (-45, 45, -135, 135, 0, 180, -90, 90, -20, 20, -160, 160, -70, 70, -110, 110)
)
"""The nearest places first; at equal distance, those below the front first, where there is no line."""


def _box(text: Any, place: _Place, renderer: Any) -> Any:
    """Moves a label to a place; its bounding box there."""
    text.set_position(place.offset)
    text.set_horizontalalignment(place.side)
    text.set_verticalalignment("center")
    return text.get_window_extent(renderer)


def _overlap(box: Any, taken: Sequence[Any], inside: Any) -> float:
    """The area of a label that overlaps other boxes or is outside the axes."""
    bbox = library("matplotlib.transforms").Bbox
    within = bbox.intersection(box, inside)
    area = box.width * box.height - (0.0 if within is None else within.width * within.height)
    covered = (bbox.intersection(box, other) for other in taken)
    return float(round(area + sum(each.width * each.height for each in covered if each is not None), 6))


def _around(centre: Any, dpi: float) -> Any:
    """The bounding box of the mark of a point, in pixels."""
    (x, y), half = centre, 2.5 * dpi / 72.0
    return library("matplotlib.transforms").Bbox.from_extents(x - half, y - half, x + half, y + half)


def _figure(width: float, height: float) -> Any:
    """A figure of this size, in inches, on an Agg canvas."""
    figure = library("matplotlib.figure").Figure(figsize=(width, height), dpi=DPI, layout="constrained")
    library("matplotlib.backends.backend_agg").FigureCanvasAgg(figure)
    return figure


_METADATA: dict[str, dict[str, None]] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
"""Removes the dates, so that the same picture always has the same bytes."""


def _saved(figure: Any) -> dict[str, bytes]:
    """The figure in each format."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # the layout is computed, once for all formats
    found = {}
    for kind in FORMATS:
        buffer = io.BytesIO()
        figure.savefig(buffer, format=kind, metadata=_METADATA[kind])
        found[kind] = buffer.getvalue()
    return found
