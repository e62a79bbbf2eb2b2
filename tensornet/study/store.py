"""Runs on disk: of a finished one a JSON and its weights, written whole or not at all, known by its settings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import tensornet as tn
from tensornet.errors import TensornetError

from .checkpoint import Checkpoints
from .files import write_whole
from .libraries import library
from .results import Epoch, RunResult, Trained

__all__ = ["RunStore", "fingerprint", "load_trained"]

FORMAT = "tensornet.study.run"


def fingerprint(settings: Mapping[str, Any]) -> str:
    """A text that differs when any setting does."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class RunStore:
    """The runs in a folder: `runs/<name>.json`, its weights beside it, and meanwhile its checkpoints."""

    folder: Path

    def path(self, name: str) -> Path:
        """Where the run of a row is kept."""
        return self.folder / "runs" / f"{name}.json"

    def prepare(self) -> None:
        """Makes the folder, so that one that cannot be written is known before a run is trained.

        Raises:
            TensornetError: it cannot be made or written.
        """
        probe = self.folder / "runs" / ".writable"
        write_whole(probe, b"")
        probe.unlink(missing_ok=True)

    def checkpoints(self, name: str, settings: Mapping[str, Any], say: Callable[[str], None]) -> Checkpoints:
        """The checkpoints of a run with these settings, which is not finished."""
        return Checkpoints(self.folder / "runs" / f"{name}.checkpoint", fingerprint(settings), say)

    def save(self, trained: Trained, settings: Mapping[str, Any]) -> None:
        """Keeps a finished run: its result as JSON, its parameters as safetensors.

        Raises:
            TensornetError: the folder cannot be written.
        """
        path = self.path(trained.result.name)
        document = {
            "format": FORMAT,
            "fingerprint": fingerprint(settings),
            "settings": settings,
            "result": asdict(trained.result),
        }
        # the JSON says that the run is finished, so it comes last
        metadata = {"graph": trained.graph.to_json()}
        weights = library("safetensors.torch").save(dict(trained.parameters), metadata)
        write_whole(path.with_suffix(".safetensors"), weights)
        write_whole(path, (json.dumps(document, indent=1) + "\n").encode())

    def load(self, name: str, settings: Mapping[str, Any]) -> RunResult | None:
        """The finished run of a row with these settings, or nothing: absent, other or damaged."""
        try:
            document = json.loads(self.path(name).read_bytes())
            if document["format"] != FORMAT or document["fingerprint"] != fingerprint(settings):
                return None
            result = _result(document["result"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None
        return result if result.name == name else None


def load_trained(path: str | Path) -> tuple[tn.Graph, dict[str, Any]]:
    """The classifier of a finished run, and its parameters by name, as tensors of torch.

    Args:
        path: the file `runs/<name>.safetensors` of a study.

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
            f"{path} is not a trained classifier: {reason}", fix="give runs/NAME.safetensors of a study"
        ) from None


def _result(document: Mapping[str, Any]) -> RunResult:
    """The result that `asdict` wrote.

    Raises:
        TypeError, KeyError, ValueError: it is something else.
    """
    history = tuple(_epoch(each) for each in document["history"])
    result = RunResult(**{**document, "history": history})
    kinds = {"str": str, "int": int, "float": (int, float)}
    for field in fields(result):
        expected = kinds.get(str(field.type))
        if expected is not None and not isinstance(getattr(result, field.name), expected):  # type: ignore[arg-type]
            raise TypeError(field.name)
    return result


def _epoch(document: Mapping[str, Any]) -> Epoch:
    return Epoch(**{name: float(value) for name, value in document.items()})
