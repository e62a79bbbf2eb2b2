"""Grouped GEMM: products of rows with matrices that positions select.

`x[n,c]*W[p[n],f,c]` with `c` summed gathers a matrix for each of the rows. Two other forms compute the same:

- `all[n,v,f] = x[n,c]*W[v,f,c]` multiplies each row by all matrices, and is read at the position: `all[n,p[n],f]`;
- `grouped_matmul[c](x[n,c], W[p[n],f,c])` multiplies the rows of each matrix together.
"""

from __future__ import annotations

from collections.abc import Container, Iterator

from ..ir.node import (
    Axis,
    Gather,
    Node,
    Operand,
    Size,
    along,
    axes_in,
    axes_of,
    computed,
    multiplied,
    part,
    summed_axes,
)
from ..ir.rewriting import Change, PassContext, Program
from ..ops.gather_scatter import GROUPED_MATMUL
from ..ops.record import Element


def grouped_gemms(context: PassContext, _: Program, product: Node) -> Iterator[Change]:
    """Ways to multiply rows by matrices that positions select."""
    for at, matrices in enumerate(product.operands if product.op == "contract" else ()):
        d = _told(matrices)
        if d is None or matrices.node.element is not Element.NUMBER:
            continue
        own = {entry.axis for entry in matrices.reads} - {None}
        summed = own & summed_axes(product)
        others = [each for n, each in enumerate(product.operands) if n != at]
        needed = [each for each in others if summed.intersection(axes_of(each.reads))]
        if not summed or own & {*axes_in(needed)} != summed:
            continue
        rest = [each for each in others if each not in needed]
        for made in _products(product, needed, matrices, d, summed, rest, context.supported):
            yield Change(product, made)


def _told(factor: Operand) -> int | None:
    """The one dimension in which a factor is gathered; None unless separate axes index all other dimensions."""
    gathers = [d for d, entry in enumerate(factor.reads) if isinstance(entry, Gather)]
    tells = {*axes_of(tuple(factor.reads[d] for d in gathers))}
    plain = {entry.axis for entry in factor.reads} - {None, *tells}
    return gathers[0] if len(gathers) == 1 and len(plain) == len(factor.reads) - 1 else None


def _products(
    product: Node,
    needed: list[Operand],
    matrices: Operand,
    d: int,
    summed: set[Axis],
    rest: list[Operand],
    supported: Container[str],
) -> Iterator[Node]:
    """A product of rows with gathered matrices: once by groups, and once with each row times all matrices."""
    sizes: dict[Axis, Size] = dict(enumerate(product.sizes))
    rows = part(needed, (), sizes)
    if rows.node.element is not Element.NUMBER:
        return
    if GROUPED_MATMUL.name in supported:
        call = GROUPED_MATMUL.name, (rows, matrices), tuple(sorted(summed)), ()
        yield computed(product, call, rest, sizes)
    sizes["which"] = matrices.node.shape[d]
    told = matrices.reads[d]
    reads = tuple(along("which") if entry is told else entry for entry in matrices.reads)
    every = part([*needed, Operand(matrices.node, reads)], summed, sizes)
    read = tuple(told if entry.axis == "which" else entry for entry in every.reads)
    yield multiplied(product, [Operand(every.node, read), *rest], sizes)
