"""Pickling of registered functions: sending a user's own functions to another process."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from ..errors import BackendError
from .record import Function
from .table import FUNCTIONS

__all__ = ["pack", "unpack"]


@dataclass(frozen=True)
class Packed:
    """A registered function to send to another process: its record, and its implementations by backend, pickled."""

    row: Function
    implementations: tuple[tuple[str, bytes], ...]


def pack(names: Iterable[str]) -> tuple[Packed, ...]:
    """The functions among `names` that the user registered, ready for pickling."""
    rows = [FUNCTIONS[name] for name in dict.fromkeys(names)]
    return tuple(
        Packed(
            replace(row, implementations=()), tuple((name, _by_name(f)) for name, f in row.implementations)
        )
        for row in rows
        if row.implementations
    )


def unpack(packed: Iterable[Packed]) -> None:
    """Registers packed functions whose names are not registered yet."""
    for each in packed:
        name = each.row.name
        found = tuple((backend, _found(name, data)) for backend, data in each.implementations)
        FUNCTIONS.setdefault(name, replace(each.row, implementations=found))


def _by_name(function: Callable[..., Any]) -> bytes:
    """A pickle of a function that can be imported; no bytes for others, such as a lambda."""
    try:
        return pickle.dumps(function)
    except (pickle.PicklingError, AttributeError, TypeError):
        return b""


def _found(name: str, data: bytes) -> Callable[..., Any]:
    """The function, if it can be imported here; otherwise one that raises a BackendError when it is called."""
    try:
        function: Callable[..., Any] = pickle.loads(data)
    except (ImportError, AttributeError, EOFError):
        return functools.partial(_left_behind, name)
    return function


def _left_behind(name: str, *_: Any) -> Any:
    raise BackendError(
        f"'{name}' was registered in another process, and its function cannot be imported in this one",
        fix=f"call tensornet.register('{name}', …) here first, or define the function at the top of a module",
    )
