"""The command `count`, which counts parameters and FLOPs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from .options import Inputs, Json, Outputs, Settings, Sizes
from .reading import graph_of
from .telling import tell, tell_json

if TYPE_CHECKING:
    from ..graph.graph import Graph

__all__ = ["count"]

NAME = "A layer or a model, or equations as for `plan`; without one, all layers and models are listed."


def count(
    name: Annotated[str, typer.Argument(help=NAME)] = "",
    settings: Settings = None,
    inputs: Inputs = "",
    outputs: Outputs = "",
    size: Sizes = None,
    depth: Annotated[int, typer.Option(min=1, help="How many dotted names make a part of the table.")] = 1,
    as_json: Json = False,
) -> None:
    """Print the parameters and FLOPs of a layer or a model: formulas, numbers and a table by part.

    Example: tensornet count tcl --set sizes=4,4,3 --set ranks=4,4,6

    Example: tensornet count "y[b,o] = x[b,i] * U[r,i] * V[o,r]" --inputs x --size i=64,o=64
    """
    if not name:
        _list_models(as_json)
        return
    document = {"name": name, **_counted(graph_of(name, settings, inputs, outputs, size), depth)}
    if as_json:
        tell_json(document)
    else:
        _print_count(document)


def _counted(graph: Graph, depth: int) -> dict[str, Any]:
    """The parameters and FLOPs of a graph, at its sizes."""
    import sympy

    import tensornet as tn

    from ..planning.planner import NOMINAL

    collected = tn.flop_table(graph)
    return {
        "parameters": _plain(tn.parameter_count(graph)),
        "parameter_formula": str(tn.parameter_formula(graph)),
        "flops": _plain(collected.flops),  # flop_count would plan again
        "flop_formula": str(sympy.expand(collected.formula)),
        "flop_parts": [
            {
                "part": each.name,
                "times": each.times,
                "formula": str(each.formula),
                "flops": _plain(each.flops),
            }
            for each in collected.parts
        ],
        "sizes": {name: size for name, size in graph.sizes if isinstance(size, int)},
        "open_sizes": list(graph.open_sizes),
        "assumed": dict.fromkeys(graph.open_sizes, NOMINAL),
        "parts": [
            {"part": part.name, "formula": str(part.formula), "parameters": _plain(part.parameters)}
            for part in tn.parameter_table(graph, depth)
        ],
    }


def _print_count(document: dict[str, Any]) -> None:
    count, flops = _grouped(document["parameters"]), _grouped(document["flops"])
    parts = [(each["part"], each["formula"], _grouped(each["parameters"])) for each in document["parts"]]
    _tell_table(
        ("part", "formula", "parameters"),
        parts,
        ("total", document["parameter_formula"], count),
        document["name"],
    )
    tell(f"parameters: {document['parameter_formula']} = {count}")
    if len(document["flop_parts"]) < 2:
        tell(f"FLOPs: {document['flop_formula']} = {flops}")
    else:
        blocks = [
            (each["part"] or "itself", str(each["times"]), each["formula"], _grouped(each["flops"]))
            for each in document["flop_parts"]
        ]
        _tell_table(("block", "calls", "FLOPs of a call", "of all"), blocks, ("total", "", "", flops))
    if document["sizes"]:
        tell(f"at {_listed(document['sizes'])}")
    if document["assumed"]:
        tell(f"the FLOPs are those of the order planned assuming {_listed(document['assumed'])}")


def _tell_table(
    headings: tuple[str, ...], lines: list[Any], total: tuple[str, ...], title: str | None = None
) -> None:
    """Prints a table with a total below it."""
    table = Table(title=title, title_justify="left")
    for heading in headings:
        table.add_column(heading, justify="right" if heading == "parameters" else "left", overflow="fold")
    for line in lines:
        table.add_row(*line)
    table.add_section()
    table.add_row(*total)
    tell(table)


def _listed(sizes: dict[str, int]) -> str:
    return ", ".join(f"{axis}={value}" for axis, value in sizes.items())


def _list_models(as_json: bool) -> None:
    from .. import models

    rows = {
        name: {
            key: "" if value is models.REQUIRED else str(value)
            for key, value in models.settings(name).items()
        }
        for name in models.names()
    }
    if as_json:
        tell_json(rows)
        return
    table = Table("name", "settings (with --set)")
    for name, known in rows.items():
        table.add_row(name, ", ".join(f"{key}={value}" if value else key for key, value in known.items()))
    tell(table)


def _plain(value: Any) -> Any:
    return value if isinstance(value, int) else str(value)


def _grouped(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
