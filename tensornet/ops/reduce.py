"""Reductions, arg-reductions and top-k: functions that run over axes and remove them."""

from __future__ import annotations

import functools
from dataclasses import replace

from .record import Axes, Example, Function, Known, Moments, extreme


def _of_product(known: Known) -> Moments:
    (one,) = known.operands
    return Moments(one.mean**known.count, one.square**known.count)


OF_OTHERS = "g * recur[j](a, 0, start=1) * recur[j](a, 0, start=1, back=1)"
"""The derivative of a product: the product of the elements before times that of the elements after. A division
would prevent higher derivatives where an element is 0."""

SUM = Function("sum", "Σ a", "removed")
"""A sum is read as a contraction, so it is no row of the table; users see it as a function like others."""

_removed = functools.partial(Function, axes="removed")
_real = functools.partial(_removed, yields="real")
_spread = functools.partial(_real, complex="measured")


def _extreme(name: str, formula: str, sign: int) -> Function:
    """The record of `max` or `min`. Equal elements share the gradient."""
    return _removed(
        name,
        formula,
        needs_position=True,
        yields="same",
        complex="refused",
        derivative=(f"g * average_hard{name}[j](a)",),
        moments=lambda known: extreme(known.operands[0], known.count, sign),
        passes=(1.5, 1.5),
    )


def _positions(name: str, formula: str, axes: Axes, passes: float, *, least: bool = True) -> Function:
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


MAX = replace(_extreme("max", "largest element", 1), twin="maximum", pools="max_pool")

VAR = _spread(
    "var",
    "biased variance",
    expansion="mean[j]((a - mean[j](a)) ** 2)",
    derivative=("2 / n * g * (a - mean[j](a))",),
    passes=(5.5, 5.0),
)

ROWS = (
    _real(
        "mean",
        "arithmetic mean",
        averages=True,
        pools="mean_pool",
        expansion="sum[j](a) / n",
        derivative=("g / n",),
        passes=(1.5, 1.5),
    ),
    VAR,
    _spread(
        "std",
        "biased standard deviation",
        expansion="var[j](a) ** 0.5",
        derivative=("g / n * (a - mean[j](a)) / where(y == 0, 1, y)",),
        passes=(5.5, 5.0),
    ),
    _spread(
        "norm",
        "√Σ a²",
        expansion="sum[j](a ** 2) ** 0.5",
        derivative=("g * a / where(y == 0, 1, y)",),
        passes=(2.5, 5.5),
    ),
    MAX,
    replace(_extreme("min", "smallest element", -1), twin="minimum"),
    _removed(
        "prod",
        "product of the elements",
        one_by_one=True,
        yields="same",
        derivative=(OF_OTHERS,),
        moments=_of_product,
        passes=(9.0, 4.0),
    ),
    _real(
        "logsumexp", "log Σ eᵃ", derivative=("g * exp(a - where(abs(y) == inf, 0, y))",), passes=(14.0, 11.0)
    ),
    _positions("argmax", "position of the largest element, the first of several", "removed", 6.0),
    _positions("argmin", "position of the smallest element, the first of several", "removed", 6.0),
    _positions("argsort", "positions of the elements, the smallest first", "kept", 200.0, least=False),
    replace(
        _positions(
            "top", "positions along j of the largest elements, the largest first, along k", "exchanged", 30.0
        ),
        example=Example.of("y[k] = top[j,k](a[j])", a=(1.0, 4.0, 2.0, 3.0), k=2),
    ),
)
