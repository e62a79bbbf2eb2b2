"""Tensor algebra for deep learning: layers as equations, planned for the device, run anywhere."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from . import (
    api,
    backends,  # noqa: F401 - they offer themselves
)

if TYPE_CHECKING:
    from . import models
    from .api import *  # noqa: F403

__version__ = "0.2.0"

__all__ = [*api.__all__, "models"]

_FOLDERS = ("language", "models")


def __getattr__(name: str) -> Any:
    """Loads a public name when it is first used."""
    if name in _FOLDERS:
        return importlib.import_module(f".{name}", __name__)
    if name not in api.__all__:
        raise AttributeError(f"module 'tensornet' has no attribute '{name}'")
    globals()[name] = value = getattr(api, name)
    return value


def __dir__() -> list[str]:
    """The public names, loaded or not."""
    return sorted({*__all__, *_FOLDERS, "backends", *(name for name in globals() if name.startswith("__"))})
