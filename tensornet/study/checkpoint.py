"""Checkpoints of a run: two files in turn, each whole or refused, so that a kill at any moment loses little."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .files import write_whole
from .libraries import library

__all__ = ["Checkpoint", "Checkpoints"]

FORMAT = "tensornet.study.checkpoint"


@dataclass(frozen=True)
class Checkpoint:
    """Where a run stands: its tensors by name, and the rest as JSON."""

    tensors: Mapping[str, Any]
    state: Mapping[str, Any]


@dataclass(frozen=True)
class Checkpoints:
    """The newest checkpoint of a run and the one before it, as safetensors.

    Attributes:
        path: of the newest; the one before has `.previous` in its name.
        fingerprint: of the settings of the run.
        say: told when a file is refused.
    """

    path: Path
    fingerprint: str
    say: Callable[[str], None] = lambda text: None

    @property
    def previous(self) -> Path:
        """The file of the checkpoint before the newest."""
        return self.path.with_suffix(f".previous{self.path.suffix}")

    def save(self, checkpoint: Checkpoint) -> None:
        """Keeps a checkpoint; the newest so far becomes the previous.

        Raises:
            TensornetError: the folder cannot be written.
        """
        metadata = {
            "format": FORMAT,
            "fingerprint": self.fingerprint,
            "state": json.dumps(checkpoint.state),
            "digest": _digest(checkpoint),
        }
        content = library("safetensors.torch").save(dict(checkpoint.tensors), metadata)
        write_whole(self.path, content, self.previous)

    def load(self) -> Checkpoint | None:
        """The newest checkpoint that is whole, or nothing; a damaged one is removed, lest it replace a good one."""
        for path in (self.path, self.previous):
            if path.exists():
                try:
                    return self._read(path)
                except (OSError, ValueError, KeyError, library("safetensors").SafetensorError) as error:
                    self.say(f"{path} is damaged and not used: {error}")
                    path.unlink(missing_ok=True)
        return None

    def remove(self) -> None:
        """Removes both, and what a killed process left half-written."""
        for path in (self.path, self.previous, *self.path.parent.glob(f".{self.path.name}.*")):
            path.unlink(missing_ok=True)

    def _read(self, path: Path) -> Checkpoint:
        """Raises an error that says what is wrong with the file."""
        with library("safetensors").safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("fingerprint") != self.fingerprint or metadata.get("format") != FORMAT:
                raise ValueError("it is not one of this run")
            found = Checkpoint(
                {name: file.get_tensor(name) for name in file.keys()},  # noqa: SIM118
                json.loads(metadata["state"]),
            )
        if _digest(found) != metadata["digest"]:
            raise ValueError("its content is not what was written")
        return found


def _digest(checkpoint: Checkpoint) -> str:
    """A sum over all bytes and the state: safetensors itself notices a cut file, but not a changed one."""
    total = hashlib.sha256(json.dumps(checkpoint.state).encode())
    uint8 = library("torch").uint8
    for name in sorted(checkpoint.tensors):
        tensor = checkpoint.tensors[name].detach().cpu().contiguous()
        total.update(name.encode())
        total.update(tensor.reshape(-1).view(uint8).numpy().data)
    return total.hexdigest()
