"""The command `plan`, which plans equations."""

from __future__ import annotations

from typing import Annotated

import typer
from typer import Option

from .options import Backend, Device, Dtype, Inputs, Json, Outputs, Sizes
from .reading import equations_of, sizes_of
from .telling import tell

__all__ = ["plan"]

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
