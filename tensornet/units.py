"""Units: amounts in readable form, with three digits and a prefix."""

from __future__ import annotations

import math
import operator
import re

from .errors import BackendError

__all__ = ["Memory", "amount", "in_bytes"]

Memory = int | float | str
"""An amount of memory: bytes, or a text such as "512 MiB"."""

PREFIXES = (
    (1e12, "T"),
    (1e9, "G"),
    (1e6, "M"),
    (1e3, "k"),
    (1, ""),
    (1e-3, "m"),
    (1e-6, "µ"),
    (1e-9, "n"),
)


def amount(value: float, unit: str) -> str:
    """An amount with three digits and a prefix.

    Example:
        >>> amount(1_843_000_000, "FLOP"), amount(0.044, "s")
        ('1.84 GFLOP', '44 ms')
    """
    if value == 0:
        return f"0 {unit}"
    for scale, prefix in PREFIXES:
        if value >= scale:
            return f"{value / scale:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


_MEMORY = re.compile(
    r"\s*(\d+\.?\d*(?:e[+-]?\d+)?|\.\d+(?:e[+-]?\d+)?)\s*(?:([kmgt])(i?))?(?:b|bytes)?\s*", re.IGNORECASE
)


def in_bytes(limit: Memory | None) -> int | None:
    """An amount of memory in bytes, from a number or a text; None for None.

    Raises:
        BackendError: the value is no amount of memory.

    Example:
        >>> in_bytes("1GB"), in_bytes("512 MiB"), in_bytes("0.5e9"), in_bytes(4096)
        (1000000000, 536870912, 500000000, 4096)
    """
    if limit is None:
        return None
    number: float = -1
    if isinstance(limit, str):
        found = _MEMORY.fullmatch(limit)
        if found is not None:
            digits, prefix, binary = found.groups()
            number = float(digits) * (1024 if binary else 1000) ** (
                "kmgt".index(prefix.lower()) + 1 if prefix else 0
            )
    elif isinstance(limit, float):
        number = limit
    elif not isinstance(limit, bool) and hasattr(limit, "__index__"):
        number = operator.index(limit)
    if not 0 <= number < math.inf:
        fix = 'give bytes, or a text such as "512 MiB" or "1GB"'
        raise BackendError(f"memory_limit={limit!r} is no amount of memory", fix=fix)
    return int(number)
