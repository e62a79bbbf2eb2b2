"""Gain search: scales that bring an expression to its target mean square."""

from __future__ import annotations

import math
from collections.abc import Callable

from ..graph.algebra import function_of_one
from ..graph.shape_inference import Scope
from ..language.expression import Expression
from .state import FAR, Starts

__all__ = ["rescale", "set_gain"]

CLOSE = 0.02
"""A logarithm of a mean square is on its target within this."""

LEAST = -12
"""The smallest logarithm of a factor."""

POLISHES = 3
"""So many steps of Newton's method are taken."""


def set_gain(starts: Starts, expression: Expression, target: float, scope: Scope) -> None:
    """A factor that only scales starts at a constant: one, or where its function comes nearest to it."""
    one = function_of_one(expression)
    assert one is not None
    if one == expression:
        starts.start(one.name, "value", math.sqrt(target))
        return

    def off(value: float) -> float:
        starts.start(one.name, "value", value)
        return abs(_off(starts, expression, target, scope))

    values = sorted((n / 20 for n in range(-40, 41)), key=lambda value: (abs(value), -value))
    errors = {value: off(value) for value in values}
    enough = math.log(FAR) if errors[0.0] <= math.log(FAR) else max(math.log(2.0), min(errors.values()))
    starts.start(one.name, "value", next(value for value in values if errors[value] <= enough))


def rescale(
    starts: Starts,
    names: list[str],
    whole: Expression,
    target: float,
    scope: Scope,
    most: float = 12.0,
) -> None:
    """Multiplies deviations by one factor, that nearest to 1 which brings the whole to the target or nearest to it.

    Args:
        most: the largest logarithm of the factor.
    """
    stds = {name: starts.found[name][1] for name in names if starts.found[name][0] == "std"}

    def off(step: float) -> float:
        for name, number in stds.items():
            starts.start(name, "std", number * math.exp(step))
        return _off(starts, whole, target, scope)

    if not stds or not target or abs(off(0.0)) < CLOSE:
        return
    step = _polished(off, 0.0, most)
    if not abs(off(step)) < CLOSE:
        steps = sorted((n / 2 for n in range(2 * LEAST, 1 - 2 * LEAST) if n / 2 <= most), key=abs)
        errors = {step: abs(off(step)) for step in steps}
        enough = min(errors.values()) + 0.1
        step = _polished(off, next((step for step in steps if errors[step] <= enough), 0.0), most)
    off(step)


def _polished(off: Callable[[float], float], step: float, most: float) -> float:
    """A step nearer to where nothing is off, by Newton's method."""
    error = off(step)
    for _ in range(POLISHES):
        slope = (off(step + CLOSE) - error) / CLOSE
        if abs(error) < CLOSE or not slope or not math.isfinite(slope):
            break
        nearer = max(LEAST, min(step - error / slope, most))
        if not abs(found := off(nearer)) < abs(error) / 2:  # further away for nothing
            break
        step, error = nearer, found
    return step


def _off(starts: Starts, expression: Expression, target: float, scope: Scope) -> float:
    """The logarithm of how many times the mean square is too large."""
    reached = starts.known.of(expression, scope).square
    return math.log(reached / target) if 0 < reached < math.inf else math.inf
