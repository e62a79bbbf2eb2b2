"""Arrays with named axes contracted, in the order that the planner finds best."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any, NamedTuple

from ..running.eager import einsum

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
    return einsum(f"{terms}->{result}", *(operand.array for operand in operands))


def _letter(number: int) -> str:
    return _LATIN[number] if number < len(_LATIN) else chr(_FURTHER + number - len(_LATIN))
