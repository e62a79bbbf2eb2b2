"""Functions that run over axes and keep them: softmax and norms.

The passes are those of NumPy and PyTorch on two cores, in the mean; `benchmarks.passes` measures them.
"""

from __future__ import annotations

from .moments import STANDARD, Known, Moments
from .record import Function

__all__ = ["ROWS"]


def _of_one_chosen(known: Known) -> Moments:
    """As one element chosen, so that an average of like things is like them."""
    return Moments(1 / known.count, 1 / known.count)


def _of_norm(known: Known) -> Moments:
    return STANDARD if known.count != 1 else Moments(0.0, 0.0)


ROWS = (
    Function(
        "softmax",
        "eᵃ / Σ eᵃ",
        "kept",
        yields="real",
        complex="refused",
        moments=_of_one_chosen,
        passes=(3.5, 4.0),
        sums_to_one=True,
        derivative=("y * (g - sum[j](g * y))",),
    ),
    Function(
        "log_softmax",
        "a − log Σ eᵃ",
        "kept",
        yields="real",
        complex="refused",
        moments=lambda known: STANDARD,
        passes=(3.0, 4.0),
        derivative=("g - exp(y) * sum[j](g)",),
    ),
    Function(
        "hardmax",
        "1 at the first largest element, 0 elsewhere",
        "kept",
        needs_position=True,
        yields="number",
        complex="refused",
        moments=_of_one_chosen,
        passes=(4.0, 9.0),
        derivative=("0",),
    ),
    Function(
        "normalize",
        "(a − mean) / √(variance + eps)",
        "kept",
        options=(("eps", 1e-5),),
        yields="real",
        complex="refused",
        moments=_of_norm,
        passes=(3.0, 7.5),
        workspace=(0.0, 1.0),
        affine=True,
        derivative=("rsqrt(var[j](a) + eps) * (g - mean[j](g) - y * mean[j](g * y))",),
    ),
)
