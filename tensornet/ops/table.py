"""The table of operations: every function that an equation may call, by name.

The rows are defined by kind in the other files of this folder. Other folders import the table from here, and single
records from those files.
"""

from __future__ import annotations

from ..codec import Part, refuses
from ..errors import EquationError
from ..syntax import Call
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

NO_FUNCTION = Function("", "")
"""The record of what is no function: a product, a copy, a leaf or a call."""

SIGNS = {row.infix: row.name for row in _ROWS if row.infix}
"""The functions that are written with an operator sign, by this sign."""

CONVERSIONS = {row.converts: row.name for row in _ROWS if row.converts is not None}
"""The functions that convert the elements of a tensor, by the kind they convert to."""

RESERVED = frozenset({"sum", "pi", "inf"})
"""Words of the language that are no row of the table."""


def check_registered(name: str, where: str) -> None:
    """Raises an EquationError if something read from elsewhere calls a function that is not registered here."""
    if name not in FUNCTIONS:
        message, fix = (
            f"{where} calls '{name}', which is no function here",
            "tensornet.register adds one of your own",
        )
        raise EquationError(message, fix=fix)


@refuses(Call)
def _check_call(call: Call, part: Part) -> None:
    check_registered(call.function, part.where)
