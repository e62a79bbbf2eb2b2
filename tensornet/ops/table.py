"""The table of operations: every function that an equation may call, by name.

The rows are defined by kind in the other files of this folder. Other folders import the table from here, and single
records from those files.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from ..codec import Part, refuses
from ..errors import BackendError, EquationError
from ..syntax import RECORDS, Call
from . import along_axes, attention, collectives, convolution, gather_scatter, pointwise, rnn, structure
from .along_axes import SUM as SUM
from .record import Element as Element
from .record import Function as Function

_ROWS = (
    *pointwise.ROWS,
    *along_axes.ROWS,
    *structure.ROWS,
    *attention.ROWS,
    *gather_scatter.ROWS,
    *convolution.ROWS,
    *rnn.ROWS,
    *collectives.ROWS,
)

FUNCTIONS: dict[str, Function] = RECORDS
FUNCTIONS.update((row.name, row) for row in _ROWS)
"""Every function by its name; `register` adds to it."""

NO_FUNCTION = Function("", "")
"""The record of what is no function: a product, a copy, a leaf or a call."""

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


def pack(names: Iterable[str]) -> tuple[Function, ...]:
    """The functions among `names` that the user registered, ready for pickling.

    An implementation that cannot be pickled, such as a lambda, becomes one that raises a BackendError when called.
    """
    rows = (FUNCTIONS[name] for name in dict.fromkeys(names))
    return tuple(
        replace(row, implementations=tuple((name, _sent(row.name, f)) for name, f in row.implementations))
        for row in rows
        if row.implementations
    )


def unpack(packed: Iterable[Function]) -> None:
    """Registers packed functions whose names are not registered yet."""
    for row in packed:
        FUNCTIONS.setdefault(row.name, row)


def _sent(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    try:
        pickle.dumps(function)
    except (pickle.PicklingError, AttributeError, TypeError):
        return functools.partial(_left_behind, name)
    return function


def _left_behind(name: str, *_: Any) -> Any:
    raise BackendError(
        f"'{name}' was registered in another process, and its function cannot be imported in this one",
        fix=f"call tensornet.register('{name}', …) here first, or define the function at the top of a module",
    )
