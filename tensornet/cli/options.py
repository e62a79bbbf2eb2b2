"""Options that several commands have in common."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["Backend", "Dtype", "Inputs", "Json", "Outputs", "Settings", "Sizes"]

Json = Annotated[
    bool, typer.Option("--json", help="Print JSON for machines; an error stays text, on standard error.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A setting, e.g. `--set ranks=4,4`; repeatable."),
]
Inputs = Annotated[
    str, typer.Option(help="The names of the inputs, e.g. `x` or `x[b,n,c],t[b,n]`; all else is a parameter.")
]
Outputs = Annotated[
    str, typer.Option(help="The names of the results; that of the last equation if not given.")
]
Sizes = Annotated[
    list[str] | None,
    typer.Option(
        "--size",
        metavar="AXIS=SIZE",
        help="The size of an axis, e.g. `--size b=32,i=8`; repeatable. One not given is assumed to be 64.",
    ),
]


Backend = Annotated[str, typer.Option(help="numpy, torch, cupy or jax.")]
Dtype = Annotated[str, typer.Option(help="The element type.")]
