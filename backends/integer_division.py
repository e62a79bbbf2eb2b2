"""Integer division and remainder, with 0 as the result of dividing by 0.

Libraries return 0 or −1, raise an error, or end the process. Some also end it when the least integer is divided by −1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["floor_divide", "remainder"]

Divide = Callable[[Any, Any], Any]


def floor_divide(xp: Any, divide: Divide, a: Any, b: Any) -> Any:
    """⌊a / b⌋; for integers 0 where b is 0.

    Args:
        xp: NumPy, CuPy, PyTorch, JAX or a library that follows the array API standard.
        divide: its floor division.
        a, b: arrays, or one of them a number.
    """
    if not _is_whole(a) or not _is_whole(b) or _is_safe(b):
        return divide(a, b)
    b = xp.asarray(b)
    quotient = divide(a, _safe(xp, b))
    return xp.where(b == 0, xp.zeros_like(quotient), xp.where(b == -1, -quotient, quotient))


def remainder(xp: Any, divide: Divide, a: Any, b: Any) -> Any:
    """a − b·⌊a / b⌋; for integers 0 where b is 0. Arguments as in `floor_divide`, but `divide` is the remainder."""
    whole = _is_whole(a) and _is_whole(b) and not _is_safe(b)
    return divide(a, _safe(xp, xp.asarray(b)) if whole else b)


def _is_whole(each: Any) -> bool:
    return isinstance(each, int) or "int" in str(getattr(each, "dtype", ""))


def _is_safe(b: Any) -> bool:
    """Whether a divisor is an integer by which all libraries divide alike: not 0 or −1."""
    return isinstance(b, int) and b not in (0, -1)


def _safe(xp: Any, b: Any) -> Any:
    """The divisor with 0 and −1 replaced by 1: the remainder is then 0, and the quotient the dividend."""
    return xp.where((b == 0) | (b == -1), xp.ones_like(b), b)
