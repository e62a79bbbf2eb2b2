"""The user's own examples as arrays: a NumPy file, or a function that returns them.

`numpy.savez("wine.npz", x_train=…, y_train=…, x_test=…, y_test=…)` writes such a file.
"""

from __future__ import annotations

import hashlib
import math
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import tensornet as tn
from tensornet.errors import TensornetError, near

from .libraries import library
from .task import Examples

__all__ = ["NAMES", "Data", "are_arrays", "as_images", "image_sizes", "load_arrays", "name_of"]

Data = str | Callable[[], Any] | None
"""Where examples come from: a name, a folder, a file, or a function that returns arrays."""

NAMES = ("x_train", "y_train", "x_test", "y_test")
"""The arrays of a file, in the order in which a function returns them."""

EXPECTED = (
    "expected are x_train and x_test, examples along the first axis, y_train and y_test, a class for each"
)

END = ".npz"

DAMAGED = (zipfile.BadZipFile, zlib.error)

CHANNELS = (1, 3, 4)
"""Numbers of channels: an image whose last axis has such a size, and whose first has not, has its channels last."""


def are_arrays(data: Data) -> bool:
    """Whether the examples are the user's own arrays."""
    return callable(data) or (data is not None and data.endswith(END))


def name_of(data: Data) -> str:
    """The name of arrays in a report: that of the file or of the function."""
    if callable(data):
        return str(getattr(data, "__name__", type(data).__name__)).strip("<>")
    return Path(data or "").name


@dataclass(frozen=True)
class _Part:
    """Examples along the first axis, as finite numbers, and the class of each, from 0."""

    inputs: Any
    labels: Any


def load_arrays(data: Data, as_seen: Callable[[str, Any], Any] = lambda name, inputs: inputs) -> Examples:
    """The arrays of a file or of a function, standardised by the training examples.

    Images with channels are standardised channel by channel, vectors element by element, all others by one
    mean and one deviation. Classes are the sorted distinct values of `y_train`.

    Args:
        data: a file, or a function.
        as_seen: converts an array, given its name, to the form that a classifier takes, e.g. with channels first.

    Raises:
        TensornetError: an array is missing, has a wrong shape or type, or holds a number that is not finite.
    """
    name = name_of(data)
    arrays = _read_file(str(data)) if not callable(data) else _returned(data, name)
    train, test = (_inputs(name, each, arrays[each], as_seen) for each in ("x_train", "x_test"))
    if train.shape[1:] != test.shape[1:]:
        raise TensornetError(
            f"{name}: an example of x_train is {_shape(train)}, one of x_test {_shape(test)}",
            fix="give both of one shape",
        )
    classes, labels, test_labels = _labels(name, arrays, (len(train), len(test)))
    digest = hashlib.sha256()
    for each in (train, labels, test, test_labels):
        digest.update(np.ascontiguousarray(each).data)
    about = (
        f"{name}: {len(train):,} examples of {_shape(train)} numbers for training and {len(test):,} for the test,"
        f" in {classes} classes (sha256 {digest.hexdigest()[:12]})"
    )
    torch = library("torch")
    return Examples(
        (torch.tensor(train),),
        torch.tensor(labels),
        (torch.tensor(test),),
        torch.tensor(test_labels),
        about,
        {"classes": classes, **image_sizes(train)},
        _standardised(train),
        name,
    )


def as_images(name: str, inputs: Any) -> Any:
    """Images (n, H, W), (n, C, H, W) or (n, H, W, C) as (n, C, H, W).

    Raises:
        TensornetError: they have none of these shapes.
    """
    if inputs.ndim == 3:
        return inputs[:, None]
    if inputs.ndim == 4:
        last = inputs.shape[1] not in CHANNELS and inputs.shape[3] in CHANNELS
        return inputs.transpose(0, 3, 1, 2) if last else inputs
    raise TensornetError(
        f"{name} holds {'×'.join(map(str, inputs.shape))} numbers, which are no images",
        fix="give images (n, H, W), (n, C, H, W) or (n, H, W, C); the study `digits` takes vectors too",
    )


def _read_file(path: str) -> Mapping[str, Any]:
    """The four arrays of a file."""
    if not Path(path).is_file():
        raise TensornetError(f"there is no file {path}", fix=f"{EXPECTED}; numpy.savez writes them")
    try:
        if not zipfile.is_zipfile(path):
            raise TensornetError(f"{path} is no file of arrays", fix=f"write it by numpy.savez; {EXPECTED}")
        with Path(path).open("rb") as file, np.load(file, allow_pickle=False) as held:
            _check_names(path, list(held))
            return {name: held[name] for name in NAMES}
    except (OSError, ValueError, EOFError, MemoryError, NotImplementedError, *DAMAGED) as error:
        told = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TensornetError(
            f"{path} cannot be read: {told}", fix=f"write it by numpy.savez; {EXPECTED}"
        ) from None


def _returned(function: Callable[[], Any], name: str) -> Mapping[str, Any]:
    """The four arrays that a function returns."""
    found = function()
    if isinstance(found, Mapping):
        _check_names(name, [str(each) for each in found])
        found = [found[each] for each in NAMES]
    if not isinstance(found, tuple | list) or len(found) != len(NAMES):
        told = f"{len(found)} values" if isinstance(found, tuple | list) else f"a {type(found).__name__}"
        raise TensornetError(
            f"{name} returns {told}", fix=f"let it return {', '.join(NAMES)}, or a dict of these names"
        )
    return {each: _array(f"{name}: {each}", value) for each, value in zip(NAMES, found, strict=True)}


def _array(place: str, value: Any) -> Any:
    """A value that a function returned, as an array."""
    try:
        return np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise TensornetError(f"{place} is no array: {error}", fix="give an array of NumPy's") from None


def _check_names(name: str, there: Sequence[str]) -> None:
    missing = [each for each in NAMES if each not in there]
    if missing:
        slip = next(
            (near(other, missing) for other in there if other not in NAMES and near(other, missing)), ""
        )
        told = f"it has {', '.join(there)}" if there else "it has nothing"
        raise TensornetError(f"{name} has no {', '.join(missing)}; {told}", fix=f"{slip}{EXPECTED}")


def _inputs(name: str, which: str, array: Any, as_seen: Callable[[str, Any], Any]) -> Any:
    """The examples as uint8 or float32, checked."""
    place = f"{name}: {which}"
    if array.dtype.kind not in "buif":
        raise TensornetError(f"{place} holds {array.dtype}", fix="give numbers")
    if array.ndim < 2 or not array.size:
        told = "×".join(map(str, array.shape)) or "one"
        raise TensornetError(f"{place} holds {told} numbers", fix=EXPECTED)
    with np.errstate(over="ignore"):
        found = array if array.dtype == np.uint8 else array.astype(np.float32)
    if not np.isfinite(found).all():
        wrong = int(np.flatnonzero(~np.isfinite(found).reshape(len(found), -1).all(axis=1))[0])
        raise TensornetError(
            f"{place}[{wrong}] holds a number that is not finite in float32", fix="leave it out, or scale it"
        )
    return as_seen(place, found)


def _labels(name: str, arrays: Mapping[str, Any], counts: Sequence[int]) -> tuple[int, Any, Any]:
    """The number of classes, and the class number of each training and each test example."""
    for which, count in zip(("y_train", "y_test"), counts, strict=True):
        array, place = arrays[which], f"{name}: {which}"
        if array.ndim != 1 or len(array) != count:
            told = "×".join(map(str, array.shape)) or "one"
            raise TensornetError(f"{place} holds {told} values for {count:,} examples", fix=EXPECTED)
        numbers = array.dtype.kind == "f"
        if array.dtype.kind not in "buifUS" or (numbers and not (array == np.floor(array)).all()):
            raise TensornetError(
                f"{place} holds {array.dtype}, no classes", fix="give whole numbers, or names as text"
            )
    classes, labels = np.unique(arrays["y_train"], return_inverse=True)
    if len(classes) < 2:
        raise TensornetError(f"{name}: y_train holds {len(classes)} class", fix="give two classes or more")
    unknown = sorted(set(arrays["y_test"].tolist()) - set(classes.tolist()), key=str)
    if unknown:
        raise TensornetError(
            f"{name}: y_test holds the class {unknown[0]}, and no training example is of it",
            fix="leave it out, or train on it too",
        )
    return len(classes), labels.astype(np.int64), np.searchsorted(classes, arrays["y_test"]).astype(np.int64)


def _shape(inputs: Any) -> str:
    return "×".join(map(str, inputs.shape[1:]))


def image_sizes(train: Any) -> dict[str, Any]:
    """The sizes that image models take by name; empty if the examples have no channels."""
    if train.ndim != 4:
        return {}
    _, channels, height, width = train.shape
    return {"channels": channels, "image": height if height == width else (height, width)}


def _standardised(train: Any) -> tn.Graph:
    """A layer that subtracts the mean of the training examples and divides by their deviation."""
    over, axes = {2: ((0,), "i"), 4: ((0, 2, 3), "c")}.get(train.ndim, (None, ""))
    mean = np.mean(train, axis=over, dtype=np.float64)
    deviation = np.std(train, axis=over, dtype=np.float64)
    deviation = np.where(
        deviation > 1e-6 * np.maximum(1.0, abs(mean)), deviation, 1.0
    )  # constant values are not scaled
    if not axes:
        return tn.layer(f"y[...] = (x[...] - {_plain(mean)}) / {_plain(deviation)}", inputs="x")
    constants = {"mu": np.array(mean, np.float32), "sigma": np.array(deviation, np.float32)}
    where = {"i": "b,i", "c": "b,c,h,w"}[axes]
    return tn.layer(
        f"y[{where}] = (x[{where}] - mu[{axes}]) / sigma[{axes}]", inputs="x", constants=constants
    )


def _plain(value: Any) -> str:
    """A number in the syntax of the language, in parentheses, as it may be negative."""
    number = float(value)
    assert math.isfinite(number)
    return f"({number!r})"
