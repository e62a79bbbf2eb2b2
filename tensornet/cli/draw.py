"""The command `draw`, which draws a graph."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import Inputs, Json, Named, Outputs, Settings, Sizes
from .reading import graph_of
from .telling import tell, tell_json

__all__ = ["draw"]


def draw(
    name: Named,
    out: Annotated[Path, typer.Option(help="The SVG file to write.")] = Path("graph.svg"),
    settings: Settings = None,
    inputs: Inputs = "",
    outputs: Outputs = "",
    size: Sizes = None,
    as_json: Json = False,
) -> None:
    """Draw a layer or a model; each operand is above the results computed from it.

    Example: tensornet draw "y[b,o] = gelu(x[b,i] * W[o,i])" --inputs x --out layer.svg
    """
    import tensornet as tn

    tn.draw(graph_of(name, settings, inputs, outputs, size), out)
    if as_json:
        tell_json({"file": str(out)})
    else:
        tell(f"written: {out}")
