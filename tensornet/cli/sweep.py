"""The command `sweep`, which builds a layer or a model under many settings."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import ShapeError
from .options import Backend, Dtype, Inputs, Json, Outputs, Settings, Sizes
from .reading import choices, equations_of, pairs, says_equations, settings_of, sizes_of
from .telling import tell

__all__ = ["sweep"]


def sweep(
    name: Annotated[
        str,
        typer.Argument(
            help="A layer or a model; or equations as for `plan`, whose settings are the sizes of axes."
        ),
    ],
    over: Annotated[
        list[str],
        typer.Option(
            "--over",
            metavar="NAME=VALUE,VALUE",
            help="A setting, and what to choose from, e.g. `--over rank=0.1,0.2` or `--over 'ranks=(4,4),(8,8)'`;"
            " repeatable, and all combinations are built.",
        ),
    ],
    settings: Settings = None,
    inputs: Inputs = "",
    outputs: Outputs = "",
    size: Sizes = None,
    backend: Backend = "torch",
    device: Annotated[str | None, typer.Option(help="Where to run, e.g. cpu or cuda:0.")] = None,
    dtype: Dtype = "float32",
    measure: Annotated[bool, typer.Option(help="Time them, side by side.")] = True,
    training: Annotated[bool, typer.Option("--training", help="Both ways as well.")] = False,
    baseline: Annotated[
        str | None, typer.Option(help="The row that the others are compared with; the first if not given.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each.")] = 7,
    clock: Annotated[
        str, typer.Option(help="wall, or process: only time that this process had the processor.")
    ] = "wall",
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of the processor.")] = None,
    picture: Annotated[
        Path | None, typer.Option(help="Draw time against parameters: a PNG, SVG or PDF, as the name ends.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Print the cost of a layer or a model under many settings: parameters, FLOPs, bytes, seconds.

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
    found = tn.sweep(
        functools.partial(build, **fixed),
        over=wanted,
        backend=backend,
        device=device,
        dtype=dtype,
        measure=measure,
        training=training,
        baseline=baseline,
        rounds=rounds,
        clock=clock,
        threads=threads,
        **sizes_of(size, tn.sweep),
    )
    if as_json:
        typer.echo(found.json())
    else:
        tell(found)
    if picture is not None:  # last, so that the measurements are printed in any case
        found.pareto(y="seconds" if measure else "expected_seconds", path=picture)
