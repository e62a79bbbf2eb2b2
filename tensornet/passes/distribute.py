"""Distribution of products over sums: `(x·A + u)·B` as `x·A·B + u·B`."""

from __future__ import annotations

from collections.abc import Iterator

from ..ir.build import node
from ..ir.inlining import Opened, opened
from ..ir.node import Node, Operand, along, axes_of
from ..ir.products import axes_in, summed_axes
from ..ir.rewriting import Change, Cost, Facts, Program, improved
from ..ops.table import Element
from .fuse import fused

__all__ = ["distribute"]


def distribute(program: Program, cost: Cost) -> Program:
    """Multiplies sums out, wherever they stand as factors and `cost` says that pays.

    Args:
        program: the program.
        cost: the expected seconds of a program; it is asked about a few nodes at a time.
    """
    return improved(program, program.nodes, _distributions, cost)


def _distributions(program: Program, product: Node) -> Iterator[Change]:
    """Ways to multiply out a sum that a product alone reads. Integers are exact as written."""
    if product.op != "contract" or product.element is not Element.NUMBER or None in product.dims:
        return
    for at, (total, _) in enumerate(product.operands):
        if (
            total.op != "add"
            or program.readers[total] > 1
            or total.element <= Element.WHOLE
            or not _may_pay(total)
        ):
            continue
        found = opened(product, at, program.same)
        if found is not None:
            made = _multiplied_out(product, found, program.facts)
            if made.element is product.element:
                yield Change({product: made})


def _may_pay(total: Node) -> bool:
    """Whether a term of a sum is a product that sums over something, and so may be multiplied in another order."""
    return any(each.op == "contract" and summed_axes(each) for each, _ in total.operands)


def _multiplied_out(product: Node, found: Opened, facts: Facts) -> Node:
    """The sum of the products of a product with each term of a sum in it."""
    axes = tuple(axes_of(found.result))
    terms: list[Operand] = []
    for term in found.inside:
        factors = found.among([term])
        read = axes_in(factors)
        kept = tuple(along(axis) for axis in axes if axis in read)
        made = node("contract", found.sizes, factors, kept, None, found.unread(factors))
        terms.append(Operand(fused(made, facts), kept))
    return node("add", found.sizes, terms, found.result, product.shape)
