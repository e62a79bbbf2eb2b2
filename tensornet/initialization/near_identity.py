"""Near-identity initialisation of long chains of weights.

A product of random matrices wanders off: the logarithm of its scale is a sum of as many random terms. What
is near the identity keeps what comes in, however many there are; weights that no link can be stay random,
so that the product is no identity itself. A core that reads a feature beside, `A[l,i,r] * f[b,i]`, is the
identity for each position of it, divided by what the features add up to in the mean.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ..language.expression import Contraction, Expression, Ref, free_axes, is_scalar
from ..ops.moments import Moments

__all__ = ["Link", "links_of"]


@dataclass(frozen=True)
class Link:
    """A weight of a product that may start near the identity.

    Attributes:
        name: the parameter.
        ends: the axes between which it is one.
        beside: its other axes, which features have.
        scale: the number that stands on the diagonal.
    """

    name: str
    ends: tuple[str, str]
    beside: tuple[str, ...]
    scale: float


def links_of(
    product: Contraction,
    behind: Callable[[Expression], Expression],
    count: Callable[[str], float],
    data: Mapping[Expression, Moments],
    free: frozenset[str],
) -> tuple[Link, ...]:
    """The links of a product; none where there is nothing else whose start is to be chosen.

    Args:
        product: the product.
        behind: what a weight with a line of its own is.
        count: the size of an axis.
        data: the factors that are no weights, with their moments.
        free: the parameters whose start is to be chosen.
    """
    refs = list(_weights(product, behind))
    times = Counter(ref.name for ref in refs)
    once = [ref for ref in refs if ref.name in free and times[ref.name] == 1]
    of_data = {axis: found for factor, found in data.items() for axis in free_axes(factor)}
    found = [link for ref in once if (link := _link(ref, count, of_data)) is not None]
    return tuple(found if len(found) < len(once) else found[:-1])


def _weights(product: Expression, behind: Callable[[Expression], Expression]) -> Iterator[Ref]:
    """The tensors that are multiplied, those of weights that are products themselves too."""
    waiting: list[Expression] = [product]
    while waiting:
        part = waiting.pop()
        inner = behind(part)
        if isinstance(inner, Contraction):
            waiting.extend(reversed([each for each in inner.factors if not is_scalar(each)]))
        elif isinstance(part, Ref):
            yield part


def _link(ref: Ref, count: Callable[[str], float], of_data: Mapping[str, Moments]) -> Link | None:
    axes = [entry for entry in ref.index if isinstance(entry, str)]
    beside = tuple(axis for axis in axes if axis in of_data)
    ends = [axis for axis in axes if axis not in of_data]
    if len(axes) < len(ref.index) or len(ends) != 2 or count(ends[0]) != count(ends[1]):
        return None
    total = math.prod(_sum_of(count(axis), of_data[axis]) for axis in beside)
    return Link(ref.name, (ends[0], ends[1]), beside, 1 / total) if total > 0 else None


def _sum_of(count: float, moments: Moments) -> float:
    """What features add up to in the mean; 0 where that is nothing beside how far they deviate."""
    return count * moments.mean if moments.mean**2 > 0.1 * moments.square else 0.0
