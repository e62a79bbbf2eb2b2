"""The commands `plan`, `draw`, `count` and `sweep`, for a graph: its order, its picture, its size and its costs."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from typer import Option

from ..display import wrapped
from ..errors import ShapeError
from . import options

if TYPE_CHECKING:
    from ..graph.graph import Graph

GRAPH = Path("graph.svg")
EQUATIONS = "Equations, separated by `;` or new lines, a file of them, or `-`; or a layer or a model."


def plan(
    equation: Annotated[str, typer.Argument(help=EQUATIONS)],
    settings: options.Settings = None,
    inputs: options.Inputs = "",
    outputs: options.Outputs = "",
    size: options.Sizes = None,
    backend: options.Backend = "numpy",
    device: options.Device = None,
    dtype: options.Dtype = "float32",
    code: Annotated[bool, Option("--code", help="Print the generated function as well.")] = False,
    trace: Annotated[bool, Option("--trace", help="Print the equations after each pass as well.")] = False,
    as_json: options.Json = False,
) -> None:
    """Print the fastest order of an equation, next to the order as written and the order with the fewest FLOPs.

    `-` reads the equations from standard input.

    Example: tensornet plan "y[b,p,q] = x[b,i,j] * U[p,i] * V[q,j]" --inputs x --size b=1000,i=8,j=8,p=8,q=8
    """
    import tensornet as tn

    graph = options.graph_of(equation, settings, inputs, outputs, size)
    said = functools.partial(typer.echo, err=True)  # programs may read standard output
    found = tn.plan(graph, backend=backend, device=device, dtype=dtype, trace=said if trace else False)
    options.answer(as_json, found.to_json(), str(found), *([f"\n{found.code}"] if code else []))


def draw(
    name: options.Named,
    out: Annotated[Path, Option(help="The file to write: .svg, .png, .pdf, .dot or .mmd.")] = GRAPH,
    unfold: Annotated[bool, typer.Option("--unfold", help="Draw each block too, once.")] = False,
    style: Annotated[str, typer.Option(help="layers, network (of tensors), or auto.")] = "auto",
    settings: options.Settings = None,
    inputs: options.Inputs = "",
    outputs: options.Outputs = "",
    size: options.Sizes = None,
    as_json: options.Json = False,
) -> None:
    """Draw a layer or a model: each operand above the results computed from it, or a tensor network.

    Example: tensornet draw "y[b,o] = gelu(x[b,i] * W[o,i])" --inputs x --out layer.svg
    """
    import tensornet as tn

    tn.draw(options.graph_of(name, settings, inputs, outputs, size), out, unfold=unfold, style=style)
    options.answer(as_json, {"file": str(out)}, f"written: {out}")


NAME = "A layer or a model, or equations as for `plan`; without one, all layers and models are listed."


def count(
    name: Annotated[str, typer.Argument(help=NAME)] = "",
    settings: options.Settings = None,
    inputs: options.Inputs = "",
    outputs: options.Outputs = "",
    size: options.Sizes = None,
    depth: Annotated[int, typer.Option(min=1, help="How many dotted names make a part of the table.")] = 1,
    as_json: options.Json = False,
) -> None:
    """Print the parameters and FLOPs of a layer or a model: formulas, numbers and a table by part.

    Example: tensornet count tcl --set sizes=4,4,3 --set ranks=4,4,6

    Example: tensornet count "y[b,o] = x[b,i] * U[r,i] * V[o,r]" --inputs x --size i=64,o=64
    """
    if not name:
        _list_models(as_json)
        return
    _tell_counts(name, options.graph_of(name, settings, inputs, outputs, size), depth, as_json)


def _tell_counts(name: str, graph: Graph, depth: int, as_json: bool) -> None:
    """Prints the parameters and FLOPs of a graph, at its sizes."""
    import sympy

    import tensornet as tn

    from ..planning.planner import NOMINAL

    table, flops = tn.parameter_table(graph, depth), tn.flop_table(graph)  # flop_count would plan again
    count, formula = tn.parameter_count(graph), tn.parameter_formula(graph)
    expanded = sympy.expand(flops.formula)
    sizes = {name: size for name, size in graph.sizes if isinstance(size, int)}
    assumed = dict.fromkeys(graph.open_sizes, NOMINAL)
    parts = [{"part": each.name, "formula": each.formula, "parameters": each.parameters} for each in table]
    document = {
        "name": name,
        "parameters": count,
        "flops": flops.flops,
        "parameter_formula": str(formula),
        "flop_formula": str(expanded),
        "sizes": sizes,
        "open_sizes": list(graph.open_sizes),
        "assumed": assumed,
        "parts": parts,
        "flop_parts": [
            {"part": each.name, "times": each.times, "formula": str(each.formula), "flops": each.flops}
            for each in flops.parts
        ],
    }
    several = len(flops.parts) > 1
    notes = [] if several else [f"FLOPs: {expanded} = {_grouped(flops.flops)}"]
    notes += [f"at {_listed(sizes)}"] * bool(sizes)
    notes += [f"the FLOPs are those of the order planned assuming {_listed(assumed)}"] * bool(assumed)
    told = [str(table), *wrapped(f"parameters: {formula} = {_grouped(count)}", ""), ""]
    told += [f"FLOPs by block:\n{flops}"] * several
    told += [line for note in notes for line in wrapped(note, "")]
    options.answer(as_json, document, *told)


def _listed(sizes: dict[str, int]) -> str:
    return ", ".join(f"{axis}={value}" for axis, value in sizes.items())


def _grouped(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _list_models(as_json: bool) -> None:
    from .. import models

    rows, table = dict[str, dict[str, str]](), Table("name", "settings (with --set)")
    for name in models.names():
        known = models.settings(name).items()
        rows[name] = {key: "" if value is models.REQUIRED else str(value) for key, value in known}
        told = (f"{key}={value}" if value else key for key, value in rows[name].items())
        table.add_row(name, ", ".join(told))
    options.answer(as_json, rows, table)


OVER = "A setting and its values, e.g. `rank=0.1,0.2` or `'ranks=(4,4),(8,8)'`; repeatable: all combinations."


def sweep(
    name: options.Named,
    over: Annotated[list[str], Option("--over", metavar="NAME=VALUE,VALUE", help=OVER)],
    settings: options.Settings = None,
    inputs: options.Inputs = "",
    outputs: options.Outputs = "",
    size: options.Sizes = None,
    backend: options.Backend = "torch",
    device: options.Device = None,
    dtype: options.Dtype = "float32",
    measure: Annotated[bool, Option(help="Time them, side by side.")] = True,
    training: Annotated[bool, Option("--training", help="Both ways as well.")] = False,
    baseline: Annotated[str | None, Option(help="The row to compare with; else the first.")] = None,
    rounds: Annotated[int, Option(min=1, help="Turns of each.")] = 7,
    picture: Annotated[Path | None, Option(help="Draw time against parameters: a PNG, SVG or PDF.")] = None,
    as_json: options.Json = False,
) -> None:
    """Print the cost of a layer or a model under many settings: parameters, FLOPs, bytes, seconds.

    Settings of equations are the sizes of their axes.

    Example: tensornet sweep linear --set in_sizes=32,32 --set out_sizes=32,32 --over factorization=cp,tt
    --over rank=0.1,0.2 --size lead=64

    Example: tensornet sweep low.txt --inputs x --over r=4,8,16 --size b=64,i=512,o=512
    """
    import tensornet as tn

    fixed, build = options.settings_of(settings), functools.partial(tn.models.create, name)
    if options.says_equations(name):
        build = functools.partial(tn.layer, options.equations_of(name), inputs=inputs, outputs=outputs)
    wanted = {key: options.choices(text) for key, text in options.pairs(over, "NAME=VALUE,VALUE").items()}
    for setting in fixed.keys() & wanted:
        raise ShapeError(f"'{setting}' is given by --set and by --over", fix="give one of them")
    build = functools.partial(build, **fixed)
    how: dict[str, Any] = {"measure": measure, "training": training, "rounds": rounds}
    how |= {"backend": backend, "device": device, "dtype": dtype, "baseline": baseline}
    found = tn.sweep(build, over=wanted, **how, **options.sizes_of(size, tn.sweep))
    options.answer(as_json, found.json(), found)
    if picture is not None:  # last, so that the measurements are printed in any case
        found.pareto(y="seconds" if measure else "expected_seconds", path=picture)
