"""The command `study`, which runs a study."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ..errors import TensornetError
from .options import Json
from .reading import settings_of

__all__ = ["seeds_of", "study", "workers_of"]


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
            help="Your own arrays: a file `.npz` with `x_train`, `y_train`, `x_test`, `y_test`, as"
            " `numpy.savez` writes it; `digits` takes arrays of any shape, `thesis` images (n, H, W), (n, C, H, W)"
            " or (n, H, W, C). For `thesis` also `digits`, `mnist`, `cifar10`, `tiny-imagenet` (fetched from the"
            " Hugging Face hub), or a folder with the well-known files of one of the last three. For `text`: a data"
            " set of the hub (`stanfordnlp/imdb` if not given), or a folder with `train/<class>/*.txt` and"
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
    """Train classifiers of handwritten digits, photographs, texts or your own arrays, and compare them.

    `digits`: small multi-layer classifiers of handwritten digits. `text`: Transformers on the
    sentiment of movie reviews. `thesis`: Swin against the tensorized Swin Transformer, with Adam and AdamW, on
    photographs; next to the published figures, if images and recipe are those of the experiment.

    If stopped at any moment, the same command continues from there, with the same results. Several processes
    share each mini-batch under `torchrun --nproc-per-node 2 -m tensornet study …`. The options
    `--jobs`, `--dask` and `--submitit` train several runs at the same time.

    Example: tensornet study --data wine.npz --epochs 20

    Example: tensornet study thesis --data mnist --row swin --optimizer adamw --epochs 5 --seeds 3 --jobs 2
    """
    from ..study import results_folder, run_study

    folder = folder or results_folder(task, data)
    workers = workers_of(folder, jobs, dask, submitit, resource)
    run_study(
        folder,
        task=task,
        data=data,
        epochs=epochs,
        seed=seed,
        seeds=None if seeds is None else seeds_of(seeds),
        rows=row,
        optimizers=optimizer,
        recipe=settings_of(setting),
        device=device,
        threads=threads,
        precision=precision,
        fresh=fresh,
        measure=measure,
        workers=workers,
        console=Console(stderr=as_json),
    )
    if as_json and os.environ.get("RANK", "0") == "0":  # under torchrun only one process prints
        typer.echo((folder / "results.json").read_text())


def workers_of(
    folder: Path, jobs: int | None, dask: str | None, submitit: str | None, resources: list[str] | None
) -> Any:
    """The executor that trains the runs; None, if no option is given, is this process.

    Raises:
        TensornetError: more than one is given, or resources are given without `--submitit`.
    """
    from ..study import Dask, Processes, Submitit

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
    return None if submitit is None else Submitit(folder / "submitit", submitit, settings_of(resources))


def seeds_of(text: str) -> int | list[int]:
    """The seeds in a text: a list for `0,1,2`, the number of seeds for `3`."""
    try:
        return [int(each) for each in text.split(",")] if "," in text else int(text)
    except ValueError:
        raise TensornetError(f"the seeds are '{text}'", fix="give 0,1,2, or how many: 3") from None
