"""The experiments of the thesis, chapter 4: Swin against its tensorized form, by Adam and by AdamW.

`tensornet study thesis --data mnist` trains, on images of any of the data sets, a dense Swin and
tensorized ones of the same shape at several ranks (the sizes of their modes), and sets the published
figures beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tensornet as tn

from .images import load_images, source_of
from .recipe import Recipe
from .task import Examples, Published, Task

__all__ = ["Experiment", "SwinRow", "thesis"]


@dataclass(frozen=True)
class SwinRow:
    """The settings of one `models.tensor_swin`, with `tensorized` empty for the dense one."""

    about: str
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Experiment:
    """One data set of chapter 4.

    Attributes:
        title: the heading of its report.
        shape: the settings that all rows share.
        rows: name → what it is, and the settings of its own.
        recipe: how they are trained.
        published: the rows of the table of the thesis.
        table: the number of that table.
    """

    title: str
    shape: Mapping[str, Any]
    rows: Mapping[str, SwinRow]
    recipe: Recipe
    published: tuple[Published, ...] = ()
    table: str = ""


Modes = tuple[tuple[int, int, int], ...]
"""Three sizes for each stage."""


def _swin(modes: Modes, heads: Modes) -> SwinRow:
    """Dense: the modes only say how wide each stage is, the heads how many there are."""
    settings = {"modes": modes, "heads": heads, "tensorized": (), "weights": "soft"}
    return SwinRow("Swin, dense", settings)


def _tensor(modes: Modes, heads: Modes, **more: Any) -> SwinRow:
    ranks = ", ".join("×".join(map(str, each)) for each in modes)
    kind = f", {more['weights']} attention" if "weights" in more else ""
    return SwinRow(f"tensorized, modes {ranks}{kind}", {"modes": modes, "heads": heads, **more})


SWIN_T, TENSOR_SWIN = 27_528_690, 1_368_626
"""The parameters as the thesis prints them, the same for every data set."""


def _published(*rows: tuple[str, str, float, float, float, float]) -> tuple[Published, ...]:
    """Rows of a table of the thesis: model, optimizer, top-1 and top-5 on train and on test."""
    parameters = {"Swin-T": SWIN_T, "tensorized": TENSOR_SWIN}
    return tuple(Published(name, by, parameters[name], *figures) for name, by, *figures in rows)


SWIN_T_SHAPE = {"window": 4, "channels": 3, "depths": (2, 2, 6, 2), "stochastic_depth": 0.1}
SWIN_T_HEADS = ((1, 1, 3), (1, 2, 3), (2, 2, 3), (2, 2, 6))
SWIN_T_ROWS = {
    "swin": _swin(((4, 4, 6), (4, 8, 6), (8, 8, 6), (8, 8, 12)), SWIN_T_HEADS),
    "tensor-8x8x12": _tensor(((4, 4, 6), (4, 8, 6), (8, 8, 6), (8, 8, 12)), SWIN_T_HEADS),
    "tensor-32x24": _tensor(
        ((8, 12, 1), (16, 12, 1), (16, 24, 1), (32, 24, 1)), ((1, 3, 1), (2, 3, 1), (4, 3, 1), (8, 3, 1))
    ),
    "tensor-128x6": _tensor(
        ((32, 3, 1), (64, 3, 1), (64, 6, 1), (128, 6, 1)), ((1, 3, 1), (2, 3, 1), (4, 3, 1), (8, 3, 1))
    ),
}
"""The widths, depths and heads of Swin-T; named by the modes of the last stage."""

COLOUR = Recipe(
    epochs=100,
    batch=128,
    learning_rate=1e-3,
    weight_decay=0.05,
    smoothing=0.1,
    clip=1.0,
    shift=4.0,
    flip=True,
)

EXPERIMENTS: dict[str, Experiment] = {
    "digits": Experiment(
        title="Swin and tensorized Swin on 8×8 digits",
        shape={"image": 8, "patch": 2, "channels": 1, "window": 2, "depths": (2, 2)},
        rows={
            "swin": _swin(((8, 4, 1), (8, 8, 1)), ((2, 1, 1), (2, 2, 1))),
            "tensor-4x4": _tensor(((4, 2, 1), (4, 4, 1)), ((2, 1, 1), (2, 2, 1))),
            "tensor-8x4": _tensor(((4, 4, 1), (8, 4, 1)), ((2, 1, 1), (2, 2, 1))),
            "tensor-8x8": _tensor(((8, 4, 1), (8, 8, 1)), ((2, 1, 1), (2, 2, 1))),
        },
        recipe=Recipe(epochs=30, batch=32, learning_rate=4e-3, weight_decay=0.05, smoothing=0.05, clip=1.0),
    ),
    "mnist": Experiment(
        title="MNIST: Swin and tensorized Swin",
        shape={"image": 28, "patch": 4, "channels": 1, "window": 4, "depths": (2, 2)},
        rows={
            "swin": _swin(((16, 4, 1), (16, 8, 1)), ((4, 1, 1), (4, 2, 1))),
            "tensor-16x8": _tensor(((16, 4, 1), (16, 8, 1)), ((4, 1, 1), (4, 2, 1))),
        },
        recipe=Recipe(
            epochs=20,
            batch=64,
            learning_rate=4e-3,
            weight_decay=0.05,
            smoothing=0.05,
            clip=1.0,
            shift=2.0,
            rotate=10.0,
            zoom=0.1,
        ),
        published=_published(
            ("Swin-T", "–", 95.8, 99.9, 97.0, 99.9), ("tensorized", "–", 97.3, 99.9, 98.9, 100.0)
        ),
        table="table 4.2.2",
    ),
    "cifar10": Experiment(
        title="CIFAR-10: Swin-T and tensorized Swin",
        shape={"image": 32, "patch": 2, **SWIN_T_SHAPE},
        rows=SWIN_T_ROWS,
        recipe=COLOUR,
        published=_published(
            ("Swin-T", "–", 97.48, 99.97, 80.92, 96.45), ("tensorized", "–", 80.30, 98.97, 81.80, 99.21)
        ),
        table="table 4.1.1",
    ),
    "tiny-imagenet": Experiment(
        title="Tiny ImageNet: Swin-T and tensorized Swin",
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
"""Name of the images → the experiment on them."""


def thesis(data: str | None) -> Task:
    """The experiment for these images.

    Args:
        data: "digits", "mnist", "cifar10", "tiny-imagenet" (by the Hugging Face hub, but for the
            digits), or a folder with the files of one of the last three.

    Raises:
        TensornetError: it is none of these.
    """
    source = source_of(data)
    experiment = EXPERIMENTS[source.name]

    def load(seed: int, data: str | None) -> Examples:
        return load_images(source, seed)

    def build(row: SwinRow, examples: Examples) -> tn.Graph:
        settings = {**experiment.shape, **row.settings}
        return tn.models.tensor_swin(classes=examples.sizes["classes"], **settings)

    return Task(
        name=f"thesis-{source.name}",
        title=experiment.title,
        example="image",
        rows=experiment.rows,
        recipe=experiment.recipe,
        load=load,
        build=build,
        optimizers=("adam", "adamw"),
        threads=None,
        published=experiment.published,
        source=experiment.table,
    )
