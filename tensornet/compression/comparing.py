"""Comparison of compressed networks: other methods within the same budget, and the error at several sizes.

Errors are those of weights, (Σ ‖W − Ŵ‖²/‖W‖² / count)^½; a network is measured by its own loss. Times of a call are in
units of that of the dense network: expected of a graph, measured of a network of transformers on an example.
"""

from __future__ import annotations

import html
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from ..codegen.program import planned
from ..errors import TensornetError
from ..files import whole
from ..protocol import backend_of
from ..sweeping.sweeps import Row, Sweep
from .compressed import Compressed, networks
from .compressing import bound

OTHERS = {"SVD": "low_rank", "int8": "int8", "int4": "int4"}
"""What people do instead, by name."""

PARTS = (2.0, 0.5, 0.25)
"""The other sizes of a page, in units of the budget."""

SPENT = {"bytes": "stored", "flops": "flops", "seconds": "expected_seconds"}
"""The column of a table with the cost in the unit of a budget; parameters for others."""

STYLE = (
    "<style>body{font:15px system-ui;margin:2em auto;max-width:60em}svg{max-width:100%}"
    "table{display:block;overflow-x:auto}</style>"
)
"""The style of a page. Tables that are wider than the screen scroll."""

Make: TypeAlias = Callable[[float, str | None], Compressed]
"""Compresses a network to an amount of the budget, by a method; by those that were asked for if None."""


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


def compared(
    network: Sequence[Any],
    sizes: Mapping[str, int],
    first: Compressed,
    make: Make,
    others: bool,
    parts: Sequence[float],
) -> Sweep:
    """What was made of a network, and what other methods and other sizes would yield: a row for each.

    Args:
        network, sizes: as for `relative_time`.
        first: what was made.
        make: compresses the network.
        others: whether other methods are tried.
        parts: the other sizes, in units of the budget.
    """
    (kind, budget), rows = (first.allocation.budget.kind, first.allocation.budget.amount), list[Row]()
    most = 1.0 if budget <= 1 else first.allocation.before
    amounts = [budget, *(part * budget for part in parts if part * budget < most)]
    for name in ("yours", *(OTHERS if others else ())):
        for amount in amounts:
            row: dict[str, Any] = {"chosen": (("method", name), ("size", f"{amount:.4g}"))}
            try:
                is_first = name == "yours" and amount == budget
                made = first if is_first else make(type(budget)(amount), OTHERS.get(name))
                row |= {SPENT.get(kind, "parameters"): made.allocation.after}
                row |= {"parameters": made.allocation.parameters[1], "error": made.allocation.error}
                row["relative"] = relative_time(network, sizes, made)
            except TensornetError as error:
                row["refused"] = str(error).splitlines()[0]
            rows.append(Row(f"{name}, {amount:.4g}", **row))
    weight = next(iter(network[-1].values() if len(network) > 1 else network[0].parameters()))
    backend = backend_of(weight)
    return Sweep(tuple(rows), "", backend.name, backend.device(weight), backend.dtype(weight))


def write_page(path: Path, title: str, found: Sweep, made: Compressed) -> None:
    """Writes an HTML page: what was compared, drawn and as a table, and the levels of the weights.

    Raises:
        BackendError: matplotlib is not installed.
        TensornetError: the file cannot be written.
    """
    costs = (SPENT.get(made.allocation.budget.kind, "parameters"), "relative")
    drawn = [_svg(found.pareto(cost, "error")) for cost in costs if cost in found.columns]
    head = f'<!doctype html><meta charset="utf-8"><title>{html.escape(title)}</title>'
    body = [f"<h1>{html.escape(title)}</h1>", *drawn, found._repr_html_(), "<h2>Weights</h2>"]
    with whole(path) as half:
        half.write_text("\n".join([head, STYLE, *body, made._repr_html_()]), encoding="utf-8")


def _svg(figure: Any) -> str:
    """A picture as an element of a page."""
    drawing = io.StringIO()
    figure.savefig(drawing, format="svg", metadata={"Date": None})
    return drawing.getvalue()[drawing.getvalue().index("<svg") :]
