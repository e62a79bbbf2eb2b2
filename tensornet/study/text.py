"""Texts: sentiment of movie reviews, from Hugging Face `datasets` or a folder of text files."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from tensornet.errors import TensornetError

from .arrays import Data, columns_of, hub, labels_of, name_of
from .libraries import library
from .task import BuiltRow, Examples, Recipe, Task

DEFAULT = "stanfordnlp/imdb"
WORDS = 20_000
"""The number of most frequent words that get a vector each."""

LENGTH = 256
"""The number of words that are read of a text; the rest is cut."""

PADDING, UNKNOWN = 0, 1


def _row(about: str, dim: int, depth: int, heads: int, pool: str) -> BuiltRow:
    own: dict[str, Any] = {"dim": dim, "depth": depth, "heads": heads, "hidden": 2 * dim, "pool": pool}
    own |= {"pre": True, "dropout": 0.1, "positions": "sinusoidal" if depth else None}
    return BuiltRow(about, "transformer_classifier", own)


ROWS: dict[str, BuiltRow] = {
    "words": _row("mean of word vectors of 64, no attention", 64, 0, 1, "mean"),
    "transformer": _row("one layer of 64, 4 heads, mean over words", 64, 1, 4, "mean"),
    "transformer-max": _row("one layer of 64, 4 heads, largest over words", 64, 1, 4, "max"),
    "transformer-2": _row("two layers of 128, 4 heads, mean over words", 128, 2, 4, "mean"),
}
"""The first row is the control: the accuracy of the words alone, regardless of their order."""


def text(data: Data) -> Task:
    """The study of texts.

    Raises:
        TensornetError: the data are arrays.
    """
    if callable(data) or str(data).endswith(".npz"):
        fix = "give a folder of texts, or arrays to the study `digits`, or images to `thesis`"
        raise TensornetError(f"the study `text` reads texts, and {name_of(data)} holds arrays", fix=fix)
    return Task(
        name="text",
        title="{data}: parameters and accuracy",
        example="text",
        rows=ROWS,
        recipe=Recipe(epochs=4, batch=32, learning_rate=1e-3, weight_decay=0.01, warmup=0.1, smoothing=0.05),
        load=lambda seed: load_texts(data),
        controls=frozenset({"words"}),
        kinds=("words alone", "Transformers"),
    )


def load_texts(data: str | None = None) -> Examples:
    """Labelled texts, as tokens and a mask of those that are not padding.

    Args:
        data: a data set of the Hugging Face hub with columns `text` and `label`
            (stanfordnlp/imdb if not given), or a folder with `train/<class>/*.txt` and
            `test/<class>/*.txt`.

    Raises:
        BackendError: a library is missing.
        TensornetError: the data cannot be read; the error says what was expected where.
    """
    name = data or DEFAULT
    is_folder = Path(name).is_dir()
    texts = _of_folder(Path(name)) if is_folder else columns_of(hub(name), name)
    parts = {which: list(texts[f"x_{which}"]) for which in ("train", "test")}
    if not all(isinstance(each, str) for part in parts.values() for each in part):
        raise TensornetError(f"{name} holds no texts", fix="give a column `text`, and a column `label`")
    classes, *known_labels = labels_of(name, texts)
    reader = library("sklearn.feature_extraction.text").CountVectorizer(max_features=WORDS)
    try:
        reader.fit(parts["train"])
    except ValueError:
        raise TensornetError(f"the training texts of {name} hold no words", fix="give texts") from None
    known = {word: number for number, word in enumerate(sorted(reader.vocabulary_), UNKNOWN + 1)}
    read, torch = reader.build_analyzer(), library("torch")
    longest = min(LENGTH, max(1, *(len(read(text)) for text in parts["train"])))
    digest, found = hashlib.sha256(), {}
    for (which, part), classes_of in zip(parts.items(), known_labels, strict=True):
        tokens = torch.full((len(part), longest), PADDING)
        for number, text in enumerate(part):
            words = [known.get(word, UNKNOWN) for word in read(text)[:longest]] or [UNKNOWN]
            tokens[number, : len(words)] = torch.tensor(words)
        labels = torch.tensor(classes_of)
        digest.update(tokens.numpy().tobytes() + labels.numpy().tobytes())
        found[which] = (tokens, tokens != PADDING), labels
    sizes = {"vocabulary": len(known) + UNKNOWN + 1, "classes": classes}
    train, test = (f"{len(part):,}" for part in parts.values())
    counts = f"{train} texts of {'a folder' if is_folder else name} for training and {test} for the test"
    words_of = f"in {classes} classes, {len(known):,} words, {longest} of a text at most"
    about = f"{counts}, {words_of} (sha256 {digest.hexdigest()[:12]})"
    called = "Sentiment of movie reviews" if name == DEFAULT else Path(name).resolve().name
    return Examples(*found["train"], *found["test"], about, sizes, name=called)


def _of_folder(folder: Path) -> dict[str, Any]:
    """The texts of `train/<class>/*.txt` and `test/<class>/*.txt`; classes without a test folder are left out."""
    load, found = library("sklearn.datasets").load_files, dict[str, Any]()
    how: dict[str, Any] = {"encoding": "utf-8", "allowed_extensions": [".txt"], "shuffle": False}
    for which in ("test", "train"):
        try:
            files = load(folder / which, **how)
        except (OSError, ValueError) as error:  # no such folder, or no text in UTF-8
            fix = "expected are train/<class>/*.txt and test/<class>/*.txt, in UTF-8"
            raise TensornetError(f"cannot read {folder / which}: {error}", fix=fix) from None
        how["categories"] = files.target_names
        labels = np.take(files.target_names, np.array(files.target, int))
        found |= {f"x_{which}": files.data, f"y_{which}": labels}
    return found
