"""Runs on disk: of a finished one a JSON and its weights, written whole or not at all, known by its settings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import tensornet as tn
from tensornet.errors import TensornetError

from .checkpoint import Checkpoints
from .files import write_whole
from .libraries import library
from .recipe import Recipe
from .results import Epoch, RunResult, Trained

__all__ = ["RunStore", "fingerprint", "load_trained"]

FORMAT = "tensornet.study.run"


def fingerprint(settings: Mapping[str, Any]) -> str:
    """A text that differs when any setting does."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class RunStore:
    """The runs in a folder, each known by its name and a fingerprint of all that its numbers depend on.

    Of a finished one `runs/<name>.<fingerprint>.json` and its weights, `….safetensors`; meanwhile its
    checkpoints. Runs with other settings have other files, so none is ever lost to another.
    """

    folder: Path

    def path(self, name: str, settings: Mapping[str, Any]) -> Path:
        """Where the result of a run is kept."""
        return self.folder / "runs" / f"{name}.{fingerprint(settings)[:8]}.json"

    def prepare(self) -> None:
        """Makes the folder, so that one that cannot be written is known before a run is trained.

        Raises:
            TensornetError: it cannot be made or written.
        """
        probe = self.folder / "runs" / ".writable"
        write_whole(probe, b"")
        probe.unlink(missing_ok=True)

    def checkpoints(self, name: str, settings: Mapping[str, Any], say: Callable[[str], None]) -> Checkpoints:
        """The checkpoints of a run, which is not finished."""
        return Checkpoints(self.path(name, settings).with_suffix(".checkpoint"), fingerprint(settings), say)

    @contextmanager
    def training(self, name: str, settings: Mapping[str, Any]) -> Iterator[None]:
        """Keeps other processes from training the same run.

        Raises:
            TensornetError: one does already.
        """
        locks, path = library("filelock"), self.path(name, settings).with_suffix(".lock")
        try:
            with locks.FileLock(path, timeout=0):
                yield
                path.unlink(missing_ok=True)
        except locks.Timeout:
            raise TensornetError(
                f"another process trains {name} in {self.folder}", fix="wait for it, or give another --out"
            ) from None

    def save(self, trained: Trained, settings: Mapping[str, Any]) -> None:
        """Keeps a finished run: its result as JSON, its classifier and parameters as safetensors.

        Raises:
            TensornetError: the folder cannot be written.
        """
        path = self.path(trained.result.name, settings)
        metadata = {"graph": trained.graph.to_json()}
        weights = library("safetensors.torch").save(dict(trained.parameters), metadata)
        document = {
            "format": FORMAT,
            "fingerprint": fingerprint(settings),
            "weights": hashlib.sha256(weights).hexdigest(),
            "settings": settings,
            "result": asdict(trained.result),
        }
        write_whole(path.with_suffix(".safetensors"), weights)
        # the JSON says that the run is finished, so it comes last
        write_whole(path, (json.dumps(document, indent=1) + "\n").encode())

    def load(self, name: str, settings: Mapping[str, Any]) -> RunResult | None:
        """The finished run with these settings, or nothing: absent, or it or its weights damaged."""
        path = self.path(name, settings)
        try:
            document = json.loads(path.read_bytes())
            weights = hashlib.sha256(path.with_suffix(".safetensors").read_bytes()).hexdigest()
            known = (document["format"], document["fingerprint"], document["weights"])
            if known != (FORMAT, fingerprint(settings), weights):
                return None
            result = _result(document["result"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None
        return result if result.name == name else None

    def remove(self, name: str, settings: Mapping[str, Any]) -> None:
        """Removes all of a run, finished or not."""
        path = self.path(name, settings)
        for each in (path, path.with_suffix(".safetensors")):
            each.unlink(missing_ok=True)
        self.checkpoints(name, settings, lambda text: None).remove()


def load_trained(path: str | Path) -> tuple[tn.Graph, dict[str, Any]]:
    """The classifier of a finished run, and its parameters by name, as tensors of torch.

    Args:
        path: the file `runs/<name>.<fingerprint>.safetensors` of a study.

    Raises:
        TensornetError: there is no such file, it is damaged, or no study wrote it.
    """
    error = library("safetensors").SafetensorError
    try:
        with library("safetensors").safe_open(path, framework="pt") as file:
            graph = tn.Graph.from_json((file.metadata() or {})["graph"])
            return graph, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, KeyError, error) as reason:
        raise TensornetError(
            f"{path} is not a trained classifier: {reason}",
            fix="give one of runs/*.safetensors of a study, whole",
        ) from None


def _result(document: Mapping[str, Any]) -> RunResult:
    """The result that `asdict` wrote.

    Raises:
        TypeError, KeyError, ValueError: it is something else.
    """
    history = tuple(_epoch(each) for each in document["history"])
    result = RunResult(**{**document, "history": history, "recipe": Recipe(**document["recipe"])})
    kinds = {"str": str, "int": int, "float": (int, float)}
    for field in fields(result):
        expected = kinds.get(str(field.type))
        if expected is not None and not isinstance(getattr(result, field.name), expected):  # type: ignore[arg-type]
            raise TypeError(field.name)
    return result


def _epoch(document: Mapping[str, Any]) -> Epoch:
    return Epoch(**{name: float(value) for name, value in document.items()})
