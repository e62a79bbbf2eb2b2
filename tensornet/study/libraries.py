"""The libraries that only the study needs, loaded when it runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import tensornet as tn
from tensornet.errors import optional

NEEDED = ("torch", "sklearn", "matplotlib", "safetensors", "pandas", "jinja2", "markdown_it")
"""The names to import; all are needed for every study."""

PACKAGES = {"sklearn": "scikit-learn", "PIL": "pillow", "markdown_it": "markdown-it-py"}
"""Name to import → name to install, where that is another."""


def library(name: str) -> Any:
    """Imports the module of this name.

    Raises:
        BackendError: it, or the library it belongs to, is not installed.
    """
    top = name.partition(".")[0]
    package, extra = PACKAGES.get(top, top), "dask" if top == "distributed" else "study"
    fix = f"pip install {package}; in a checkout, pip install '.[{extra}]' installs all that it needs"
    return optional(name, fix, f"the study needs {package}, which")


def toml(path: Path) -> Any:
    """A TOML file, by a part of Python since 3.11, by a library before."""
    return library("tomllib" if sys.version_info >= (3, 11) else "tomli").loads(path.read_text("utf-8"))


def frozen(value: Any) -> Any:
    """The value with tuples in place of lists, at every level."""
    if isinstance(value, dict):
        return {name: frozen(each) for name, each in value.items()}
    return tuple(map(frozen, value)) if isinstance(value, list) else value


def versions() -> dict[str, str]:
    """Library → version, for the libraries that numbers depend on."""
    found = {name: str(library(name).__version__) for name in ("numpy", "torch", "sklearn")}
    return {"tensornet-einsum": tn.__version__, **found}
