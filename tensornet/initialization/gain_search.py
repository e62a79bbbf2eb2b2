"""Gain search: scales that bring an expression to its target mean square."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable

from ..graph.algebra import function_of_one
from ..graph.shape_inference import Scope
from ..language.expression import Expression
from .state import FAR, Starts

__all__ = ["rescale", "set_gain"]


def set_gain(starts: Starts, expression: Expression, target: float, scope: Scope) -> None:
    """A factor that only scales starts at a constant: one, or where its function comes nearest to it."""
    one = function_of_one(expression)
    assert one is not None
    if one == expression:
        starts.start(one.name, "value", math.sqrt(target))
        return

    def off(value: float) -> float:
        starts.start(one.name, "value", value)
        reached = starts.known.of(expression, scope).square
        return abs(math.log(reached / target)) if 0 < reached < math.inf else math.inf

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
    most: float = math.exp(12),
) -> None:
    """Multiplies deviations by one factor, that nearest to 1 which brings the whole to the target."""
    stds = {name: starts.found[name][1] for name in names if starts.found[name][0] == "std"}

    def off(step: float) -> float:
        for name, number in stds.items():
            starts.start(name, "std", number * math.exp(step))
        reached = starts.known.of(whole, scope).square
        return math.log(reached / target) if 0 < reached < math.inf else math.inf

    if not stds or not target or abs(error := off(0.0)) < 0.02:
        return
    slope = (off(0.25) - error) / 0.25
    crossing = -error / slope if slope and math.isfinite(slope) else math.inf
    if -12 <= crossing <= math.log(most) and abs(off(crossing)) < 0.02:
        return  # as of a product
    steps = [0.25 * n for n in range(-48, 49) if 0.25 * n <= math.log(most)]
    error_at = functools.cache(off)
    for low, high in sorted(itertools.pairwise(steps), key=lambda each: abs(each[0] + each[1])):
        a, b = error_at(low), error_at(high)
        if a * b <= 0 and math.isfinite(a) and math.isfinite(b):
            off(_bisected(off, low, high))
            return
    enough = min(abs(error_at(step)) for step in steps) + 0.1
    off(min((step for step in steps if abs(error_at(step)) <= enough), key=abs, default=0.0))


def _bisected(function: Callable[[float], float], low: float, high: float) -> float:
    """Where the function crosses zero."""
    sign = math.copysign(1.0, function(low))
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) * sign > 0 else (low, middle)
    return (low + high) / 2
