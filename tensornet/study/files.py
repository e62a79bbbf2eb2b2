"""Files that are never seen half-written, and whose seal shows whether they are as they were written."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensornet.errors import TensornetError

from .libraries import library

__all__ = [
    "BLANK",
    "SEAL",
    "is_sealed",
    "read_tensors",
    "remove",
    "seal",
    "sealed_tensors",
    "set_aside",
    "set_aside_in",
    "write_whole",
]

SEAL = "seal"
"""The JSON key of the digest of the file that contains it."""

BLANK = 64 * "0"
"""The placeholder of the digest while it is computed."""

ASIDE = ".damaged"
"""Part of the name of a file that was set aside."""


def seal(content: bytes) -> bytes:
    """Replaces BLANK in content that holds `"seal": BLANK` once by the digest of the whole content.

    Example:
        >>> is_sealed(seal(f'{{"seal": "{BLANK}", "loss": 0.5}}'.encode()))
        True
        >>> is_sealed(seal(f'{{"seal": "{BLANK}", "loss": 0.5}}'.encode()).replace(b"0.5", b"0.1"))
        False
    """
    start, end = _place(content)
    assert content[start:end] == BLANK.encode()
    return content[:start] + _digest(content, start, end) + content[end:]


def is_sealed(content: bytes) -> bool:
    """Whether the content is complete and as `seal` returned it."""
    try:
        start, end = _place(content)
    except ValueError:
        return False
    return content[start:end] == _digest(content, start, end)


def _place(content: bytes) -> tuple[int, int]:
    """The start and end of the digest; its quotes are not escaped, so it is not inside another text."""
    found = re.search(rb'"%s": ?"([0-9a-f]{64})"' % SEAL.encode(), content)
    if found is None:
        raise ValueError("there is no seal")
    return found.span(1)


def _digest(content: bytes, start: int, end: int) -> bytes:
    total = hashlib.sha256(content[:start])
    total.update(BLANK.encode())
    total.update(content[end:])
    return total.hexdigest().encode()


def sealed_tensors(tensors: Mapping[str, Any], metadata: Mapping[str, str]) -> bytes:
    """Tensors and texts by name, as the content of a safetensors file, sealed."""
    return seal(library("safetensors.torch").save(dict(tensors), {SEAL: BLANK, **metadata}))


def read_tensors(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """The tensors and the texts that `sealed_tensors` stored.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is damaged or something else; the error says what.
    """
    if not is_sealed(path.read_bytes()):
        raise ValueError("its content is not what was written")
    try:
        with library("safetensors").safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except library("safetensors").SafetensorError as error:
        raise ValueError(str(error)) from None


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
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content)
        for each in (path, previous):
            if each is not None and each.is_dir():
                set_aside(each)
        if previous is not None and path.exists():
            os.replace(path, previous)
        os.replace(temporary, path)
    except OSError as error:
        reason = error.strerror or error
        raise TensornetError(
            f"cannot write {path}: {reason}", fix="give a folder that can be written"
        ) from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def set_aside(path: Path) -> None:
    """Renames a damaged file to `<name>.damaged`, so that it is not used and nothing is lost."""
    names = (f"{path.name}{ASIDE}{'' if number == 1 else number}" for number in itertools.count(1))
    free = next(name for name in names if not os.path.lexists(path.with_name(name)))
    with contextlib.suppress(FileNotFoundError):  # another process was faster
        os.replace(path, path.with_name(free))


def remove(path: Path) -> None:
    """Removes a file, if it exists; a folder of the same name is set aside."""
    if path.is_dir() and not path.is_symlink():
        set_aside(path)
    else:
        path.unlink(missing_ok=True)


def set_aside_in(folder: Path) -> list[Path]:
    """The files that were set aside in a folder, sorted by name."""
    return sorted(folder.glob(f"*{ASIDE}*"))
