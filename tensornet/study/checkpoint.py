"""Checkpoints of a run: the newest and the previous file, each whole or refused, so that a kill loses little."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .files import read_tensors, remove, sealed_tensors, set_aside, write_whole

__all__ = ["Checkpoint", "Checkpoints"]

FORMAT = "tensornet.study.checkpoint"


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run: its tensors by name, and the rest as JSON."""

    tensors: Mapping[str, Any]
    state: Mapping[str, Any]


@dataclass(frozen=True)
class Checkpoints:
    """The newest checkpoint of a run and the one before it, as safetensors, each sealed by a digest.

    Attributes:
        path: the file of the newest; the one before has `.previous` in its name.
        fingerprint: the fingerprint of the settings of the run.
        say: receives a message if a file is refused.
    """

    path: Path
    fingerprint: str
    say: Callable[[str], None] = lambda text: None

    @property
    def previous(self) -> Path:
        """The file of the checkpoint before the newest."""
        return self.path.with_suffix(f".previous{self.path.suffix}")

    def save(self, checkpoint: Checkpoint) -> None:
        """Keeps a checkpoint; the newest so far becomes the previous one.

        Raises:
            TensornetError: the folder cannot be written.
        """
        metadata = {
            "format": FORMAT,
            "fingerprint": self.fingerprint,
            "state": json.dumps(checkpoint.state),
        }
        write_whole(self.path, sealed_tensors(checkpoint.tensors, metadata), self.previous)

    def load(self, check: Callable[[Checkpoint], None] = lambda found: None) -> Checkpoint | None:
        """The newest checkpoint that is whole, or None.

        A damaged one is set aside, so that it does not replace a good one.

        Args:
            check: raises ValueError, with the reason, for a checkpoint that this run cannot have written.
        """
        for path in (self.path, self.previous):
            if path.exists():
                try:
                    found = self._read(path)
                    check(found)
                    return found
                except (OSError, ValueError, RecursionError) as error:
                    self.say(f"{path} is damaged, set aside and not used: {error}")
                    set_aside(path)
        return None

    def remove(self) -> None:
        """Removes both files, and those that a killed process left half-written."""
        for path in (self.path, self.previous, *self.path.parent.glob(f".{self.path.name}.*")):
            remove(path)

    def _read(self, path: Path) -> Checkpoint:
        """The checkpoint in a file; raises an error that says what is wrong with it."""
        tensors, metadata = read_tensors(path)
        if metadata.get("fingerprint") != self.fingerprint or metadata.get("format") != FORMAT:
            raise ValueError("it is not one of this run")
        return Checkpoint(tensors, json.loads(metadata.get("state", "")))
