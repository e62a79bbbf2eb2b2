"""Element types (dtypes) by the names that all array libraries share."""

from __future__ import annotations

from enum import IntEnum

from .errors import BackendError

__all__ = ["Element", "element_type", "itemsize", "real_type"]


class Element(IntEnum):
    """What the elements of a tensor are. Where two meet, both become the greater of the two.

    Positions, and what is made of them, stay exact until they meet numbers of the working type.
    """

    TRUTH = 0
    """True and false."""
    SHORT = 1
    """Integers of any width, as they were given; computed with in int64."""
    WHOLE = 2
    """Integers, in int64: positions, counts."""
    WIDE = 3
    """Real numbers made of those and of constants, in float32, or in float64 beside it."""
    NUMBER = 4
    """Numbers of the working type: the one floating type of the arrays that are given."""

    @staticmethod
    def of(value: bool | int | float | complex) -> Element:
        """What a number is: complex ones are of the working type."""
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
        """Whether rounding to the working type may lose something."""
        return Element.TRUTH < self < Element.NUMBER

    @property
    def is_position(self) -> bool:
        """Whether these are integers."""
        return self in (Element.SHORT, Element.WHOLE)


def element_type(dtype: object, *, exact: bool = False) -> str:
    """The name of an element type, `float32` for `torch.float32` and the like.

    Args:
        dtype: a name, or the type of a library.
        exact: whether integers and truth values will do, which parameters cannot have.

    Raises:
        BackendError: there is no such type.
    """
    name = str(getattr(dtype, "name", getattr(dtype, "__name__", dtype))).split(".")[-1]
    known = (*_ITEM_SIZES, *(_EXACT if exact else ()))
    if name not in known:
        raise BackendError(f"there is no element type '{dtype}'", fix=f"choose one of {', '.join(known)}")
    return name


def real_type(dtype: str) -> str:
    """The type of the real part: that of complex64 is float32."""
    return {"complex64": "float32", "complex128": "float64"}.get(dtype, dtype)


def itemsize(dtype: str) -> int:
    """Bytes of one element."""
    return _ITEM_SIZES.get(dtype, 8)


_EXACT = ("bool", "uint8", "int8", "int16", "int32", "int64")
_ITEM_SIZES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "complex64": 8, "complex128": 16}
