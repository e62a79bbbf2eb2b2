"""Gain propagation: the mean square asked of an expression, handed down to its parameters.

The rules stand as a table in `initial_values.py`. `aim` keeps the scale; `vanish` makes zero, so that all but one
factor of a product is alive.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from ..graph.algebra import function_of_one
from ..graph.shape_inference import Scope
from ..language.expression import Call, Contraction, Expression, Ref, free_axes, is_scalar
from ..ops.table import FUNCTIONS
from .gain_search import rescale, set_gain
from .near_identity import start_chain
from .state import FAR, Starts

__all__ = ["aim", "vanish"]


def aim(starts: Starts, expression: Expression, target: float, scope: Scope) -> None:
    """Chooses the parameters of an expression so that its mean square is the target."""
    if not starts.free(expression):
        return
    expression, scope = starts.behind(expression, scope)
    match expression:
        case Ref(name) if name in starts.parameters:
            starts.start(name, "std", math.sqrt(target))
        case Contraction():
            _product(starts, expression, target, starts.known.scope(expression, scope))
        case Call("add", terms):
            _sum(starts, expression, terms, target, scope)
        case Call():
            _call(starts, expression, target, scope)


def _sum(starts: Starts, whole: Call, terms: tuple[Expression, ...], target: float, scope: Scope) -> None:
    """Beside data or a frozen value a weight is a bias; else the terms share the target."""
    free = [term for term in terms if starts.free(term)]
    data = [term for term in free if not starts.is_weight(term)]
    if data or len(free) < len(terms):
        for term in free:
            if term not in data:
                vanish(starts, term, target, scope)
        for term in data:
            aim(starts, term, target / len(data), scope)
        return
    new = starts.free(whole)
    spread = [term for term in terms if _is_spread(term, terms)]
    for term in terms:
        if term in spread:
            vanish(starts, term, target, scope)
        else:
            aim(starts, term, target / (len(terms) - len(spread)), scope)
    rescale(starts, new, whole, target, scope)


def _is_spread(term: Expression, terms: Iterable[Expression]) -> bool:
    """Whether a parameter is the same along an axis of a term beside it: a bias of a weight."""
    own = set(free_axes(term))
    return isinstance(term, Ref) and any(own < set(free_axes(other)) for other in terms)


def _product(starts: Starts, term: Contraction, target: float, scope: Scope) -> None:
    """Shares the target among the weights of a product, those first that can give least."""
    factors = [factor for factor in term.factors if not is_scalar(factor)]
    data = starts.data(term.factors)
    linear = [name for factor in data if starts.is_elastic(factor) for name in starts.free(factor)]
    for factor in data:
        if not isinstance(factor, Ref):  # a table read at positions is a weight
            aim(starts, factor, 1.0, scope)
    weights = [factor for factor in factors if starts.free(factor)]
    gains = [weight for weight in weights if _only_scales(starts, weight, factors, term.summed)]
    rest = [weight for weight in weights if weight not in gains]
    if term.summed and not rest:
        gains, rest = [], weights
    names = starts.free(Contraction(tuple(rest))) if rest else linear
    is_elastic = any(map(starts.is_elastic, rest))
    if rest:
        if term is starts.line.right or not starts.is_weight(term):  # no part of a weight that another reads
            target *= start_chain(starts, term, scope)
        _share_out(starts, term, [weight for weight in rest if starts.free(weight)], gains, target, scope)
    else:
        rescale(starts, names, term, target, scope)
    for gain in gains:
        missing = _missing(starts, term, gains, target, scope)
        set_gain(starts, gain, 1.0 if is_elastic or 1 / FAR <= missing <= FAR else missing, scope)
    if rest:
        rescale(starts, names, term, target, scope)


def _share_out(
    starts: Starts,
    term: Contraction,
    weights: list[Expression],
    gains: list[Expression],
    target: float,
    scope: Scope,
) -> None:
    """Aims the weights of a product, those first whose mean square cannot be made anything."""
    rigid = [weight for weight in weights if not starts.is_elastic(weight)]
    waiting = [*rigid, *(weight for weight in weights if weight not in rigid)]
    for weight in rigid:
        aim(starts, weight, _shares(starts, term, waiting, gains, target, scope)[weight], scope)
        waiting.remove(weight)
    for weight, share in _shares(starts, term, waiting, gains, target, scope).items():
        aim(starts, weight, share, scope)


def _missing(
    starts: Starts, term: Contraction, gains: Iterable[Expression], target: float, scope: Scope
) -> float:
    """By how much a product falls short with gains of 1; what is 0, as a norm of one element is, stays 0."""
    reached = starts.reached(term, dict.fromkeys(gains, 1.0), scope)
    return target / reached if reached else 1.0


def _only_scales(
    starts: Starts, weight: Expression, factors: list[Expression], summed: tuple[str, ...]
) -> bool:
    """Whether a parameter, or a function of one, is spread over others and not summed."""
    one, own = function_of_one(weight), set(free_axes(weight))
    if one is None or one.name not in starts.parameters or own & set(summed):
        return False
    data = {axis for factor in factors if not starts.is_weight(factor) for axis in free_axes(factor)}
    larger = [set(free_axes(factor)) for factor in factors if starts.is_weight(factor)]
    return own <= data or any(own < axes for axes in larger)


def _shares(
    starts: Starts,
    term: Contraction,
    waiting: list[Expression],
    gains: list[Expression],
    target: float,
    scope: Scope,
) -> dict[Expression, float]:
    """What each weight is to give: summed axes are charged to those that have them, the rest to all."""
    if not waiting:
        return {}
    charges = dict.fromkeys(waiting, 1.0)
    for axis in term.summed:
        holders = [weight for weight in charges if axis in free_axes(weight)]
        for weight in holders:
            charges[weight] *= starts.known.count(scope, axis) ** (-1.0 / len(holders))
    given = starts.reached(term, dict.fromkeys(gains, 1.0) | charges, scope)
    given = given if math.isfinite(given) and given > 0 else math.prod(charges.values())
    each = (target / given) ** (1.0 / len(waiting))
    return {weight: charge * each for weight, charge in charges.items()}


def vanish(starts: Starts, expression: Expression, target: float, scope: Scope) -> None:
    """A weight starts at zero, all but one of its factors alive, on the scale of the target."""
    expression, scope = starts.behind(expression, scope)
    match expression:
        case Ref(name):
            if name not in starts.known.tensors:
                starts.start(name, "value", 0.0)
        case Contraction(factors) if starts.free(expression):
            _vanish_product(starts, expression, [f for f in factors if starts.free(f)], target, scope)
        case Call(_, arguments):
            for argument in arguments:
                if starts.free(argument):
                    vanish(starts, argument, target, scope)


def _vanish_product(
    starts: Starts, term: Contraction, weights: list[Expression], target: float, scope: Scope
) -> None:
    """The last of the weights starts at zero, unless what is settled makes the product zero already."""
    is_zero = starts.reached(term, dict.fromkeys(weights, 1.0), scope) == 0
    last = weights[-1]
    others = [factor for factor in term.factors if factor is not last and not is_scalar(factor)]
    own = set(starts.free(last)).difference(*(starts.free(factor) for factor in others))
    aim(starts, term, target, scope)
    if is_zero or not own:
        return
    for name in own:
        del starts.known.tensors[name]
    vanish(starts, last, 1.0, scope)


def _call(starts: Starts, call: Call, target: float, scope: Scope) -> None:
    """Arguments beside data start at zero or one; weights on the scale that the function asks for."""
    function = FUNCTIONS[call.function]
    if not starts.is_weight(call):
        for argument in call.arguments:
            if function.kind == "pointwise" and starts.is_weight(argument):
                vanish(starts, argument, 1.0, scope)
            aim(starts, argument, 1.0, scope)
        return
    carries = function.kind == "structure" or function.carries
    new = starts.free(call)
    for argument in call.arguments:
        aim(starts, argument, target if carries else 1.0, starts.known.scope(argument, scope))
    if not carries:
        rescale(starts, new, call, target, scope, most=math.log(2.0))
