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
    "pandas": "pandas",
    "markdown_it": "markdown-it-py",
    "jinja2": "jinja2",
    "filelock": "filelock",
}
"""Name to import → name to install; all are needed for every study."""

EXTRAS = {"distributed": "dask", "submitit": "slurm"}
"""Name to import → the extra that installs it; a study needs them only if it uses such workers."""


def library(name: str) -> Any:
    """Imports the module of this name.

    Raises:
        BackendError: it, or the library it belongs to, is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = {**NEEDED, "PIL": "pillow"}.get(name.partition(".")[0], name)
        extra = EXTRAS.get(package, "study")
        fix = f"pip install {package}; in a checkout, pip install '.[{extra}]' installs all that it needs"
        raise BackendError(
            f"the study needs {package}, and it cannot be imported: {error}", fix=fix
        ) from None


def check_libraries() -> None:
    """Imports all libraries that the study needs, so that none is missing after minutes of training.

    Raises:
        BackendError: one is not installed.
    """
    for name in NEEDED:
        library(name)


def versions() -> dict[str, str]:
    """Library → version, for the libraries that numbers depend on."""
    names = ("numpy", "torch", "scikit-learn")
    return {"tensornet-einsum": tn.__version__} | {name: _version(name) for name in names}


@functools.cache
def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown"
