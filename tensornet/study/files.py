"""Writing a file so that it is never seen half-written."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from tensornet.errors import TensornetError

__all__ = ["write_whole"]


def write_whole(path: Path, content: bytes, previous: Path | None = None) -> None:
    """Writes a file so that whoever reads it finds the old content or the new, never a part.

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
