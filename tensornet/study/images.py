"""Images by name or from a folder: MNIST, CIFAR-10, Tiny ImageNet and the digits, ready for a classifier.

Of a folder the well-known files are read: MNIST's idx, CIFAR-10's binary batches, the tree of Tiny ImageNet.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tensornet.errors import TensornetError

from .arrays import DAMAGE, NAMES, columns_of, examples_of, hub
from .digits import split_digits
from .libraries import library
from .task import Examples

__all__ = ["HUB", "Source", "load_images", "read_cifar10", "read_mnist", "read_tiny_imagenet", "source_of"]

HUB = {"mnist": "ylecun/mnist", "cifar10": "uoft-cs/cifar10", "tiny-imagenet": "zh-plus/tiny-imagenet"}
"""Name → data set of the Hugging Face hub."""

TITLES = {"digits": "Digits of 8×8 pixels", "mnist": "MNIST", "cifar10": "CIFAR-10"}
TITLES |= {"tiny-imagenet": "Tiny ImageNet"}
"""Name of the images → their name in a heading."""

MOST = 2**30
"""The most bytes that are read of an unpacked idx file; the largest well-known one, of EMNIST, has half as many."""

Arrays = tuple[Any, Any, Any, Any]
"""The arrays of `NAMES`."""


@dataclass(frozen=True)
class Source:
    """The source of images: the name of their kind, the folder of their files, and the name of that folder.

    Without a folder they come from the hub, or from scikit-learn in the case of the digits.
    """

    name: str
    folder: Path | None = None
    called: str = field(default="", compare=False)


def source_of(data: str | None) -> Source:
    """The source that `--data` gives: a name, or a folder whose files are recognised.

    Raises:
        TensornetError: it is neither.
    """
    if data is None or data in TITLES:
        return Source(data or "digits")
    folder = Path(data)
    if not folder.is_dir():
        names = f"{', '.join(TITLES)}, a folder with the files of one of the last three"
        fix = f"give {names}, or your own arrays: a file .npz with x_train, y_train, x_test and y_test"
        raise TensornetError(f"there are no images '{data}'", fix=fix)
    for name, (pattern, places, _) in FORMATS.items():
        for place in places:
            if any((folder / place).glob(pattern)):
                return Source(name, folder / place, folder.resolve().name)
    known = "MNIST's train-images-idx3-ubyte and so on, CIFAR-10's data_batch_1.bin and so on"
    own = "train/<class>/ and test/<class>/ with images of your own"
    fix = f"expected are {known}, Tiny ImageNet's wnids.txt, train/ and val/, or {own}"
    raise TensornetError(f"no files of a known data set are in {data}", fix=fix)


def load_images(source: Source, seed: int) -> Examples:
    """Images as uint8 (n, C, H, W), which a layer in front of the classifier standardises channel by channel.

    Args:
        source: the source of the images.
        seed: determines the split of the digits; the other data sets have a test part of their own.

    Raises:
        BackendError: a library is missing.
        TensornetError: a file is missing or damaged, or the hub cannot be reached. The error says what was expected.
    """
    title = TITLES[source.name]
    if source.name == "digits":
        digits = {name: each.astype(np.uint8) for name, each in split_digits(seed).items()}
        return examples_of("the digits of scikit-learn", digits, images=True, called=title, known=True)
    if source.folder is None:
        where = HUB[source.name]
        return examples_of(where, columns_of(hub(where), where), images=True, called=title, known=True)
    arrays = FORMATS[source.name][2](source.folder)
    known = _is_published(source, arrays)
    place = source.name if known else f"a folder, in the format of {title}"
    called = title if known else source.called or source.folder.name
    return examples_of(place, dict(zip(NAMES, arrays, strict=True)), images=True, called=called, known=known)


# ---------------------------------------------------------------------------- files


def read_mnist(folder: Path) -> Arrays:
    """The arrays of `train-images-idx3-ubyte` and the three other files, plain or compressed by gzip."""
    found: list[Any] = []
    for part in ("train", "t10k"):
        images, labels = _idx(folder, f"{part}-images-idx3"), _idx(folder, f"{part}-labels-idx1")
        if images.shape[1:] != (28, 28) or labels.shape != (len(images),):
            told = f"{folder}: {part} holds images {images.shape} and labels {labels.shape}"
            raise TensornetError(told, fix="expected are images of 28×28 pixels, and as many labels")
        found += [images, labels]
    return tuple(found)


def _idx(folder: Path, stem: str) -> Any:
    """An idx file as an array: 0, 0, 8 for bytes, the number of sizes, the sizes, then one byte for each element."""
    path = next(folder.glob(f"{stem.replace('-idx', '[-.]idx')}-ubyte*"), None)
    if path is None:
        fix = "expected is it, plain or compressed: .gz"
        raise TensornetError(f"there is no {stem}-ubyte in {folder}", fix=fix)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            zero, kind, order = struct.unpack(">HBB", file.read(4))
            sizes = struct.unpack(f">{order}I", file.read(4 * order))
            if math.prod(sizes) > MOST:
                raise ValueError(f"{'×'.join(map(str, sizes))} bytes are announced, more than {MOST:,}")
            content = file.read(math.prod(sizes) + 1 if (zero, kind) == (0, 8) else 0)
        if len(content) != math.prod(sizes):
            raise ValueError(f"{'×'.join(map(str, sizes))} bytes are announced, and others are there")
        return np.frombuffer(content, np.uint8).reshape(sizes)
    except DAMAGE as error:
        fix = "expected is an idx file of bytes; fetch it again"
        raise TensornetError(f"{path} cannot be read: {error}", fix=fix) from None


def read_cifar10(folder: Path) -> Arrays:
    """The arrays of `data_batch_1.bin` to `data_batch_5.bin` and `test_batch.bin`: a label and 3072 pixels each."""
    names = [f"data_batch_{number}.bin" for number in range(1, 6)]
    train, test = (
        np.concatenate([_batch(folder / name) for name in each]) for each in (names, ["test_batch.bin"])
    )
    return train[:, 1:].reshape(-1, 3, 32, 32), train[:, 0], test[:, 1:].reshape(-1, 3, 32, 32), test[:, 0]


def _batch(path: Path) -> Any:
    try:
        content = np.fromfile(path, np.uint8)
    except OSError as error:
        fix = "fetch the binary version of CIFAR-10"
        raise TensornetError(f"{path} cannot be read: {error}", fix=fix) from None
    if not len(content) or len(content) % 3073 or content[::3073].max() > 9:
        fix = "expected are 3073 for each image, a label from 0 to 9 and its pixels: fetch the binary version"
        raise TensornetError(f"{path} holds {len(content):,} bytes", fix=fix)
    return content.reshape(-1, 3073)


def read_tiny_imagenet(folder: Path) -> Arrays:
    """The arrays of `train/<wnid>/images/*.JPEG`, and of `val/images/*` by `val/val_annotations.txt`."""
    wnids = _lines(folder / "wnids.txt")
    train = [(path, label) for label, wnid in enumerate(wnids) for path in _photos(folder / "train" / wnid)]
    rows = [line.split("\t") for line in _lines(folder / "val" / "val_annotations.txt")]
    tested = {path.name: path for path in _photos(folder / "val")}
    wrong = [row[0] for row in rows if len(row) < 2 or row[1] not in wnids or row[0] not in tested]
    if wrong or sorted(row[0] for row in rows) != sorted(tested) or len(set(wnids)) != len(wnids):
        about = f" about {wrong[0]}" if wrong else ""
        told = f"{folder}: val_annotations.txt, wnids.txt and val/images disagree{about}"
        fix = "each image of val/images has a line with its name and a class of wnids.txt; fetch them again"
        raise TensornetError(told, fix=fix)
    test = [(tested[row[0]], wnids.index(row[1])) for row in rows]
    (train_paths, labels), (test_paths, test_labels) = (zip(*part, strict=True) for part in (train, test))
    photos = (np.stack([*map(_photo, paths)]) for paths in (train_paths, test_paths))
    return next(photos), np.array(labels), next(photos), np.array(test_labels)


def _lines(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TensornetError(f"{path} cannot be read: {error}", fix="expected is a text file") from None
    if not lines:
        raise TensornetError(f"{path} is empty", fix="fetch it again")
    return lines


def _photos(folder: Path) -> list[Path]:
    try:
        found = sorted((folder / "images").glob("*.JPEG"))
    except (OSError, ValueError):  # no name of a folder
        found = []
    if not found:
        fix = "expected are *.JPEG of 64×64"
        raise TensornetError(f"there are no images in {folder / 'images'}", fix=fix)
    return found


def _photo(path: Path) -> Any:
    """A photograph as an array (3, 64, 64); its size is checked before it is unpacked."""
    image = library("PIL.Image")
    try:
        with image.open(path, formats=["JPEG"]) as photo:
            if photo.size != (64, 64):
                raise ValueError(f"it is {photo.size[0]}×{photo.size[1]} pixels, not 64×64")
            return np.asarray(photo.convert("RGB")).transpose(2, 0, 1)
    except (*DAMAGE, image.DecompressionBombError, image.DecompressionBombWarning) as error:
        raise TensornetError(f"{path} cannot be read: {error}", fix="fetch it again") from None


FORMATS: dict[str, tuple[str, tuple[str, ...], Callable[[Path], Arrays]]] = {
    "mnist": ("*-images[-.]idx3-ubyte*", (".", "raw", "MNIST/raw"), read_mnist),
    "cifar10": ("*_batch*", (".", "cifar-10-batches-bin"), read_cifar10),
    "tiny-imagenet": ("wnids.txt", (".", "tiny-imagenet-200"), read_tiny_imagenet),
}
"""Name → the pattern of a file that identifies it, the subfolders that are searched, its reader."""


FIRST_CLASSES = (
    "n02124075 n04067472 n04540053 n04099969 n07749582 n01641577 n02802426 n09246464 n07920052 n03970156"
)
"""The first ten of the 200 classes of Tiny ImageNet, in the order of its list."""

FIRST_LABELS, FIRST_PIXEL = [6, 9, 9, 4, 1, 1, 2, 7, 8, 3], [59, 62, 63]
"""The labels of the first ten training images of CIFAR-10, and the first pixel of the first of them."""

MNIST = "06b0d1f124c4e5fa796686ade41a9b778edacc8622f2195a352ef479ad44fc16"
"""The SHA-256 of the arrays of MNIST, one after the other."""


def _is_published(source: Source, arrays: Arrays) -> bool:
    """Whether these are the images of the publication, and not the user's own in its format."""
    train, labels, test, _ = arrays
    counts = (len(train), len(test))
    if source.name == "mnist":
        return hashlib.sha256(b"".join(each.tobytes() for each in arrays)).hexdigest() == MNIST
    if source.name == "cifar10":
        first = (labels[:10].tolist(), train[0, :, 0, 0].tolist())
        return counts == (50_000, 10_000) and first == (FIRST_LABELS, FIRST_PIXEL)
    assert source.folder is not None
    return counts == (100_000, 10_000) and _lines(source.folder / "wnids.txt")[:10] == FIRST_CLASSES.split()
