"""Near-identity initialisation of long chains of weights.

The scale of a long product of random matrices drifts: its logarithm is a sum of as many random terms. Matrices
near the identity keep their input, however many there are. Weights that cannot be links stay random, so that the
product itself is not an identity. A core that also reads a feature, `A[l,i,r] * f[b,i]`, is the identity for each
position of the feature, divided by the mean of the sum of the features.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping

from ..language.expression import Contraction, Expression, Ref, free_axes
from ..ops.moments import Moments
from .state import FAR, Starts

__all__ = ["behind_its_mean", "start_chain"]

OFTEN_OFF = math.log(2.0) / 0.6745
"""At this deviation of the logarithm of a product, half of the starts are off by a factor of 2. Above it, the links of
a chain start near the identity."""

UNPREDICTABLE = math.log(10.0)
"""The deviation of the logarithm of a product above which there is a warning."""


def start_chain(starts: Starts, term: Contraction) -> float:
    """Starts the links of a product near the identity if it is long.

    Returns:
        The factor by which the typical square is then below its mean, beyond the tolerable one.
    """
    if _wandering(starts, term)[1] > OFTEN_OFF:
        _start_links(starts, term)
    decay, deviation = _wandering(starts, term)
    if decay > math.log(FAR) and deviation > UNPREDICTABLE:
        off = f"{math.exp(deviation):.2g}"
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
