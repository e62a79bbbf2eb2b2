"""The libraries that only the study needs, loaded when it runs."""

from __future__ import annotations

import functools
import importlib
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import tensornet as tn
from tensornet.errors import BackendError

__all__ = ["check_libraries", "library", "versions"]

NEEDED = {
    "torch": "torch",
    "sklearn": "scikit-learn",
    "matplotlib": "matplotlib",
    "safetensors": "safetensors",
    "filelock": "filelock",
}
"""Name to import → name to install; all are needed for every study."""


def library(name: str) -> Any:
    """The module of that name, imported now.

    Raises:
        BackendError: it, or the library it belongs to, is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = {**NEEDED, "PIL": "pillow"}.get(name.partition(".")[0], name)
        fix = f"pip install {package}; in a checkout, pip install '.[study]' installs all that it needs"
        raise BackendError(
            f"the study needs {package}, and it cannot be imported: {error}", fix=fix
        ) from None


def check_libraries() -> None:
    """Imports all that the study needs, so that nothing is missing after minutes of training.

    Raises:
        BackendError: one is not installed.
    """
    for name in NEEDED:
        library(name)


def versions() -> dict[str, str]:
    """Library → version, of those that numbers depend on."""
    found = {"tensornet-einsum": tn.__version__}
    for name in ("numpy", *NEEDED.values()):
        if name not in ("matplotlib", "safetensors", "filelock"):
            found[name] = _version(name)
    return found


@functools.cache
def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown"
