"""Finished runs on disk: one JSON each, written whole or not at all, known by its settings."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from tensornet.errors import TensornetError

from .training import Epoch, RunResult

__all__ = ["RunStore", "fingerprint", "write_whole"]

FORMAT = "tensornet.study.run"


def fingerprint(settings: Mapping[str, Any]) -> str:
    """A text that differs when any setting does."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file so that whoever reads it finds the old content or the new, never a part.

    Raises:
        TensornetError: the folder cannot be made or written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content)
        os.replace(temporary, path)
    except OSError as error:
        raise _unwritable(path, error) from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _unwritable(path: Path, error: OSError) -> TensornetError:
    reason = error.strerror or error
    return TensornetError(f"cannot write {path}: {reason}", fix="give a folder that can be written")


@dataclass(frozen=True)
class RunStore:
    """The finished runs in a folder, `runs/<name>.json`."""

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

    def save(self, result: RunResult, settings: Mapping[str, Any]) -> None:
        """Keeps a finished run.

        Raises:
            TensornetError: the folder cannot be written.
        """
        document = {
            "format": FORMAT,
            "fingerprint": fingerprint(settings),
            "settings": settings,
            "result": asdict(result),
        }
        write_whole(self.path(result.name), (json.dumps(document, indent=1) + "\n").encode())

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
