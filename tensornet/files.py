"""Atomic file writes, and a JSON store: files that are written whole or not at all.

The store holds entries that processes share: the plan cache (`planning.plan_cache`) and the profiles of devices. An
entry is a JSON file with its key, its content and a seal, which is the digest of both. Any number of processes may read
and write at once: every file is always one that some process wrote whole. A file is trusted only if the user owns it
and nobody else can write it. If the folder is not writable, nothing is kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import EquationError, TensornetError


@contextlib.contextmanager
def whole(path: Path, over: bool = True) -> Iterator[Path]:
    """A temporary file that replaces `path` if the block succeeds, and is removed otherwise.

    Args:
        path: the file to write. Its folder is created.
        over: whether an existing file is overwritten.

    Raises:
        EquationError: the file exists and must not be overwritten.
        TensornetError: the file cannot be written.
    """
    try:
        half = _begun(path, over)
        mode = half.stat().st_mode
        try:
            yield half
            half.chmod(mode)  # that of the user's umask, which some libraries do not follow
            half.replace(path)
        finally:
            half.unlink(missing_ok=True)
    except OSError as error:
        raise _unwritable(path, error) from None


def check_writable(path: Path) -> None:
    """Raises an error for a new file that cannot be written, before its content is computed; see `whole`."""
    try:
        _begun(path, over=False).unlink()
    except OSError as error:
        raise _unwritable(path, error) from None


def _begun(path: Path, over: bool) -> Path:
    """Creates an empty temporary file in the folder of another file."""
    if "\0" in str(path):
        raise OSError("no name of a file holds a NUL byte")
    if path.exists() and not over:
        raise EquationError(f"{path} is there already", fix="give another name, or remove it first")
    half = path.with_name(f".{os.getpid()}.{path.name}")
    path.parent.mkdir(parents=True, exist_ok=True)
    half.touch()
    return half


def _unwritable(path: Path, error: OSError) -> TensornetError:
    fix = "give a file in a folder that can be written"
    return TensornetError(f"cannot write {path}: {error.strerror or error}", fix=fix)


# ---------------------------------------------------------------------------- a store of entries

LARGEST = 64 * 2**20
"""The most bytes of a file that is read. A larger one is not an entry."""

ABANDONED = 3600.0
"""Seconds after which the process that left a file half-written is assumed to have ended."""


def chosen_folder() -> Path | None:
    """The folder in the environment variable `TENSORNET_CACHE`, or None."""
    chosen = os.environ.get("TENSORNET_CACHE")
    return Path(chosen) if chosen else None


def cache_folder() -> Path:
    """The folder for the data of this machine: `TENSORNET_CACHE`, else the user's cache folder."""
    chosen = chosen_folder()
    if chosen is not None:
        return chosen
    import platformdirs

    return Path(platformdirs.user_cache_dir("tensornet"))


@dataclass(frozen=True)
class Store:
    """Entries of one kind in a folder.

    Attributes:
        folder: the folder, created at the first write, for the user alone.
        kind: the prefix of the names of the files.
        most: the most entries that are kept; None keeps all. The least recently used ones are removed.
    """

    folder: Path
    kind: str
    most: int | None = None

    def path(self, key: str) -> Path:
        """The file of the entry of a key."""
        return self.folder / f"{self.kind}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"

    def read(self, key: str) -> Any:
        """The content stored under a key, or None if it is missing, altered or not trusted."""
        try:
            document = json.loads(_text(self.path(key)))
            content = document["content"]
            believed = document["key"] == key and document["seal"] == _seal(key, content)
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None
        if not believed:
            return None
        with contextlib.suppress(OSError):  # removed already, or on a read-only disk
            os.utime(self.path(key))
        return content

    def write(self, key: str, content: Any) -> Path | None:
        """Stores JSON content under a key. Returns its file, or None if it cannot be written."""
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

    def _forget(self) -> None:
        """Removes the least recently used entries, and half-written files of processes that have ended."""
        if self.most is None:
            return
        entries: list[tuple[float, Path]] = []
        for path in self.folder.glob(f"{self.kind}-*"):
            with contextlib.suppress(OSError):  # another process removed it first
                used = path.stat().st_mtime
                if path.suffix == ".json":
                    entries.append((used, path))
                elif used < time.time() - ABANDONED:
                    path.unlink()
        for _, path in sorted(entries)[: -self.most]:
            with contextlib.suppress(OSError):
                path.unlink()


def _text(path: Path) -> bytes:
    """The content of a file that only the user can have written. Raises an error for any other file."""
    with open(path, "rb", opener=_without_waiting) as file:
        status = os.fstat(file.fileno())
        foreign = hasattr(os, "geteuid") and (status.st_uid != os.geteuid() or status.st_mode & 0o022)
        if foreign or not stat.S_ISREG(status.st_mode) or status.st_size > LARGEST:
            raise PermissionError(f"{path} is not believed")
        return file.read()


def _without_waiting(path: str, flags: int) -> int:
    """Opens a file without blocking, even if somebody put a pipe in its place."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _seal(key: str, content: Any) -> str:
    """The digest of an entry, which detects damage to its file."""
    return hashlib.sha256(json.dumps([key, content]).encode()).hexdigest()
