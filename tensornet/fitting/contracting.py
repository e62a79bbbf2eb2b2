"""Contraction of arrays with named axes, in the order that the planner finds. Small ones use a greedy order."""

from __future__ import annotations

import functools
import string
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..runtime.eager import einsum

__all__ = ["Named", "contract"]

_LATIN = string.ascii_letters
_FURTHER = 0x100  # letters of other alphabets begin here

SMALL = 2**14
"""Up to this many elements, a search for the best order takes longer than all rounds together."""


class Named(NamedTuple):
    """An array, and the names of its axes."""

    array: Any
    axes: tuple[str, ...]


def contract(operands: Sequence[Named], axes: tuple[str, ...]) -> Any:
    """The product of arrays, summed over all axes but `axes`, which are the axes of the result, in order.

    Example:
        >>> import numpy as np
        >>> contract([Named(np.eye(2), ("i", "j")), Named(np.array([1.0, 2.0]), ("j",))], ("i",))
        array([1., 2.])
    """
    names = dict.fromkeys(axis for operand in operands for axis in operand.axes)
    letters = {name: _letter(number) for number, name in enumerate(names)}
    terms = ",".join("".join(letters[axis] for axis in operand.axes) for operand in operands)
    equation = f"{terms}->{''.join(letters[axis] for axis in axes)}"
    arrays = [operand.array for operand in operands]
    if len(names) > len(_LATIN) or sum(array.size for array in arrays) > SMALL:
        return einsum(equation, *arrays)
    shapes = tuple(array.shape for array in arrays)
    return np.einsum(equation, *arrays, optimize=len(arrays) > 2 and _path(equation, shapes))


@functools.lru_cache(maxsize=2048)
def _path(equation: str, shapes: tuple[tuple[int, ...], ...]) -> Any:
    """The pairs of operands, chosen greedily by their sizes."""
    return np.einsum_path(equation, *(np.broadcast_to(0.0, shape) for shape in shapes), optimize="greedy")[0]


def _letter(number: int) -> str:
    return _LATIN[number] if number < len(_LATIN) else chr(_FURTHER + number - len(_LATIN))
