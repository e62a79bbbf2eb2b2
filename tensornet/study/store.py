"""Runs on disk: a finished run is one safetensors file, an unfinished one its two newest checkpoints.

Each is written atomically, sealed by a digest, and identified by the settings of the run.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import tensornet as tn
from tensornet.codec import Part, read, write
from tensornet.errors import TensornetError
from tensornet.files import whole

from .libraries import library
from .results import RunResult, Trained

__all__ = ["BLANK", "Checkpoints", "fingerprint", "is_sealed", "load_trained"]
__all__ += ["read_or_set_aside", "read_tensors", "remove", "RunStore", "seal", "sealed_tensors"]
__all__ += ["set_aside", "set_aside_in", "write_whole"]

Value = TypeVar("Value")

BLANK = 64 * "0"
"""The placeholder of the digest while it is computed."""

SEAL = re.compile(rb'"seal": ?"([0-9a-f]{64})"')
"""The digest of the file that contains it; its quotes are not escaped, so it is not inside another text."""


def seal(content: bytes) -> bytes:
    """Replaces BLANK in content that holds `"seal": BLANK` once by the digest of the whole content.

    Example:
        >>> is_sealed(seal(f'{{"seal": "{BLANK}", "loss": 0.5}}'.encode()))
        True
        >>> is_sealed(seal(f'{{"seal": "{BLANK}", "loss": 0.5}}'.encode()).replace(b"0.5", b"0.1"))
        False
    """
    found = SEAL.search(content)
    assert found is not None
    return content[: found.start(1)] + _digest(content, found) + content[found.end(1) :]


def is_sealed(content: bytes) -> bool:
    """Whether the content is complete and as `seal` returned it."""
    found = SEAL.search(content)
    return found is not None and found[1] == _digest(content, found)


def _digest(content: bytes, found: re.Match[bytes]) -> bytes:
    blank = content[: found.start(1)] + BLANK.encode() + content[found.end(1) :]
    return hashlib.sha256(blank).hexdigest().encode()


def sealed_tensors(tensors: Mapping[str, Any], metadata: Mapping[str, str]) -> bytes:
    """Tensors and texts by name, as the content of a safetensors file, sealed."""
    return seal(library("safetensors.torch").save(dict(tensors), {"seal": BLANK, **metadata}))


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


def read_or_set_aside(path: Path, read: Callable[[Path], Value], say: Callable[[str], None]) -> Value | None:
    """What is in a file; None if there is none, or if it is damaged and therefore set aside."""
    if not path.exists():
        return None
    try:
        return read(path)
    except (OSError, ValueError, KeyError, TypeError, ArithmeticError, RecursionError) as error:
        say(f"{path} is damaged, set aside and not used: {error}")
        set_aside(path)
        return None


def write_whole(path: Path, content: bytes, previous: Path | None = None) -> None:
    """Writes a file atomically: a reader finds the old content or the new, never a part.

    A folder of the same name is set aside.

    Args:
        path: the file.
        content: all of it.
        previous: the new name of the old content; at any moment at least one of the two files is whole.

    Raises:
        TensornetError: the folder cannot be created or written.
    """
    with whole(path) as half:
        half.write_bytes(content)
        for each in (path, previous):
            if each is not None and each.is_dir():
                set_aside(each)
        if previous is not None and path.exists():
            os.replace(path, previous)


def set_aside(path: Path) -> None:
    """Renames a damaged file to `<name>.damaged`, so that it is not used and nothing is lost."""
    names = (f"{path.name}.damaged{'' if number == 1 else number}" for number in itertools.count(1))
    free = next(name for name in names if not os.path.lexists(path.with_name(name)))
    with contextlib.suppress(FileNotFoundError):  # another process was faster
        os.replace(path, path.with_name(free))


def set_aside_in(folder: Path) -> list[Path]:
    """The files that were set aside in a folder, sorted by name."""
    return sorted(folder.glob("*.damaged*"))


def remove(path: Path) -> None:
    """Removes a file, if it exists; a folder of the same name is set aside."""
    if path.is_dir() and not path.is_symlink():
        set_aside(path)
    else:
        path.unlink(missing_ok=True)


FORMAT = "tensornet.study.run.4"
"""The format of a finished run. The fourth is one file, with the result beside the weights."""


def fingerprint(settings: Mapping[str, Any]) -> str:
    """A text that changes if any setting changes, or the format in which a run is kept."""
    document = {"format": FORMAT, **settings}
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Checkpoints:
    """The newest checkpoint of a run and the one before it, each behind the digest of its content and its run.

    Attributes:
        path: the file of the newest; the one before has `.previous` in its name.
        fingerprint: the fingerprint of the settings of the run.
        say: receives a message if a file is refused, and if the run goes on.
    """

    path: Path
    fingerprint: str
    say: Callable[[str], None] = lambda text: None

    @property
    def previous(self) -> Path:
        """The file of the checkpoint before the newest."""
        return self.path.with_suffix(f".previous{self.path.suffix}")

    def _digest(self, content: bytes) -> bytes:
        return hashlib.sha256(self.fingerprint.encode() + content).digest()

    def save(self, state: Mapping[str, Any]) -> None:
        """Keeps a state of tensors and plain values; the newest so far becomes the previous one.

        Raises:
            TensornetError: the folder cannot be written.
        """
        buffer = io.BytesIO()
        library("torch").save(dict(state), buffer)
        content = buffer.getvalue()
        write_whole(self.path, self._digest(content) + content, self.previous)

    def load(self) -> dict[str, Any] | None:
        """The newest state that is whole, or None; a damaged one is set aside, and does not replace a good one."""
        newest = read_or_set_aside(self.path, self._read, self.say)
        return newest or read_or_set_aside(self.previous, self._read, self.say)

    def _read(self, path: Path) -> dict[str, Any]:
        digest, content = path.read_bytes()[:32], path.read_bytes()[32:]
        if digest != self._digest(content):
            raise ValueError("its content is not what this run wrote")
        found: dict[str, Any] = library("torch").load(io.BytesIO(content), "cpu", weights_only=True)
        return found

    def remove(self) -> None:
        """Removes both files, and those that a killed process left half-written."""
        for path in (self.path, self.previous, *self.path.parent.glob(f".*.{self.path.name}")):
            remove(path)


@dataclass(frozen=True)
class RunStore:
    """The runs in a folder, each identified by its name and a fingerprint of everything its numbers depend on.

    Runs with other settings have other files, so no run overwrites another. A file that has changed since it
    was written is set aside, and its run counts as unfinished.

    Attributes:
        folder: the folder of the study.
        say: receives a message if a file is set aside.
    """

    folder: Path
    say: Callable[[str], None] = lambda text: None

    def path(self, name: str, settings: Mapping[str, Any], end: str = "safetensors") -> Path:
        """The file of a run with this suffix; without one that of the finished run."""
        return self.folder / "runs" / f"{name}.seed{settings['seed']}.{fingerprint(settings)[:8]}.{end}"

    def prepare(self) -> None:
        """Creates the folder, and checks that it can be written before any run is trained.

        Raises:
            TensornetError: it cannot be created or written.
        """
        probe = self.folder / "runs" / ".writable"
        write_whole(probe, b"")
        probe.unlink(missing_ok=True)

    def checkpoints(self, name: str, settings: Mapping[str, Any], end: str = "checkpoint") -> Checkpoints:
        """The checkpoints of an unfinished run, or, by the suffix "start", its starting point if that was costly."""
        return Checkpoints(self.path(name, settings, end), fingerprint(settings), self.say)

    @contextmanager
    def training(self, name: str, settings: Mapping[str, Any], wait: float = 0.0) -> Iterator[None]:
        """Locks a run, so that no other process trains it; waits up to `wait` seconds for one that does.

        Raises:
            TensornetError: another process still trains it.
        """
        locks, path = library("filelock"), self.path(name, settings, "lock")
        if path.is_dir():
            set_aside(path)
        try:
            with locks.FileLock(path, timeout=wait):
                yield
                path.unlink(missing_ok=True)
        except locks.Timeout:
            fix = "wait for it, or give another --out"
            raise TensornetError(f"another process trains {name} in {self.folder}", fix=fix) from None

    def save(self, trained: Trained, settings: Mapping[str, Any]) -> None:
        """Keeps a finished run: its result, its classifier and its parameters.

        Raises:
            TensornetError: the folder cannot be written.
        """
        texts = {"result": json.dumps(write(trained.result)), "settings": json.dumps(settings)}
        texts |= {"format": FORMAT, "fingerprint": fingerprint(settings), "graph": trained.graph.to_json()}
        path = self.path(trained.result.name, settings)
        write_whole(path, sealed_tensors(trained.parameters, texts))
        for half_written in path.parent.glob(f".*.{path.stem}.*"):  # left by a process that was killed
            remove(half_written)

    def load(self, name: str, settings: Mapping[str, Any]) -> RunResult | None:
        """The finished run with these settings; None if it is absent, or damaged and therefore set aside."""

        def result(path: Path) -> RunResult:
            _, texts = read_tensors(path)
            if (texts["format"], texts["fingerprint"]) != (FORMAT, fingerprint(settings)):
                raise ValueError("it is not one of this run")
            return read(RunResult, Part.of(texts["result"], "result"))

        return read_or_set_aside(self.path(name, settings), result, self.say)

    def remove(self, name: str, settings: Mapping[str, Any]) -> None:
        """Removes the files of a run, finished or not."""
        remove(self.path(name, settings))
        for end in ("checkpoint", "start"):
            self.checkpoints(name, settings, end).remove()


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
    except (OSError, ValueError) as reason:
        again = "for one of an earlier version give its `tensornet study` command again"
        fix = f"give one of runs/*.safetensors of a study, whole; {again}"
        raise TensornetError(f"{path} is not a trained classifier: {reason}", fix=fix) from None
