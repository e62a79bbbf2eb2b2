"""Window pushdown: factors outside a window are multiplied before it opens.

The first pair of `x[b,c,p+u,q+v] * U[c,r] * G[s,r,u,v]` is `z[b,r,h,w] = x[b,c,h,w] * U[c,r]`, read as
`z[b,r,p+u,q+v]`. So no intermediate is as large as all windows side by side.
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, TypeAlias

from ..ir.node import Affine, Axis, Operand, Size, along, axes_in, axes_of, fills, node
from ..ir.positions import Windowed, windowed
from ..ir.rewriting import Facts
from ..sizes import evaluate, product

Windows: TypeAlias = dict[Affine, Size]
"""Windows that a tensor need not be read in yet, with its length there."""


def product_of(
    factors: Iterable[Operand], outside: Container[Axis], sizes: Mapping[Axis, Size], moving: Container[Axis]
) -> Operand:
    """The product of some factors, summed over the axes that nothing outside has.

    Axes along which windows move come last, as convolutions expect.
    """
    factors = [*factors]
    axes = [axis for axis in axes_in(factors) if axis in outside]
    places = {axis: n for n, axis in enumerate(sizes)}
    kept = tuple(map(along, sorted(axes, key=lambda axis: (axis in moving, places[axis]))))
    return Operand(node("contract", sizes, factors, kept), kept)


def before_windows(
    factors: Sequence[Operand],
    kept: AbstractSet[Axis],
    sizes: dict[Axis, Size],
    facts: Facts,
    bound: Mapping[str, Any],
) -> list[Operand]:
    """The factors, with those outside of windows multiplied before the windows open, where the result is smaller."""
    factors = [*factors]
    while len(factors) > 2:
        found = next(_early(factors, kept, sizes, facts, bound), None)
        if found is None:
            break
        at, partner, windows, tensor = found
        rest = [each for n, each in enumerate(factors) if n not in (at, partner)]
        plain = tensor.plainly(windows)
        pairs = zip(tensor.reads, tensor.node.shape, strict=True)
        own = {("at", entry): length for entry, length in pairs if entry in windows}
        moving = own.keys() | moved([plain], {**sizes, **own}, facts)
        outside = {*kept, *own, *axes_in(rest)}
        made = product_of((plain, factors[partner]), outside, {**sizes, **own}, moving)
        factors = [tensor.followed(made).padded(windows).plainly(()), *rest]
    return factors


def moved(factors: Iterable[Operand], sizes: Mapping[Axis, Size], facts: Facts) -> set[Axis]:
    """The axes along which windows move in factors."""
    entries = (entry for each in factors for entry in _windows(each, sizes, facts))
    return {axis for entry in entries for axis, _ in entry.terms}


def _windows(operand: Operand, sizes: Mapping[Axis, Size], facts: Facts) -> Windows:
    """The windows that an operand is read in."""
    child, reads = operand
    return {
        entry: length
        for entry, length in zip(reads, child.shape, strict=True)
        if isinstance(entry, Affine) and entry.terms and not fills(entry, sizes, length, facts.same)
    }


def _early(
    factors: Sequence[Operand],
    kept: AbstractSet[Axis],
    sizes: Mapping[Axis, Size],
    facts: Facts,
    bound: Mapping[str, Any],
) -> Iterator[tuple[int, int, Windows, Windowed]]:
    """Pairs of factors to multiply before all windows open, where that gives a smaller tensor.

    Yields the places of both, the windows that the first need not be read in, and the first. A window stays if another
    entry has its axes too, as in `U[k % 2,n+k]`: both move together.
    """
    for at, partner in itertools.permutations(range(len(factors)), 2):
        operand, other = factors[at], {*axes_of(factors[partner].reads)}
        found: Windows = {}
        for entry, length in _windows(operand, sizes, facts).items():
            beside = axes_of(tuple(each for each in operand.reads if each is not entry))
            if {*axes_of((entry,))}.isdisjoint((*other, *beside)):
                found[entry] = length
        rest = [each for n, each in enumerate(factors) if n not in (at, partner)]
        tensor = windowed(operand, found) if facts.readers[operand.node] == 1 else Windowed(*operand, {})
        outside = {*kept, *axes_in(rest)}
        if found and _is_less(tensor.plainly(found), found, other, outside, sizes, facts, bound):
            yield at, partner, found, tensor


def _is_less(
    plain: Operand,
    windows: Windows,
    other: set[Axis],
    outside: AbstractSet[Axis],
    sizes: Mapping[Axis, Size],
    facts: Facts,
    bound: Mapping[str, Any],
) -> bool:
    """Whether remaining windows are summed over, and the product is smaller than the tensor and than all windows."""
    own = {axis for axis in axes_of(plain.reads) if not isinstance(axis, tuple)}
    known = {**sizes, **{("at", entry): length for entry, length in windows.items()}}
    left = [{axis for axis, _ in entry.terms} for entry in _windows(plain, known, facts)]
    if own.isdisjoint(other) or any(len(axes & outside) > 1 for axes in left):
        return False

    def count(axes: Iterable[Axis]) -> Any:
        return evaluate(product(sizes[axis] for axis in axes), bound)

    gone = count((own | other).difference(outside, *left))
    new, apart, spread = count(other - own), 1, 1
    for entry in windows:
        assert isinstance(entry, Affine)
        (_, step), *inner = entry.terms
        by = evaluate(step, bound)
        apart *= abs(by) if isinstance(by, int) else 1
        spread *= count(axis for axis, _ in inner)
    return all(isinstance(each, int) for each in (gone, new, spread)) and gone > new and spread > apart
