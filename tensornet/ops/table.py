"""The table of operations: every function that an equation may call, by name.

The rows are defined by kind in the other files of this folder. Other folders import the table from here, and single
records from those files.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from ..codec import Part, refuses
from ..errors import BackendError, EquationError
from ..nodes import Call
from . import (
    along_axes,
    attention,
    collectives,
    convolution,
    gather_scatter,
    pointwise,
    reduce,
    rnn,
    structure,
)
from .record import Element as Element
from .record import Function as Function
from .reduce import SUM as SUM

_ROWS = (
    *pointwise.ROWS,
    *along_axes.ROWS,
    *reduce.ROWS,
    *structure.ROWS,
    *attention.ROWS,
    *gather_scatter.ROWS,
    *convolution.ROWS,
    *rnn.ROWS,
    *collectives.ROWS,
)

FUNCTIONS: dict[str, Function] = {row.name: row for row in _ROWS}
"""Every function by its name; `register` adds to it."""

SIGNS = {row.infix: row.name for row in _ROWS if row.infix}
"""The functions that are written with an operator sign, by this sign."""

CONVERSIONS = {row.converts: row.name for row in _ROWS if row.converts is not None}
"""The functions that convert the elements of a tensor, by the kind they convert to."""

RESERVED = frozenset({"sum", "pi", "inf"})
"""Words of the language that are no row of the table."""


@refuses(Call)
def _check_registered(call: Call, part: Part) -> None:
    """Raises an EquationError if a call read from a document names a function that is not registered here."""
    if call.function not in FUNCTIONS:
        fix = "tensornet.register adds one of your own"
        raise EquationError(f"{part.where} calls '{call.function}', which is no function here", fix=fix)


# ---------------------------------------------------------------------------- in another process


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
