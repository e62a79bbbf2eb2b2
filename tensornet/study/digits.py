"""The digits: 1,797 real images of 8×8 pixels that come with scikit-learn, and small classifiers for them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import tensornet as tn
from tensornet.errors import TensornetError

from .arrays import NAMES, Data, are_arrays, examples_of, load_arrays, name_of
from .libraries import library
from .task import Examples, Recipe, Task

SIDE = 8
"""Pixels along each side of an image."""

CLASSES = 10
"""The digits 0 to 9."""

Rank = str | int | float | tuple[int, ...]
"""A rank as `tensornet.models` takes it: 'same', a fraction of the parameters, one rank, or a tuple of ranks."""


@dataclass(frozen=True)
class Row:
    """The settings of one classifier: hidden layers, each followed by GELU, and a linear head.

    Attributes:
        about: a short description.
        body: the kind of the hidden layers: "tcl", or the `factorization` of `models.linear`.
        hidden: the output sizes of each hidden layer.
        rank: the rank of the weights of hidden layers built by `models.linear`.
        head: the `factorization` of the head, which is `models.trl`.
        head_rank: its rank.
    """

    about: str
    body: str
    hidden: tuple[tuple[int, ...], ...]
    rank: Rank = "same"
    head: str = "dense"
    head_rank: Rank = "same"


def _dense(*hidden: tuple[int, ...]) -> Row:
    widths = " and ".join(str(prod(each)) for each in hidden)
    return Row(f"dense, hidden layers of {widths}", "dense", hidden)


def _tcl(rank: int, head: str, head_rank: Rank) -> Row:
    about = f"TCL {rank}×{rank} twice, TRL {head} of rank {head_rank}"
    return Row(about, "tcl", ((rank, rank),) * 2, head=head, head_rank=head_rank)


STUDY: dict[str, Row] = {
    "dense": _dense((8, 8), (8, 8)),
    "dense-12": _dense((12,), (12,)),
    "dense-6": _dense((6,), (6,)),
    "blocktt-4": Row("as dense, the hidden weights block-TT of rank 4", "blocktt", ((8, 8), (8, 8)), rank=4),
    "tcl12-tucker": _tcl(12, "tucker", (8, 8, 10)),
    "tcl8-tucker": _tcl(8, "tucker", (6, 6, 8)),
    "tcl8-cp": _tcl(8, "cp", 16),
    "tcl8-tt": _tcl(8, "tt", (6, 8)),
    "tcl6-tucker": _tcl(6, "tucker", (4, 4, 8)),
    "tcl6-cp": _tcl(6, "cp", 10),
    "tcl4-cp": _tcl(4, "cp", 8),
}
"""The table of the study: name → settings, in the order they are trained and shown.

The narrow dense rows are controls: they show what a plain network reaches with as few parameters.
"""


def build_graph(row: Row, shape: Sequence[int] = (SIDE, SIDE), classes: int = CLASSES) -> tn.Graph:
    """The classifier of a row as a graph: input x[b,i,j], output y[b,o], a logit for each class.

    Args:
        row: its settings.
        shape: the shape of one example, which is reshaped to a matrix if it is not one: a vector near to a square,
            other shapes by merging all axes but the last.
        classes: the number of classes.
    """
    names = {1: ["n"], 2: ["i", "j"]}.get(len(shape), [f"i{number}" for number in range(len(shape))])
    axes, fold, sizes = ",".join(names), None, (prod(shape[:-1]), shape[-1])
    if len(shape) == 1:  # split as near to a square as its size allows
        rows = next(each for each in range(math.isqrt(shape[0]), 0, -1) if shape[0] % each == 0)
        sizes = (rows, shape[0] // rows)
        fold = tn.layer("y[...,i,j] = x[...,(i,j)]", inputs="x", i=sizes[0], j=sizes[1])
    elif len(shape) > 2:
        fold = tn.layer(f"y[...,({','.join(names[:-1])}),{names[-1]}] = x[...,{axes}]", inputs="x")
    layers, features, is_tcl = list[tn.Graph](), tuple[int, ...](sizes), row.body == "tcl"
    for width in row.hidden:
        if is_tcl:  # x[..., i1…iN] → y[..., o1…oN], else x[..., (i1…iN)] → y[..., (o1…oN)]
            layers.append(tn.models.tcl(features, width, bias=True))
        else:
            layers.append(tn.models.linear(features, width, factorization=row.body, rank=row.rank))
        features = width
    features = features if is_tcl else (prod(features),)
    rank = row.head_rank
    if isinstance(rank, tuple) and row.head == "tucker":
        rank = (*rank[:-1], min(rank[-1], classes))
    head = tn.models.trl(features, classes, rank=rank, factorization=row.head)
    flatten = tn.layer("y[...,(i,j)] = x[...,i,j]", inputs="x")
    activation = tn.layer("y[...] = gelu(x[...])", inputs="x")

    def classifier(image: tn.Tensor) -> tn.Tensor:
        y = image if fold is None else fold(image)
        y = y if is_tcl else flatten(y)
        for number, layer in enumerate(layers, 1):
            y = activation(layer(y, scope=f"hidden{number}"))
        logits: tn.Tensor = head(y, scope="head")
        return logits

    return tn.model(classifier, inputs=f"x[b,{axes}]", **dict(zip(names, shape, strict=True)))


TEST_IMAGES = 450
"""The number of test images; the other 1,347 are for training."""


def load_digits(seed: int) -> Examples:
    """The digits, split by `seed` with every class in proportion.

    Pixels go from 0 to 16. They are standardised by the mean and standard deviation of all training
    pixels together: some pixels are never inked, so their own deviation is 0.

    Raises:
        BackendError: scikit-learn or PyTorch is missing.
    """
    where, called = "the digits of scikit-learn", "Handwritten digits"
    return examples_of(where, split_digits(seed), called=called, known=True)


def split_digits(seed: int) -> dict[str, Any]:
    """Images (n, 8, 8) from 0 to 16 and labels, for training and for the test, by `NAMES`."""
    images, labels = library("sklearn.datasets").load_digits(return_X_y=True)
    how = {"test_size": TEST_IMAGES, "stratify": labels, "random_state": seed}
    split = library("sklearn.model_selection").train_test_split
    train, test, train_labels, test_labels = split(images.reshape(-1, SIDE, SIDE), labels, **how)
    return dict(zip(NAMES, (train, train_labels, test, test_labels), strict=True))


DIGITS = Task(
    name="digits",
    title="{data}: parameters and accuracy",
    example="image",
    rows=STUDY,
    recipe=Recipe(),
    load=load_digits,
    reference="dense",
    build=lambda row, given: build_graph(row, given.train_inputs[0].shape[1:], given.sizes["classes"]),
    splits=True,
    controls=frozenset(name for name in STUDY if name.startswith("dense")),
    kinds=("dense", "tensorized"),
    caution="as those of the better of two recipes, over three seeds on these images",
    tried=("batch", "learning_rate", "weight_decay", "warmup"),
)
"""The default study: dense and tensorized classifiers of the digits."""


def digits(data: Data) -> Task:
    """The default study, of the digits or of the user's own arrays.

    Raises:
        TensornetError: the data are no arrays, as the digits come with scikit-learn.
    """
    if data is None:
        return DIGITS
    if not are_arrays(data):
        fix = "leave --data out, or give a file .npz with x_train, y_train, x_test and y_test"
        raise TensornetError(f"the digits come with scikit-learn, not from {data}", fix=fix)
    name, load = f"digits-{Path(name_of(data)).stem}", lambda seed: load_arrays(data)
    return replace(DIGITS, name=name, example="example", load=load, splits=False)
