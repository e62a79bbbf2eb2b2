"""Reduction pushdown: `mean[n](x[b,n,c]*W[o,c] + u[o])` as `mean[n](x[b,n,c])*W[o,c] + u[o]`.

If several factors of a product have an averaged axis, the result is a contraction: `mean[n](x[b,n]*W[n,c])` is
`sum[n](x[b,n]*W[n,c]) / n`.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator

from ..ir.build import node, number, size, whole
from ..ir.inlining import Opened, opened
from ..ir.node import Axis, Node, Operand, along, axes_of
from ..ir.rewriting import Change, Cost, Facts, Program, improved
from ..ops.table import FUNCTIONS, Element

__all__ = ["push_reductions_down"]


def push_reductions_down(program: Program, cost: Cost, sums: bool = True) -> Program:
    """Averages the operands of products and sums instead of their results, where `cost` says that this pays.

    Args:
        program: the program.
        cost: the expected seconds of a program.
        sums: whether averages may become sums, because the working element type can hold long sums.
    """
    averages = [each for each in reversed(program.nodes) if _averages(each)]
    return improved(program, averages, functools.partial(_changes, sums), cost)


def _averages(each: Node) -> bool:
    function = FUNCTIONS.get(each.op)
    return function is not None and function.averages and not each.is_scalar


def _changes(sums: bool, program: Program, mean: Node) -> Iterator[Change]:
    """Ways to average the operands of an averaged sum or product that nothing else reads."""
    if not _averages(mean) or mean.operands[0].node.element is not Element.NUMBER:
        return
    for made in (_of_parts(program.facts, mean), _as_sum(program.facts, mean) if sums else None):
        if made is not None and made.element is mean.element:
            yield Change({mean: made})


def _opened(facts: Facts, mean: Node) -> tuple[str, Opened] | None:
    """The operation and the operands of an averaged sum or product that nothing else reads; None if there is none."""
    child = mean.operands[0].node
    is_open = child.op in ("add", "contract") and facts.readers[child] == 1 and not child.is_scalar
    found = opened(mean, 0, facts.same) if is_open else None
    return None if found is None else (child.op, found)


def _holders(found: Opened) -> Counter[Axis]:
    """The number of factors that have each of the averaged axes."""
    return Counter(axis for each in found.inside for axis in {*axes_of(each.reads)} if axis in found.over)


def _of_parts(facts: Facts, mean: Node) -> Node | None:
    """The average of a sum as a sum of averages; that of a product by factors, if no two share an averaged axis."""
    if (inside := _opened(facts, mean)) is None:
        return None
    op, found = inside
    if op == "contract" and max(_holders(found).values(), default=0) > 1:
        return None
    parts = [_along(facts, mean, found, each) for each in found.inside]
    return node(op, found.sizes, parts, found.result, mean.shape, found.inside_over)


def _along(facts: Facts, mean: Node, found: Opened, part: Operand) -> Operand:
    """The average of a part along those averaged axes that it has."""
    own = tuple(dict.fromkeys(axes_of(part.reads)))
    over = tuple(axis for axis in found.over if axis in own)
    if not over:
        return part
    kept = tuple(along(axis) for axis in own if axis not in over)
    made = node(mean.op, found.sizes, [part], kept, None, over)
    return Operand(_of_parts(facts, made) or made, kept)


def _as_sum(facts: Facts, mean: Node) -> Node | None:
    """The average of a product as its sum, divided by the number of positions.

    None if no two factors share an averaged axis.
    """
    if (inside := _opened(facts, mean)) is None or inside[0] != "contract":
        return None
    found = inside[1]
    if max(_holders(found).values(), default=0) < 2:
        return None
    total = node("contract", found.sizes, found.inside, found.result, mean.shape, found.unread(found.inside))
    counts = [mean.sizes[axis] for axis in mean.over]
    below = [number(each) if isinstance(each, int) else size(each) for each in counts]
    parts = [whole(total), *(Operand(node("reciprocal", {}, [Operand(each)])) for each in below)]
    return node("contract", {((), n): length for n, length in enumerate(total.shape)}, parts, parts[0].reads)
