"""Atomic file writes: a file is written whole or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from .errors import EquationError, TensornetError

__all__ = ["check_writable", "whole"]


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
        try:
            yield half
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
    if path.exists() and not over:
        raise EquationError(f"{path} is there already", fix="give another name, or remove it first")
    half = path.with_name(f".{os.getpid()}.{path.name}")
    path.parent.mkdir(parents=True, exist_ok=True)
    half.touch()
    return half


def _unwritable(path: Path, error: OSError) -> TensornetError:
    fix = "give a file in a folder that can be written"
    return TensornetError(f"cannot write {path}: {error.strerror or error}", fix=fix)
