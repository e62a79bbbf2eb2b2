"""The experiments of the thesis, chapter 4: Swin against its tensorized form, with Adam and with AdamW.

`tensornet study thesis --data mnist` trains a dense Swin and tensorized ones of the same shape at several
ranks (the sizes of their modes), on the images of any of the data sets. The report shows the published
figures next to them if the images and the recipe are those of the experiment.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tensornet as tn

from .arrays import Data, are_arrays, load_arrays, name_of
from .images import load_images, source_of
from .libraries import frozen, toml
from .task import BuiltRow, Examples, Published, Recipe, Task, built

__all__ = ["Experiment", "experiments", "fitting", "thesis"]


@dataclass(frozen=True)
class Experiment:
    """One data set of chapter 4.

    Attributes:
        title: the heading of its report.
        shape: the settings that all rows share.
        rows: name → the row, with its own settings.
        recipe: how the rows are trained.
        published: the rows of the table of the thesis.
        table: the number of that table.
        threads: threads of one process on the CPU; all cores if not given.
    """

    title: str
    shape: Mapping[str, Any]
    rows: Mapping[str, BuiltRow]
    recipe: Recipe
    published: tuple[Published, ...] = ()
    table: str = ""
    threads: int | None = None


PARAMETERS = {"Swin-T": 27_528_690, "tensorized": 1_368_626}
"""The numbers of parameters that the thesis prints, the same for every data set."""


def _row(dense: bool, learning_rate: float, **settings: Any) -> BuiltRow:
    """A row; of a dense one the modes only give the width of each stage, and the heads their number."""
    how = settings.setdefault("weights", "soft")
    ranks = ", ".join("×".join(map(str, each)) for each in settings["modes"])
    about = "Swin, dense" if dense else f"tensorized, modes {ranks}, {how} attention"
    own = settings | ({"tensorized": ()} if dense else {})
    return BuiltRow(about, "tensor_swin", own, {"learning_rate": learning_rate})


@functools.cache
def experiments() -> dict[str, Experiment]:
    """Name of the images → the experiment with them, as `thesis.toml` describes it."""
    tables = frozen(toml(Path(__file__).with_suffix(".toml")))
    found = {}
    for name, table in tables.items():
        rows = tables[table.get("rows_of", name)]["rows"]
        published = table.get("published", ())
        found[name] = Experiment(
            **{key: table[key] for key in ("title", "shape", "table", "threads") if key in table},
            rows={row: _row(dense=row == "swin", **each) for row, each in rows.items()},
            recipe=Recipe().changed(table["recipe"]),
            published=tuple(Published(model, by, PARAMETERS[model], *rest) for model, by, *rest in published),
        )
    return found


def thesis(data: Data) -> Task:
    """The experiment for these images.

    Args:
        data: "digits", "mnist", "cifar10", "tiny-imagenet" (from the Hugging Face hub, except for the
            digits), a folder with the files of one of the last three, or the user's own arrays. For these
            arrays the rows of the digits are used, with patches and windows that fit.

    Raises:
        TensornetError: the data are none of these.
    """
    if are_arrays(data):
        experiment = replace(experiments()["digits"], shape={"depths": (2, 2)})
        name, source = Path(name_of(data)).stem, None
    else:
        source = source_of(data)  # type: ignore[arg-type]
        name, experiment = source.name, experiments()[source.name]

    def load(seed: int, data: Data) -> Examples:
        return load_arrays(data, images=True) if source is None else load_images(source, seed)

    def build(row: BuiltRow, examples: Examples) -> tn.Graph:
        own = experiment.shape if "image" in experiment.shape else {**fitting(examples), **experiment.shape}
        return built(replace(row, settings={**own, **row.settings}), examples)

    return Task(
        name=f"thesis-{name}",
        title=experiment.title,
        example="image",
        rows=experiment.rows,
        recipe=experiment.recipe,
        load=load,
        reference="swin",
        build=build,
        optimizers=("adamw", "adam"),
        threads=experiment.threads,
        caution="in short trials that looked at test images",
        tried=("learning_rate", "shift", "rotate", "zoom", "flip"),
        published=experiment.published,
        source=experiment.table,
        splits=source is not None and name == "digits",
        controls=frozenset({"swin"}),
        kinds=("dense", "tensorized"),
    )


MOST_PATCHES = 8
"""The most patches along the shorter side of the user's own images."""


def fitting(examples: Examples) -> dict[str, Any]:
    """The size of these images, and patch and window sizes that fit.

    There are two windows along the shorter side if its number of patches is even, else one.

    Example: 2 and 2 for 8×8 pixels, 2 and 4 for 16×16, 4 and 7 for 28×28, 4 and 4 for 32×32.
    """
    height, width = examples.train_inputs[0].shape[2:]
    short = min(height, width)
    least = max(2, -(-short // MOST_PATCHES))
    patch = next((each for each in range(least, 2 * least) if height % each == width % each == 0), least)
    grid = -(-short // patch)
    window = grid // 2 if grid % 2 == 0 else grid
    sizes = {name: examples.sizes[name] for name in ("image", "channels")}
    return {**sizes, "patch": patch, "window": window}
