"""Example evaluation: the results of the examples in the reference."""

from __future__ import annotations

from typing import Any

from ..frontend.layers import layer
from ..ops.record import Example
from .compiling import compile

__all__ = ["result_of"]

DIGITS = 4
"""Digits shown after the decimal point."""


def result_of(example: Example) -> str:
    """The result of an example on NumPy, as Python prints it: nested lists of rounded numbers."""
    import numpy

    sizes: dict[str, Any] = {name: value for name, value in example.given if isinstance(value, int)}
    arrays: dict[str, Any] = {name: numpy.array(value) for name, value in example.given if name not in sizes}
    graph = layer(example.equation, inputs=list(arrays), **sizes)
    found = numpy.asarray(compile(graph)({}, *arrays.values()))
    return str((found.round(DIGITS) if found.dtype == float else found).tolist())
