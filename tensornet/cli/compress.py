"""The command `compress`, which factorizes the weights of a trained network."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from ..errors import EquationError
from ..files import check_writable
from .options import Inputs, Json, Outputs, Sizes, Texts, answer, console, equations_of, sizes_of

if TYPE_CHECKING:
    from ..compression.compressed import Compressed

Part = float | None


def compress(
    checkpoint: Annotated[Path, typer.Argument(help="A file of tensors, or a Hugging Face folder.")],
    equations: Annotated[str | None, Option(help="Equations as for `plan`, if the file has none.")] = None,
    inputs: Inputs = "",
    outputs: Outputs = "",
    parameters: Annotated[Part, Option(help="How many to leave: a part, e.g. `0.2`, or a number.")] = None,
    bytes: Annotated[Part, Option(help="How many bytes to leave: weights are rounded too.")] = None,
    flops: Annotated[Part, Option(help="FLOPs of a call, a part or a number.")] = None,
    seconds: Annotated[Part, Option(help="Expected time of a call, as a part of now.")] = None,
    error: Annotated[Part, Option(help="As few parameters as lose no more than this.")] = None,
    method: Annotated[Texts, Option(help="A form, e.g. `tt` or `int4`; repeatable.")] = None,
    include: Annotated[Texts, Option(help="A pattern of the weights to look at; repeatable.")] = None,
    exclude: Annotated[Texts, Option(help="A pattern of weights to leave as they are; repeatable.")] = None,
    activations: Annotated[str | None, Option(help="`int8` rounds activations too, in a folder.")] = None,
    out: Annotated[Path | None, Option(help="To write; else `<checkpoint>.small.safetensors`.")] = None,
    compare: Annotated[bool, Option("--compare", help="Try SVD, int8 and int4 as well.")] = False,
    report: Annotated[Path | None, Option(help="A page with error, size and time, HTML.")] = None,
    size: Sizes = None,
    as_json: Json = False,
) -> None:
    """Replace weights of a trained network by factors, within one budget. The input file is never overwritten.

    A file of tensors has its equations in it, as a run of a study (`runs/*.safetensors`) or what this command
    wrote, or they are given by --equations.

    Example: tensornet compress runs/swin.1f2e3d4c.safetensors --parameters 0.2 --method tt

    Example: tensornet compress weights.safetensors --equations net.txt --inputs x --parameters 0.2
    """
    from rich.progress import Progress

    import tensornet as tn

    from ..compression.comparing import PARTS, compared, write_page
    from ..compression.compressed import read_checkpoint, read_folder

    if equations is not None and checkpoint.is_dir():
        raise EquationError(f"{checkpoint} is a folder", fix="--equations are for a file of tensors")
    graph = None if equations is None else tn.layer(equations_of(equations), inputs=inputs, outputs=outputs)
    named = checkpoint if checkpoint.name.strip(".") else checkpoint.resolve()
    target = out or named.with_name(f"{named.name.removesuffix('.safetensors')}.small.safetensors")
    given = {"parameters": parameters, "bytes": bytes, "flops": flops, "seconds": seconds, "error": error}
    counts = {name: int(each) for name, each in given.items() if each and each > 1 and each.is_integer()}
    budgets: dict[str, Any] = given | counts
    if report is not None and report.resolve() == target.resolve():
        raise EquationError(f"{report} is where the network goes", fix="give --report another name")
    for path in (target, *([report] if report else [])):
        check_writable(path)
    network = (read_folder(checkpoint),) if checkpoint.is_dir() else read_checkpoint(checkpoint, graph)
    with Progress(console=console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("weights", total=None)
        make: Callable[..., Compressed] = functools.partial(
            tn.compress,
            *network,
            include=tuple(include or ("*",)),
            exclude=tuple(exclude or ()),
            activations=activations,
            progress=lambda path, done, of: bar.update(task, completed=done, total=of, description=path),
            **sizes_of(size, tn.compress),
        )
        own = tuple(method) if method else None
        found = make(**budgets, method=own)
        found.save(target)
        kind, rows = found.allocation.budget.kind, None
        if compare or report:
            again: Callable[..., Compressed] = lambda to, how: make(**{kind: to}, method=how or own)  # noqa: E731
            asked = (compare, PARTS if report else ())
            rows = compared(network, sizes_of(size, tn.compress), found, again, *asked)
    told = {"file": str(target), **json.loads(found.allocation.to_json())}
    if rows is not None and compare:
        told["compared"] = json.loads(rows.json())["rows"]
    if rows is not None and report is not None:
        write_page(report, f"{checkpoint.name}, compressed", rows, found)
    shown = [str(found.allocation), *([rows] if compare else [])]
    answer(as_json, told, *shown, *(f"written: {each}" for each in (target, report) if each))
