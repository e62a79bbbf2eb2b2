"""What a weight loses in the form of a tree at one rank after another: decomposed once, cut down again and again.

Ŵ is W projected onto the leading singular vectors of its unfoldings, one bond after another, so that

    ‖W − Ŵ‖² = ‖W‖² − ‖Ŵ‖²

and ‖Ŵ‖² is the sum of the squared singular values that are left at the last bond; around a centre, that of the squared
elements of the part of the core that is left.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .contracting import Named
from .forms import Form
from .metrics import Metric, holders
from .trees import Cut, Tree, singular_vectors, split, squared_values, unfolded

__all__ = ["Truncations"]


@dataclass(frozen=True, eq=False)
class Truncations:
    """A weight whose decompositions are kept.

    Attributes:
        weight: an array.
        metric: what weighs its columns, if anything does.
    """

    weight: Any
    metric: Metric | None = None
    _kept: dict[Any, Any] = field(default_factory=dict)

    def error(self, tree: Tree) -> float:
        """‖W − Ŵ‖ / ‖W‖ of the factors that decompositions give, its columns weighed."""
        if self.metric is None:
            return self._lost(tree)
        names = tuple(factor.name for factor in tree.factors)
        axes = tuple(axis for dim in self.metric.dims for axis in tree.form.dims[dim])
        apart = () if self.metric.apart is None else tree.form.dims[self.metric.apart]
        if holders(tree.form, names, axes, apart) is not None:
            return self._weighed._lost(tree)
        left = self.weight - self._nearest(tree)
        return self.metric.norm(left) / (self.metric.norm(self.weight) or 1.0)

    @functools.cached_property
    def _weighed(self) -> Truncations:
        assert self.metric is not None
        return Truncations(self.metric.weighed(self.weight))

    @functools.cached_property
    def _square(self) -> float:
        return float(np.vdot(self.weight, self.weight))

    def _lost(self, tree: Tree) -> float:
        kept = self._in_core(tree) if tree.is_around else self._at_last_bond(tree)
        return math.sqrt(max(0.0, 1.0 - kept / self._square)) if self._square else 0.0

    def _in_core(self, tree: Tree) -> float:
        """‖Ŵ‖² around a centre: of the core of full rank the part that is kept."""
        squares = self._once(("core", tree.product), tree, (), lambda: self._core(tree))
        ranks = (tree.form.count(cut.bond) for cut in tree.around)
        return float(squares[tuple(min(r, size) - 1 for r, size in zip(ranks, squares.shape, strict=True))])

    def _core(self, tree: Tree) -> Any:
        """The squares of the core of full rank, added up along all bonds."""
        rest = _whole(self.weight, tree.form)
        for cut in tree.around:
            vectors = self._vectors(tree, cut)
            columns = tuple(axis for axis in rest.axes if axis not in (*tree.shared, *cut.rows))
            left = vectors.mT @ unfolded(rest, tree.shared, cut.rows, columns)
            sizes = (rest.array.shape[rest.axes.index(axis)] for axis in columns)
            lead = tree.form.shape(tree.shared)
            axes = (*tree.shared, cut.factor.name, *columns)
            rest = Named(left.reshape(*lead, left.shape[-2], *sizes), axes)
        bonds = [rest.axes.index(cut.factor.name) for cut in tree.around]
        others = tuple(place for place in range(len(rest.axes)) if place not in bonds)
        squares = np.moveaxis(rest.array**2, bonds, range(len(bonds)))
        squares = squares.sum(tuple(range(len(bonds), len(bonds) + len(others))), dtype=np.float64)
        for bond in range(len(bonds)):
            squares = squares.cumsum(bond)
        return squares

    def _at_last_bond(self, tree: Tree) -> float:
        """‖Ŵ‖² along a tree: of the singular values at the last bond the squares of those that are kept."""
        *cuts, last = tree.cuts
        rest = _whole(self.weight, tree.form)
        for cut in cuts:
            rest = self._split(rest, tree, cut)[1]

        def values() -> Any:
            return squared_values(unfolded(rest, tree.shared, last.rows, last.columns))

        found = values() if cuts else self._once("values", tree, last.rows, values)
        return float(found[..., : tree.form.count(last.bond)].sum(dtype=np.float64))

    def _nearest(self, tree: Tree) -> Any:
        """Ŵ."""
        found = _whole(self.weight, tree.form)
        if tree.is_around:
            for cut in tree.around:
                found = self._projected(found, tree, (cut,))
        else:
            found = self._projected(found, tree, tree.cuts)
        return unfolded(found, (), tree.form.axes, ()).reshape(self.weight.shape)

    def _projected(self, rest: Named, tree: Tree, cuts: Sequence[Cut]) -> Named:
        """What is left of the weight, in terms of the leading singular vectors at each of some bonds."""
        if not cuts:
            return rest
        cut, *others = cuts
        vectors, left = self._split(rest, tree, cut)
        left = self._projected(left, tree, others)
        axes = (*tree.shared, *cut.rows, *cut.columns)
        again = vectors @ unfolded(left, tree.shared, cut.bond, cut.columns)
        return Named(again.reshape(tree.form.shape(axes)), axes)

    def _split(self, rest: Named, tree: Tree, cut: Cut) -> tuple[Any, Named]:
        """The leading singular vectors at a bond, and what is left of the weight in their terms."""
        vectors = self._vectors(tree, cut) if tree.is_around or cut is tree.cuts[0] else None
        matrix = unfolded(rest, tree.shared, cut.rows, cut.columns)
        vectors, left = split(matrix, tree.form.count(cut.bond), vectors)
        axes = (*tree.shared, *cut.bond, *cut.columns)
        return vectors, Named(left.reshape(tree.form.shape(axes)), axes)

    def _vectors(self, tree: Tree, cut: Cut) -> Any:
        """All left singular vectors of an unfolding of the weight."""
        whole = _whole(self.weight, tree.form)

        def vectors() -> Any:
            return singular_vectors(unfolded(whole, tree.shared, cut.rows, cut.columns))

        return self._once("vectors", tree, cut.rows, vectors)

    def _once(self, what: Any, tree: Tree, rows: Sequence[str], make: Callable[[], Any]) -> Any:
        """What follows from the weight and how it is unfolded, whatever the ranks, made once."""
        axes = tree.form.axes
        key = (what, tree.form.shape(axes), *(tuple(map(axes.index, each)) for each in (rows, tree.shared)))
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]


def _whole(weight: Any, form: Form) -> Named:
    return Named(weight.reshape(form.shape(form.axes)), form.axes)
