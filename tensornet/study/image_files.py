"""Readers of well-known image files: MNIST's idx, CIFAR-10's batches, the folder tree of Tiny ImageNet.

Each returns NumPy arrays: images as uint8 (n, C, H, W) and labels as int64 (n,). Errors name the file and
its expected content.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tensornet.errors import TensornetError

from .libraries import library
from .pickled import read_pickle

__all__ = [
    "FORMATS",
    "Part",
    "are_published",
    "read_cifar10",
    "read_mnist",
    "read_tiny_imagenet",
    "recognised",
]

Part = tuple[Any, Any]
"""Images and labels."""

IMAGES_MAGIC, LABELS_MAGIC = 2051, 2049

MOST = 2**30
"""The most bytes that are read of an unpacked idx file; the largest well-known one, of EMNIST, has half as many."""

MOST_OF_BATCH = 2**27
"""The most bytes that are read of a CIFAR-10 batch; the published ones have a quarter as many."""

FILE_NAME = re.compile(r"\w[\w.-]*")
"""A name that stays in its folder."""


def read_mnist(folder: Path) -> tuple[Part, Part]:
    """Reads `train-images-idx3-ubyte` and the three other files, plain or compressed by gzip."""
    parts = []
    for part in ("train", "t10k"):
        file, labels_file = _idx_file(folder, f"{part}-images", 3), _idx_file(folder, f"{part}-labels", 1)
        images = _idx(file, IMAGES_MAGIC, (28, 28))
        labels = _idx(labels_file, LABELS_MAGIC, ()).astype(np.int64)
        if len(images) != len(labels):
            raise TensornetError(
                f"{file} holds {len(images):,} images, {labels_file} {len(labels):,} labels",
                fix="as many of both are expected",
            )
        parts.append((images[:, None], _classes(labels_file, labels)))
    return parts[0], parts[1]


def _idx_file(folder: Path, stem: str, order: int) -> Path:
    names = [f"{stem}{dot}idx{order}-ubyte{end}" for dot in "-." for end in ("", ".gz")]
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise TensornetError(f"there is no {names[0]} in {folder}", fix=f"expected is it, or {names[1]}")


def _idx(path: Path, magic: int, shape: tuple[int, ...]) -> Any:
    """An idx file as an array (n, *shape); it holds a magic number, the sizes, then one byte for each element."""
    header = 4 * (len(shape) + 2)
    start = _content(path, header)
    words = np.frombuffer(start[: len(start) // 4 * 4], ">u4").tolist()
    if len(words) < len(shape) + 2 or words[0] != magic:
        found = words[0] if words else "nothing"
        raise TensornetError(
            f"{path} is not the idx file that was expected: it begins with {found}",
            fix=f"its first number must be {magic}, then {len(shape) + 1} sizes",
        )
    sizes, wanted = words[1:], math.prod(words[1:])
    if tuple(sizes[1:]) != shape:
        raise TensornetError(f"{path} holds images of {sizes[2]}×{sizes[1]} pixels", fix="28×28 are expected")
    content = _content(path, header + min(wanted, MOST) + 1)
    given = len(content) - header
    if given != wanted:
        counted = f"more than {given - 1:,}" if given > min(wanted, MOST) else f"{given:,}"
        raise TensornetError(
            f"{path} is damaged: {counted} bytes after its header",
            fix=f"{'×'.join(map(str, sizes))} = {wanted:,} are expected; fetch it anew",
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(sizes)


def _content(path: Path, most: int) -> bytes:
    """The first `most` bytes of a file, unpacked if it is compressed; no more are unpacked."""
    try:
        with path.open("rb") as raw:
            packed = path.suffix == ".gz" or raw.peek(2)[:2] == b"\x1f\x8b"
            return (gzip.GzipFile(fileobj=raw) if packed else raw).read(most)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise TensornetError(
            f"{path} cannot be read: {error}", fix="it is damaged or cut off; fetch it anew"
        ) from None


def read_cifar10(folder: Path) -> tuple[Part, Part]:
    """Reads `data_batch_1` to `data_batch_5` and `test_batch` of the Python version."""
    parts = []
    for names in ([f"data_batch_{number}" for number in range(1, 6)], ["test_batch"]):
        batches = [_batch(folder / name) for name in names]
        pixels, labels = (np.concatenate(each) for each in zip(*batches, strict=True))
        parts.append((pixels.reshape(-1, 3, 32, 32), labels))
    return parts[0], parts[1]


def _batch(path: Path) -> tuple[Any, Any]:
    """The pixels (n, 3072) and labels of a batch."""
    expected = "expected is a pickled dictionary with data, n × 3072 bytes, and n labels; fetch it anew"
    content = _content(path, MOST_OF_BATCH + 1)
    if len(content) > MOST_OF_BATCH:
        raise TensornetError(f"{path} holds more than {MOST_OF_BATCH:,} bytes", fix=expected)
    try:
        found = read_pickle(content)
    except ValueError as error:
        raise TensornetError(f"{path} is not a batch of CIFAR-10: {error}", fix=expected) from None
    held = found if isinstance(found, dict) else {}
    pixels, labels = held.get("data"), _labels(held.get("labels"))
    if not isinstance(pixels, np.ndarray) or labels is None:
        raise TensornetError(f"{path} is not a batch of CIFAR-10: data or labels are missing", fix=expected)
    if pixels.ndim != 2 or pixels.shape[1] != 3072:
        raise TensornetError(f"{path} holds {pixels.dtype} {pixels.shape}", fix=expected)
    if len(pixels) != len(labels):
        raise TensornetError(f"{path} holds {len(pixels)} images and {len(labels)} labels", fix=expected)
    return pixels, _classes(path, labels)


def _labels(found: Any) -> Any:
    """A list of whole numbers, or an array of bytes (n,), as int64; None for anything else."""
    if isinstance(found, np.ndarray) and found.ndim == 1:
        return found.astype(np.int64)
    if isinstance(found, list) and all(type(each) is int and abs(each) < 2**31 for each in found):
        return np.array(found, np.int64)
    return None


def read_tiny_imagenet(folder: Path) -> tuple[Part, Part]:
    """Reads `wnids.txt`, `train/<wnid>/images/*.JPEG`, and `val/images/*` with `val/val_annotations.txt`."""
    wnids = _lines(folder / "wnids.txt")
    for wnid in wnids:
        if not FILE_NAME.fullmatch(wnid):
            raise TensornetError(
                f"{folder / 'wnids.txt'} names {wnid!r}", fix="expected are names as n03444034"
            )
    label_of = {wnid: label for label, wnid in enumerate(wnids)}
    if len(label_of) != len(wnids):
        raise TensornetError(f"{folder / 'wnids.txt'} names a class twice", fix="fetch it anew")
    paths: list[Path] = []
    labels: list[int] = []
    for wnid in wnids:
        inner = folder / "train" / wnid / "images"
        found = sorted(inner.glob("*.JPEG"))
        if not found:
            raise TensornetError(f"there are no images in {inner}", fix="expected are *.JPEG of 64×64")
        if labels and len(found) != labels.count(0):
            raise TensornetError(
                f"{inner} holds {len(found):,} images",
                fix=f"{labels.count(0):,} are expected, as in other classes",
            )
        paths += found
        labels += [label_of[wnid]] * len(found)
    annotations = folder / "val" / "val_annotations.txt"
    tested, test_labels = [], []
    images = folder / "val" / "images"
    there = {path.name for path in images.glob("*.JPEG")}
    for number, line in enumerate(_lines(annotations), 1):
        name, _, rest = line.partition("\t")
        wnid = rest.partition("\t")[0]
        if wnid not in label_of:
            raise TensornetError(
                f"{annotations}, line {number}: '{wnid}' is not in wnids.txt",
                fix="expected is `val_0.JPEG<tab>n03444034<tab>…` in every line",
            )
        if name not in there:
            raise TensornetError(
                f"{annotations}, line {number}: there is no '{name}' in {images}", fix="fetch them anew"
            )
        tested.append(images / name)
        test_labels.append(label_of[wnid])
    if sorted(path.name for path in tested) != sorted(there):
        raise TensornetError(
            f"{annotations} has {len(tested):,} lines, and there are {len(there):,} images beside it",
            fix="one of each is expected; fetch them anew",
        )
    return (_photos(paths), np.array(labels)), (_photos(tested), np.array(test_labels))


def _lines(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TensornetError(f"{path} cannot be read: {error}", fix="expected is a text file") from None
    if not lines:
        raise TensornetError(f"{path} is empty", fix="fetch it anew")
    return lines


def _photos(paths: list[Path], side: int = 64) -> Any:
    """These files as colour images (n, 3, side, side)."""
    images = np.empty((len(paths), 3, side, side), np.uint8)
    for number, path in enumerate(paths):
        images[number] = _photo(path, side).transpose(2, 0, 1)
    return images


def _photo(path: Path, side: int) -> Any:
    """A photograph (side, side, 3); its size is checked before it is unpacked."""
    image = library("PIL.Image")
    bombs = (image.DecompressionBombError, image.DecompressionBombWarning)
    try:
        with image.open(path, formats=["JPEG"]) as photo:
            if photo.size != (side, side):
                width, height = photo.size
                raise TensornetError(f"{path} is {width}×{height} pixels", fix=f"expected are {side}×{side}")
            return np.asarray(photo.convert("RGB"))
    except (OSError, SyntaxError, ValueError, *bombs) as error:
        raise TensornetError(f"{path} cannot be read: {error}", fix="fetch it anew") from None


def _classes(path: Path, labels: Any, classes: int = 10) -> Any:
    """The labels of a file; raises an error unless they are classes from 0 to `classes` - 1."""
    if not len(labels):
        raise TensornetError(f"{path} is empty", fix="fetch it anew")
    wrong = labels[(labels < 0) | (labels >= classes)]
    if len(wrong):
        raise TensornetError(f"a label in {path} is {wrong[0]}", fix=f"expected are 0 to {classes - 1}")
    return labels


FORMATS: dict[str, tuple[str, tuple[str, ...], Callable[[Path], tuple[Part, Part]]]] = {
    "mnist": ("*-images[-.]idx3-ubyte*", (".", "raw", "MNIST/raw"), read_mnist),
    "cifar10": ("*_batch*", (".", "cifar-10-batches-py"), read_cifar10),
    "tiny-imagenet": ("wnids.txt", (".", "tiny-imagenet-200"), read_tiny_imagenet),
}
"""Name → the pattern of a file that identifies it, the subfolders that are searched, its reader."""


def recognised(folder: Path) -> tuple[str, Path]:
    """The name of the data in a folder, and the folder of its files.

    Raises:
        TensornetError: it holds no known data set.
    """
    for name, (pattern, places, _) in FORMATS.items():
        for place in places:
            if any((folder / place).glob(pattern)):
                return name, folder / place
    raise TensornetError(
        f"no files of a known data set are in {folder}",
        fix="expected are MNIST's train-images-idx3-ubyte and so on, CIFAR-10's data_batch_1 and so on,"
        " or Tiny ImageNet's wnids.txt, train/ and val/",
    )


# ---------------------------------------------------------------------------- published files


MNIST = {
    "train-images": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels": "a25bea736e30d166cdddb491f175f624",
    "t10k-images": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels": "27ae3e4e09519cfbb04c329615203637",
}
"""Beginning of the name → MD5 of the published file, unpacked."""

CIFAR10 = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
"""Name → MD5 of the published file."""

FIRST_CLASSES = (
    "n02124075 n04067472 n04540053 n04099969 n07749582 n01641577 n02802426 n09246464 n07920052 n03970156"
)
"""The first ten of the 200 classes of Tiny ImageNet, in the order of its list."""

IMAGES_OF_CLASS = 500
"""The training images of each class; there is a tenth as many test images."""


def are_published(name: str, folder: Path) -> bool:
    """Whether these are the published files of a data set, and not the user's own files in its format."""
    match name:
        case "mnist":
            files = {_idx_file(folder, stem, 3 if "images" in stem else 1): MNIST[stem] for stem in MNIST}
        case "cifar10":
            files = {folder / each: CIFAR10[each] for each in CIFAR10}
        case _:
            return _are_tiny_imagenet(folder)
    return all(
        hashlib.md5(_content(path, MOST), usedforsecurity=False).hexdigest() == digest
        for path, digest in files.items()
    )


def _are_tiny_imagenet(folder: Path) -> bool:
    """Whether this is Tiny ImageNet, judged by its classes and the number of images of each."""
    wnids = _lines(folder / "wnids.txt")
    counts = {len(list((folder / "train" / wnid / "images").glob("*.JPEG"))) for wnid in wnids}
    tested = len(_lines(folder / "val" / "val_annotations.txt"))
    return (
        " ".join(wnids[:10]) == FIRST_CLASSES
        and counts == {IMAGES_OF_CLASS}
        and tested == len(wnids) * IMAGES_OF_CLASS // 10
        and len(wnids) == 200
    )
