"""The array API backend: what NumPy, CuPy and other array libraries share.

Its templates use only functions of the standard and of this folder. A library's own module overrides the rows
for which it has something better. `of(namespace)` creates a backend for any library that follows the standard
of 2024.12 or later.
"""

from __future__ import annotations

import functools
import importlib
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tensornet.protocol import Argument, CallCache, Kept

from .array_functions import Functions, namespace_of
from .templates import standard

templates = standard("xp")


def processor(threads: int | None) -> str:
    """The processor and its threads, for the version of a library."""
    return f"{platform.processor() or platform.machine()} x{threads}"


class Plain:
    """A backend of a library without autograd: arrays have one type, and no intermediates are kept for gradients."""

    def dtype(self, array: Any) -> str:
        return str(array.dtype).split(".")[-1]

    def call_cache(self, most: int) -> CallCache:
        return CallCache(most)

    def autocasts(self, array: Any) -> bool:
        return False

    def changing(self, arrays: Sequence[Any]) -> tuple[int, ...]:
        return ()

    def kept(self, make: Callable[..., Any], given: Sequence[Argument], device: str) -> Kept | None:
        return None

    def as_one(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return function

    def synchronize(self, device: str, *made: Any) -> None:
        return None


@dataclass(frozen=True, eq=False)
class ArrayBackend(Plain):
    """A backend of a library that follows the standard."""

    name: str
    xp: Any
    templates: Mapping[str, str] = field(default_factory=lambda: templates)

    def __reduce__(self) -> tuple[Any, ...]:
        return _named, (self.xp.__name__,)

    def namespace(self) -> Mapping[str, Any]:
        return namespace_of(Functions(self.xp, self._erf))

    def _erf(self, x: Any) -> Any:
        """The error function by NumPy and SciPy; libraries with their own override this."""
        import scipy.special

        return self.xp.asarray(scipy.special.erf(self.numpy(x)), dtype=x.dtype)

    def device(self, array: Any = None) -> str:
        return "cpu"

    def check_device(self, device: str) -> None:
        return None

    def version(self, device: str) -> str:
        return f"{self.name} {getattr(self.xp, '__version__', '')} on {device}"

    def asarray(self, array: Any, dtype: str | None = None, device: str | None = None) -> Any:
        import numpy

        kind = None if dtype is None else getattr(self.xp, dtype)
        given = array if hasattr(array, "__array_namespace__") else numpy.asarray(array)
        return self.xp.asarray(given, dtype=kind)

    def numpy(self, array: Any) -> Any:
        import numpy

        try:
            return numpy.from_dlpack(array).copy()
        except BufferError:  # NumPy 2.0 does not export read-only arrays
            return numpy.from_dlpack(self.xp.asarray(array, copy=True))


def _named(library: str) -> ArrayBackend:
    """The backend of an array library, by the name it is imported under."""
    return of(importlib.import_module(library))


@functools.cache
def of(library: Any) -> ArrayBackend:
    """A backend for an array library, given its namespace."""
    return ArrayBackend(library.__name__.split(".")[0], library)
