"""Reductions, arg-reductions and top-k: functions that run over axes and remove them."""

from __future__ import annotations

from dataclasses import replace

from .moments import Known, Moments, extreme
from .record import Axes, Example, Function

__all__ = ["MAX", "ROWS", "SUM", "VAR"]


def _of_product(known: Known) -> Moments:
    (one,) = known.operands
    return Moments(one.mean**known.count, one.square**known.count)


OF_OTHERS = "g * recur[j](a, 0, start=1) * recur[j](a, 0, start=1, back=1)"
"""The derivative of a product: the product of the elements before times that of the elements after. A division
would prevent higher derivatives where an element is 0."""

SUM = Function("sum", "Σ a", "removed")
"""A sum is read as a contraction, so it is no row of the table; users see it as a function like others."""

MAX = Function(
    "max",
    "largest element",
    "removed",
    twin="maximum",
    pools="max_pool",
    needs_position=True,
    yields="same",
    complex="refused",
    derivative=("g * average_hardmax[j](a)",),
    moments=lambda known: extreme(known.operands[0], known.count, 1),
    passes=(1.5, 1.5),
)

VAR = Function(
    "var",
    "biased variance",
    "removed",
    yields="real",
    complex="measured",
    expansion="mean[j]((a - mean[j](a)) ** 2)",
    derivative=("2 / n * g * (a - mean[j](a))",),
    passes=(5.5, 5.0),
)

_REDUCTIONS = (
    Function(
        "mean",
        "arithmetic mean",
        "removed",
        yields="real",
        averages=True,
        pools="mean_pool",
        expansion="sum[j](a) / n",
        derivative=("g / n",),
        passes=(1.5, 1.5),
    ),
    VAR,
    Function(
        "std",
        "biased standard deviation",
        "removed",
        yields="real",
        complex="measured",
        expansion="var[j](a) ** 0.5",
        derivative=("g / n * (a - mean[j](a)) / where(y == 0, 1, y)",),
        passes=(5.5, 5.0),
    ),
    Function(
        "norm",
        "√Σ a²",
        "removed",
        yields="real",
        complex="measured",
        expansion="sum[j](a ** 2) ** 0.5",
        derivative=("g * a / where(y == 0, 1, y)",),
        passes=(2.5, 5.5),
    ),
    MAX,
    Function(
        "min",
        "smallest element",
        "removed",
        twin="minimum",
        needs_position=True,
        yields="same",
        complex="refused",
        derivative=("g * average_hardmin[j](a)",),
        moments=lambda known: extreme(known.operands[0], known.count, -1),
        passes=(1.5, 1.5),
    ),
    Function(
        "prod",
        "product of the elements",
        "removed",
        one_by_one=True,
        yields="same",
        derivative=(OF_OTHERS,),
        moments=_of_product,
        passes=(9.0, 4.0),
    ),
    Function(
        "logsumexp",
        "log Σ eᵃ",
        "removed",
        yields="real",
        derivative=("g * exp(a - where(abs(y) == inf, 0, y))",),
        passes=(14.0, 11.0),
    ),
)


def _told(name: str, formula: str, axes: Axes, passes: float, *, least: bool = True) -> Function:
    """The record of a function that returns positions along one axis.

    Args:
        name, formula, axes, passes: those of the record; the passes hold for any axis.
        least: whether there must be at least one position.
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
        passes=(passes, passes),
    )


_CHOOSING = (
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

ROWS = (*_REDUCTIONS, *_CHOOSING)
