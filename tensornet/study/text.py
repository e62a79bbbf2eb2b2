"""Texts: sentiment of movie reviews, from Hugging Face `datasets` or a folder of text files."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tensornet as tn
from tensornet.errors import TensornetError

from .arrays import Data, are_arrays, name_of
from .libraries import library
from .recipe import Recipe
from .task import Examples, Task

__all__ = ["TEXT", "TextRow", "load_texts", "text"]

DEFAULT = "stanfordnlp/imdb"
WORDS = 20_000
"""The number of most frequent words, each of which gets a vector."""

LENGTH = 256
"""The number of words that are read of a text; the rest is cut."""

PADDING, UNKNOWN = 0, 1


@dataclass(frozen=True)
class TextRow:
    """The settings of one `models.transformer_classifier`.

    Attributes:
        about: a short description.
        dim: the width.
        depth: the number of layers.
        heads: the number of attention heads.
        pool: how positions are pooled: "mean" or "max".
    """

    about: str
    dim: int
    depth: int
    heads: int
    pool: str


ROWS: dict[str, TextRow] = {
    "words": TextRow("mean of word vectors of 64, no attention", 64, 0, 1, "mean"),
    "transformer": TextRow("one layer of 64, 4 heads, mean over words", 64, 1, 4, "mean"),
    "transformer-max": TextRow("one layer of 64, 4 heads, largest over words", 64, 1, 4, "max"),
    "transformer-2": TextRow("two layers of 128, 4 heads, mean over words", 128, 2, 4, "mean"),
}
"""The first row is the control: the accuracy of the words alone, regardless of their order."""


def text(data: Data) -> Task:
    """The study of texts.

    Raises:
        TensornetError: the data are arrays.
    """
    if are_arrays(data):
        fix = "give a folder of texts, or arrays to the study `digits`, or images to `thesis`"
        raise TensornetError(f"the study `text` reads texts, and {name_of(data)} holds arrays", fix=fix)
    return TEXT


def load_texts(seed: int, data: str | None) -> Examples:
    """Labelled texts, as tokens and a mask of those that are not padding.

    Args:
        seed: not used; the data set has a test part of its own.
        data: a data set of the Hugging Face hub with columns `text` and `label`
            (stanfordnlp/imdb if not given), or a folder with `train/<class>/*.txt` and
            `test/<class>/*.txt`.

    Raises:
        BackendError: a library is missing.
        TensornetError: the data cannot be read; the error says what was expected where.
    """
    name = data or DEFAULT
    train, test = _from_folder(Path(name)) if Path(name).is_dir() else _from_hub(name)
    reader = library("sklearn.feature_extraction.text").CountVectorizer(max_features=WORDS)
    try:
        reader.fit(train[0])
    except ValueError:
        raise TensornetError(f"the training texts of {name} hold no words", fix="give texts") from None
    known = {word: number for number, word in enumerate(sorted(reader.vocabulary_), UNKNOWN + 1)}
    read = reader.build_analyzer()
    torch, parts = library("torch"), []
    longest = min(LENGTH, max((len(read(text)) for text in train[0]), default=1))
    digest = hashlib.sha256()
    for texts, labels in (train, test):
        tokens = torch.full((len(texts), max(1, longest)), PADDING)
        for number, text in enumerate(texts):
            found = [known.get(word, UNKNOWN) for word in read(text)[:longest]] or [UNKNOWN]
            tokens[number, : len(found)] = torch.tensor(found)
        digest.update(tokens.numpy().tobytes() + bytes(str(labels), "ascii"))
        parts.append(((tokens, tokens != PADDING), torch.tensor(labels, dtype=torch.int64)))
    classes = len({*train[1], *test[1]})
    place = "a folder" if Path(name).is_dir() else name
    about = (
        f"{len(train[0]):,} texts of {place} for training and {len(test[0]):,} for the test, in {classes} classes,"
        f" {len(known):,} words, {longest} of a text at most (sha256 {digest.hexdigest()[:12]})"
    )
    sizes = {"vocabulary": len(known) + UNKNOWN + 1, "classes": classes}
    called = "Sentiment of movie reviews" if name == DEFAULT else Path(name).resolve().name
    return Examples(parts[0][0], parts[0][1], parts[1][0], parts[1][1], about, sizes, name=called)


Part = tuple[Sequence[str], Sequence[int]]


def _from_folder(folder: Path) -> tuple[Part, Part]:
    """Reads `train/<class>/*.txt` and `test/<class>/*.txt`; classes without a test folder are left out."""
    expected = "expected are train/<class>/*.txt and test/<class>/*.txt, in UTF-8"
    classes: list[str] = []
    parts: list[Part] = []
    for name in ("test", "train"):
        inner = folder / name
        if not inner.is_dir():
            raise TensornetError(f"there is no folder {inner}", fix=expected)
        classes = classes or sorted(path.name for path in inner.iterdir() if path.is_dir())
        texts, labels = [], []
        for label, each in enumerate(classes):
            files = sorted((inner / each).glob("*.txt")) if (inner / each).is_dir() else []
            if not files:
                raise TensornetError(f"there are no texts in {inner / each}", fix=expected)
            texts += [_text(file) for file in files]
            labels += [label] * len(files)
        if len(classes) < 2:
            raise TensornetError(f"{inner} has {len(classes)} class folder(s)", fix=expected)
        parts.append((texts, labels))
    return parts[1], parts[0]


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TensornetError(f"cannot read {file}: {error}", fix="save it as text in UTF-8") from None


def _from_hub(name: str) -> tuple[Part, Part]:
    """The parts `train` and `test` of a data set of the hub."""
    datasets = library("datasets")
    try:
        found = datasets.load_dataset(name)
        return tuple((list(found[part]["text"]), list(found[part]["label"])) for part in ("train", "test"))  # type: ignore[return-value]
    except Exception as error:  # whatever the hub, the network or the columns raise
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TensornetError(
            f"the data set '{name}' cannot be loaded: {reason}",
            fix="without a network give --data FOLDER, with train/<class>/*.txt and test/<class>/*.txt in it",
        ) from None


def _build(row: TextRow, examples: Examples) -> tn.Graph:
    return tn.models.transformer_classifier(
        examples.sizes["vocabulary"],
        examples.sizes["classes"],
        row.dim,
        row.depth,
        row.heads,
        2 * row.dim,
        pool=row.pool,
        positions="sinusoidal" if row.depth else None,
        pre=True,
        dropout=0.1,
    )


TEXT = Task(
    name="text",
    title="{data}: parameters and accuracy",
    example="text",
    rows=ROWS,
    recipe=Recipe(epochs=4, batch=32, learning_rate=1e-3, weight_decay=0.01, warmup=0.1, smoothing=0.05),
    load=load_texts,
    build=_build,
    controls=frozenset({"words"}),
    kinds=("words alone", "Transformers"),
)
