"""The command `draw`, which draws a graph."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import Inputs, Json, Outputs, Settings, Sizes
from .reading import graph_of
from .telling import tell, tell_json

__all__ = ["draw"]


def draw(
    name: Annotated[str, typer.Argument(help="A layer or a model, or equations as for `plan`.")],
    out: Annotated[
        Path, typer.Option("--out", help="The file to write: .svg, .png, .pdf, .dot or .mmd (Mermaid).")
    ] = Path("graph.svg"),
    unfold: Annotated[bool, typer.Option("--unfold", help="Draw each block too, once.")] = False,
    style: Annotated[
        str, typer.Option(help="layers, network (of tensors), or auto: a network where the graph is one.")
    ] = "auto",
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
        return
    tell(f"written: {out}")
