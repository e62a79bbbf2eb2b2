"""Functions that run over axes and leave none of them."""

from __future__ import annotations

from .moments import STANDARD, Known, Moments, extreme
from .record import Function

__all__ = ["ROWS", "SUM"]


def _of_mean(known: Known) -> Moments:
    (one,) = known.operands
    return Moments(one.mean, one.mean**2 + one.variance / known.count)


def _of_variance(known: Known) -> Moments:
    (one,) = known.operands
    return Moments(one.variance, one.variance**2 * (1 + 2 / known.count))


def _of_product(known: Known) -> Moments:
    (one,) = known.operands
    return Moments(one.mean**known.count, one.square**known.count)


SUM = Function("sum", "Σ a", "removed")
"""Read as a contraction, so no row of the table; a user meets it as one function among others."""

ROWS = (
    Function("mean", "arithmetic mean", "removed", yields="real", moments=_of_mean),
    Function(
        "var",
        "biased variance",
        "removed",
        yields="real",
        complex="measured",
        moments=_of_variance,
        passes=(14.0, 13.0),
    ),
    Function(
        "max",
        "largest element",
        "removed",
        twin="maximum",
        needs_position=True,
        yields="same",
        complex="refused",
        moments=lambda known: extreme(known.operands[0], known.count, 1),
    ),
    Function(
        "min",
        "smallest element",
        "removed",
        twin="minimum",
        needs_position=True,
        yields="same",
        complex="refused",
        moments=lambda known: extreme(known.operands[0], known.count, -1),
    ),
    Function(
        "prod",
        "product of the elements",
        "removed",
        one_by_one=True,
        yields="same",
        moments=_of_product,
        passes=(5.5, 12.5),
    ),
    Function(
        "logsumexp",
        "log Σ eᵃ",
        "removed",
        yields="real",
        moments=lambda known: STANDARD,
        passes=(11.0, 9.5),
    ),
)
