"""Comparison of compressed networks: other methods within the same budget, and the error at several sizes.

Errors are those of weights, (Σ ‖W − Ŵ‖²/‖W‖² / count)^½; a network is measured by its own loss.
"""

from __future__ import annotations

import html
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from ..display import table
from ..errors import TensornetError
from ..files import whole
from .allocating import UNITS, Allocation
from .compressed import Compressed

__all__ = ["HEADS", "Compared", "compared", "write_page"]

OTHERS = {"SVD": "low_rank", "int8": "int8", "int4": "int4"}
"""What people do instead, by name."""

PARTS = (2.0, 0.5, 0.25)
"""The other sizes of a page, in units of the budget."""

Make: TypeAlias = Callable[[float, str | None], Compressed]
"""Compresses a network to an amount of the budget, by a method; by those that were asked for if None."""


HEADS = ("method", "size", "of dense", "parameters", "error", "remark")


@dataclass(frozen=True)
class Compared:
    """What one method yields within one budget.

    Attributes:
        method: its name; "" for those that were asked for.
        amount: the budget.
        allocation: the levels of the weights; None if the method cannot meet the budget.
        remark: why it cannot.
    """

    method: str
    amount: float
    allocation: Allocation | None = None
    remark: str = ""

    @property
    def cells(self) -> tuple[str, ...]:
        """Its row of the table; see `HEADS`."""
        found, name = self.allocation, self.method or "yours"
        if found is None:
            return name, f"{self.amount:.4g}", "", "", "", self.remark
        unit = UNITS.get(found.budget.kind, "parameters")
        spent = f"{found.after:,.4g} {unit}" if unit == "seconds" else f"{found.after:,.0f} {unit}"
        part, left = f"{found.after / found.before:.1%}", f"{found.parameters[1]:,}"
        return name, spent, part, left, f"{found.error:.4f}", self.remark


def compared(make: Make, first: Compressed, others: bool, sizes: bool) -> Iterator[Compared]:
    """What was made of a network, and what other methods and other sizes would yield.

    Args:
        make: compresses the network.
        first: what was made.
        others: whether other methods are tried.
        sizes: whether other sizes are.
    """
    budget = first.allocation.budget
    yield Compared("", budget.amount, first.allocation)
    amounts = [scale * budget.amount for scale in PARTS] if sizes else []
    most = 1.0 if budget.amount <= 1 else first.allocation.before
    for name in ("", *(OTHERS if others else ())):
        for amount in (each for each in (budget.amount, *amounts) if each < most or each == budget.amount):
            if name or amount != budget.amount:
                whole_number = isinstance(budget.amount, int)
                told = int(amount) if whole_number else amount
                try:
                    yield Compared(name, amount, make(told, OTHERS.get(name)).allocation)
                except TensornetError as error:
                    yield Compared(name, amount, None, str(error).splitlines()[0])


def write_page(path: Path, title: str, found: list[Compared]) -> None:
    """Writes an HTML page: what was compared, drawn and as a table, and the levels of the weights of the first.

    Raises:
        BackendError: matplotlib is not installed.
        TensornetError: the file cannot be written.
    """
    from ..sweeping.picture import Point, drawn

    first = found[0].allocation
    assert first is not None
    unit = UNITS.get(first.budget.kind, "parameters")
    points = [
        Point(each.allocation.after, each.allocation.error, each.cells[0], each.cells[2])
        for each in found
        if each.allocation is not None
    ]
    costs = {"x": (unit, None), "y": ("mean error of the weights", None)}
    drawing = io.StringIO()
    drawn(points, costs, title, "method", None).savefig(drawing, format="svg", metadata={"Date": None})
    picture = drawing.getvalue()
    body = [f"<h1>{html.escape(title)}</h1>", picture[picture.index("<svg") :]]
    body += [
        table(
            HEADS,
            [each.cells for each in found],
            "lrrrrl",
        ),
        "<h2>Weights</h2>",
        first._repr_html_(),
    ]
    head = f'<!doctype html><meta charset="utf-8"><title>{html.escape(title)}</title>'
    style = "<style>body{font:15px system-ui;margin:2em auto;max-width:60em}svg{max-width:100%}</style>"
    with whole(path) as half:
        half.write_text("\n".join([head, style, *body]), encoding="utf-8")
