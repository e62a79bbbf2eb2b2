"""The commands `plan`, `draw`, `count` and `sweep`, for a graph: its order, its picture, its size and its costs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from typer import Option

from ..errors import ShapeError
from .options import (
    Backend,
    Device,
    Dtype,
    Inputs,
    Json,
    Named,
    Outputs,
    Settings,
    Sizes,
    Threads,
    tell,
    tell_json,
)
from .reading import choices, equations_of, graph_of, pairs, says_equations, settings_of, sizes_of

if TYPE_CHECKING:
    from ..graph.graph import Graph

__all__ = ["count", "draw", "plan", "sweep"]

EQUATIONS = "Equations, separated by `;` or new lines, or a file of them. `-` reads standard input."


def plan(
    equation: Annotated[str, typer.Argument(help=EQUATIONS)],
    inputs: Inputs = "",
    outputs: Outputs = "",
    size: Sizes = None,
    backend: Backend = "numpy",
    device: Device = None,
    dtype: Dtype = "float32",
    code: Annotated[bool, Option("--code", help="Print the generated function as well.")] = False,
    trace: Annotated[bool, Option("--trace", help="Print the equations after each pass as well.")] = False,
    as_json: Json = False,
) -> None:
    """Print the fastest order of an equation, next to the order as written and the order with the fewest FLOPs.

    Example: tensornet plan "y[b,p,q] = x[b,i,j] * U[p,i] * V[q,j]" --inputs x --size b=1000,i=8,j=8,p=8,q=8
    """
    import tensornet as tn

    graph = tn.layer(equations_of(equation), inputs=inputs, outputs=outputs, **sizes_of(size, tn.layer))
    found = tn.plan(graph, backend=backend, device=device, dtype=dtype, trace=_said if trace else False)
    if as_json:
        typer.echo(found.to_json())
        return
    tell(str(found))
    if code:
        typer.echo("\n" + found.code)


def _said(text: str) -> None:
    """Prints a part of the trace on standard error, since programs may read standard output."""
    typer.echo(text, err=True)


def draw(
    name: Named,
    out: Annotated[Path, typer.Option(help="The file to write: .svg, .png, .pdf, .dot or .mmd.")] = Path(
        "graph.svg"
    ),
    unfold: Annotated[bool, typer.Option("--unfold", help="Draw each block too, once.")] = False,
    style: Annotated[str, typer.Option(help="layers, network (of tensors), or auto.")] = "auto",
    settings: Settings = None,
    inputs: Inputs = "",
    outputs: Outputs = "",
    size: Sizes = None,
    as_json: Json = False,
) -> None:
    """Draw a layer or a model: each operand above the results computed from it, or a tensor network.

    Example: tensornet draw "y[b,o] = gelu(x[b,i] * W[o,i])" --inputs x --out layer.svg
    """
    import tensornet as tn

    tn.draw(graph_of(name, settings, inputs, outputs, size), out, unfold=unfold, style=style)
    if as_json:
        tell_json({"file": str(out)})
    else:
        tell(f"written: {out}")


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
        "flop_parts": [_part(each, "flops", times=each.times) for each in collected.parts],
        "sizes": {name: size for name, size in graph.sizes if isinstance(size, int)},
        "open_sizes": list(graph.open_sizes),
        "assumed": dict.fromkeys(graph.open_sizes, NOMINAL),
        "parts": [_part(each, "parameters") for each in tn.parameter_table(graph, depth)],
    }


def _part(each: Any, what: str, **more: int) -> dict[str, Any]:
    return {"part": each.name, **more, "formula": str(each.formula), what: _plain(getattr(each, what))}


def _print_count(document: dict[str, Any]) -> None:
    count, flops = _grouped(document["parameters"]), _grouped(document["flops"])
    parts = [(each["part"], each["formula"], _grouped(each["parameters"])) for each in document["parts"]]
    total = ("total", document["parameter_formula"], count)
    _tell_table(("part", "formula", "parameters"), parts, total, document["name"])
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

    def shown(value: Any) -> str:
        return "" if value is models.REQUIRED else str(value)

    known_of = {name: models.settings(name) for name in models.names()}
    rows = {name: {key: shown(value) for key, value in known.items()} for name, known in known_of.items()}
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


OVER = "A setting and its values, e.g. `rank=0.1,0.2` or `'ranks=(4,4),(8,8)'`; repeatable: all combinations."


def sweep(
    name: Named,
    over: Annotated[list[str], Option("--over", metavar="NAME=VALUE,VALUE", help=OVER)],
    settings: Settings = None,
    inputs: Inputs = "",
    outputs: Outputs = "",
    size: Sizes = None,
    backend: Backend = "torch",
    device: Device = None,
    dtype: Dtype = "float32",
    measure: Annotated[bool, Option(help="Time them, side by side.")] = True,
    training: Annotated[bool, Option("--training", help="Both ways as well.")] = False,
    baseline: Annotated[str | None, Option(help="The row to compare with; else the first.")] = None,
    rounds: Annotated[int, Option(min=1, help="Turns of each.")] = 7,
    clock: Annotated[str, Option(help="wall, or process: the time of the processor.")] = "wall",
    threads: Threads = None,
    picture: Annotated[Path | None, Option(help="Draw time against parameters: a PNG, SVG or PDF.")] = None,
    as_json: Json = False,
) -> None:
    """Print the cost of a layer or a model under many settings: parameters, FLOPs, bytes, seconds.

    Settings of equations are the sizes of their axes.

    Example: tensornet sweep linear --set in_sizes=32,32 --set out_sizes=32,32 --over factorization=cp,tt
    --over rank=0.1,0.2 --size lead=64

    Example: tensornet sweep low.txt --inputs x --over r=4,8,16 --size b=64,i=512,o=512
    """
    import tensornet as tn

    build: Callable[..., Any] = functools.partial(tn.models.create, name)
    if says_equations(name):
        build = functools.partial(tn.layer, equations_of(name), inputs=inputs, outputs=outputs)
    fixed = settings_of(settings)
    wanted = {setting: choices(text) for setting, text in pairs(over, "NAME=VALUE,VALUE").items()}
    for setting in fixed.keys() & wanted:
        raise ShapeError(f"'{setting}' is given by --set and by --over", fix="give one of them")
    build = functools.partial(build, **fixed)
    timed: dict[str, Any] = {"measure": measure, "training": training, "rounds": rounds}
    where: dict[str, Any] = {"backend": backend, "device": device, "dtype": dtype, "threads": threads}
    sizes: dict[str, Any] = sizes_of(size, tn.sweep)
    found = tn.sweep(build, over=wanted, baseline=baseline, clock=clock, **where, **timed, **sizes)
    if as_json:
        typer.echo(found.json())
    else:
        tell(found)
    if picture is not None:  # last, so that the measurements are printed in any case
        found.pareto(y="seconds" if measure else "expected_seconds", path=picture)
