"""Near-identity initialisation of long chains of weights.

A product of random matrices wanders off: the logarithm of its scale is a sum of as many random terms. What
is near the identity keeps what comes in, however many there are; weights that no link can be stay random,
so that the product is no identity itself. A core that reads a feature beside, `A[l,i,r] * f[b,i]`, is the
identity for each position of it, divided by what the features add up to in the mean.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping

from ..graph.shape_inference import Scope
from ..language.expression import Contraction, Expression, Ref, free_axes, is_scalar, references
from ..ops.moments import Moments
from .state import FAR, Link, Starts

__all__ = ["behind_its_mean", "start_chain"]

OFTEN_OFF = math.log(2.0) / 0.6745
"""Where its logarithm deviates this much, half of the starts are off by a factor of 2: the links of a chain start
near the identity."""

UNPREDICTABLE = math.log(10.0)
"""A product whose logarithm deviates this much is worth a word."""


def start_chain(starts: Starts, term: Contraction, scope: Scope) -> float:
    """Starts the links of a product near the identity if it is long.

    Returns:
        By how much the typical square lies below its mean then, beyond what is tolerable.
    """
    if math.sqrt(_wandering(starts, term, scope)[1]) / 2 > OFTEN_OFF:
        _start_links(starts, term, starts.known.scope(term, scope))
    decay, variance = _wandering(starts, term, scope)
    deviation = math.sqrt(variance) / 2
    if decay > math.log(FAR) and deviation > UNPREDICTABLE:
        off = f"{math.exp(deviation):.2g}"
        starts.doubt(term, f"is a product so long that it may start {off} times too large or small")
    return math.exp(max(0.0, decay - math.log(FAR)))


def _start_links(starts: Starts, term: Contraction, scope: Scope) -> None:
    known = starts.known
    data = {factor: known.of(factor, scope) for factor in starts.data(term.factors)}
    features: set[str] = set()
    for link in _links(starts, term, scope, data):
        starts.links[link.name] = link
        starts.start(link.name, "near_identity", link.scale)
        positions = math.prod(known.count(scope, axis) for axis in link.beside)
        known.tensors[link.name] = known.tensors[link.name].times(math.sqrt(positions))
        features.update(link.beside)
    names = {ref.name for factor in data if features & {*free_axes(factor)} for ref in references(factor)}
    for factor, moments in data.items():  # as if features were what they are in the mean, which is passed on
        if names.intersection(ref.name for ref in references(factor)):
            known.assumed[factor] = Moments(0.0, moments.mean**2)


def _links(starts: Starts, term: Contraction, scope: Scope, data: Mapping[Expression, Moments]) -> list[Link]:
    """The links of a product, but for one where there is nothing else whose start is to be chosen."""
    free, refs = {*starts.free(term)}, [*_weights(starts, term, scope)]
    times = Counter(ref.name for ref in refs)
    once = [ref for ref in refs if ref.name in free and times[ref.name] == 1]
    totals = {
        axis: _total(starts.known.count(scope, axis), moments)
        for factor, moments in data.items()
        for axis in free_axes(factor)
    }
    found = [link for ref in once if (link := _link(starts, ref, scope, totals)) is not None]
    return found if len(found) < len(once) else found[:-1]


def _weights(starts: Starts, product: Expression, scope: Scope) -> Iterator[Ref]:
    """The tensors that are multiplied, those of weights that are products themselves too."""
    waiting: list[Expression] = [product]
    while waiting:
        part = waiting.pop()
        inner, _ = starts.behind(part, scope)
        if isinstance(inner, Contraction):
            waiting.extend(reversed([each for each in inner.factors if not is_scalar(each)]))
        elif isinstance(part, Ref):
            yield part


def _total(count: float, moments: Moments) -> float:
    """What features add up to in the mean; 0 where that is nothing beside how far they deviate."""
    return count * moments.mean if moments.mean**2 > 0.1 * moments.square else 0.0


def _link(starts: Starts, ref: Ref, scope: Scope, totals: Mapping[str, float]) -> Link | None:
    """A weight with two axes of one size, whose others are those of features."""
    axes = [entry for entry in ref.index if isinstance(entry, str)]
    beside = tuple(axis for axis in axes if axis in totals)
    ends = [axis for axis in axes if axis not in totals]
    if len(axes) < len(ref.index) or len(ends) != 2:
        return None
    total = math.prod(totals[axis] for axis in beside)
    if total <= 0 or starts.known.count(scope, ends[0]) != starts.known.count(scope, ends[1]):
        return None
    return Link(ref.name, (ends[0], ends[1]), beside, 1 / total)


def _wandering(starts: Starts, term: Expression, scope: Scope) -> tuple[float, float]:
    """By how much the logarithm of a product's square lies below that of its mean, and its variance.

    A χ² of S degrees of freedom has a logarithm of log S − 1/S − 1/(3S²) at its mean, nearly.
    """
    term, scope = starts.behind(term, scope)
    count = starts.known.count
    match term:
        case Ref(name) if name in starts.parameters and name not in starts.links:
            return -behind_its_mean(math.prod(count(scope, axis) for axis in free_axes(term))), 0.0
        case Contraction(factors):
            scope = starts.known.scope(term, scope)
            sizes = [math.prod(count(scope, axis) for axis in place) for place in _places(starts, term)]
            parts = [_wandering(starts, factor, scope) for factor in factors]
            decay = sum(map(behind_its_mean, sizes)) + sum(part[0] for part in parts)
            variance = sum(2 / size + 2 / size**2 for size in sizes if size > 1)
            return decay, variance + sum(part[1] for part in parts)
    return 0.0, 0.0


def _places(starts: Starts, term: Contraction) -> list[set[str]]:
    """The axes of sums of random numbers: those of a tensor of data are one place, and so are the ends of a link."""
    left, places = set(term.summed), list[set[str]]()
    for factor in term.factors:
        if isinstance(factor, Ref) and (link := starts.links.get(factor.name)):
            left -= {next((axis for axis in link.ends if axis in left), ""), *link.beside}
    for factor in term.factors:
        if not starts.is_weight(factor):
            places.append(left & set(free_axes(factor)))
            left -= places[-1]
    return places + [{axis} for axis in left]


def behind_its_mean(size: float) -> float:
    """By how much the mean of the logarithm of a χ² of so many degrees of freedom lies below that of its mean."""
    return 1 / size + 1 / (3 * size**2) if size > 1 else 0.0
