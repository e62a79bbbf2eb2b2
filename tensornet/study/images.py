"""Images by name or from a folder: MNIST, CIFAR-10, Tiny ImageNet and the digits, ready for a classifier."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import tensornet as tn
from tensornet.errors import TensornetError

from .arrays import image_sizes
from .digits import split_digits
from .image_files import FORMATS, Part, are_published, recognised
from .libraries import library
from .task import Examples

__all__ = ["HUB", "Source", "load_images", "source_of"]

HUB = {
    "mnist": ("ylecun/mnist", "image", "test"),
    "cifar10": ("uoft-cs/cifar10", "img", "test"),
    "tiny-imagenet": ("zh-plus/tiny-imagenet", "image", "valid"),
}
"""Name → data set of the Hugging Face hub, its column of images, and its test part."""

DIGITS = "digits"

TITLES = {
    "digits": "Digits of 8×8 pixels",
    "mnist": "MNIST",
    "cifar10": "CIFAR-10",
    "tiny-imagenet": "Tiny ImageNet",
}
"""Name of the images → their name in a heading."""


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
    if data is None or data == DIGITS or data in HUB:
        return Source(data or DIGITS)
    if not Path(data).is_dir():
        raise TensornetError(
            f"there are no images '{data}'",
            fix=f"give {', '.join((DIGITS, *HUB))}, a folder with the files of one of the last three, or your own"
            " arrays: a file .npz with x_train, y_train, x_test and y_test",
        )
    return Source(*recognised(Path(data)), called=Path(data).resolve().name)


def load_images(source: Source, seed: int) -> Examples:
    """Images as uint8 (n, C, H, W), which a layer in front of the classifier standardises channel by channel.

    Args:
        source: the source of the images.
        seed: determines the split of the digits; the other data sets have a test part of their own.

    Raises:
        BackendError: a library is missing.
        TensornetError: a file is missing or damaged, or the hub cannot be reached. The error says what was expected.
    """
    known, called = True, TITLES[source.name]
    if source.name == DIGITS:
        (train, labels), (test, test_labels) = _digits(seed)
        place = "the digits of scikit-learn"
    elif source.folder is not None:
        (train, labels), (test, test_labels) = FORMATS[source.name][2](source.folder)
        known = are_published(source.name, source.folder)
        called = called if known else source.called or source.folder.name
        place = source.name if known else f"a folder, in the format of {TITLES[source.name]}"
    else:
        (train, labels), (test, test_labels) = _from_hub(source.name)
        place = HUB[source.name][0]
    digest = hashlib.sha256()
    for each in (train, labels, test, test_labels):
        digest.update(np.ascontiguousarray(each).data)
    classes = int(max(labels.max(), test_labels.max())) + 1
    about = (
        f"{place}: {len(labels):,} images of {train.shape[3]}×{train.shape[2]} pixels for training and"
        f" {len(test_labels):,} for the test, in {classes} classes (sha256 {digest.hexdigest()[:12]})"
    )
    torch = library("torch")
    return Examples(
        (torch.tensor(train),),
        torch.tensor(labels, dtype=torch.int64),
        (torch.tensor(test),),
        torch.tensor(test_labels, dtype=torch.int64),
        about,
        {"classes": classes, **image_sizes(train)},
        standardised(train),
        called,
        known,
    )


def standardised(train: Any) -> tn.Graph:
    """A layer for images (n, C, H, W): subtracts the training mean of each channel and divides by its deviation."""
    levels = np.arange(256.0)
    counts = [np.bincount(train[:, channel].reshape(-1), minlength=256) for channel in range(train.shape[1])]
    means = [float(each @ levels / each.sum()) for each in counts]
    deviations = [
        max(1e-6, float(each @ (levels - mean) ** 2 / each.sum()) ** 0.5)
        for each, mean in zip(counts, means, strict=True)
    ]
    constants = {"mu": np.array(means, np.float32), "sigma": np.array(deviations, np.float32)}
    return tn.layer("y[b,c,h,w] = (x[b,c,h,w] - mu[c]) / sigma[c]", inputs="x", constants=constants)


def _digits(seed: int) -> tuple[Part, Part]:
    """The digits; they have 17 levels of ink, 0 to 16."""
    train, labels, test, test_labels = split_digits(seed)
    return tuple(  # type: ignore[return-value]
        (each[:, None].astype(np.uint8), np.asarray(known))
        for each, known in ((train, labels), (test, test_labels))
    )


def _from_hub(name: str) -> tuple[Part, Part]:
    datasets = library("datasets")
    where, column, tested = HUB[name]
    try:
        found = datasets.load_dataset(where)
        return tuple(_pixels(found[part], column, grey=name == "mnist") for part in ("train", tested))  # type: ignore[return-value]
    except Exception as error:  # whatever the hub, the network or the columns raise
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TensornetError(
            f"the images '{where}' cannot be loaded: {reason}",
            fix=f"without a network give --data FOLDER, with the files of {name} in it",
        ) from None


def _pixels(part: Any, column: str, grey: bool) -> Part:
    """The images and labels of one part of a data set of the hub."""
    images = [np.asarray(image.convert("L" if grey else "RGB")) for image in part[column]]
    stacked = np.stack(images)
    return stacked[:, None] if grey else stacked.transpose(0, 3, 1, 2), np.asarray(part["label"])
