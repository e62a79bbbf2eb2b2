"""The command line: plan an equation, count or draw a layer, sweep over settings, compress a network, list the
functions, run the study, measure the device.

A result goes to standard output, as JSON with `--json`; what a user did wrong goes to standard error, as text
either way, and the exit code is 2. A program looks at the exit code before it reads.
"""

from __future__ import annotations

import ast
import functools
import inspect
import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from . import __version__
from .errors import EquationError, ShapeError, TensornetError, near
from .terminal import printable

if TYPE_CHECKING:
    from .graph.graph import Graph
    from .operations.record import Function

__all__ = ["app", "main"]

app = typer.Typer(
    name="tensornet",
    help="Layers as equations: their formulas, their plans, and what compression costs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)

Json = Annotated[
    bool,
    typer.Option("--json", help="Print JSON for machines; an error stays text, on standard error."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A setting, e.g. `--set ranks=4,4`; repeatable."),
]
Inputs = Annotated[
    str,
    typer.Option(help="The names of the inputs, e.g. `x` or `x[b,n,c],t[b,n]`; all else is a parameter."),
]
Outputs = Annotated[
    str, typer.Option(help="The names of the results; that of the last equation if not given.")
]
SizeOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--size",
        metavar="AXIS=SIZE",
        help="The size of an axis, e.g. `--size b=32,i=8`; repeatable. One not given is assumed to be 64.",
    ),
]


def main() -> None:
    """Runs the command line; what a user can cause ends with one message and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without µ shows ?
    try:
        app()
    except TensornetError as error:
        _console(stderr=True).print(printable(f"error: {error}"))
        sys.exit(2)


def _console(stderr: bool = False) -> Console:
    """Where text is printed as it is: `softmax[j]` is no markup."""
    return Console(stderr=stderr, soft_wrap=True, markup=False, highlight=False)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tensornet {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    pass


@app.command()
def plan(
    equation: Annotated[
        str,
        typer.Argument(
            help="Equations, separated by `;` or new lines, or a file of them. `-` reads standard input."
        ),
    ],
    inputs: Inputs = "",
    outputs: Outputs = "",
    size: SizeOptions = None,
    backend: Annotated[str, typer.Option(help="numpy, torch, cupy or jax.")] = "numpy",
    device: Annotated[str | None, typer.Option(help="Where it will run, e.g. cpu or cuda:0.")] = None,
    dtype: Annotated[str, typer.Option(help="The element type.")] = "float32",
    code: Annotated[bool, typer.Option("--code", help="Print the generated function as well.")] = False,
    as_json: Json = False,
) -> None:
    """Print the fastest order of an equation, beside the order as written and the one of fewest FLOPs.

    Example: tensornet plan "y[b,p,q] = x[b,i,j] * U[p,i] * V[q,j]" --inputs x --size b=1000,i=8,j=8,p=8,q=8
    """
    import tensornet as tn

    graph = tn.layer(_equations(equation), inputs=inputs, outputs=outputs, **_sizes(size or [], tn.layer))
    found = tn.plan(graph, backend=backend, device=device, dtype=dtype)
    if as_json:
        typer.echo(found.to_json())
        return
    _console().print(str(found))
    if code:
        typer.echo("\n" + found.code)


@app.command()
def count(
    name: Annotated[
        str,
        typer.Argument(
            help="A layer or a model, or equations as for `plan`; without one, all layers and models are listed."
        ),
    ] = "",
    settings: Settings = None,
    inputs: Inputs = "",
    outputs: Outputs = "",
    size: SizeOptions = None,
    depth: Annotated[int, typer.Option(min=1, help="How many dotted names make a part of the table.")] = 1,
    as_json: Json = False,
) -> None:
    """Print the parameters and FLOPs of a layer or a model: formula, number, a table by part.

    Example: tensornet count tcl --set sizes=4,4,3 --set ranks=4,4,6

    Example: tensornet count "y[b,o] = x[b,i] * U[r,i] * V[o,r]" --inputs x --size i=64,o=64
    """
    import sympy

    import tensornet as tn

    from .planning.planner import NOMINAL
    from .sizes import evaluate

    if not name:
        _list_models(as_json)
        return
    graph = _graph(name, settings, inputs, outputs, size)
    rows = tn.parameter_table(graph, depth)
    collected = tn.flop_table(graph)
    flops = sympy.expand(collected.formula)
    document = {
        "name": name,
        "parameters": _plain(tn.parameter_count(graph)),
        "parameter_formula": str(tn.parameter_formula(graph)),
        "flops": _plain(evaluate(flops, graph.bound)),  # flop_count would plan once more
        "flop_formula": str(flops),
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
            {"part": part, "formula": str(formula), "parameters": _plain(number)}
            for part, formula, number in rows
        ],
    }
    if as_json:
        typer.echo(json.dumps(document, indent=1))
        return
    _print_count(document)


@app.command()
def draw(
    name: Annotated[str, typer.Argument(help="A layer or a model, or equations as for `plan`.")],
    out: Annotated[Path, typer.Option("--out", help="The SVG file to write.")] = Path("graph.svg"),
    settings: Settings = None,
    inputs: Inputs = "",
    outputs: Outputs = "",
    size: SizeOptions = None,
    as_json: Json = False,
) -> None:
    """Draw a layer or a model: what is read stands above what is made of it.

    Example: tensornet draw "y[b,o] = gelu(x[b,i] * W[o,i])" --inputs x --out layer.svg
    """
    import tensornet as tn

    tn.draw(_graph(name, settings, inputs, outputs, size), out)
    if as_json:
        typer.echo(json.dumps({"file": str(out)}))
        return
    _console().print(f"written: {out}")


@app.command()
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
    size: SizeOptions = None,
    backend: Annotated[str, typer.Option(help="numpy, torch, cupy or jax.")] = "torch",
    device: Annotated[str | None, typer.Option(help="Where to run, e.g. cpu or cuda:0.")] = None,
    dtype: Annotated[str, typer.Option(help="The element type.")] = "float32",
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
        Path | None,
        typer.Option(help="Draw time against parameters: a PNG, SVG or PDF, as the name ends."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Print what a layer or a model costs under many settings: parameters, FLOPs, bytes, seconds.

    Example: tensornet sweep linear --set in_sizes=32,32 --set out_sizes=32,32 --over factorization=cp,tt
    --over rank=0.1,0.2 --size lead=64

    Example: tensornet sweep low.txt --inputs x --over r=4,8,16 --size b=64,i=512,o=512
    """
    import tensornet as tn

    build: Callable[..., Any] = functools.partial(tn.models.create, name)
    if _says_equations(name):
        build = functools.partial(tn.layer, _equations(name), inputs=inputs, outputs=outputs)
    found = tn.sweep(
        functools.partial(build, **_settings(settings or [])),
        over={setting: _choices(text) for setting, text in _pairs(over, "NAME=VALUE,VALUE").items()},
        backend=backend,
        device=device,
        dtype=dtype,
        measure=measure,
        training=training,
        baseline=baseline,
        rounds=rounds,
        clock=clock,
        threads=threads,
        **_sizes(size or [], tn.sweep),
    )
    if picture is not None:
        found.pareto(y="seconds" if measure else "expected_seconds", path=picture)
    if as_json:
        typer.echo(found.json())
        return
    _console().print(found)


def _print_count(document: dict[str, Any]) -> None:
    console = _console()
    table = Table(title=document["name"], title_justify="left")
    for heading in ("part", "formula", "parameters"):
        table.add_column(heading, justify="right" if heading == "parameters" else "left", overflow="fold")
    for row in document["parts"]:
        table.add_row(row["part"], row["formula"], _grouped(row["parameters"]))
    table.add_section()
    table.add_row("total", document["parameter_formula"], _grouped(document["parameters"]))
    console.print(table)
    console.print(f"parameters: {document['parameter_formula']} = {_grouped(document['parameters'])}")
    if len(document["flop_parts"]) < 2:
        console.print(f"FLOPs: {document['flop_formula']} = {_grouped(document['flops'])}")
    else:
        console.print(_of_flops(document))
    if document["sizes"]:
        console.print(f"at {_listed(document['sizes'])}")
    if document["assumed"]:
        console.print(f"the FLOPs are those of the order planned assuming {_listed(document['assumed'])}")


def _of_flops(document: dict[str, Any]) -> Table:
    """FLOPs by block."""
    table = Table("block", "calls", "FLOPs of a call", "of all")
    for each in document["flop_parts"]:
        table.add_row(each["part"] or "itself", str(each["times"]), each["formula"], _grouped(each["flops"]))
    table.add_section()
    table.add_row("total", "", "", _grouped(document["flops"]))
    return table


def _listed(sizes: dict[str, int]) -> str:
    return ", ".join(f"{axis}={value}" for axis, value in sizes.items())


def _list_models(as_json: bool) -> None:
    from . import models

    rows = {
        name: {key: _shown(value) for key, value in models.settings(name).items()} for name in models.names()
    }
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    table = Table("name", "settings (with --set)")
    for name, known in rows.items():
        table.add_row(name, ", ".join(f"{key}={value}" if value else key for key, value in known.items()))
    _console().print(table)


def _shown(default: Any) -> str:
    return "" if default is inspect.Parameter.empty else str(default)


@app.command()
def compress(
    checkpoint: Annotated[
        Path,
        typer.Argument(
            help="A file of tensors with their equations: a run of a study (`runs/*.safetensors`), or what this"
            " command wrote; or the folder of a Hugging Face model; or tensors alone, with --equations."
        ),
    ],
    equations: Annotated[
        str | None,
        typer.Option(help="The equations that the tensors belong to, as for `plan`, if the file has none."),
    ] = None,
    inputs: Inputs = "",
    outputs: Outputs = "",
    parameters: Annotated[
        float | None, typer.Option(help="How many are to be left: a part, e.g. `0.2`, or a number.")
    ] = None,
    flops: Annotated[float | None, typer.Option(help="FLOPs of a call, a part or a number.")] = None,
    seconds: Annotated[float | None, typer.Option(help="Expected time of a call, as a part of now.")] = None,
    error: Annotated[float | None, typer.Option(help="As few parameters as lose no more than this.")] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(help="A form, e.g. `tt`; repeatable, to choose from several. `low_rank` if not given."),
    ] = None,
    include: Annotated[
        list[str] | None, typer.Option(help="A pattern of the weights to look at; repeatable.")
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(help="A pattern of weights to leave as they are; repeatable.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="The file to write, `<checkpoint>.small.safetensors` if not given."),
    ] = None,
    size: SizeOptions = None,
    as_json: Json = False,
) -> None:
    """Put factors in the place of weights of a trained network, under one budget; never over what is read.

    Example: tensornet compress runs/swin.1f2e3d4c.safetensors --parameters 0.2 --method tt

    Example: tensornet compress weights.safetensors --equations net.txt --inputs x --parameters 0.2
    """
    from rich.progress import Progress

    import tensornet as tn

    from .compression.compressing import compress as compressed

    given_graph = (
        None if equations is None else tn.layer(_equations(equations), inputs=inputs, outputs=outputs)
    )
    target = out or checkpoint.with_name(f"{checkpoint.name.removesuffix('.safetensors')}.small.safetensors")
    if target.exists():
        raise EquationError(f"{target} is there already", fix="give another --out, or remove it first")
    given = {"parameters": parameters, "flops": flops, "seconds": seconds, "error": error}
    budgets: dict[str, Any] = {name: _part_or_number(value) for name, value in given.items()}
    with Progress(console=_console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("weights", total=None)

        def progress(path: str, done: int, count: int) -> None:
            bar.update(task, completed=done, total=count, description=path)

        found = compressed(
            *_network(checkpoint, given_graph),
            **budgets,
            method=tuple(method or ("low_rank",)),
            include=tuple(include or ("*",)),
            exclude=tuple(exclude or ()),
            progress=progress,
            **_sizes(size or [], compressed),
        )
    found.save(target)
    allocation = found.allocation
    if as_json:
        typer.echo(json.dumps({"file": str(target), **json.loads(allocation.to_json())}, indent=1))
        return
    console = _console()
    console.print(allocation)
    console.print(f"written: {target}")


def _part_or_number(value: float | None) -> float | None:
    """A budget as it was written: above 1 a whole number."""
    return int(value) if value is not None and value > 1 and value.is_integer() else value


def _network(checkpoint: Path, graph: Graph | None) -> tuple[Any, ...]:
    """What is to be compressed: a graph with its parameters, or a module."""
    from .compression.compressed import read_checkpoint

    if not checkpoint.is_dir():
        return read_checkpoint(checkpoint, graph)
    if graph is not None:
        raise EquationError(f"{checkpoint} is a folder", fix="--equations are for a file of tensors")
    try:
        import transformers
    except ImportError:
        raise EquationError(
            f"{checkpoint} is a folder, and transformers is not installed", fix="pip install transformers"
        ) from None
    config = checkpoint / "config.json"
    if not config.exists():
        raise EquationError(f"{checkpoint} is no folder of a Hugging Face model", fix="one has a config.json")
    names = json.loads(config.read_text(encoding="utf-8")).get("architectures") or []
    kind = getattr(transformers, names[0], None) if names else transformers.AutoModel
    if kind is None:
        raise EquationError(f"transformers has no '{names[0]}'", fix="install the version that wrote it")
    return (kind.from_pretrained(checkpoint, local_files_only=True),)


@app.command()
def functions(
    name: Annotated[
        str, typer.Argument(help="A function, to be told all of it; without one, all are listed.")
    ] = "",
    page: Annotated[
        bool, typer.Option("--page", help="Print the reference page, `docs/language.md`, in Markdown.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List the functions of the equation language, or tell all of one: how it is written, and what it is.

    Example: tensornet functions softmax
    """
    from .language import reference
    from .operations.functions import FUNCTIONS, SUM
    from .running.examples import result_of

    if page:
        typer.echo(reference.page(result_of), nl=False)
        return
    rows = [*(row for row in FUNCTIONS.values() if not row.is_kernel), SUM]
    if name:
        _tell_function(_named(name, rows), as_json)
        return
    if as_json:
        typer.echo(json.dumps([reference.document(row) for row in rows], indent=1, ensure_ascii=False))
        return
    table = Table("function", "form", "formula")
    for row in rows:
        table.add_row(row.name, row.form, row.formula)
    console = _console()
    console.print(table)
    console.print(
        "besides: + - * / and the numbers pi and inf; tensornet.register adds functions of your own"
    )


def _named(name: str, rows: list[Function]) -> Function:
    """The function of a name, or of a sign."""
    found = next((row for row in rows if name in (row.name, row.infix)), None)
    if found is None:
        fix = f"{near(name, [row.name for row in rows])}`tensornet functions` lists all"
        raise EquationError(f"'{name}' is not a function", fix=fix)
    return found


def _tell_function(row: Function, as_json: bool) -> None:
    """All that its record tells of one function, and what its example comes out as."""
    from .language import reference
    from .running.examples import result_of

    shown = row.shown
    result = "" if row.implementations else result_of(shown)
    if as_json:
        document = {**reference.document(row), "result": result}
        typer.echo(json.dumps(document, indent=1, ensure_ascii=False))
        return
    console = _console()
    console.print(row.name)
    for what, text in reference.told(row).items():
        console.print(f"  {what + ':':<12}{text.replace('`', '')}")
    if result:
        console.print(f"  {'example:':<12}{shown.equation}")
        for each, value in shown.given:
            console.print(f"  {'':<12}{each} = {value}")
        console.print(f"  {'':<12}y = {result}")


@app.command()
def study(
    task: Annotated[
        str,
        typer.Argument(help="What to study: `digits`, `text`, `thesis`, or a TOML file that says a study."),
    ] = "digits",
    folder: Annotated[
        Path | None,
        typer.Option(
            "--out", help="The folder of the results, `study-…` if not given; finished runs are kept."
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="For `thesis`: `digits`, `mnist`, `cifar10`, `tiny-imagenet` (fetched from the Hugging Face hub),"
            " or a folder with the well-known files of one of the last three. For `text`: a data set of the"
            " hub (`stanfordnlp/imdb` if not given), or a folder with `train/<class>/*.txt` and"
            " `test/<class>/*.txt`."
        ),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Epochs of each run; the study's own number if not given.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="The same seed gives the same numbers; 0 if nothing is said.")
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(
            help="Several seeds, `0,1,2`, or how many, `3`: mean ± standard deviation of each row over them."
        ),
    ] = None,
    row: Annotated[
        list[str] | None, typer.Option("--row", help="Run only this row of the table; repeatable.")
    ] = None,
    optimizer: Annotated[
        list[str] | None,
        typer.Option(
            "--optimizer", help="Train by `adamw`, `adam` or `sgd`; repeatable; the study's if not given."
        ),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change the recipe: `batch=128`, `learning_rate=0.001`; repeatable."),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="`cpu`, `cuda:0`, …; a CUDA device if there is one.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads on the CPU; results can differ in rounding with them.")
    ] = None,
    precision: Annotated[
        str, typer.Option(help="`float32`, `bfloat16`, `float16`; `auto` is bfloat16 where a GPU has it.")
    ] = "auto",
    fresh: Annotated[bool, typer.Option("--fresh", help="Do finished runs again.")] = False,
    measure: Annotated[
        bool, typer.Option(help="Measure the time of a step and of a prediction, apart from training.")
    ] = True,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Train so many runs at once here; the cores are divided.")
    ] = None,
    dask: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Train the runs on the Dask cluster of this scheduler."),
    ] = None,
    submitit: Annotated[
        str | None,
        typer.Option(
            metavar="CLUSTER", help="Train each run as a job that submitit starts: `slurm`, or `local`."
        ),
    ] = None,
    resource: Annotated[
        list[str] | None,
        typer.Option(
            "--resource",
            metavar="NAME=VALUE",
            help="What a job of `--submitit` asks for: `slurm_partition=gpu`, `timeout_min=240`; repeatable.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Train classifiers of handwritten digits, photographs or texts, dense and tensorized, and compare them.

    `digits`: multi-layer classifiers of handwritten digits, in under a minute. `text`: Transformers on the
    sentiment of movie reviews. `thesis`: Swin against the tensorized Swin Transformer, by Adam and AdamW,
    with the published figures beside them.

    Stopped at any moment and given again it goes on where it was, to the same numbers. Several processes
    share each mini-batch under `torchrun --nproc-per-node 2 -m tensornet study …`; whole runs are trained at
    once by `--jobs`, `--dask` or `--submitit`.

    Example: tensornet study thesis --data mnist --row swin --optimizer adamw --epochs 5 --seeds 3 --jobs 2
    """
    from .study import results_folder, run_study

    folder = folder or results_folder(task, data)
    workers = _workers(folder, jobs, dask, submitit, resource or [])
    run_study(
        folder,
        task=task,
        data=data,
        epochs=epochs,
        seed=seed,
        seeds=None if seeds is None else _seeds(seeds),
        rows=row,
        optimizers=optimizer,
        recipe=_settings(setting or []),
        device=device,
        threads=threads,
        precision=precision,
        fresh=fresh,
        measure=measure,
        workers=workers,
        console=Console(stderr=as_json),
    )
    if as_json and os.environ.get("RANK", "0") == "0":  # one of the processes of torchrun speaks
        typer.echo((folder / "results.json").read_text())


def _workers(
    folder: Path, jobs: int | None, dask: str | None, submitit: str | None, resources: list[str]
) -> Any:
    """Who trains the runs; this process if nothing is said.

    Raises:
        TensornetError: more than one is given, or resources are asked of who takes none.
    """
    from .study import Dask, Processes, Submitit

    given = [
        name
        for name, value in (("--jobs", jobs), ("--dask", dask), ("--submitit", submitit))
        if value is not None
    ]
    if len(given) > 1:
        raise TensornetError(f"{' and '.join(given)} are both given", fix="give one of them")
    if resources and submitit is None:
        raise TensornetError("--resource is for --submitit", fix="give --submitit slurm, or leave it out")
    if jobs is not None:
        return Processes(jobs)
    if dask is not None:
        return Dask(dask)
    return None if submitit is None else Submitit(folder / "submitit", submitit, _settings(resources))


def _seeds(text: str) -> int | list[int]:
    """`3`, or `0,1,2`."""
    try:
        return [int(each) for each in text.split(",")] if "," in text else int(text)
    except ValueError:
        raise TensornetError(f"the seeds are '{text}'", fix="give 0,1,2, or how many: 3") from None


@app.command()
def calibrate(
    backend: Annotated[str, typer.Option(help="numpy, torch, cupy or jax.")] = "torch",
    device: Annotated[str | None, typer.Option(help="The device, e.g. cpu or cuda:0.")] = None,
    dtype: Annotated[str, typer.Option(help="The element type; each has constants of its own.")] = "float32",
    as_json: Json = False,
) -> None:
    """Measure the constants of this device anew, and keep them for every later plan."""
    from dataclasses import asdict

    from .dtypes import element_type
    from .planning.calibration import measure
    from .planning.profiles import save_profile
    from .protocol import load_backend

    chosen = load_backend(backend)
    profile = measure(chosen, chosen.device() if device is None else device, element_type(dtype))
    path = save_profile(profile)
    if as_json:
        typer.echo(json.dumps({**asdict(profile), "path": str(path or "")}, indent=1))
        return
    table = Table("constant", "value", title=profile.key, title_justify="left")
    for name, value in asdict(profile).items():
        if name in _UNITS:
            table.add_row(name, f"{value:.3g} {_UNITS[name]}")
    console = _console()
    console.print(table)
    console.print(f"four of five times measured lie within a factor {profile.spread:.2g} of what these say")
    if not profile.is_steady:
        part = f"{100 * profile.unrest:.0f} %"
        console.print(f"the device had other work ({part}): measure again when it is idle")
    console.print(f"kept in {path}" if path else "the cache folder cannot be written: nothing is kept")


_UNITS = {
    "flops": "FLOP/s",
    "bandwidth": "bytes/s",
    "near_bandwidth": "bytes/s",
    "held_bandwidth": "bytes/s",
    "pass_bandwidth": "bytes/s",
    "launch": "s",
    "view": "s",
    "batch": "s",
    "small": "multiply-adds",
    "plain": "s",
    "run": "s",
    "scattered": "s",
    "line": "s",
    "fresh_bytes": "bytes",
    "fresh_bandwidth": "bytes/s",
    "fresh_product": "bytes/s",
}
"""In what the constants of a device are measured."""


# ---------------------------------------------------------------------------- reading options


def _graph(name: str, settings: list[str] | None, inputs: str, outputs: str, size: list[str] | None) -> Graph:
    """A layer or a model by its name and settings, or by its equations and sizes."""
    import tensornet as tn

    if _says_equations(name):
        return tn.layer(_equations(name), inputs=inputs, outputs=outputs, **_sizes(size or [], tn.layer))
    return tn.models.create(name, **_settings(settings or []))


def _says_equations(text: str) -> bool:
    """Whether an argument is equations, or where they are, and no name of a layer."""
    return "=" in text or text == "-" or Path(text).suffix != "" or Path(text).is_file()


def _equations(text: str) -> str:
    """The equations that an argument says: itself, those in a file, or standard input."""
    if text == "-":
        return _standard_input()
    if "=" in text:
        return "\n".join(each.strip() for each in text.split(";"))
    try:
        return Path(text).read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise EquationError(
            f"'{text}' is no equation, and no file of such: {error}", fix="write name[axes] = expression"
        ) from None


def _standard_input() -> str:
    """The equations piped in.

    Raises:
        EquationError: they are no text.
    """
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        found = f"byte {error.object[error.start]:#04x} at position {error.start}"
        raise EquationError(
            f"standard input is no text in UTF-8: {found}", fix="pipe equations in, one a line"
        ) from None


def _pairs(texts: Iterable[str], what: str) -> dict[str, str]:
    """`b=32` and the like, each name once."""
    found: dict[str, str] = {}
    for text in texts:
        name, sign, value = (each.strip() for each in text.partition("="))
        if not sign or not name or not value:
            raise ShapeError(f"'{text}' is not {what}", fix=f"write {what}")
        if found.setdefault(name, value) != value:
            raise ShapeError(f"'{name}' is given twice: {found[name]} and {value}", fix="give it once")
    return found


def _sizes(texts: list[str], call: Callable[..., Any]) -> dict[str, Any]:
    """`b=32,c=4` and the like, for a call that has options too; a size may be an expression such as 4*D."""
    from .language.reading import parse_size

    pairs = _pairs((part for text in texts for part in text.split(",")), "AXIS=SIZE")
    taken = inspect.getfullargspec(call)
    for name, value in pairs.items():
        if name in (*taken.args, *taken.kwonlyargs):
            fix = f"write its size among the equations: {name}: {value}"
            raise ShapeError(f"an axis called '{name}' cannot be sized by an option", fix=fix)
    return {name: parse_size(value) for name, value in pairs.items()}


def _settings(texts: list[str]) -> dict[str, Any]:
    return {name: _setting(value) for name, value in _pairs(texts, "NAME=VALUE").items()}


def _choices(text: str) -> list[Any]:
    """What stands between the commas of a text, those inside of brackets left alone."""
    return [_setting(each.strip()) for each in re.split(r",(?![^(\[]*[)\]])", text)]


def _setting(value: str) -> Any:
    """A number, a list, a truth value or a word; any other expression is a symbolic size."""
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    try:
        return ast.literal_eval(f"({value})")
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return value


def _plain(value: Any) -> Any:
    return value if isinstance(value, int) else str(value)


def _grouped(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
