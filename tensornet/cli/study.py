"""The command `study`, which runs a study."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer import Option

from ..errors import TensornetError
from .options import Device, Json, Texts, Threads, choices, pairs, settings_of

Count = int | None


def study(
    task: Annotated[str, typer.Argument(help="`digits`, `text`, `thesis`, or a TOML file.")] = "digits",
    folder: Annotated[Path | None, Option("--out", help="For the results; finished runs stay.")] = None,
    data: Annotated[str | None, Option(help="Where the examples come from, as is said above.")] = None,
    epochs: Annotated[Count, Option(min=1, help="Epochs of each run; else the study's own number.")] = None,
    seed: Annotated[Count, Option(min=0, help="The same seed gives the same numbers; else 0.")] = None,
    seeds: Annotated[str | None, Option(help="Several seeds, `0,1,2`, or how many, `3`.")] = None,
    row: Annotated[Texts, Option("--row", help="Run only this row of the table; repeatable.")] = None,
    optimizer: Annotated[Texts, Option("--optimizer", help="`adamw`, `adam` or `sgd`; repeatable.")] = None,
    setting: Annotated[Texts, Option("--set", help="Change the recipe: `batch=128`; repeatable.")] = None,
    device: Device = None,
    threads: Threads = None,
    precision: Annotated[str, Option(help="`float32`, `bfloat16` or `auto`.")] = "auto",
    measure: Annotated[bool, Option(help="Measure the time of a step and of a prediction.")] = True,
    jobs: Annotated[Count, Option(min=1, help="Train so many runs at once; the cores are divided.")] = None,
    dask: Annotated[str | None, Option(metavar="ADDRESS", help="Train on this Dask cluster.")] = None,
    mesh: Annotated[str | None, Option(metavar="AXIS=SIZE,…", help="Divide each run.")] = None,
    shard: Annotated[Texts, Option(metavar="AXIS=MESH", help="Divide `b=data`; repeatable.")] = None,
    as_json: Json = False,
) -> None:
    """Train classifiers of handwritten digits, photographs, texts or your own examples, and compare them.

    `digits`: small multi-layer classifiers of handwritten digits. `text`: Transformers on the
    sentiment of movie reviews. `thesis`: Swin against the tensorized Swin Transformer, with Adam and AdamW, on
    photographs; next to the published figures, if images and recipe are those of the experiment.

    `--data` takes examples of your own: a file `.npz` with `x_train`, `y_train`, `x_test`, `y_test`, as
    `numpy.savez` writes it, a data set of the Hugging Face hub as `owner/name`, or a folder with
    `train/<class>/` and `test/<class>/`, of images or, for `text`, of `*.txt`. `digits` takes arrays of any shape,
    `thesis` images (n, H, W), (n, C, H, W) or (n, H, W, C), and also `digits`, `mnist`, `cifar10`,
    `tiny-imagenet`, or a folder with the files of MNIST.

    A TOML file has rows of your own: `study = "digits"`, `seeds = 3`, and for each row a table as `[rows.tucker]`, with
    `model = "trl"` and `settings = { sizes = [8, 8], outputs = 10, factorization = "tucker", rank = 0.1 }`.

    If stopped at any moment, the same command continues from there, with the same results. `--jobs` and
    `--dask` train several runs at the same time. `torchrun --nproc-per-node 4 -m tensornet study --mesh data=2,model=2
    --shard b=data --shard f=model` trains each run on four processes.

    Example: tensornet study --data wine.npz --epochs 20

    Example: tensornet study thesis --data mnist --row swin --optimizer adamw --epochs 5 --seeds 3 --jobs 2
    """
    from ..study import results_folder, run_study

    folder, found = folder or results_folder(task, data), [] if seeds is None else choices(seeds)
    run_study(
        folder,
        task=task,
        data=data,
        epochs=epochs,
        seed=seed,
        seeds=found[0] if len(found) == 1 else found or None,
        rows=row,
        optimizers=optimizer,
        recipe=settings_of(setting),
        device=device,
        threads=threads,
        precision=precision,
        measure=measure,
        workers=workers_of(jobs, dask),
        mesh=settings_of(mesh.split(",")) if mesh else None,
        shard=pairs(shard, "AXIS=MESH") if shard else "auto",
        console=Console(stderr=as_json, emoji=False),
    )
    if as_json and os.environ.get("RANK", "0") == "0":  # of the processes of torchrun
        typer.echo((folder / "results.json").read_text())


def workers_of(jobs: int | None, dask: str | None) -> Any:
    """The workers that train the runs; None, if no option is given, is this process.

    Raises:
        TensornetError: both are given.
    """
    from ..study import Dask, Processes

    if jobs is not None and dask is not None:
        raise TensornetError("--jobs and --dask are both given", fix="give one of them")
    return Dask(dask) if dask is not None else None if jobs is None else Processes(jobs)
