"""The table of operations: every function that an equation may call, by name.

The rows are defined by kind in the other files of this folder. Other folders import the table from here, and single
records from those files.
"""

from __future__ import annotations

from ..codec import refuses
from ..documents import Part
from ..errors import EquationError
from ..nodes import Call
from . import (
    along_axes,
    attention,
    convolution,
    gather_scatter,
    pointwise,
    pooling,
    reduce,
    rnn,
    scan,
    structure,
)
from .record import Element, Function
from .reduce import SUM

__all__ = ["CONVERSIONS", "FUNCTIONS", "RESERVED", "SIGNS", "SUM", "Element", "Function"]

_ROWS = (
    *pointwise.ROWS,
    *along_axes.ROWS,
    *scan.ROWS,
    *reduce.ROWS,
    *structure.ROWS,
    *attention.ROWS,
    *gather_scatter.ROWS,
    *convolution.ROWS,
    *pooling.ROWS,
    *rnn.ROWS,
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
