"""Element types (dtypes) by the names that all array libraries share."""

from __future__ import annotations

from .errors import BackendError

__all__ = ["element_type", "itemsize", "real_type"]


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
