"""The study of texts, end to end on a small folder of text files."""

from __future__ import annotations

import io
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from tensornet.errors import TensornetError
from tensornet.study import run_study
from tensornet.study.text import PADDING, load_texts

from .conftest import needs

needs("sklearn")

pytestmark = pytest.mark.usefixtures("without_pictures")

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


def test_a_data_set_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """By columns `text` and `label`; here without a network."""
    datasets = pytest.importorskip("datasets")
    part = datasets.Dataset.from_dict({"id": [7, 8], "text": ["good film", "bad film"], "label": [1, 0]})
    asked = []
    monkeypatch.setattr(
        datasets,
        "load_dataset",
        lambda name: asked.append(name) or datasets.DatasetDict(train=part, test=part),
    )
    examples = load_texts(None)
    assert asked == ["stanfordnlp/imdb"]
    assert examples.train_labels.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("columns", "found"),
    [
        ({"sentence": ["good", "bad"], "label": ["up", "down"]}, [1, 0]),
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
