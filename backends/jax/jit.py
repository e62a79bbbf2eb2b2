"""Compilation of whole functions by `jax.jit`, with checks of positions after the call.

What is compiled has no values while it is traced, so it hands out the least and the greatest of the positions that it
reads at, and these are looked at when it has run.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

from tensornet.errors import outside

__all__ = ["as_one", "check", "looked", "unlooked"]


class _Here(threading.local):
    """What is traced in this thread: the positions met so far, or None; and whether they must be looked at."""

    met: list[tuple[Any, Any]] | None = None
    told: list[tuple[int, str]]
    must: bool = False


_here = _Here()


class _UnseenError(Exception):
    """Positions that must be looked at are in a loop, out of which no value comes."""


def check(low: int, high: int, size: int, name: str) -> None:
    """Refuses positions of which one lies outside."""
    if low < 0 or high >= size:
        raise outside(name, low if low < 0 else high, size)


def looked(index: Any, size: int, name: str) -> None:
    """Takes note of positions that have no values yet."""
    if _here.must:
        raise _UnseenError
    if _here.met is not None and index.size:
        _here.met.append((index.min(), index.max()))
        _here.told.append((size, name))


@contextlib.contextmanager
def unlooked(must: bool = False) -> Iterator[None]:
    """Inside, positions are in a loop: none is looked at, or if they must be the whole cannot be compiled."""
    former = _here.met, _here.must
    _here.met, _here.must = None, must and former[0] is not None
    try:
        yield
    finally:
        _here.met, _here.must = former


def _kinds(arrays: Any, options: Any) -> Any:
    """Shapes, types and options: for each a function is compiled once."""
    return tuple((each.shape, each.dtype) for each in arrays), tuple(options.items())


def as_one(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of arrays, and of whether to train, compiled as a whole.

    What is traced already goes through as it is, and so does what calls functions that cannot be traced.
    """
    import jax

    untraced = (_UnseenError, jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError)
    told = dict[Any, list[tuple[int, str]]]()

    @functools.partial(jax.jit, static_argnames=("training",))
    def traced(*arrays: Any, **options: Any) -> tuple[Any, Any]:
        former = _here.met
        _here.met, _here.told = [], []
        try:
            made = function(*arrays, **options)
            told[_kinds(arrays, options)] = _here.told
            return made, _here.met
        finally:
            _here.met = former

    plain = False

    @functools.wraps(function)
    def run(*arrays: Any, **options: Any) -> Any:
        nonlocal plain
        if plain or any(isinstance(each, jax.core.Tracer) for each in arrays):
            return function(*arrays, **options)
        try:
            made, met = traced(*arrays, **options)
        except untraced:
            plain = True
            return function(*arrays, **options)
        if met and isinstance(met[0][0], jax.core.Tracer):  # around it something is traced
            return function(*arrays, **options)
        for (low, high), (size, name) in zip(met, told[_kinds(arrays, options)] if met else (), strict=True):
            check(int(low), int(high), size, name)
        return made

    return run
