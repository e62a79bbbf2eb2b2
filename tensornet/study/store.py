"""Files of runs: tensors and texts as safetensors, each written atomically, sealed by a digest, and named by the
settings of its run. A finished run is one file, an unfinished one its newest checkpoint.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import tensornet as tn
from tensornet.codec import Part, read, write
from tensornet.errors import TensornetError
from tensornet.files import whole

from .libraries import library
from .results import RunResult, Trained

Value = TypeVar("Value")
Tensors = Mapping[str, Any]
Texts = Mapping[str, str]

BLANK = 64 * "0"
"""The placeholder of the digest while it is computed."""

SEAL = re.compile(rb'("seal": ?")([0-9a-f]{64})(?=")')
"""The digest of the file that contains it; its quotes are not escaped, so it is not inside another text."""

FORMAT = "tensornet.study.run.4"
"""The format of a finished run. The fourth is one file, with the result beside the weights."""


def seal(content: bytes) -> bytes:
    """Writes the digest of content that holds `"seal": BLANK` once in the place of BLANK.

    Example:
        >>> is_sealed(seal(f'{{"seal": "{BLANK}", "loss": 0.5}}'.encode()))
        True
        >>> is_sealed(seal(f'{{"seal": "{BLANK}", "loss": 0.5}}'.encode()).replace(b"0.5", b"0.1"))
        False
    """
    blank = SEAL.sub(rb"\g<1>" + BLANK.encode(), content, 1)
    return SEAL.sub(rb"\g<1>" + hashlib.sha256(blank).hexdigest().encode(), content, 1)


def is_sealed(content: bytes) -> bool:
    """Whether the content is complete and as `seal` returned it."""
    return SEAL.search(content) is not None and seal(content) == content


def sealed_tensors(tensors: Tensors, texts: Texts) -> bytes:
    """Tensors and texts by name, as the content of a safetensors file, sealed."""
    return seal(library("safetensors.torch").save(dict(tensors), {"seal": BLANK, **texts}))


def read_tensors(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """The tensors and the texts that `sealed_tensors` stored.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is damaged or something else; the error says what.
    """
    if not is_sealed(path.read_bytes()):
        raise ValueError("its content is not what was written")
    safetensors = library("safetensors")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
    except safetensors.SafetensorError as error:
        raise ValueError(str(error)) from None


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file atomically: a reader finds the old content or the new, never a part.

    A folder of the same name is renamed.

    Raises:
        TensornetError: the folder cannot be created or written.
    """
    with whole(path) as half:
        half.write_bytes(content)
        if path.is_dir():
            path.rename(path.with_name(f"{path.name}.damaged"))


@dataclass(frozen=True)
class RunFile:
    """A file of a run: tensors and texts, with the fingerprint of the settings of the run.

    Attributes:
        path: the file.
        fingerprint: a file with another one is not read.
        say: receives a message if the file is damaged.
    """

    path: Path
    fingerprint: str
    say: Callable[[str], None] = lambda text: None

    def save(self, tensors: Tensors, texts: Texts) -> None:
        """Writes the file.

        Raises:
            TensornetError: the folder cannot be written.
        """
        texts = {"format": FORMAT, "fingerprint": self.fingerprint, **texts}
        write_whole(self.path, sealed_tensors(tensors, texts))

    def load(self, take: Callable[[Tensors, Texts], Value]) -> Value | None:
        """What `take` makes of the content; None if there is no file, or it is damaged."""
        if not self.path.exists():
            return None
        try:
            tensors, texts = read_tensors(self.path)
            if (texts["format"], texts["fingerprint"]) != (FORMAT, self.fingerprint):
                raise ValueError("it is not one of this run")
            return take(tensors, texts)
        except (OSError, ValueError, KeyError, TypeError, ArithmeticError, RecursionError) as error:
            self.say(f"{self.path} is damaged and not used: {error}")
            return None


@dataclass(frozen=True)
class RunStore:
    """The runs in a folder, each identified by its name and a fingerprint of everything its numbers depend on.

    Runs with other settings have other files, so no run overwrites another. If a file has changed since it was
    written, its run counts as unfinished, and writes it again.

    Attributes:
        folder: the folder of the study.
        say: receives a message if a file is damaged.
    """

    folder: Path
    say: Callable[[str], None] = lambda text: None

    def file(self, name: str, settings: Mapping[str, Any], end: str = "safetensors") -> RunFile:
        """The file of a finished run, or by its suffix its "checkpoint"; other settings or formats have other files."""
        document = json.dumps({"format": FORMAT, **settings}, sort_keys=True)
        key = hashlib.sha256(document.encode()).hexdigest()[:16]
        path = self.folder / "runs" / f"{name}.seed{settings['seed']}.{key[:8]}.{end}"
        return RunFile(path, key, self.say)

    def save(self, trained: Trained, settings: Mapping[str, Any]) -> None:
        """Keeps a finished run: its result, its classifier and its parameters; its checkpoint is removed.

        Raises:
            TensornetError: the folder cannot be written.
        """
        file = self.file(trained.result.name, settings)
        result, graph = json.dumps(write(trained.result)), trained.graph.to_json()
        file.save(trained.parameters, {"result": result, "settings": json.dumps(settings), "graph": graph})
        halves = file.path.parent.glob(f".*.{file.path.stem}.*")  # left by processes that were killed
        for each in (file.path.with_suffix(".checkpoint"), *halves):
            with contextlib.suppress(OSError):  # there is none, or a folder
                each.unlink()

    def load(self, name: str, settings: Mapping[str, Any]) -> RunResult | None:
        """The finished run with these settings; None if it is absent or damaged."""
        file = self.file(name, settings)
        return file.load(lambda _, texts: read(RunResult, Part.of(texts["result"], "result")))


def load_trained(path: str | Path) -> tuple[tn.Graph, dict[str, Any]]:
    """The classifier of a finished run, and its parameters by name, as torch tensors.

    The graph takes inputs as the data set has them; its first equation scales them as in training.
    Images are pixels from 0 to 255, (n, channels, height, width), as floating-point numbers. The digits of
    scikit-learn go from 0 to 16, (n, 8, 8) in the study `digits` and (n, 1, 8, 8) in `thesis`. Texts are
    tokens and a mask of those that are not padding, (n, words) each.

    Args:
        path: the file `runs/<name>.seed<n>.<fingerprint>.safetensors` of a study.

    Returns:
        The graph, inputs → y[b,o], a logit for each class, and its parameters.

    Raises:
        TensornetError: the file does not exist, it is damaged, or no study wrote it.
    """
    try:
        parameters, texts = read_tensors(Path(path))
        if texts.get("format") != FORMAT:
            raise ValueError("no study of this version wrote it")
        return tn.Graph.from_json(texts["graph"]), parameters
    except (OSError, ValueError, KeyError) as reason:
        again = "for one of an earlier version give its `tensornet study` command again"
        fix = f"give one of runs/*.safetensors of a study, whole; {again}"
        raise TensornetError(f"{path} is not a trained classifier: {reason}", fix=fix) from None
