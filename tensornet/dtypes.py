"""Element types (dtypes) by the names that all array libraries share."""

from __future__ import annotations

from enum import IntEnum

from .errors import BackendError


class Element(IntEnum):
    """The kind of the elements of a tensor. Where two kinds meet, both become the greater one.

    Positions, and values computed from them, stay exact until they meet numbers of the working type.
    """

    TRUTH = 0
    """True and false."""
    SHORT = 1
    """Integers of any width, as given. They are computed in int64."""
    WHOLE = 2
    """Integers, in int64: positions, counts."""
    WIDE = 3
    """Real numbers computed from these and from constants, in float32, or in float64 if the working type has that."""
    NUMBER = 4
    """Numbers of the working type: the one floating type of the given arrays."""

    @staticmethod
    def of(value: bool | int | float | complex) -> Element:
        """The kind of a Python number. Complex numbers are of the working type."""
        match value:
            case bool():
                return Element.TRUTH
            case int():
                return Element.WHOLE
            case float():
                return Element.WIDE
        return Element.NUMBER

    @property
    def is_exact(self) -> bool:
        """Whether rounding to the working type may lose precision."""
        return Element.TRUTH < self < Element.NUMBER

    @property
    def is_position(self) -> bool:
        """Whether the elements are integers."""
        return self in (Element.SHORT, Element.WHOLE)


def element_type(dtype: object, *, exact: bool = False) -> str:
    """The name of an element type, such as `float32` for `torch.float32`.

    Args:
        dtype: a name, or a dtype of an array library.
        exact: whether integers and truth values are allowed too. Parameters cannot have them.

    Raises:
        BackendError: there is no such type.
    """
    name = str(getattr(dtype, "name", getattr(dtype, "__name__", dtype))).split(".")[-1]
    known = (*_ITEM_SIZES, *(_EXACT if exact else ()))
    if name not in known:
        raise BackendError(f"there is no element type '{dtype}'", fix=f"choose one of {', '.join(known)}")
    return name


def real_type(dtype: str) -> str:
    """The element type of the real part: float32 for complex64."""
    return {"complex64": "float32", "complex128": "float64"}.get(dtype, dtype)


def itemsize(dtype: str) -> int:
    """Bytes of one element."""
    return _ITEM_SIZES.get(dtype, 8)


_EXACT = ("bool", "uint8", "int8", "int16", "int32", "int64")
_ITEM_SIZES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "complex64": 8, "complex128": 16}
WORKING = (*_ITEM_SIZES,)
"""The types that a working type may be."""
