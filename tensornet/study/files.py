"""Files that are never seen half-written, and that tell by a seal whether they are what was written."""

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
"""The name, in JSON, of the digest of the file that it stands in."""

BLANK = 64 * "0"
"""What stands in its place while the digest is taken."""

ASIDE = ".damaged"
"""In the name of a file that was set aside."""


def seal(content: bytes) -> bytes:
    """Content that holds `"seal": BLANK` once, with the digest of all of it in that place.

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
    """Whether this is what `seal` made, all of it."""
    try:
        start, end = _place(content)
    except ValueError:
        return False
    return content[start:end] == _digest(content, start, end)


def _place(content: bytes) -> tuple[int, int]:
    """Where the digest stands: in quotes that are not themselves inside a text."""
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
    """The tensors and the texts that `sealed_tensors` kept.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is something else; the error says what.
    """
    if not is_sealed(path.read_bytes()):
        raise ValueError("its content is not what was written")
    try:
        with library("safetensors").safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except library("safetensors").SafetensorError as error:
        raise ValueError(str(error)) from None


def write_whole(path: Path, content: bytes, previous: Path | None = None) -> None:
    """Writes a file so that whoever reads it finds the old content or the new, never a part.

    A folder in the place of the file is set aside.

    Args:
        path: the file.
        content: all of it.
        previous: the name that the old content keeps; at any moment at least one of the two is whole.

    Raises:
        TensornetError: the folder cannot be made or written.
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
    """Gives what is damaged another name, `<name>.damaged`, so that neither is it used nor is anything lost."""
    names = (f"{path.name}{ASIDE}{'' if number == 1 else number}" for number in itertools.count(1))
    free = next(name for name in names if not os.path.lexists(path.with_name(name)))
    with contextlib.suppress(FileNotFoundError):  # another process was faster
        os.replace(path, path.with_name(free))


def remove(path: Path) -> None:
    """Removes a file, if it is there; a folder in its place is set aside."""
    if path.is_dir() and not path.is_symlink():
        set_aside(path)
    else:
        path.unlink(missing_ok=True)


def set_aside_in(folder: Path) -> list[Path]:
    """What was set aside in a folder, by name."""
    return sorted(folder.glob(f"*{ASIDE}*"))
