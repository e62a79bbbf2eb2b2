"""Window pushdown: factors outside a window are multiplied before it opens.

Of `x[b,c,p+u,q+v] * U[c,r] * G[s,r,u,v]` the first pair is `z[b,r,h,w] = x[b,c,h,w] * U[c,r]`, read as
`z[b,r,p+u,q+v]`: nothing is as large as all windows side by side.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..graph.shape_inference import Dim, dim_size
from ..language.affine import affine
from ..language.expression import (
    Expression,
    Index,
    Ref,
    axes_of_index,
    free_axes,
    fresh,
    is_told,
    references,
    scalar_value,
    without,
)
from ..sizes import product

__all__ = ["Early", "early", "moved"]


@dataclass(frozen=True)
class Early:
    """Two factors to multiply first.

    Attributes:
        opened: the tensor, read in those windows alone that its partner has to do with.
        partner: the other factor.
        windows: the axes that it is read with in the place of other windows, each with that window.
        sizes: those of these axes.
        replaced: the tensor as it is read in the product.
    """

    opened: Ref
    partner: Expression
    windows: Mapping[str, Index]
    sizes: Mapping[str, Any]
    replaced: Ref

    def read(self, made: Ref) -> Ref:
        """What the two make, with its windows."""
        return replace(made, index=tuple(self.windows.get(str(axis), axis) for axis in made.index))


def early(
    factors: Sequence[Expression],
    kept: frozenset[str],
    sizes: Mapping[str, Any],
    dims: Mapping[str, tuple[Dim, ...]],
) -> Early | None:
    """The first two factors to multiply before all windows open, where that makes less of them, if there are any.

    Args:
        factors: of a product.
        kept: the axes that are not summed over.
        sizes: of the axes.
        dims: the dimensions of tensors, of those that are known.
    """
    for ref, partner in itertools.permutations(factors, 2):
        if isinstance(ref, Ref) and ref.name in dims and any(map(_is_window, ref.index)):
            rest = without(factors, (ref, partner))
            outside = kept.union(*map(free_axes, rest))
            found = _opened(ref, partner, sizes, dims[ref.name])
            if found is not None and _is_less(found, outside, sizes):
                return found
    return None


def moved(expression: Expression) -> set[str]:
    """The axes along which windows move in an expression."""
    return {axis for ref in references(expression) for entry in ref.index for axis in _axes(entry)}


def _is_window(entry: Index) -> bool:
    return is_told(entry) and affine(entry) is not None


def _axes(entry: Index) -> set[str]:
    """The axes of a window."""
    found = affine(entry) if is_told(entry) else None
    return set() if found is None else set(found.axes)


def _opened(ref: Ref, partner: Expression, sizes: Mapping[str, Any], dims: tuple[Dim, ...]) -> Early | None:
    """The tensor without the windows that a partner has nothing to do with; nothing where that is none of them.

    A window stays whose axes another entry has too, as in `U[k % 2,n+k]`: both move together.
    """
    own, taken = set(free_axes(partner)), set(sizes) | set(free_axes(ref)) | set(free_axes(partner))
    index, windows, lengths = list(ref.index), dict[str, Index](), dict[str, Any]()
    for position, entry in enumerate(ref.index):
        beside = axes_of_index((*ref.index[:position], *ref.index[position + 1 :]))
        if _is_window(entry) and _axes(entry).isdisjoint((*own, *beside)):
            index[position] = axis = fresh("i", taken)
            taken.add(axis)
            windows[axis], lengths[axis] = entry, dim_size(dims[position])
    if not windows or not own & set(free_axes(opened := replace(ref, index=tuple(index)))):
        return None
    return Early(opened, partner, windows, lengths, ref)


def _is_less(found: Early, outside: frozenset[str], sizes: Mapping[str, Any]) -> bool:
    """Whether what opens is summed over, and what comes out is smaller than what went in, and than all windows."""
    known, other = set(free_axes(found.opened)), set(free_axes(found.partner))
    if any(len(_axes(entry) & outside) > 1 for entry in found.opened.index if _is_window(entry)):
        return False
    inside = {axis for entry in found.opened.index for axis in _axes(entry)}
    gone = product(sizes.get(axis, 1) for axis in (known | other) - outside - set(found.windows) - inside)
    new = product(sizes[axis] for axis in other - known)
    apart, along = 1, 1
    for (_, step), *inner in (affine(entry).steps for entry in found.windows.values()):  # type: ignore[union-attr]
        by = scalar_value(step)
        apart *= abs(by) if isinstance(by, int) else 1
        along *= product(sizes[axis] for axis, _ in inner)
    return all(isinstance(each, int) for each in (gone, new, along)) and gone > new and along > apart
