"""The experiments of the thesis, chapter 4: Swin against its tensorized form, with Adam and with AdamW.

`tensornet study thesis --data mnist` trains a dense Swin and tensorized ones of the same shape at several
ranks (the sizes of their modes), on the images of any of the data sets. The report shows the published
figures next to them if the images and the recipe are those of the experiment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tensornet as tn

from .arrays import Data, are_arrays, load_arrays, name_of
from .images import load_images, source_of
from .task import Examples, Published, Recipe, Task

__all__ = ["Experiment", "SwinRow", "fitting", "thesis"]


@dataclass(frozen=True)
class SwinRow:
    """The settings of one `models.tensor_swin`, which is dense if nothing in it is tensorized.

    Attributes:
        about: a short description.
        settings: its own settings; the others are those of the experiment.
        learning_rate: its learning rate; small factors tolerate a larger one than large matrices.
    """

    about: str
    settings: Mapping[str, Any]
    learning_rate: float


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
    rows: Mapping[str, SwinRow]
    recipe: Recipe
    published: tuple[Published, ...] = ()
    table: str = ""
    threads: int | None = None


Modes = tuple[tuple[int, int, int], ...]
"""Three sizes for each stage."""


def _swin(modes: Modes, heads: Modes, learning_rate: float) -> SwinRow:
    """A dense row: the modes only give the width of each stage, and the heads their number."""
    settings = {"modes": modes, "heads": heads, "tensorized": (), "weights": "soft"}
    return SwinRow("Swin, dense", settings, learning_rate)


def _tensor(modes: Modes, heads: Modes, learning_rate: float, weights: str = "soft") -> SwinRow:
    ranks = ", ".join("×".join(map(str, each)) for each in modes)
    settings = {"modes": modes, "heads": heads, "weights": weights}
    return SwinRow(f"tensorized, modes {ranks}, {weights} attention", settings, learning_rate)


SWIN_T, TENSOR_SWIN = 27_528_690, 1_368_626
"""The numbers of parameters that the thesis prints, the same for every data set."""


def _published(*rows: tuple[str, str, float, float, float, float]) -> tuple[Published, ...]:
    """Rows of a table of the thesis: model, optimizer, top-1 and top-5 on train and on test."""
    parameters = {"Swin-T": SWIN_T, "tensorized": TENSOR_SWIN}
    return tuple(Published(name, by, parameters[name], *figures) for name, by, *figures in rows)


SWIN_T_SHAPE = {"window": 4, "channels": 3, "depths": (2, 2, 6, 2), "stochastic_depth": 0.1}
SWIN_T_HEADS = ((1, 1, 3), (1, 2, 3), (2, 2, 3), (2, 2, 6))
SWIN_T_MODES = ((4, 4, 6), (4, 8, 6), (8, 8, 6), (8, 8, 12))
SWIN_T_ROWS = {
    "swin": _swin(SWIN_T_MODES, SWIN_T_HEADS, 1e-3),
    "tensor-8x8x12": _tensor(SWIN_T_MODES, SWIN_T_HEADS, 4e-3),
    "tensor-8x8x12-signed": _tensor(SWIN_T_MODES, SWIN_T_HEADS, 4e-3, "signed"),
    "tensor-32x3x8": _tensor(
        ((32, 3, 1), (32, 3, 2), (32, 3, 4), (32, 3, 8)), ((1, 3, 1), (2, 3, 1), (4, 3, 1), (8, 3, 1)), 2e-3
    ),
    "tensor-96x1x8": _tensor(
        ((96, 1, 1), (96, 1, 2), (96, 1, 4), (96, 1, 8)), ((3, 1, 1), (6, 1, 1), (12, 1, 1), (24, 1, 1)), 1e-3
    ),
}
"""Rows with the widths, depths and heads of Swin-T, named by the modes of the last stage."""

COLOUR = Recipe(epochs=100, batch=128, weight_decay=0.05, smoothing=0.1, clip=1.0, shift=4.0, flip=True)
"""The recipe for CIFAR-10 and Tiny ImageNet."""

EXPERIMENTS: dict[str, Experiment] = {
    "digits": Experiment(
        title="{data}: Swin and tensorized Swin",
        shape={"image": 8, "patch": 2, "channels": 1, "window": 2, "depths": (2, 2)},
        rows={
            "swin": _swin(((8, 4, 1), (8, 4, 2)), ((2, 2, 1), (2, 2, 2)), 4e-3),
            "tensor-4x2x2": _tensor(((4, 2, 1), (4, 2, 2)), ((2, 1, 1), (2, 1, 2)), 0.02),
            "tensor-8x4x2": _tensor(((8, 4, 1), (8, 4, 2)), ((2, 2, 1), (2, 2, 2)), 0.02),
            "tensor-8x4x2-signed": _tensor(((8, 4, 1), (8, 4, 2)), ((2, 2, 1), (2, 2, 2)), 0.02, "signed"),
        },
        recipe=Recipe(epochs=20, batch=64, weight_decay=0.02, smoothing=0.05, clip=1.0, shift=0.5),
        threads=1,  # at these sizes more threads would only wait for each other
    ),
    "mnist": Experiment(
        title="{data}: Swin and tensorized Swin",
        shape={"image": 28, "patch": 4, "channels": 1, "window": 7, "depths": (2, 2)},
        rows={
            "swin": _swin(((8, 8, 1), (8, 8, 2)), ((2, 2, 1), (2, 2, 2)), 2e-3),
            "tensor-4x4x8": _tensor(((4, 4, 4), (4, 4, 8)), ((2, 2, 1), (2, 2, 2)), 0.02),
            "tensor-8x8x2": _tensor(((8, 8, 1), (8, 8, 2)), ((2, 2, 1), (2, 2, 2)), 0.02),
            "tensor-8x8x2-signed": _tensor(((8, 8, 1), (8, 8, 2)), ((2, 2, 1), (2, 2, 2)), 0.02, "signed"),
            "tensor-32x2x2": _tensor(((32, 2, 1), (32, 2, 2)), ((4, 1, 1), (4, 1, 2)), 8e-3),
        },
        recipe=Recipe(
            epochs=15, batch=64, weight_decay=0.02, smoothing=0.05, clip=1.0, shift=1.5, rotate=5.0, zoom=0.05
        ),
        published=_published(
            ("Swin-T", "–", 95.8, 99.9, 97.0, 99.9), ("tensorized", "–", 97.3, 99.9, 98.9, 100.0)
        ),
        table="table 4.2.2",
    ),
    "cifar10": Experiment(
        title="{data}: Swin-T and tensorized Swin",
        shape={"image": 32, "patch": 2, **SWIN_T_SHAPE},
        rows=SWIN_T_ROWS,
        recipe=COLOUR,
        published=_published(
            ("Swin-T", "–", 97.48, 99.97, 80.92, 96.45), ("tensorized", "–", 80.30, 98.97, 81.80, 99.21)
        ),
        table="table 4.1.1",
    ),
    "tiny-imagenet": Experiment(
        title="{data}: Swin-T and tensorized Swin",
        shape={"image": 64, "patch": 4, **SWIN_T_SHAPE},
        rows=SWIN_T_ROWS,
        recipe=COLOUR,
        published=_published(
            ("Swin-T", "–", 42.26, 59.03, 64.14, 85.42),
            ("tensorized", "Adam", 83.89, 98.50, 30.85, 54.17),
            ("tensorized", "AdamW", 55.30, 80.90, 35.90, 62.07),
        ),
        table="table 4.3.3",
    ),
}
"""Name of the images → the experiment with them."""


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
        name, experiment = Path(name_of(data)).stem, replace(EXPERIMENTS["digits"], shape={"depths": (2, 2)})
        load = _load_arrays
    else:
        source = source_of(data)  # type: ignore[arg-type]
        name, experiment = source.name, EXPERIMENTS[source.name]

        def load(seed: int, data: Data) -> Examples:
            return load_images(source, seed)

    def build(row: SwinRow, examples: Examples) -> tn.Graph:
        own = experiment.shape if "image" in experiment.shape else {**fitting(examples), **experiment.shape}
        return tn.models.tensor_swin(classes=examples.sizes["classes"], **{**own, **row.settings})

    return Task(
        name=f"thesis-{name}",
        title=experiment.title,
        example="image",
        rows=experiment.rows,
        recipe=experiment.recipe,
        load=load,
        reference="swin",
        build=build,
        changes=lambda row: {"learning_rate": row.learning_rate},
        optimizers=("adamw", "adam"),
        threads=experiment.threads,
        caution="in short trials that looked at test images",
        tried=("learning_rate", "shift", "rotate", "zoom", "flip"),
        published=experiment.published,
        source=experiment.table,
        splits=load is not _load_arrays and name == "digits",
        labels={name: _label(name) for name in experiment.rows},
        controls=frozenset({"swin"}),
        kinds=("dense", "tensorized"),
    )


def _load_arrays(seed: int, data: Data) -> Examples:
    return load_arrays(data, images=True)


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


def _label(name: str) -> str:
    """The label of a row in pictures, such as `8×8×2, signed` for tensor-8x8x2-signed."""
    return "Swin" if name == "swin" else name.removeprefix("tensor-").replace("x", "×").replace("-", ", ")
