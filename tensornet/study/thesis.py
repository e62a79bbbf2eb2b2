"""The experiments of the thesis, chapter 4: Swin against its tensorized form, with Adam and with AdamW.

`tensornet study thesis --data mnist` trains a dense Swin and tensorized ones of the same shape at several
ranks (the sizes of their modes), on MNIST, CIFAR-10, Tiny ImageNet or the digits, by name, or on
the user's own images. The report shows the published figures next to them if the images and the recipe are those of
the experiment.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import math
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import tensornet as tn
from tensornet.errors import TensornetError

from .arrays import NAMES, Data, are_arrays, columns_of, examples_of, hub, load_arrays, name_of
from .digits import split_digits
from .libraries import frozen, toml
from .task import BuiltRow, Examples, Recipe, Task, built


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
            digits), a folder with the files of MNIST, or the user's own arrays. For these
            arrays the rows of the digits are used, with patches and windows that fit.

    Raises:
        TensornetError: the data are none of these.
    """
    source = None if are_arrays(data) else source_of(data)  # type: ignore[arg-type]
    name = Path(name_of(data)).stem if source is None else source.name
    table = experiments()["digits" if source is None else name]
    rows = experiments()[table.get("rows_of")]["rows"] if "rows_of" in table else table["rows"]

    def build(row: BuiltRow, examples: Examples) -> tn.Graph:
        shape = table["shape"] if source else {**fitting(examples), "depths": (2, 2)}
        return built(replace(row, settings={**shape, **row.settings}), examples)

    return Task(
        name=f"thesis-{name}",
        title=table["title"],
        example="image",
        rows={row: _row(row, **each) for row, each in rows.items()},
        recipe=Recipe().changed(table["recipe"]),
        load=lambda seed: load_arrays(data, images=True) if source is None else load_images(source, seed),
        reference="swin",
        build=build,
        optimizers=("adamw", "adam"),
        threads=table.get("threads"),
        caution="in short trials that looked at test images",
        tried=("learning_rate", "shift", "rotate", "zoom", "flip"),
        published=table.get("published", ()),
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


# ---------------------------------------------------------------------------- images

HUB = {"mnist": "ylecun/mnist", "cifar10": "uoft-cs/cifar10", "tiny-imagenet": "zh-plus/tiny-imagenet"}
"""Name → data set of the Hugging Face hub."""

TITLES = {"digits": "Digits of 8×8 pixels", "mnist": "MNIST", "cifar10": "CIFAR-10"}
TITLES |= {"tiny-imagenet": "Tiny ImageNet"}
"""Name of the images → their name in a heading."""

MOST = 2**30
"""The most bytes that are read of an unpacked idx file; the largest well-known one, of EMNIST, has half as many."""

PLACES = (".", "raw", "MNIST/raw")
"""Where in a folder the files of MNIST may be."""

MNIST = "06b0d1f124c4e5fa796686ade41a9b778edacc8622f2195a352ef479ad44fc16"
"""The SHA-256 of the arrays of MNIST, one after the other."""


@dataclass(frozen=True)
class Source:
    """The source of images: their name, and the folder of the files, if there is one.

    Without a folder they come from the hub, or from scikit-learn in the case of the digits.
    """

    name: str
    folder: Path | None = None


def source_of(data: str | None) -> Source:
    """The source that `--data` gives: a name, or a folder with the files of MNIST.

    Raises:
        TensornetError: it is neither.
    """
    if data is None or data in TITLES:
        return Source(data or "digits")
    folder = Path(data)
    if any(any((folder / place).glob("*-images[-.]idx3-ubyte*")) for place in PLACES):
        return Source("mnist", folder)
    own = "a file .npz with x_train, y_train, x_test and y_test, or train/<class>/ and test/<class>/"
    fix = f"give {', '.join(TITLES)}, a folder with MNIST's train-images-idx3-ubyte and so on, {own}"
    raise TensornetError(f"there are no images '{data}'", fix=fix)


def load_images(source: Source, seed: int) -> Examples:
    """Images as uint8 (n, C, H, W), which a layer in front of the classifier standardises channel by channel.

    Args:
        source: the source of the images.
        seed: determines the split of the digits; the other data sets have a test part of their own.

    Raises:
        BackendError: a library is missing.
        TensornetError: a file is missing or damaged, or the hub cannot be reached. The error says what was expected.
    """
    called, known = TITLES[source.name], True
    if source.name == "digits":
        place = "the digits of scikit-learn"
        arrays = {name: each.astype(np.uint8) for name, each in split_digits(seed).items()}
    elif source.folder is None:
        place = HUB[source.name]
        arrays = columns_of(hub(place), place)
    else:
        arrays = read_mnist(source.folder)
        known = hashlib.sha256(b"".join(each.tobytes() for each in arrays.values())).hexdigest() == MNIST
        place = source.name if known else f"a folder, in the format of {called}"
        called = called if known else source.folder.resolve().name
    return examples_of(place, arrays, images=True, called=called, known=known)


def read_mnist(folder: Path) -> dict[str, Any]:
    """The arrays of `train-images-idx3-ubyte` and the three other files, plain or compressed by gzip, by `NAMES`."""
    found: list[Any] = []
    for part in ("train", "t10k"):
        images, labels = _idx(folder, f"{part}-images-idx3"), _idx(folder, f"{part}-labels-idx1")
        if images.shape[1:] != (28, 28) or labels.shape != (len(images),):
            told = f"{folder}: {part} holds images {images.shape} and labels {labels.shape}"
            raise TensornetError(told, fix="expected are images of 28×28 pixels, and as many labels")
        found += [images, labels]
    return dict(zip(NAMES, found, strict=True))


def _idx(folder: Path, stem: str) -> Any:
    """An idx file as an array: 0, 0, 8 for bytes, the number of sizes, the sizes, then one byte for each element."""
    pattern = f"{stem.replace('-idx', '[-.]idx')}-ubyte*"
    path = next((path for place in PLACES for path in (folder / place).glob(pattern)), None)
    if path is None:
        fix = "expected is it, plain or compressed: .gz"
        raise TensornetError(f"there is no {stem}-ubyte in {folder}", fix=fix)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            zero, kind, order = struct.unpack(">HBB", file.read(4))
            sizes = struct.unpack(f">{order}I", file.read(4 * order))
            count, told = math.prod(sizes), f"{'×'.join(map(str, sizes))} bytes are announced"
            if count > MOST:
                raise ValueError(f"{told}, more than {MOST:,}")
            content = file.read(count + 1 if (zero, kind) == (0, 8) else 0)
        if len(content) != count:
            raise ValueError(f"{told}, and others are there")
        return np.frombuffer(content, np.uint8).reshape(sizes)
    except Exception as error:  # whatever gzip, struct and NumPy raise of a damaged file
        fix = "expected is an idx file of bytes; fetch it again"
        raise TensornetError(f"{path} cannot be read: {error}", fix=fix) from None
