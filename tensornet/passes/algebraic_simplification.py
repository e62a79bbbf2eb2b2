"""Algebraic simplification: known totals such as `sum[j](softmax[j](s))` = 1, and tautologies."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from ..ir.build import node, number
from ..ir.function import over_operands, rebuilt
from ..ir.node import Axis, Node, Operand, along, axes_of, substitute
from ..ir.rewriting import Facts, Program
from ..ops.pointwise import AND, REFLEXIVE, WHERE
from ..ops.reduce import MAX
from ..ops.table import FUNCTIONS, Element

__all__ = ["drop_known_totals", "drop_tautologies"]


def drop_known_totals(program: Program) -> Program:
    """Drops factors that only sum to 1 from the terms of a sum, where other terms have the factors' remaining axes."""
    return program.rewritten(_without_totals)


def _without_totals(total: Node, facts: Facts) -> Node:
    """A sum without the factors of its terms that only sum to 1."""
    if total.op != "add" or total.is_scalar:
        return total
    terms = [*total.operands]
    for at, term in enumerate(terms):
        others = {axis for n, each in enumerate(terms) if n != at for axis in axes_of(each.reads)}
        while facts.readers[term.node] == 1 and (shorter := _without_total(term, others)) is not None:
            terms[at] = term = shorter
    if terms == [*total.operands]:
        return total
    made = node("add", dict(enumerate(total.sizes)), terms, total.result, total.shape)
    return made if made.element is total.element else total


def _without_total(term: Operand, others: Collection[Axis]) -> Operand | None:
    """A product without one factor that only sums to 1; None if no factor can go.

    The remaining axes of the factor must be in `others` or in the remaining factors.
    """
    product, reads = term
    if product.op != "contract" or any(axes is None or len(axes) > 1 for axes in product.dims):
        return None
    dims = [axes[0] for axes in product.dims if axes is not None]
    for at, factor in enumerate(product.operands):
        rest = [each for n, each in enumerate(product.operands) if n != at]
        summed, beside = _summed_to_one(factor), {axis for each in rest for axis in axes_of(each.reads)}
        lost = {*axes_of(factor.reads)} - summed - beside
        places = {axis: reads[dims.index(axis)].axis for axis in lost if axis in dims}
        goes = summed and summed.isdisjoint({*dims, *beside}) and len(places) == len(lost)
        if not goes or not all(place in others for place in places.values()):
            continue
        kept = [d for d, axis in enumerate(dims) if axis not in lost]
        left = tuple(product.result[d] for d in kept)
        sizes = dict(enumerate(product.sizes))
        made = node("contract", sizes, rest or [Operand(number(1))], left, None, product.over)
        return Operand(made, tuple(reads[d] for d in kept))
    return None


def _summed_to_one(factor: Operand) -> set[Axis]:
    """The axes along which a factor sums to 1, as the product names them."""
    weights, reads = factor
    function = FUNCTIONS.get(weights.op)
    if function is None or not function.sums_to_one or weights.is_scalar:
        return set()
    places = [
        entry.axis
        for axes, entry in zip(weights.dims, reads, strict=True)
        if axes and axes[0] in weights.over
    ]
    whole = (
        len(places) == len(weights.over)
        and None not in places
        and all(axes and len(axes) == 1 for axes in weights.dims)
    )
    return {*places} if whole else set()


def drop_tautologies(program: Program) -> Program:
    """Removes each `where` whose condition always holds."""
    return program.rewritten(lambda each, _: _without_choices(each, program.numbers))


def _without_choices(each: Node, sizes: Mapping[str, int]) -> Node:
    """A copy of the operand that a `where` always chooses; otherwise the `where` with simpler operands.

    An operand that is a `where` and always chooses the same number is replaced by that number.
    """
    if each.op != WHERE.name:
        return each
    chosen = _chosen(each, sizes)
    if chosen is not None and not chosen.node.is_scalar:
        made = node("copy", dict(enumerate(each.sizes)), [chosen], each.result, each.shape)
        return made if made.element is each.element else each
    found = [_chosen(operand.node, sizes) for operand in each.operands]
    operands = [
        number if number is not None and number.node.is_scalar else operand
        for operand, number in zip(each.operands, found, strict=True)
    ]
    made = over_operands(each, operands) if operands != [*each.operands] else each
    return made if made.element is each.element else each


def _chosen(choice: Node, sizes: Mapping[str, int]) -> Operand | None:
    """The operand `a` of `where(max[j](c), a, b)`, if always chosen and a number or with all axes; else None."""
    if choice.op != WHERE.name or choice.operands[0].node.op != MAX.name:
        return None
    (largest, chosen, _), whole = choice.operands, range(len(choice.sizes))
    if not chosen.node.is_scalar and not {*axes_of(chosen.reads)}.issuperset(whole):
        return None
    (known,) = rebuilt([largest.node], {}, sizes=sizes)
    return chosen if _holds(known.operands[0], known) else None


def _holds(condition: Operand, largest: Node) -> bool:
    """Whether a condition always holds somewhere along the axes of `largest.over`, for any values in the tensors.

    It does if it compares integer tensors only with themselves. Each of these axes is set to the axis at which the
    other side of the comparison reads the tensor.
    """
    at = {axis: along(axis) for axis in range(len(largest.sizes))}
    for pair in _together(condition):
        if pair is None or pair[0].node is not pair[1].node:
            return False
        for one, other in zip(*(substitute(each.reads, at) for each in pair), strict=True):
            if one == other:
                continue
            mine, its = (one.axis, other.axis) if one.axis in largest.over else (other.axis, one.axis)
            if mine not in largest.over or its is None or largest.sizes[mine] != largest.sizes[its]:
                return False
            at = {axis: along(its) if entry.axis == mine else entry for axis, entry in at.items()}
    return True


def _together(condition: Operand) -> Iterator[tuple[Operand, Operand] | None]:
    """The pairs of integers that a condition compares, if it holds where each pair is equal; None for other parts."""
    each, reads = condition
    plain = all(axes and len(axes) == 1 for axes in each.dims)
    if not plain or each.op not in (AND.name, *REFLEXIVE) or len(each.sizes) > len(reads):
        yield None
        return
    table = {axes[0]: entry for axes, entry in zip(each.dims, reads, strict=True) if axes}
    parts = [Operand(part.node, substitute(part.reads, table)) for part in each.operands]  # type: ignore[arg-type]
    if each.op == AND.name:
        for part in parts:
            yield from _together(part)
    else:
        one, other = parts
        yield (one, other) if max(one.node.element, other.node.element) <= Element.WHOLE else None
