"""Gain propagation: the target mean square of an expression, passed down to its parameters.

The table in `initial_values.py` lists the rules. `aim` brings an expression to its target. `vanish` starts it at
zero, but keeps all factors of a product except one nonzero. `rescale` and `_set_gain` search where no formula is known.

Long chains of weights start near the identity. The scale of a long product of random matrices drifts: its logarithm is
a sum of as many random terms. Matrices near the identity keep their input, however many there are. Weights that cannot
be links stay random, so that the product itself is not an identity. A core that also reads a feature,
`A[l,i,r] * f[b,i]`, is the identity for each position of the feature, divided by the mean of the sum of the features.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from ..display import rounded
from ..language.canonical import function_of_one
from ..language.expression import Call, Contraction, Expression, Ref, free_axes
from ..ops.record import Moments
from ..ops.table import FUNCTIONS
from .moments import FAR, Starts

EXACT, CLOSE = 1e-9, 0.02
"""The tolerance for the logarithm of a mean square, and the step of the difference quotient that gives its slope."""

NEAR = 2.1
"""A function of a gain is near its target if its mean square is within this factor."""

STEPS, FARTHEST, WORTH = 8, 2.0, 0.9
"""The most steps, the largest step (a factor of `exp(2)`), and the share to which each step must reduce the error."""


OFTEN_OFF = math.log(2.0) / 0.6745
"""At this deviation of the logarithm of a product, half of the starts are off by a factor of 2. Above it, the links of
a chain start near the identity."""

UNPREDICTABLE = math.log(10.0)
"""The deviation of the logarithm of a product above which there is a warning."""


def aim(starts: Starts, expression: Expression, target: float) -> None:
    """Chooses the starts of the parameters of an expression so that its mean square is the target."""
    if not starts.free(expression):
        return
    match starts.behind(expression):
        case Ref(name) if name in starts.leaves:
            starts.start(name, "std", math.sqrt(target))
        case Contraction() as term:
            _product(starts, term, target)
        case Call("add", terms):
            _sum(starts, terms, target)
        case Call() as call:
            _call(starts, call, target)


def _sum(starts: Starts, terms: tuple[Expression, ...], target: float) -> None:
    """Weights added to data or to a frozen value are biases, as are those with fewer axes. Others share the target."""
    free = [term for term in terms if starts.free(term)]
    drawn = [term for term in free if not starts.is_weight(term)]
    if not drawn and len(free) == len(terms):
        drawn = [term for term in free if not _is_spread(term, terms)]
    for term in drawn:
        aim(starts, term, target / len(drawn))
    for term in free:
        if term not in drawn:
            vanish(starts, term, target)


def _is_spread(term: Expression, terms: Iterable[Expression]) -> bool:
    """Whether a parameter is broadcast along an axis of another term."""
    own = set(free_axes(term))
    return isinstance(term, Ref) and any(own < set(free_axes(other)) for other in terms)


def _product(starts: Starts, term: Contraction, target: float) -> None:
    """The weights of a product share the target, or else its data do. Factors that only scale are one if possible."""
    data = starts.data(term.factors)
    names = set[str]().union(*map(starts.linear, data))
    for factor in data:
        if not isinstance(factor, Ref):  # a table read at positions is a weight
            aim(starts, factor, 1.0)
    weights = [factor for factor in term.factors if starts.free(factor)]
    gains = [weight for weight in weights if _only_scales(starts, weight, term)]
    rest = [weight for weight in weights if weight not in gains]
    if term.summed and not rest:
        gains, rest = [], weights
    for gain in gains:
        _set_gain(starts, gain, 1.0)
    is_part = term is not starts.line.right and starts.is_weight(term)  # read by another product
    if rest:
        names = {*starts.free(Contraction(tuple(rest)))}
        target *= 1.0 if is_part else start_chain(starts, term)
        _share_out(starts, term, [weight for weight in rest if starts.free(weight)], target)
    if not is_part:
        rescale(starts, names, term, target)
    for gain in gains:
        reached = starts.known.of(term).square
        if reached > 0 and not 1 / FAR <= target / reached <= FAR:
            _set_gain(starts, gain, target / reached * starts.known.of(gain).square)


def _share_out(starts: Starts, term: Contraction, weights: list[Expression], target: float) -> None:
    """Distributes the target over the weights of a product: a summed axis over its holders, the rest over all.

    Logarithms are used, since a long product has many axes.
    """
    known, scope = starts.known, starts.known.scope(term)
    settled = (known.of(factor, scope).square for factor in term.factors if not starts.free(factor))
    left = math.log(target) - sum(math.log(square) for square in settled if 0 < square < math.inf)
    shares = dict.fromkeys(weights, 0.0)
    for axis, count in known.counts(term, term.summed).items():
        holders = [weight for weight in weights if axis in free_axes(weight)]
        left -= 0.0 if holders else math.log(count)
        for weight in holders:
            shares[weight] -= math.log(count) / len(holders)
    for weight, share in shares.items():
        aim(starts, weight, math.exp(share + left / len(weights)))


def _only_scales(starts: Starts, weight: Expression, term: Contraction) -> bool:
    """Whether a parameter, or a function of one, is broadcast over other factors of a product and not summed."""
    one, own = function_of_one(weight), set(free_axes(weight))
    if one is None or one.name in starts.known.definitions or own & set(term.summed):
        return False
    data = {axis for factor in starts.data(term.factors) for axis in free_axes(factor)}
    return own <= data or any(own < {*free_axes(each)} for each in term.factors if starts.is_weight(each))


def vanish(starts: Starts, expression: Expression, target: float) -> None:
    """Starts a weight at zero. All factors of a product but one are nonzero, on the scale of the target: but the last,
    unless a settled factor makes the product zero already."""
    match starts.behind(expression):
        case Ref(name):
            if name not in starts.known.tensors:
                starts.start(name, "value", 0.0)
        case Contraction() as term if starts.free(term):
            *others, last = [factor for factor in term.factors if starts.free(factor)]
            own = set(starts.free(last)).difference(*map(starts.free, others))
            aim(starts, term, target)
            if starts.known.of(term).square and own:
                for name in own:
                    del starts.known.tensors[name]
                vanish(starts, last, 1.0)
        case Call(_, arguments):
            for argument in arguments:
                if starts.free(argument):
                    vanish(starts, argument, target)


def _call(starts: Starts, call: Call, target: float) -> None:
    """Weights next to data start at zero. Other arguments start at scale one, or at the target if it is passed on."""
    function, of_data = FUNCTIONS[call.function], not starts.is_weight(call)
    carries = function.kind == "structure" or function.carries
    for argument in call.arguments:
        if of_data and function.kind == "pointwise" and starts.is_weight(argument):
            vanish(starts, argument, 1.0)
        aim(starts, argument, target if carries else 1.0)


# ---------------------------------------------------------------------------- found by search


def _set_gain(starts: Starts, gain: Expression, target: float) -> None:
    """Starts a factor that only scales at a constant: the root of the target, or a value whose function is near it."""
    one = function_of_one(gain)
    assert one is not None

    def error(value: float) -> float:
        starts.start(one.name, "value", value)
        return max(math.log(NEAR), abs(_off(starts, gain, target)))

    values = [math.sqrt(target)] if one == gain else sorted((n / 20 for n in range(40, -41, -1)), key=abs)
    starts.start(one.name, "value", min(values, key=error))


def rescale(starts: Starts, names: Iterable[str], whole: Expression, target: float) -> None:
    """Multiplies deviations by one factor that brings the expression to the target, or nearer, by Newton's method."""
    drawn = {name: starts.found[name] for name in names if name in starts.found}
    stds = {name: number for name, (kind, number) in drawn.items() if kind == "std"}

    def off(step: float) -> float:
        for name, number in stds.items():
            starts.start(name, "std", number * math.exp(step))
        return _off(starts, whole, target)

    step, error = 0.0, off(0.0)
    for _ in range(STEPS if stds and target else 0):
        move = FARTHEST  # back from an overflow
        if error < math.inf:
            slope = (off(step + CLOSE) - error) / CLOSE if abs(error) > EXACT else 0.0
            move = max(-FARTHEST, min(error / slope, FARTHEST)) if slope and math.isfinite(slope) else 0.0
        found = off(step - move)
        if abs(found) >= WORTH * abs(error) and error < math.inf:
            break
        step, error = step - move, found
    off(step if error < math.inf else 0.0)


def _off(starts: Starts, expression: Expression, target: float) -> float:
    """The logarithm of the ratio of the mean square to its target."""
    reached = starts.known.of(expression).square
    if not reached:
        return -math.inf
    return math.log(reached / target) if reached < math.inf else math.inf


# ---------------------------------------------------------------------------- near-identity initialisation


def start_chain(starts: Starts, term: Contraction) -> float:
    """Starts the links of a product near the identity if it is long.

    Returns:
        The factor by which the typical square is then below its mean, beyond the tolerable one.
    """
    if _wandering(starts, term)[1] > OFTEN_OFF:
        _start_links(starts, term)
    decay, deviation = _wandering(starts, term)
    if decay > math.log(FAR) and deviation > UNPREDICTABLE:
        off = rounded(math.exp(deviation), 2)
        starts.doubt(term, f"is a product so long that it may start {off} times too large or small")
    return math.exp(max(0.0, decay - math.log(FAR)))


def _products(starts: Starts, product: Expression) -> Iterator[Contraction]:
    """A product and the products among its factors, including those of computed weights."""
    found = starts.behind(product)
    if isinstance(found, Contraction):
        yield found
        for factor in found.factors:
            yield from _products(starts, factor)


def _start_links(starts: Starts, term: Contraction) -> None:
    """Starts the links of a product near the identity, except one if no other parameter is left to choose."""
    known, free = starts.known, starts.free(term)
    data = {axis: known.of(factor) for factor in starts.data(term.factors) for axis in free_axes(factor)}
    factors = [(each, product) for product in _products(starts, term) for each in product.factors]
    refs = [(each, product) for each, product in factors if isinstance(each, Ref) and each.name in free]
    times = Counter(ref.name for ref, _ in refs)
    once = [(ref, known.counts(product, free_axes(ref))) for ref, product in refs if times[ref.name] == 1]
    links = [(ref, counts) for ref, counts in once if _is_link(ref, counts, data)]
    for ref, counts in links if len(links) < len(once) else links[:-1]:
        features = [(count, data[axis]) for axis, count in counts.items() if axis in data]
        size = max(count for axis, count in counts.items() if axis not in data)
        starts.start(ref.name, "near_identity", 1 / math.prod(count * each.mean for count, each in features))
        let_through = 1 / (size * math.prod(count * each.square for count, each in features))
        known.tensors[ref.name] = Moments(0.0, let_through)  # the mean square that keeps the scale


def _is_link(ref: Ref, counts: Mapping[str, float], data: Mapping[str, Moments]) -> bool:
    """Whether a weight has two axes of equal size, and others only of features whose sum is not near zero."""
    ends = [count for axis, count in counts.items() if axis not in data]
    features = [data[axis] for axis in counts if axis in data]
    adds_up = all(each.mean > 0 and each.mean**2 > 0.1 * each.square for each in features)
    return len(counts) == len(ref.index) and len(ends) == 2 and ends[0] == ends[1] and adds_up


def _wandering(starts: Starts, term: Contraction) -> tuple[float, float]:
    """How far the logarithm of a product's square is below that of its mean, and the deviation of its half.

    Each sum without data, and not along a link, is a χ² with as many degrees of freedom as terms.
    """
    decay = variance = 0.0
    of_data = {axis for factor in starts.data(term.factors) for axis in free_axes(factor)}
    for product in _products(starts, term):
        left = [axis for axis in product.summed if axis not in of_data]
        for factor in product.factors:
            if isinstance(factor, Ref) and starts.found.get(factor.name, ("",))[0] == "near_identity":
                through = next((axis for axis in free_axes(factor) if axis in left), None)
                left = [axis for axis in left if axis != through]
        sizes = [size for size in starts.known.counts(product, left).values() if size > 1]
        decay += sum(map(behind_its_mean, sizes))
        variance += sum(2 / size + 2 / size**2 for size in sizes)
    return decay, math.sqrt(variance) / 2


def behind_its_mean(size: float) -> float:
    """How far the mean logarithm of a χ² with `size` degrees of freedom is below the logarithm of its mean."""
    return 1 / size + 1 / (3 * size**2) if size > 1 else 0.0
