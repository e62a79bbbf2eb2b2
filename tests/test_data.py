"""Data sets: images, arrays, texts, and the study of these."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import random
import shutil
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

import tensornet as tn
from tensornet.errors import TensornetError
from tensornet.study import run_study
from tensornet.study.arrays import load_arrays
from tensornet.study.task import Recipe
from tensornet.study.text import PADDING, load_texts
from tensornet.study.thesis import Source, load_images, read_mnist, source_of
from tensornet.study.training import augmented

from .conftest import needs

pytestmark = pytest.mark.usefixtures("without_pictures")

# ---------------------------------------------------------------------------- Images from the well-known files, from data sets of `datasets`, arrays of one's


draw = np.random.default_rng(0)


def idx(array: np.ndarray) -> bytes:
    """As the format is defined: 0, 0, 8 for bytes, the order, then the sizes, big-endian."""
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_mnist(folder: Path, count: int = 20, packed: bool = True, dot: str = "-") -> dict[str, np.ndarray]:
    folder.mkdir(parents=True, exist_ok=True)
    written = {}
    for part, number in (("train", count), ("t10k", count // 2)):
        written[part] = draw.integers(0, 256, (number, 28, 28), dtype=np.uint8)
        written[f"{part}-labels"] = (np.arange(number) % 10).astype(np.uint8)
        for kind, array in (("images", written[part]), ("labels", written[f"{part}-labels"])):
            name = f"{part}-{kind}{dot}idx{array.ndim}-ubyte"
            content = idx(array)
            (folder / (f"{name}.gz" if packed else name)).write_bytes(
                gzip.compress(content) if packed else content
            )
    return written


# ---- reading


@pytest.mark.parametrize(("packed", "dot"), [(True, "-"), (False, "-"), (False, "."), (True, ".")])
def test_mnist(tmp_path: Path, packed: bool, dot: str) -> None:
    written = write_mnist(tmp_path, packed=packed, dot=dot)
    images, labels, tested, test_labels = read_mnist(tmp_path).values()
    assert np.array_equal(images, written["train"])
    assert np.array_equal(tested, written["t10k"])
    assert labels.tolist() == [n % 10 for n in range(20)]
    assert test_labels.tolist() == list(range(10))


@pytest.mark.parametrize("inner", [".", "MNIST/raw"])
def test_a_folder_is_recognised_and_its_pixels_standardised(tmp_path: Path, inner: str) -> None:
    write_mnist(tmp_path / inner)
    assert source_of(str(tmp_path)) == Source("mnist", tmp_path)
    examples = load_images(Source("mnist", tmp_path), 0)
    (pixels,) = examples.batch(examples.train_inputs)
    assert torch.equal(pixels, examples.train_inputs[0].float())
    images = tn.module(examples.standard)(pixels)
    assert images.dtype == torch.float32
    assert float(images.mean()) == pytest.approx(0.0, abs=1e-4)
    assert float(images.std(unbiased=False)) == pytest.approx(1.0, abs=1e-4)
    assert examples.sizes == {"classes": 10, "channels": 1, "image": 28}
    assert "20 images of 28×28 pixels" in examples.about


def test_other_pixels_are_other_examples(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    before = load_images(Source("mnist", tmp_path), 0).about
    path = tmp_path / "t10k-images-idx3-ubyte.gz"
    content = bytearray(gzip.decompress(path.read_bytes()))
    content[100] ^= 1
    path.write_bytes(gzip.compress(bytes(content)))
    assert load_images(Source("mnist", tmp_path), 0).about != before


# ---- the hub


@pytest.mark.parametrize(
    ("name", "where", "column", "tested", "mode", "shape"),
    [
        ("mnist", "ylecun/mnist", "image", "test", "L", (1, 28, 28)),
        ("cifar10", "uoft-cs/cifar10", "img", "test", "RGB", (3, 32, 32)),
        ("tiny-imagenet", "zh-plus/tiny-imagenet", "image", "valid", "RGB", (3, 64, 64)),
    ],
)
def test_the_hub(
    monkeypatch: pytest.MonkeyPatch, name: str, where: str, column: str, tested: str, mode: str, shape: Any
) -> None:
    datasets = pytest.importorskip("datasets")
    image = pytest.importorskip("PIL.Image")
    modes = [mode, "L", mode]  # one is grey where others are not
    photos = [image.new(each, shape[:0:-1], 7) for each in modes]
    features = datasets.Features({column: datasets.Image(), "label": datasets.ClassLabel(num_classes=3)})
    part = datasets.Dataset.from_dict({column: photos, "label": [0, 2, 1]}, features=features)
    asked = []
    monkeypatch.setattr(
        datasets,
        "load_dataset",
        lambda name: asked.append(name) or datasets.DatasetDict({"train": part, tested: part}),
    )
    examples = load_images(Source(name), 0)
    assert asked == [where]
    assert examples.train_inputs[0].shape == (3, *shape)
    assert examples.test_labels.tolist() == [0, 2, 1]


@pytest.mark.parametrize(
    ("load", "name"),
    [
        (lambda: load_images(Source("mnist"), 0), "ylecun/mnist"),
        (lambda: load_texts(None), "stanfordnlp/imdb"),
    ],
)
def test_no_network(monkeypatch: pytest.MonkeyPatch, load: Any, name: str) -> None:
    datasets = pytest.importorskip("datasets")

    def unreachable(name: str) -> Any:
        raise ConnectionError(f"Couldn't reach '{name}' on the Hub")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(TensornetError, match=rf"'{name}' cannot be loaded: Couldn't(?s:.)*--data FOLDER"):
        load()


# ---- augmentation


def test_without_augmentation_images_stay() -> None:
    images = torch.rand(3, 1, 8, 8)
    assert augmented(images, Recipe(), 0) is images


def test_a_shift_moves_by_no_more_than_it_says() -> None:
    images = torch.zeros(200, 1, 9, 11)
    images[:, 0, 4, 5] = 1.0
    moved = augmented(images, Recipe(shift=2.0), 0)
    mass = moved.sum((1, 2, 3))
    assert torch.allclose(mass, torch.ones(200), atol=1e-5)
    down = (moved.sum(3)[:, 0] * torch.arange(9.0)).sum(1) - 4
    right = (moved.sum(2)[:, 0] * torch.arange(11.0)).sum(1) - 5
    for distance in (down, right):
        assert distance.abs().max() <= 2 + 1e-4
        assert distance.abs().max() > 1.8
        assert abs(distance.mean()) < 0.3
    assert abs(torch.corrcoef(torch.stack([down, right]))[0, 1]) < 0.3


def test_a_turn_keeps_distances_also_where_sides_differ() -> None:
    images = torch.zeros(100, 1, 21, 41)
    images[:, 0, 10, 26] = 1.0  # 6 right of the middle
    turned = augmented(images, Recipe(rotate=90.0), 1)
    mass = turned.sum((1, 2, 3))
    down = (turned.sum(3)[:, 0] * torch.arange(21.0)).sum(1) / mass - 10
    right = (turned.sum(2)[:, 0] * torch.arange(41.0)).sum(1) / mass - 20
    assert torch.allclose((down**2 + right**2).sqrt(), torch.full((100,), 6.0), atol=0.35)
    assert down.max() > 5
    assert down.min() < -5
    assert right.min() > -1


def test_half_are_mirrored() -> None:
    images = torch.rand(400, 2, 5, 6)
    changed = augmented(images, Recipe(flip=True), 3)
    kept = torch.isclose(changed, images, atol=1e-5).all(3).all(2).all(1)
    mirrored = torch.isclose(changed, images.flip(3), atol=1e-5).all(3).all(2).all(1)
    assert torch.equal(kept, ~mirrored)
    assert 150 < int(mirrored.sum()) < 250


def test_zoom_grows_and_shrinks() -> None:
    images = torch.zeros(300, 1, 40, 40)
    images[:, :, 10:30, 10:30] = 1.0
    area = augmented(images, Recipe(zoom=0.2), 4).sum((1, 2, 3)) / 400
    assert 0.6 < area.min() < 0.7
    assert 1.38 < area.max() < 1.46


def test_images_without_channels_are_augmented_alike() -> None:
    images, recipe = torch.rand(5, 8, 9), Recipe(shift=1.0, rotate=10.0, flip=True)
    assert torch.equal(augmented(images, recipe, 5), augmented(images[:, None], recipe, 5)[:, 0])
    assert not torch.equal(augmented(images, recipe, 5), images)


def test_augmentation_depends_on_its_seed_alone() -> None:
    images = torch.rand(5, 1, 8, 8)
    recipe = Recipe(shift=1.0, rotate=10.0, zoom=0.1, flip=True)
    first = augmented(images, recipe, 5)
    torch.manual_seed(0)
    assert torch.equal(augmented(images, recipe, 5), first)
    assert not torch.equal(augmented(images, recipe, 6), first)


# ---- arrays of one's own


def arrays(**changes: Any) -> dict[str, Any]:
    """Six vectors that train and three that test, in the classes 1, 2 and 3."""
    found = {
        "x_train": np.arange(24.0).reshape(6, 4) ** 2,
        "y_train": np.array([1, 2, 3, 3, 2, 1]),
        "x_test": np.ones((3, 4)),
        "y_test": np.array([3, 1, 2]),
    }
    return {name: value for name, value in {**found, **changes}.items() if value is not None}


def test_arrays_of_a_file_and_of_a_function(tmp_path: Path) -> None:
    """Classes from 0, and inputs standardised number by number."""
    given = arrays()
    np.savez(tmp_path / "mine.npz", **given)
    found = load_arrays(str(tmp_path / "mine.npz"))
    for other in (load_arrays(lambda: given), load_arrays(lambda: tuple(given.values()))):
        assert torch.equal(other.train_inputs[0], found.train_inputs[0])
        assert other.about.partition(":")[2] == found.about.partition(":")[2]
        assert other.name == "lambda"
    assert found.train_labels.tolist() == [0, 1, 2, 2, 1, 0]
    assert found.test_labels.tolist() == [2, 0, 1]
    assert found.about.startswith(
        "mine.npz: 6 examples of 4 numbers for training and 3 for the test, in 3 classes"
    )
    assert (found.sizes, found.name, found.known) == ({"classes": 3}, "mine.npz", False)
    x = given["x_train"]
    made = tn.compile(found.standard, backend="numpy")({}, x.astype(np.float32))
    np.testing.assert_allclose(made, (x - x.mean(0)) / x.std(0), rtol=1e-5)


@pytest.mark.parametrize("shape", [(5, 4), (3, 5, 4), (1, 5, 4)])
def test_images_are_standardised_together_or_by_channel(shape: tuple[int, ...]) -> None:
    x = draw.normal(-3.0, 2.0, (6, *shape))
    if len(shape) == 3:
        x[:, 0] = 7.0  # a channel that says nothing
    labels = [0, 1] * 3
    found = load_arrays(lambda: (x, labels, x, labels))
    axes = (0, 2, 3) if len(shape) == 3 else None
    deviation = x.std(axes, keepdims=True)
    expected = (x - x.mean(axes, keepdims=True)) / np.where(deviation < 1e-9, 1.0, deviation)
    made = tn.compile(found.standard, backend="numpy")({}, x.astype(np.float32))
    np.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-4)


def test_bytes_stay_bytes_and_names_are_classes() -> None:
    x = draw.integers(0, 256, (4, 2, 2), dtype=np.uint8)
    found = load_arrays(lambda: (x, ["b", "a", "b", "a"], x[:1], ["a"]))
    assert found.train_inputs[0].dtype == torch.uint8
    assert found.train_labels.tolist() == [1, 0, 1, 0]


def test_damaged_arrays(tmp_path: Path) -> None:
    """Cut anywhere, altered anywhere, or with objects in them: the error of the library, or the arrays as they were."""
    path = tmp_path / "mine.npz"
    np.savez_compressed(path, **arrays())
    whole = path.read_bytes()
    for place in range(0, len(whole), 23):
        for content in (whole[:place], whole[:place] + bytes([whole[place] ^ 255]) + whole[place + 1 :]):
            path.write_bytes(content)
            with contextlib.suppress(TensornetError):
                assert load_arrays(str(path)).sizes == {"classes": 3}
    np.savez(path, **arrays(y_test=np.array([{}, 1, 2])))
    with pytest.raises(TensornetError, match=r"mine.npz cannot be read: Object arrays cannot be loaded"):
        load_arrays(str(path))


def test_data_sets_of_the_library_and_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables and images, returned by a function, kept on the disk, or called `owner/name`; and folders of images."""
    datasets = pytest.importorskip("datasets")
    given = arrays()
    found = {
        part: datasets.Dataset.from_dict(
            {**{f"f{n}": given[f"x_{part}"][:, n] for n in range(4)}, "label": given[f"y_{part}"]}
        )
        for part in ("train", "test")
    }
    table = datasets.DatasetDict(found)
    table.save_to_disk(tmp_path / "kept")
    monkeypatch.setattr(datasets, "load_dataset", lambda name: {"someone/wine": table}[name])
    plain = load_arrays(lambda: given)
    for data in (lambda: table, str(tmp_path / "kept"), "someone/wine"):
        examples = load_arrays(data)
        assert torch.equal(examples.train_inputs[0], plain.train_inputs[0])
        assert examples.test_labels.tolist() == [2, 0, 1]
    one = datasets.DatasetDict({name: part.select_columns(["f0"]) for name, part in found.items()})
    with pytest.raises(TensornetError, match=r"has the columns f0\nfix: call the column of classes label or"):
        load_arrays(lambda: one)
    with pytest.raises(TensornetError, match=r"has the parts train\nfix: give the parts train and test"):
        load_arrays(lambda: {"train": found["train"]})
    wide = table.map(lambda row: {"f0": [row["f0"]] * 2})
    with pytest.raises(TensornetError, match=r"has columns of several shapes: f0, f1, f2, f3\nfix: leave"):
        load_arrays(lambda: wide)
    told = table.map(lambda row: {"text": "good"})
    with pytest.raises(TensornetError, match=r"x_train holds <U4\nfix: give numbers"):
        load_arrays(lambda: told)


@pytest.mark.parametrize("packed", [True, False])
def test_what_unpacks_to_more_than_it_says_is_not_unpacked(tmp_path: Path, packed: bool) -> None:
    """64 MiB of zeros behind 15,680 that are announced; and more announced than any such file holds."""
    write_mnist(tmp_path, packed=packed)
    path = tmp_path / ("train-images-idx3-ubyte" + ".gz" * packed)
    for count, told in ((20, "and others are there"), (2**31, "more than 1,073,741,824")):
        content = struct.pack(">BBBB3I", 0, 0, 8, 3, count, 28, 28) + bytes(2**26)
        path.write_bytes(gzip.compress(content, 1) if packed else content)
        tracemalloc.start()
        with pytest.raises(
            TensornetError, match=rf"cannot be read: {count}×28×28 bytes are announced, {told}"
        ):
            read_mnist(tmp_path)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2**23


def test_a_folder_of_images_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets, image = pytest.importorskip("datasets"), pytest.importorskip("PIL.Image")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    for part in ("train", "test"):
        for label in ("cat", "dog"):
            (tmp_path / "pets" / part / label).mkdir(parents=True)
            for number in range(3):
                photo = image.new("RGB", (9, 7), (200 * (label == "dog"), number, 0))
                photo.save(tmp_path / "pets" / part / label / f"{number}.png")
    examples = load_arrays(str(tmp_path / "pets"), images=True)
    assert examples.train_inputs[0].shape == (6, 3, 7, 9)
    assert (examples.train_inputs[0][:, 0, 0, 0] == 200 * examples.train_labels).all()
    image.new("RGB", (5, 5)).save(tmp_path / "pets" / "train" / "cat" / "0.png")
    with pytest.raises(TensornetError, match=r"pets holds images of 5×5 and of 9×7 pixels\nfix: give images"):
        load_arrays(str(tmp_path / "pets"), images=True)


# ---------------------------------------------------------------------------- The study of texts, end to end on a small folder of text files


needs("sklearn")


GOOD = ["wonderful", "moving", "superb", "delightful", "brilliant"]
BAD = ["dull", "tedious", "awful", "clumsy", "boring"]
FILLER = ["the", "a", "film", "story", "actor", "scene", "it", "was", "with", "and", "of", "plot", "music"]


def write_reviews(folder: Path, count: int, seed: int) -> None:
    """Reviews whose class a few words tell."""
    draw = random.Random(seed)
    for label, words in (("neg", BAD), ("pos", GOOD)):
        (folder / label).mkdir(parents=True)
        for number in range(count):
            text = draw.choices(FILLER, k=draw.randint(4, 15)) + draw.choices(words, k=2)
            draw.shuffle(text)
            (folder / label / f"{number}.txt").write_text(" ".join(text) + ".", encoding="utf-8")


@pytest.fixture(scope="module")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reviews")
    write_reviews(folder / "train", 60, 0)
    write_reviews(folder / "test", 25, 1)
    (folder / "train" / "unsup").mkdir()  # as the folder of the reviews has it
    (folder / "train" / "unsup" / "0.txt").write_text("no label")
    return folder


def study(folder: Path, reviews: Path, **changes: Any) -> Any:
    console = Console(file=io.StringIO(), width=100)
    settings = {
        "task": "text",
        "data": str(reviews),
        "rows": ["transformer"],
        "epochs": 20,
        "measure": False,
        **changes,
    }
    return run_study(folder, console=console, **settings), console.file.getvalue()  # type: ignore[attr-defined]


def test_texts_become_tokens(reviews: Path) -> None:
    examples = load_texts(str(reviews))
    tokens, there = examples.train_inputs
    assert tokens.shape == there.shape == (120, 17)
    assert torch.equal(there, tokens != PADDING)
    assert examples.sizes == {"vocabulary": 22 + 2, "classes": 2}  # of 23 words "a" is too short
    assert examples.train_labels.tolist() == [0] * 60 + [1] * 60
    assert "120 texts" in examples.about


def test_a_transformer_learns_the_sentiment(tmp_path: Path, reviews: Path) -> None:
    (result,), printed = study(tmp_path, reviews)
    assert result.test_top1 == 100.0
    assert result.parameters == result.counted
    assert "reviews0: parameters and accuracy" in printed
    document = json.loads((tmp_path / "results.json").read_text())
    assert document["environment"]["data"]["test"] == 50
    report = (tmp_path / "report.md").read_text()
    assert f"$ tensornet study text --data {reviews} --seed 0" in report
    (again,), printed = study(tmp_path, reviews)
    assert "kept, finished before: transformer" in printed
    assert again == result


def test_the_same_texts_with_other_labels_are_others(reviews: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(reviews, copy)
    assert load_texts(str(copy)).about == load_texts(str(reviews)).about
    for part in ("train", "test"):
        (copy / part / "neg").rename(copy / part / "other")
        (copy / part / "pos").rename(copy / part / "neg")
        (copy / part / "other").rename(copy / part / "pos")
    assert load_texts(str(copy)).about != load_texts(str(reviews)).about


def test_other_texts_are_another_run(tmp_path: Path, reviews: Path) -> None:
    study(tmp_path, reviews, rows=["words"], epochs=1)
    other = tmp_path / "reviews"
    write_reviews(other / "train", 8, 5)
    write_reviews(other / "test", 4, 6)
    _, printed = study(tmp_path, other, rows=["words"], epochs=1)
    assert "kept" not in printed


@pytest.mark.parametrize(
    ("columns", "found"),
    [
        ({"sentence": ["good", "bad"], "label": ["up", "down"]}, [1, 0]),
        ({"id": [7, 8], "text": ["good film", "bad film"], "label": [1, 0]}, [1, 0]),
        ({"a": [0.5, 1.5], "label": [1, 0]}, r"a/b holds no texts\nfix: give a column `text`"),
        ({"a": ["x", "y"], "b": ["z", "z"], "label": [1, 0]}, "a/b holds no texts"),
        ({"text": ["good", None], "label": [1, 0]}, "a/b holds no texts"),
        ({"text": ["good", "bad"], "label": [1, None]}, r"a/b: y_train holds object, no classes"),
    ],
)
def test_columns_of_a_data_set(monkeypatch: pytest.MonkeyPatch, columns: Any, found: Any) -> None:
    """Classes may have names; what holds no texts or no classes is refused, and not trained on."""
    datasets = pytest.importorskip("datasets")
    part = datasets.Dataset.from_dict(columns)
    monkeypatch.setattr(datasets, "load_dataset", lambda name: datasets.DatasetDict(train=part, test=part))
    if isinstance(found, list):
        assert load_texts("a/b").train_labels.tolist() == found
        return
    with pytest.raises(TensornetError, match=found):
        load_texts("a/b")
