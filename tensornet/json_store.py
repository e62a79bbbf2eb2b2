"""JSON store: entries on disk, under the plan cache (`planning.plan_cache`) and the profiles of devices.

Processes share them: they are written whole and read with suspicion.

An entry is a file of JSON that holds its key, its content and a seal, the digest of both. Any number
of processes may read and write at once: what is there is always one that somebody wrote whole. Only a
file of the user's own that nobody else can write is believed. Where nothing can be written, nothing is kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Store", "cache_folder", "chosen_folder"]

LARGEST = 64 * 2**20
"""Bytes of a file beyond which it is none of ours."""

ABANDONED = 3600.0
"""Seconds after which a half-written file is that of a process which is no more."""


def chosen_folder() -> Path | None:
    """The folder that `TENSORNET_CACHE` names, if it names one."""
    chosen = os.environ.get("TENSORNET_CACHE")
    return Path(chosen) if chosen else None


def cache_folder() -> Path:
    """Where what belongs to this machine is kept: `TENSORNET_CACHE`, else the user's cache folder."""
    chosen = chosen_folder()
    if chosen is not None:
        return chosen
    import platformdirs

    return Path(platformdirs.user_cache_dir("tensornet"))


@dataclass(frozen=True)
class Store:
    """Entries of one kind in a folder.

    Attributes:
        folder: where; it is made when first written to, for the user alone.
        kind: how the names of the files begin.
        most: how many entries are kept, if not all; those used longest ago go.
    """

    folder: Path
    kind: str
    most: int | None = None

    def path(self, key: str) -> Path:
        """Where the entry of a key is."""
        return self.folder / f"{self.kind}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"

    def read(self, key: str) -> Any:
        """The content kept under a key, as it was written; nothing if it is not there, or not as it was."""
        try:
            document = json.loads(_text(self.path(key)))
            content = document["content"]
            believed = document["key"] == key and document["seal"] == _seal(key, content)
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None
        if believed:
            self._use(key)
        return content if believed else None

    def write(self, key: str, content: Any) -> Path | None:
        """Keeps content of JSON under a key; returns where, or nothing if that cannot be."""
        path, temporary = self.path(key), None
        try:
            text = json.dumps({"key": key, "seal": _seal(key, content), "content": content})
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            number, temporary = tempfile.mkstemp(
                dir=self.folder, prefix=f"{path.stem}."
            )  # for the user alone
            with open(number, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(temporary, path)
            self._forget()
        except (OSError, RecursionError):
            return None
        finally:
            if temporary is not None:
                Path(temporary).unlink(missing_ok=True)
        return path

    def _use(self, key: str) -> None:
        """Notes that the entry was of use just now."""
        with contextlib.suppress(OSError):  # gone already, or on a disk that cannot be written
            os.utime(self.path(key))

    def _forget(self) -> None:
        """Removes the entries used longest ago, and what processes that are no more left half-written."""
        if self.most is None:
            return
        entries: list[tuple[float, Path]] = []
        for path in self.folder.glob(f"{self.kind}-*"):
            with contextlib.suppress(OSError):  # another process was first
                used = path.stat().st_mtime
                if path.suffix == ".json":
                    entries.append((used, path))
                elif used < time.time() - ABANDONED:
                    path.unlink()
        for _, path in sorted(entries)[: -self.most]:
            with contextlib.suppress(OSError):
                path.unlink()


def _text(path: Path) -> bytes:
    """What a file holds, if it is one that only the user can have written."""
    with open(path, "rb", opener=_without_waiting) as file:
        status = os.fstat(file.fileno())
        foreign = hasattr(os, "geteuid") and (status.st_uid != os.geteuid() or status.st_mode & 0o022)
        if foreign or not stat.S_ISREG(status.st_mode) or status.st_size > LARGEST:
            raise PermissionError(f"{path} is not believed")
        return file.read()


def _without_waiting(path: str, flags: int) -> int:
    """Opens what is there; a pipe that somebody put in the place of a file is not waited for."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _seal(key: str, content: Any) -> str:
    """A digest of an entry: a file of which a digit was lost is not believed."""
    return hashlib.sha256(json.dumps([key, content]).encode()).hexdigest()
