"""Compilation of whole functions by `jax.jit`, with checks of positions after the call.

A traced function has no values to check. So the compiled function also returns the least and the greatest of the
positions that it reads at, and these are checked after the call.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

from tensornet.errors import check_inside


class _Here(threading.local):
    """The state of a trace in this thread.

    Attributes:
        met: the checks of the positions met so far, each of the least and the greatest; None if none are collected.
        must: whether positions must be checked, so that one inside a loop prevents compilation.
    """

    met: list[Callable[[], None]] | None = None
    must: bool = False


_here = _Here()


class _UnseenError(Exception):
    """Raised if positions that must be checked are in a loop, which cannot return them."""


def looked(index: Any, size: int, name: str) -> None:
    """Records traced positions for a check after the call."""
    import jax

    def check(low: Any, high: Any) -> None:
        check_inside(name, int(low), int(high), size)

    if _here.must:
        raise _UnseenError
    if _here.met is not None and index.size:
        _here.met.append(jax.tree_util.Partial(check, index.min(), index.max()))


@contextlib.contextmanager
def unlooked(must: bool = False) -> Iterator[None]:
    """A context for loops: positions inside are not checked; with `must`, one inside prevents compilation."""
    former = _here.met, _here.must
    _here.met, _here.must = None, must and former[0] is not None
    try:
        yield
    finally:
        _here.met, _here.must = former


def as_one(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of arrays and of `training`, compiled as a whole.

    Inside another trace the function runs uncompiled, and so does one that calls functions that cannot be traced.
    """
    import jax

    untraced = (_UnseenError, jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError)

    @functools.partial(jax.jit, static_argnames=("training",))
    def traced(*arrays: Any, **options: Any) -> tuple[Any, Any]:
        former, _here.met = _here.met, []
        try:
            return function(*arrays, **options), _here.met
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
        if met and isinstance(met[0].args[0], jax.core.Tracer):  # the call is inside another trace
            return function(*arrays, **options)
        for check in met:
            check()
        return made

    return run
