"""The functions an equation may call: one table, and what is looked up in it.

The rows stand by kind in the files beside; other rooms take what they need of records from here.
"""

from __future__ import annotations

from . import (
    axes,
    cells,
    choosing,
    convolving,
    grouping,
    kernels,
    pointwise,
    pooling,
    reductions,
    scattering,
    steps,
    structure,
)
from .record import Element, Function
from .reductions import SUM

__all__ = ["CONVERSIONS", "FUNCTIONS", "RESERVED", "SIGNS", "SUM", "Element", "Function"]

_ROWS = (
    *pointwise.ROWS,
    *axes.ROWS,
    *steps.ROWS,
    *reductions.ROWS,
    *choosing.ROWS,
    *structure.ROWS,
    *kernels.ROWS,
    *scattering.ROWS,
    *convolving.ROWS,
    *pooling.ROWS,
    *grouping.ROWS,
    *cells.ROWS,
)

FUNCTIONS: dict[str, Function] = {row.name: row for row in _ROWS}
"""Every function by its name; `register` adds to it."""

SIGNS = {row.infix: row.name for row in _ROWS if row.infix}
"""The functions that are written with a sign."""

CONVERSIONS = {row.converts: row.name for row in _ROWS if row.converts is not None}
"""The functions that change what the elements of a tensor are, by what they make of them."""

RESERVED = frozenset({"sum", "pi", "inf"})
"""Words of the language that are no row of the table."""
