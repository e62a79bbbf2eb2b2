"""The user's own examples: a NumPy file, a data set of `datasets`, or a function that returns arrays.

`numpy.savez("wine.npz", x_train=…, y_train=…, x_test=…, y_test=…)` writes such a file.
"""

from __future__ import annotations

import hashlib
import re
import zipfile
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import tensornet as tn
from tensornet.errors import TensornetError, near

from .libraries import library
from .task import Examples

Data = str | Callable[[], Any] | None
"""Where examples come from: a name, a folder, a file, or a function that returns arrays or a data set."""

NAMES = ("x_train", "y_train", "x_test", "y_test")
"""The arrays of a file, in the order in which a function returns them."""

EXPECTED = "expected are x_train, x_test, examples along the first axis; y_train, y_test, a class for each"

END = ".npz"
"""The end of the name of a file of arrays."""

CHANNELS = (1, 3, 4)
"""Numbers of channels: an image whose last axis has such a size, and whose first has not, has its channels last."""

TESTS = ("test", "valid", "validation")
"""Names of the test part of a data set; the first that is there counts."""

LABELS = ("label", "labels", "y", "target", "class")
"""Names of the column of classes."""


def are_arrays(data: Data) -> bool:
    """Whether the examples are the user's own: a function, a file `.npz`, or a data set of `datasets`."""
    return callable(data) or (data is not None and (data.endswith(END) or _is_dataset(data)))


def _is_dataset(data: str) -> bool:
    """Whether a text names a data set of the hub, `owner/name`, a folder of a kept one, or one of image folders."""
    folder = Path(data)
    if not folder.exists():
        return re.fullmatch(r"\w[\w.-]*/[\w.-]+", data) is not None and not data.endswith(END)
    return all((folder / part).is_dir() for part in ("train", "test")) or _is_kept(folder)


def _is_kept(folder: Path) -> bool:
    """Whether `DatasetDict.save_to_disk` wrote a folder."""
    return (folder / "dataset_dict.json").is_file()


def name_of(data: Data) -> str:
    """The name of arrays in a report: that of the file or of the function."""
    if callable(data):
        return str(getattr(data, "__name__", type(data).__name__)).strip("<>")
    return Path(data or "").name


def load_arrays(data: Data, images: bool = False) -> Examples:
    """The examples of a file, a data set or a function, standardised by the training examples.

    Args:
        data: a file, the name or the folder of a data set, or a function.
        images: whether they must be images: (n, H, W), (n, C, H, W) or (n, H, W, C).

    Raises:
        TensornetError: an array is missing, has a wrong shape or type, or holds a number that is not finite.
    """
    name = name_of(data)
    if callable(data):
        arrays = _returned(data(), name)
    else:
        arrays = columns_of(hub(str(data)), name) if _is_dataset(str(data)) else _read_file(str(data))
    return examples_of(name, arrays, images=images)


def examples_of(
    name: str, arrays: Mapping[str, Any], *, images: bool = False, called: str = "", known: bool = False
) -> Examples:
    """Four arrays as examples, checked. Channels come first, and classes are the distinct values of `y_train`.

    Images with channels are standardised channel by channel, vectors element by element, all others by one
    mean and one deviation.

    Args:
        name: where they come from, for errors and the report.
        arrays: the arrays, by `NAMES`.
        images: whether they must be images.
        called: their name in a heading, if it is another.
        known: whether the study's recipe was tried on them, and its published figures are for them.
    """
    train, test = (_inputs(name, each, arrays[each], images) for each in ("x_train", "x_test"))
    shape, other = _times(train.shape[1:]), _times(test.shape[1:])
    if shape != other:
        told = f"{name}: an example of x_train is {shape}, one of x_test {other}"
        raise TensornetError(told, fix="give both of one shape")
    classes, labels, test_labels = labels_of(name, arrays)
    sizes, one = dict[str, Any](classes=classes), f"examples of {shape} numbers"
    digest = hashlib.sha256()
    for each in (train, labels, test, test_labels):
        digest.update(np.ascontiguousarray(each).data)
    if train.ndim == 4:
        _, channels, height, width = train.shape
        sizes |= {"channels": channels, "image": height if height == width else (height, width)}
        one = f"images of {width}×{height} pixels"
    counts = f"{len(train):,} {one} for training and {len(test):,} for the test, in {classes} classes"
    about = f"{name}: {counts} (sha256 {digest.hexdigest()[:12]})"
    inputs, tests, labels, test_labels = map(library("torch").tensor, (train, test, labels, test_labels))
    standard = _standardised(train)
    return Examples((inputs,), labels, (tests,), test_labels, about, sizes, standard, called or name, known)


# ---------------------------------------------------------------------------- sources


def hub(name: str) -> Any:
    """A data set of the Hugging Face hub, or of a folder of images or of `save_to_disk`.

    Raises:
        TensornetError: it cannot be loaded.
    """
    datasets = library("datasets")
    try:
        return datasets.load_from_disk(name) if _is_kept(Path(name)) else datasets.load_dataset(name)
    except Exception as error:  # whatever the hub, the network or the files raise
        fix = "without a network give --data FOLDER, with its files: `tensornet study --help` says which"
        raise TensornetError(f"the data set '{name}' cannot be loaded: {_reason(error)}", fix=fix) from None


def _reason(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def columns_of(found: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The four arrays of a data set: its images or numbers, and its classes, of the parts `train` and `test`."""
    tested = next((each for each in TESTS if each in found), None)
    if tested is None or "train" not in found:
        raise TensornetError(f"{name} has the parts {', '.join(found)}", fix="give the parts train and test")
    arrays: dict[str, Any] = {}
    for which, part in (("train", found["train"]), ("test", found[tested])):
        label = next((each for each in LABELS if each in part.column_names), None)
        others = [each for each in part.column_names if each != label]
        if label is None or not others:
            fix = f"call the column of classes {' or '.join(LABELS)}"
            raise TensornetError(f"{name} has the columns {', '.join(part.column_names)}", fix=fix)
        arrays |= {f"x_{which}": _values(part, others, name), f"y_{which}": np.asarray(part[label][:])}
    return arrays


def _values(part: Any, columns: list[str], name: str) -> Any:
    """The inputs in these columns of a data set: its images, else its texts, else all of them as numbers."""
    for each in columns:
        if type(part.features[each]).__name__ == "Image":
            return _pixels(part[each][:], name)
    if "text" in columns:
        return part["text"][:]
    arrays = [np.asarray(part.with_format("numpy")[each][:]) for each in columns]
    if len({each.shape for each in arrays}) > 1:
        told = f"{name} has columns of several shapes: {', '.join(columns)}"
        raise TensornetError(told, fix="leave some out, or return arrays from a function")
    return np.stack(arrays, -1) if len(arrays) > 1 else arrays[0]


def _pixels(images: list[Any], name: str) -> Any:
    """Images of Pillow as one array (n, H, W), or in colour where one of them is."""
    sizes = sorted({image.size for image in images})
    if len(sizes) > 1:
        told = f"{name} holds images of {_times(sizes[0])} and of {_times(sizes[-1])} pixels"
        raise TensornetError(told, fix="give images of one size")
    mode = "L" if {image.mode for image in images} <= {"L", "1"} else "RGB"
    return np.stack([np.asarray(image.convert(mode)) for image in images])


def _read_file(path: str) -> Mapping[str, Any]:
    """The four arrays of a file."""
    if not Path(path).is_file():
        raise TensornetError(f"there is no file {path}", fix=f"{EXPECTED}; numpy.savez writes them")
    fix = f"write it by numpy.savez; {EXPECTED}"
    if not zipfile.is_zipfile(path):
        raise TensornetError(f"{path} is no file of arrays", fix=fix)
    try:
        with Path(path).open("rb") as file, np.load(file, allow_pickle=False) as held:
            found = {name: held[name] for name in held.files if name in NAMES}
    except Exception as error:  # whatever zipfile, zlib and NumPy raise of a damaged file
        raise TensornetError(f"{path} cannot be read: {_reason(error)}", fix=fix) from None
    _check_names(path, held.files)
    return found


def _returned(found: Any, name: str) -> Mapping[str, Any]:
    """The four arrays of what a function returned: a tuple, a dict, or a data set."""
    if isinstance(found, Mapping) and "train" in found and hasattr(found["train"], "column_names"):
        return columns_of(found, name)
    if isinstance(found, Mapping):
        _check_names(name, found)
        found = [found[each] for each in NAMES]
    if not isinstance(found, tuple | list) or len(found) != len(NAMES):
        told = f"{len(found)} values" if isinstance(found, tuple | list) else f"a {type(found).__name__}"
        fix = f"let it return {', '.join(NAMES)}, or a dict of these names"
        raise TensornetError(f"{name} returns {told}", fix=fix)
    arrays: dict[str, Any] = {}
    for each, value in zip(NAMES, found, strict=True):
        try:
            arrays[each] = np.asarray(value)
        except (ValueError, TypeError, RuntimeError) as error:
            told = f"{name}: {each} is no array: {error}"
            raise TensornetError(told, fix="give an array of NumPy's") from None
    return arrays


# ---------------------------------------------------------------------------- checks


def _check_names(name: str, there: Collection[str]) -> None:
    missing = [each for each in NAMES if each not in there]
    if missing:
        slip = next((found for other in there if other not in NAMES and (found := near(other, missing))), "")
        told = ", ".join(there) or "nothing"
        raise TensornetError(f"{name} has no {', '.join(missing)}; it has {told}", fix=f"{slip}{EXPECTED}")


def _inputs(name: str, which: str, given: Any, images: bool) -> Any:
    """The examples as uint8 or float32, checked, with channels first."""
    place, array = f"{name}: {which}", np.asarray(given)
    if array.dtype.kind not in "buif":
        raise TensornetError(f"{place} holds {array.dtype}", fix="give numbers")
    if array.ndim < 2 or not array.size:
        raise TensornetError(f"{place} holds {_times(array.shape)} numbers", fix=EXPECTED)
    with np.errstate(over="ignore"):
        found = array if array.dtype == np.uint8 else array.astype(np.float32)
    if not np.isfinite(found).all():
        wrong = int(np.flatnonzero(~np.isfinite(found).reshape(len(found), -1).all(axis=1))[0])
        fix = "leave it out, or scale it"
        raise TensornetError(f"{place}[{wrong}] holds a number that is not finite in float32", fix=fix)
    if images and found.ndim not in (3, 4):
        fix = "give images (n, H, W), (n, C, H, W) or (n, H, W, C); the study `digits` takes vectors too"
        raise TensornetError(f"{place} holds {_times(found.shape)} numbers, which are no images", fix=fix)
    if found.ndim == 4 and found.shape[1] not in CHANNELS and found.shape[3] in CHANNELS:
        return found.transpose(0, 3, 1, 2)
    return found[:, None] if images and found.ndim == 3 else found


def labels_of(name: str, arrays: Mapping[str, Any]) -> tuple[int, Any, Any]:
    """The number of classes, and the class number of each training and each test example.

    Raises:
        TensornetError: there are no classes, or not one for each example, or one is only in the test.
    """
    for part in ("train", "test"):
        which, count = f"y_{part}", len(arrays[f"x_{part}"])
        array, place = arrays[which], f"{name}: {which}"
        if array.ndim != 1 or len(array) != count or not count:
            told = f"{place} holds {_times(array.shape)} values for {count:,} examples"
            raise TensornetError(told, fix=EXPECTED)
        whole = array.dtype.kind != "f" or (array == np.floor(array)).all()
        if array.dtype.kind not in "buifUS" or not whole:
            fix = "give whole numbers, or names as text"
            raise TensornetError(f"{place} holds {array.dtype}, no classes", fix=fix)
    classes, labels = np.unique(arrays["y_train"], return_inverse=True)
    if len(classes) < 2:
        raise TensornetError(f"{name}: y_train holds {len(classes)} class", fix="give two classes or more")
    unknown = sorted(set(arrays["y_test"].tolist()) - set(classes.tolist()), key=str)
    if unknown:
        told = f"{name}: y_test holds the class {unknown[0]}, and no training example is of it"
        raise TensornetError(told, fix="leave it out, or train on it too")
    return len(classes), labels.astype(np.int64), np.searchsorted(classes, arrays["y_test"]).astype(np.int64)


def _times(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape)) or "one"


def _standardised(train: Any) -> tn.Graph:
    """A layer that subtracts the mean of the training examples and divides by their deviation."""
    known = {2: ((0,), "i", "b,i"), 4: ((0, 2, 3), "c", "b,c,h,w")}
    over, axes, where = known.get(train.ndim, (tuple(range(train.ndim)), "", "..."))
    parts = np.array_split(train, -(-train.size // 2**24))  # in float64, and never all of it at once
    number = train.size / np.prod([train.shape[axis] for axis in range(train.ndim) if axis not in over])
    mean = sum(part.sum(over, np.float64, keepdims=True) for part in parts) / number
    squares = sum(((part - mean) ** 2).sum(over, keepdims=True) for part in parts)
    deviation = np.sqrt(squares / number)
    deviation = np.where(deviation <= 1e-6 * np.maximum(1.0, abs(mean)), 1.0, deviation)
    if not axes:
        return tn.layer(f"y[...] = (x[...] - ({mean.item()!r})) / ({deviation.item()!r})", inputs="x")
    constants = {name: each.ravel().astype(np.float32) for name, each in (("mu", mean), ("sigma", deviation))}
    text = f"y[{where}] = (x[{where}] - mu[{axes}]) / sigma[{axes}]"
    return tn.layer(text, inputs="x", constants=constants)
