"""The command `sweep`, which builds a layer or a model under many settings."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from ..errors import ShapeError
from .options import Backend, Device, Dtype, Inputs, Json, Named, Outputs, Settings, Sizes, Threads
from .reading import choices, equations_of, pairs, says_equations, settings_of, sizes_of
from .telling import tell

__all__ = ["sweep"]

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
    baseline: Annotated[
        str | None, Option(help="The row that others are compared with; else the first.")
    ] = None,
    rounds: Annotated[int, Option(min=1, help="Turns of each.")] = 7,
    clock: Annotated[
        str, Option(help="wall, or process: only time that this process had the processor.")
    ] = "wall",
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
    build, timed = (
        functools.partial(build, **fixed),
        {"measure": measure, "training": training, "rounds": rounds},
    )
    where: dict[str, Any] = {"backend": backend, "device": device, "dtype": dtype, "threads": threads}
    sizes = sizes_of(size, tn.sweep)
    found = tn.sweep(build, over=wanted, baseline=baseline, clock=clock, **where, **timed, **sizes)
    if as_json:
        typer.echo(found.json())
    else:
        tell(found)
    if picture is not None:  # last, so that the measurements are printed in any case
        found.pareto(y="seconds" if measure else "expected_seconds", path=picture)
