"""Grouped GEMM: products of rows with matrices that positions select.

`x[n,c]*W[p[n],f,c]` with `c` summed gathers a matrix for each of the rows. It is the same as

- `all[n,v,f] = x[n,c]*W[v,f,c]`, each row with all matrices, read at the position: `all[n,p[n],f]`;
- `grouped_matmul[c](x[n,c], W[p[n],f,c])`, the rows of each matrix together.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import replace

from ..language.equation import Equation
from ..language.expression import (
    Call,
    Contraction,
    Expression,
    Ref,
    axes_of_index,
    contraction,
    free_axes,
    fresh,
    occurring,
)
from ..ops.gather_scatter import GROUPED_MATMUL
from .rewriter import Change, Draft, by_kernels, replaced

__all__ = ["select_grouped_gemm"]


@by_kernels
def select_grouped_gemm(draft: Draft, reader: Equation, supported: Container[str]) -> Iterator[Change]:
    """Multiplies rows with the matrices that positions tell in the way that takes least time."""
    for product in reader.parts:
        if not isinstance(product, Contraction):
            continue
        for at, factor in enumerate(product.factors):
            told = _told(factor)
            if isinstance(factor, Ref) and told is not None and draft.is_number(factor):
                yield from _changes(draft, reader, product, at, factor, told, supported)


def _told(factor: Expression) -> Ref | None:
    """The tensor that tells along the one axis where a factor is read at positions, if it has no other such axis."""
    if not isinstance(factor, Ref):
        return None
    told = [entry for entry in factor.index if isinstance(entry, Ref)]
    plain = [entry for entry in factor.index if isinstance(entry, str)]
    apart = len(told) == 1 and len(plain) == len(set(plain)) == len(factor.index) - 1
    return told[0] if apart and not set(plain) & set(free_axes(told[0])) else None


def _changes(
    draft: Draft,
    reader: Equation,
    product: Contraction,
    at: int,
    matrices: Ref,
    told: Ref,
    supported: Container[str],
) -> Iterator[Change]:
    tells = set(free_axes(told))
    own = set(free_axes(matrices)) - tells
    summed = own & set(product.summed)
    others = [n for n in range(len(product.factors)) if n != at]
    needed = [n for n in others if summed & set(free_axes(product.factors[n]))]
    rows = contraction(tuple(product.factors[n] for n in needed), (), product.place) if needed else None
    if rows is None or not summed <= set(free_axes(rows)) or own - summed & set(free_axes(rows)):
        return
    if (own - summed) & set(free_axes(rows)) or not draft.is_number(rows):
        return
    rest = tuple(product.factors[n] for n in others if n not in needed)
    if summed & {axis for each in rest for axis in occurring(each)}:
        return
    left = tuple(axis for axis in product.summed if axis not in summed)
    if GROUPED_MATMUL.name in supported:
        call = Call(GROUPED_MATMUL.name, (rows, matrices), tuple(sorted(summed)), place=matrices.place)
        right = replaced(reader.right, product, contraction((call, *rest), left, product.place))
        yield Change((replace(reader, right=right),), (reader,))
    taken = (
        occurring(product) | set(axes_of_index(reader.left)) | {*draft.graph.bound, *draft.graph.open_sizes}
    )
    which = fresh("v", taken)
    every = replace(matrices, index=tuple(which if each is told else each for each in matrices.index))
    whole = contraction((rows, every), tuple(summed), product.place)
    axes = free_axes(whole)
    made = Equation(draft.fresh(f"{reader.name}_each"), axes, whole, matrices.place)
    read = Ref(made.name, tuple(told if axis == which else axis for axis in axes))
    right = replaced(reader.right, product, contraction((read, *rest), left, product.place))
    yield Change((made, replace(reader, right=right)), (reader,))
