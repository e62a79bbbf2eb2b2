"""Initialisation diagnostics: products that no initial values suit, or whose moments are unknown."""

from __future__ import annotations

import math

from ..graph.recurrences import Recurrence, is_step
from ..graph.shape_inference import Scope
from ..language.expression import Contraction, Ref, axes_of_index, free_axes, is_scalar
from ..sizes import evaluate
from .state import FAR, Starts, behind_its_mean

__all__ = ["check", "check_repeated", "is_long"]

UNPREDICTABLE = math.log(10.0)
"""So is a product of which the logarithm of the deviation is only known this well."""


def is_long(starts: Starts, term: Contraction, scope: Scope, most: float = UNPREDICTABLE) -> bool:
    """Whether nobody can foretell the scale of a product of random weights."""
    return math.sqrt(starts.spread(term, scope)[1]) / 2 > most


def check(starts: Starts, term: Contraction, target: float, scope: Scope) -> None:
    """Says so where no start brings a product near its target, or none can be foretold."""
    reached = starts.known.of(term, scope).square
    decay, variance = starts.spread(term, scope)
    if not 1 / 2 <= reached / target <= 2:
        starts.unsure.add(starts.line.name)
    if not 1 / (1.01 * FAR) <= reached / target <= 1.01 * FAR:
        if not _is_meant(starts, term, scope):
            times = f"{math.sqrt(reached / target):.2g}" if math.isfinite(reached) else "unforeseeable"
            starts.doubt(term, f"starts at {times} times the deviation of what goes in")
    elif decay > math.log(FAR) and is_long(starts, term, scope):
        off = math.exp(math.sqrt(variance) / 2)
        starts.doubt(term, f"is a product so long that it may start {off:.2g} times too large or small")
    elif _adds_up(starts, term, scope):
        starts.doubt(
            term, "adds data up by weights of one sign: how large that is, they tell by what they share"
        )


def check_repeated(starts: Starts, recurrence: Recurrence) -> None:
    """Says so where random matrices are multiplied position by position, with nothing added on the way."""
    for equation in recurrence.equations:
        starts.line, term, axis = equation, equation.right, recurrence.labels[equation.name]
        if not isinstance(term, Contraction) or not any(map(is_step, term.factors)):
            continue
        scope = starts.known.scope(term)
        varies = any(axis in free_axes(factor) for factor in term.factors if not is_step(factor))
        drawn = [
            factor
            for factor in term.factors
            if isinstance(factor, Ref) and starts.found.get(factor.name, ("",))[0] == "std"
        ]
        kept = {*axes_of_index(equation.left)}.difference(
            each for factor in term.factors if factor not in drawn for each in free_axes(factor)
        )
        length = evaluate(scope[axis], starts.graph.bound)
        if not (varies and drawn and kept - {axis} and isinstance(length, int)):
            continue
        decay = (
            length * behind_its_mean(math.prod(starts.known.count(scope, each) for each in kept - {axis})) / 2
        )
        if decay > math.log(FAR):
            off = f"exp(-{decay:.0f}) = {math.exp(-decay):.0e}"
            starts.doubt(term, f"is multiplied {length} times over: it may end at {off} times its deviation")


def _adds_up(starts: Starts, term: Contraction, scope: Scope) -> bool:
    """Whether what is computed of data is summed by weights that are nearly the same: it hangs together."""
    inputs = {leaf.name for leaf in starts.graph.inputs}
    computed = {
        axis
        for factor in starts.data(term.factors)
        if not (isinstance(factor, Ref) and factor.name in inputs)
        for axis in free_axes(factor)
    }
    for factor in term.factors:
        if starts.is_weight(factor) and starts.below(factor) - starts.given and not is_scalar(factor):
            found = starts.known.of(factor, scope)
            if found.mean**2 > found.square / 2 and computed & set(term.summed) & set(free_axes(factor)):
                return True
    return False


def _is_meant(starts: Starts, term: Contraction, scope: Scope) -> bool:
    """Whether a product is off by what the user gave, or by data that are zero."""
    data = starts.data(term.factors)
    return bool(starts.below(term) & starts.given) or any(not starts.known.of(f, scope).square for f in data)
