"""Scans and shifts: the previous and next position, cumulative sums and products.

An equation that reads itself, or a later one, through `previous` or `following` is a recurrence.
"""

from __future__ import annotations

from .moments import Moments
from .record import Example, Function

__all__ = ["CUMSUM", "FOLLOWING", "PREVIOUS", "ROWS", "STEPS"]


PREVIOUS = Function(
    "previous",
    "a at the position before, and at the first one the start; in a recurrence written a[t-1]",
    "kept",
    arity=(1, 2),
    written="previous[t](a, start)",
    ordered=True,
    yields="same",
    takes="any",
    carries=True,
    derivative=("following[j](g)", "sum[j](where(index(j) == 0, g, 0))"),
    example=Example.of("y[t] = previous[t](a[t], 9)", a=(1.0, 2.0, 3.0)),
)

FOLLOWING = Function(
    "following",
    "a at the position after, and at the last one the start; in a recurrence written a[t+1]",
    "kept",
    arity=(1, 2),
    written="following[t](a, start)",
    ordered=True,
    yields="same",
    takes="any",
    carries=True,
    derivative=("previous[j](g)", "sum[j](where(index(j) == n - 1, g, 0))"),
    example=Example.of("y[t] = following[t](a[t])", a=(1.0, 2.0, 3.0)),
)

STEPS = {-1: PREVIOUS.name, 1: FOLLOWING.name}
"""The functions that form recurrences, by their offset in positions."""

CUMSUM = Function(
    "cumsum",
    "Σ of the elements up to each position; from the end with back=1",
    "kept",
    options=(("back", 0),),
    ordered=True,
    yields="same",
    moments=lambda known: Moments(known.operands[0].mean, known.count * known.operands[0].square),
    passes=(8.5, 19.0),
    derivative=("cumsum[j](g, back=1 - back)",),
)

ROWS = (
    PREVIOUS,
    FOLLOWING,
    CUMSUM,
    Function(
        "cumprod",
        "Π of the elements up to each position; from the end with back=1",
        "kept",
        options=(("back", 0),),
        ordered=True,
        yields="same",
        passes=(8.5, 19.0),
        derivative=("recur[j](a, 0, start=1, back=back) * (g + recur[j](a, a * g, back=1 - back))",),
    ),
)
