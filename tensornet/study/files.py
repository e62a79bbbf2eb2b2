"""Files that are never seen half-written, and whose seal shows whether they are as they were written."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from tensornet.files import whole

from .libraries import library

__all__ = [
    *(
        "BLANK",
        "is_sealed",
        "read_or_set_aside",
        "read_tensors",
        "remove",
        "seal",
        "sealed_tensors",
        "set_aside",
    ),
    *("set_aside_in", "write_whole"),
]

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
    parts = (content[: found.start(1)], BLANK.encode(), content[found.end(1) :])
    return hashlib.sha256(b"".join(parts)).hexdigest().encode()


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
