"""The experiments of the thesis, chapter 4: Swin against its tensorized form, with Adam and with AdamW.

`tensornet study thesis --data mnist` trains a dense Swin and tensorized ones of the same shape at several
ranks (the sizes of their modes), on the images of any of the data sets. The report shows the published
figures next to them if the images and the recipe are those of the experiment.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import tensornet as tn

from .arrays import Data, are_arrays, load_arrays, name_of
from .images import load_images, source_of
from .libraries import frozen, toml
from .task import BuiltRow, Examples, Published, Recipe, Task, built

__all__ = ["experiments", "fitting", "thesis"]


@functools.cache
def experiments() -> dict[str, Any]:
    """Name of the images → the experiment with them, as `thesis.toml` describes it."""
    found: dict[str, Any] = frozen(toml(Path(__file__).with_suffix(".toml")))
    return found


def _row(name: str, learning_rate: float, **settings: Any) -> BuiltRow:
    """A row; of a dense one the modes only give the width of each stage, and the heads their number."""
    how = settings.setdefault("weights", "soft")
    ranks = ", ".join("×".join(map(str, each)) for each in settings["modes"])
    dense = name == "swin"
    about = "Swin, dense" if dense else f"tensorized, modes {ranks}, {how} attention"
    own = settings | ({"tensorized": ()} if dense else {})
    return BuiltRow(about, "tensor_swin", own, {"learning_rate": learning_rate})


def thesis(data: Data) -> Task:
    """The experiment for these images.

    Args:
        data: "digits", "mnist", "cifar10", "tiny-imagenet" (from the Hugging Face hub, except for the
            digits), a folder with the files of MNIST or CIFAR-10, or the user's own arrays. For these
            arrays the rows of the digits are used, with patches and windows that fit.

    Raises:
        TensornetError: the data are none of these.
    """
    source = None if are_arrays(data) else source_of(data)  # type: ignore[arg-type]
    name = Path(name_of(data)).stem if source is None else source.name
    table = experiments()["digits" if source is None else name]
    rows = experiments()[table.get("rows_of")]["rows"] if "rows_of" in table else table["rows"]

    def load(seed: int, data: Data) -> Examples:
        return load_arrays(data, images=True) if source is None else load_images(source, seed)

    def build(row: BuiltRow, examples: Examples) -> tn.Graph:
        shape = table["shape"] if source else {**fitting(examples), "depths": (2, 2)}
        return built(replace(row, settings={**shape, **row.settings}), examples)

    return Task(
        name=f"thesis-{name}",
        title=table["title"],
        example="image",
        rows={row: _row(row, **each) for row, each in rows.items()},
        recipe=Recipe().changed(table["recipe"]),
        load=load,
        reference="swin",
        build=build,
        optimizers=("adamw", "adam"),
        threads=table.get("threads"),
        caution="in short trials that looked at test images",
        tried=("learning_rate", "shift", "rotate", "zoom", "flip"),
        published=tuple(Published(*each) for each in table.get("published", ())),
        source=table.get("table", ""),
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
