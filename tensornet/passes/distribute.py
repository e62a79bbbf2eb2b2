"""Distribution of products over sums: `(x·A + u)·B` as `x·A·B + u·B`."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..ir.build import node
from ..ir.inlining import Opened, opened
from ..ir.node import Axis, Node, Operand, along, axes_of
from ..ir.products import axes_in, summed_axes
from ..ir.rewriting import Change, Cost, Facts, Program, improved
from ..ops.table import Element
from ..sizes import evaluate
from .fuse import fused

__all__ = ["distribute"]


MANY = 6
"""With more factors than this, no orders are compared: the cost function decides."""


def distribute(program: Program, cost: Cost, values: Mapping[str, int] | None = None) -> Program:
    """Multiplies out sums that are factors, where `cost` says that this pays.

    Args:
        program: the program.
        cost: the expected seconds of a program; it is evaluated for a few nodes at a time.
        values: every open size; if not given, the cost is evaluated for each sum that is a factor.
    """
    known = {**values, **dict(program.names.sizes)} if values is not None else None
    return improved(program, program.nodes, functools.partial(_distributions, known=known), cost)


def _distributions(program: Program, product: Node, known: Mapping[str, Any] | None) -> Iterator[Change]:
    """Ways to multiply out a sum that only this product reads. Sums of integers stay: they are exact as written."""
    if product.op != "contract" or product.element is not Element.NUMBER or None in product.dims:
        return
    for at, (total, _) in enumerate(product.operands):
        if total.op != "add" or program.readers[total] > 1 or total.element <= Element.WHOLE:
            continue
        found = opened(product, at, program.same)
        if found is not None and any(_may_pay(program, found, term, known) for term in found.inside):
            made = _multiplied_out(product, found, program.facts)
            if made.element is product.element:
                yield Change({product: made})


def _may_pay(program: Program, found: Opened, term: Operand, known: Mapping[str, Any] | None) -> bool:
    """Whether multiplying out a sum may pay because of one of its terms, a product that sums over an axis.

    It may if the factors of the term and those next to the sum need fewer multiplications in another order than with
    the term computed first. It may also if others read the term too: then the term cannot be one step with the sum.
    """
    each, reads = term
    if each.op != "contract" or not summed_axes(each):
        return False
    if known is None or program.readers[each] > 1:
        return True
    names: dict[Axis, Axis] = {}
    for axes, entry in zip(each.dims, reads, strict=True):
        if axes is None or len(axes) != 1 or entry.axis is None:
            return True
        names[axes[0]] = entry.axis
    inside = [
        (other, frozenset(names.get(axis, ("sum", axis)) for axis in axes_of(read)))
        for other, read in each.operands
    ]
    outside = [(other, frozenset(axes_of(read))) for other, read in found.operands]
    inner, outer = ([pair for pair in pairs if not pair[0].is_scalar] for pairs in (inside, outside))
    if len(inner) + len(outer) > MANY:
        return True
    lengths = found.sizes | {("sum", axis): size for axis, size in enumerate(each.sizes)}
    sizes = {axis: float(evaluate(size, known)) for axis, size in lengths.items()}
    own, kept = frozenset(axes_of(reads)), frozenset(axes_of(found.result))

    def least(factors: Sequence[tuple[Node, frozenset[Axis]]], left: frozenset[Axis]) -> float:
        still = [other in program.constants for other, _ in factors]
        return _fewest([axes for _, axes in factors], still, left, sizes)

    return least([*inner, *outer], kept) < least(inner, own) + least([(each, own), *outer], kept)


def _fewest(
    factors: Sequence[frozenset[Axis]],
    still: Sequence[bool],
    kept: frozenset[Axis],
    sizes: Mapping[Axis, float],
) -> float:
    """The fewest multiplications of a product in any order; products of factors that no call changes cost none."""
    everything = (1 << len(factors)) - 1

    def axes_of_all(subset: int) -> frozenset[Axis]:
        return frozenset[Axis]().union(*(axes for n, axes in enumerate(factors) if subset >> n & 1))

    @functools.cache
    def left(subset: int) -> frozenset[Axis]:
        return axes_of_all(subset) & (kept | axes_of_all(everything ^ subset))

    @functools.cache
    def least(subset: int) -> float:
        members = [n for n in range(len(factors)) if subset >> n & 1]
        if len(members) == 1 or all(still[n] for n in members):
            return 0.0
        halves = (half for half in range(1, subset) if half & subset == half and half & 1 << members[0])
        return min(
            least(half)
            + least(subset ^ half)
            + math.prod(sizes[axis] for axis in left(half) | left(subset ^ half))
            for half in halves
        )

    return least(everything)


def _multiplied_out(product: Node, found: Opened, facts: Facts) -> Node:
    """The sum of the products of a product's other factors with each term of a sum in it."""
    axes = tuple(axes_of(found.result))
    terms: list[Operand] = []
    for term in found.inside:
        factors = found.among([term])
        read = axes_in(factors)
        kept = tuple(along(axis) for axis in axes if axis in read)
        made = node("contract", found.sizes, factors, kept, None, found.unread(factors))
        terms.append(Operand(fused(made, facts), kept))
    return node("add", found.sizes, terms, found.result, product.shape)
