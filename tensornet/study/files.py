"""Writing a file so that it is never seen half-written."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from tensornet.errors import TensornetError

__all__ = ["rename", "write_whole"]


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


def rename(path: Path, target: Path) -> None:
    """Gives a file another name, in the place of what bore it.

    Raises:
        TensornetError: the folder cannot be written.
    """
    try:
        os.replace(path, target)
    except OSError as error:
        raise _unwritable(target, error) from None


def _unwritable(path: Path, error: OSError) -> TensornetError:
    reason = error.strerror or error
    return TensornetError(f"cannot write {path}: {reason}", fix="give a folder that can be written")
