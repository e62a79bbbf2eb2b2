"""Functions that tell positions along an axis: of the largest, of the smallest, of all in order. Equal elements
come in the order in which they stand; positions are integers, and get no gradient."""

from __future__ import annotations

from dataclasses import replace

from .moments import STANDARD
from .record import Axes, Example, Function

__all__ = ["ROWS"]


def _told(name: str, formula: str, axes: Axes, passes: float, *, least: bool = True) -> Function:
    """A function that tells positions along one axis.

    Args:
        name, formula, axes, passes: those of the record, the passes for any axis.
        least: whether there must be a position.
    """
    return Function(
        name,
        formula,
        axes,
        ordered=True,
        needs_position=least,
        yields="position",
        complex="refused",
        derivative=("0",),
        moments=lambda known: STANDARD,
        passes=(passes, passes),
    )


ROWS = (
    _told("argmax", "position of the largest element, the first of several", "removed", 6.0),
    _told("argmin", "position of the smallest element, the first of several", "removed", 6.0),
    _told("argsort", "positions of the elements, the smallest first", "kept", 200.0, least=False),
    replace(
        _told(
            "top", "positions along j of the largest elements, the largest first, along k", "exchanged", 30.0
        ),
        example=Example.of("y[k] = top[j,k](a[j])", a=(1.0, 4.0, 2.0, 3.0), k=2),
    ),
)
