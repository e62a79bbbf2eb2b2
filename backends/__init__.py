"""Backends: array libraries, each registered by name and imported at its first use."""

from __future__ import annotations

import functools
import importlib
from typing import Any

from tensornet.protocol import Backend, offer, offer_any


@functools.cache
def _load(name: str) -> Backend:
    backend: Backend = importlib.import_module(f"{__name__}.{name}").backend
    return backend


def _of(namespace: Any) -> Backend:
    backend: Backend = importlib.import_module(f"{__name__}.array_api").of(namespace)
    return backend


_NAMES = ("numpy", "torch", "cupy", "jax")

for _name in _NAMES:
    offer(_name, functools.partial(_load, _name))
offer_any(_of)


def __dir__() -> list[str]:
    """The names of the loaded backends and the special attributes of the module."""
    return sorted(name for name in globals() if name in _NAMES or name.startswith("__"))
