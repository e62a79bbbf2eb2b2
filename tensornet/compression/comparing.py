"""Comparison of compressed networks: other methods within the same budget, and the error at several sizes.

Errors are those of weights, (Σ ‖W − Ŵ‖²/‖W‖² / count)^½; a network is measured by its own loss. Times of a call are in
units of that of the dense network: expected of a graph, measured of a network of transformers on an example.
"""

from __future__ import annotations

import html
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from ..codegen.program import planned
from ..display import table
from ..errors import TensornetError
from ..files import whole
from ..protocol import backend_of
from .allocating import UNITS, Allocation
from .compressed import Compressed, networks
from .compressing import bound

OTHERS = {"SVD": "low_rank", "int8": "int8", "int4": "int4"}
"""What people do instead, by name."""

PARTS = (2.0, 0.5, 0.25)
"""The other sizes of a page, in units of the budget."""

Make: TypeAlias = Callable[[float, str | None], Compressed]
"""Compresses a network to an amount of the budget, by a method; by those that were asked for if None."""


Timed: TypeAlias = Callable[[Compressed], float | None]
"""The time of a call of a compressed network, in units of that of the dense one."""

HEADS = ("method", "size", "of dense", "time", "parameters", "error", "remark")


@dataclass(frozen=True)
class Compared:
    """What one method yields within one budget.

    Attributes:
        method: its name; "" for those that were asked for.
        amount: the budget.
        allocation: the levels of the weights; None if the method cannot meet the budget.
        remark: why it cannot.
        time: of a call, in units of that of the dense network; None if it is not known.
    """

    method: str
    amount: float
    allocation: Allocation | None = None
    remark: str = ""
    time: float | None = None

    @property
    def cells(self) -> tuple[str, ...]:
        """Its row of the table; see `HEADS`."""
        found, name = self.allocation, self.method or "yours"
        if found is None:
            return name, f"{self.amount:.4g}", "", "", "", "", self.remark
        unit = UNITS.get(found.budget.kind, "parameters")
        spent = f"{found.after:,.4g} {unit}" if unit == "seconds" else f"{found.after:,.0f} {unit}"
        part, left = f"{found.after / found.before:.1%}", f"{found.parameters[1]:,}"
        time = "" if self.time is None else f"{self.time:.2f}"
        return name, spent, part, time, left, f"{found.error:.4f}", self.remark


def relative_time(network: Sequence[Any], sizes: Mapping[str, int], made: Compressed) -> float | None:
    """The time of a call in units of that of the dense network; None for a module that no example is known of.

    Args:
        network: the graph and its parameters, or the module.
        sizes: of open axes of the graph.
        made: what was made of it.
    """
    if len(network) == 1:
        found: float | None = networks(*network).relative_time(*network, made.model)
        return found
    backend, graphs = backend_of(next(iter(network[1].values()))), (made.model, bound(*network))
    after, before = (planned(each, sizes, backend, backend.device(), "float32").seconds for each in graphs)
    return after / before


def compared(make: Make, first: Compressed, others: bool, sizes: bool, timed: Timed) -> Iterator[Compared]:
    """What was made of a network, and what other methods and other sizes would yield.

    Args:
        make: compresses the network.
        first: what was made.
        others: whether other methods are tried.
        sizes: whether other sizes are.
        timed: the time of what was made.
    """
    budget = first.allocation.budget
    yield Compared("", budget.amount, first.allocation, time=timed(first) if others or sizes else None)
    amounts = [scale * budget.amount for scale in PARTS] if sizes else []
    most = 1.0 if budget.amount <= 1 else first.allocation.before
    for name in ("", *(OTHERS if others else ())):
        for amount in (each for each in (budget.amount, *amounts) if each < most or each == budget.amount):
            if name or amount != budget.amount:
                told = type(budget.amount)(amount)
                try:
                    made = make(told, OTHERS.get(name))
                    yield Compared(name, amount, made.allocation, time=timed(made))
                except TensornetError as error:
                    yield Compared(name, amount, None, str(error).splitlines()[0])


def write_page(path: Path, title: str, found: list[Compared]) -> None:
    """Writes an HTML page: what was compared, drawn and as a table, and the levels of the weights of the first.

    Raises:
        BackendError: matplotlib is not installed.
        TensornetError: the file cannot be written.
    """
    first = found[0].allocation
    assert first is not None
    unit = UNITS.get(first.budget.kind, "parameters")
    spent = [(each, each.allocation.after) for each in found if each.allocation]
    body = [f"<h1>{html.escape(title)}</h1>", _drawn(title, unit, spent)]
    if timed := [(each, each.time) for each in found if each.time is not None]:
        body.append(_drawn(title, "time of a call, of the dense one", timed))
    body += [table(HEADS, [each.cells for each in found], "lrrrrrl"), "<h2>Weights</h2>", first._repr_html_()]
    head = f'<!doctype html><meta charset="utf-8"><title>{html.escape(title)}</title>'
    style = "<style>body{font:15px system-ui;margin:2em auto;max-width:60em}svg{max-width:100%}</style>"
    with whole(path) as half:
        half.write_text("\n".join([head, style, *body]), encoding="utf-8")


def _drawn(title: str, cost: str, rows: Sequence[tuple[Compared, float]]) -> str:
    """A picture of errors by a cost, as SVG."""
    from ..sweeping.picture import Point, drawn

    known = ((each.allocation, each.cells, spent) for each, spent in rows)
    points = [Point(spent, made.error, cells[0], cells[2]) for made, cells, spent in known if made]
    labels, drawing = {"x": (cost, None), "y": ("mean error of the weights", None)}, io.StringIO()
    figure = drawn(points, labels, title, "method", None)
    figure.savefig(drawing, format="svg", metadata={"Date": None})
    return drawing.getvalue()[drawing.getvalue().index("<svg") :]
