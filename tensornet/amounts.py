"""Amounts as a person reads them: three digits, a prefix, a unit."""

from __future__ import annotations

__all__ = ["amount"]

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
