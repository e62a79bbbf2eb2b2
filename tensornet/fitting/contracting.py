"""Arrays with named axes contracted, in the order that the planner finds best."""

from __future__ import annotations

import functools
import string
from collections.abc import Sequence
from typing import Any, NamedTuple

from ..running.eager import graph_of
from ..running.executable import Executable

__all__ = ["Named", "contract"]

_LATIN = string.ascii_letters
_FURTHER = 0x100  # letters of other alphabets begin here


class Named(NamedTuple):
    """An array, and what its axes are called."""

    array: Any
    axes: tuple[str, ...]


def contract(operands: Sequence[Named], axes: tuple[str, ...]) -> Any:
    """Σ of the product over all axes but `axes`, which are those of the result, in order.

    Example:
        >>> import numpy as np
        >>> contract([Named(np.eye(2), ("i", "j")), Named(np.array([1.0, 2.0]), ("j",))], ("i",))
        array([1., 2.])
    """
    names = dict.fromkeys(axis for operand in operands for axis in operand.axes)
    letters = {name: _letter(number) for number, name in enumerate(names)}
    terms = ",".join("".join(letters[axis] for axis in operand.axes) for operand in operands)
    result = "".join(letters[axis] for axis in axes)
    arrays = [operand.array for operand in operands]
    return _planned(f"{terms}->{result}", tuple(array.shape for array in arrays)).run(arrays)


@functools.lru_cache(maxsize=2048)
def _planned(equation: str, shapes: tuple[tuple[int, ...], ...]) -> Executable:
    """The function of an equation, which every round of every weight of a shape asks for."""
    return Executable(graph_of(equation, shapes), "numpy")


def _letter(number: int) -> str:
    return _LATIN[number] if number < len(_LATIN) else chr(_FURTHER + number - len(_LATIN))
