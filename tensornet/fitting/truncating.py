"""Errors of a weight in the form of a tree at many ranks: the weight is decomposed once, and truncated for each rank.

Ŵ is W projected onto the leading singular vectors of its unfoldings, one bond after another, so that

    ‖W − Ŵ‖² = ‖W‖² − ‖Ŵ‖²

‖Ŵ‖² is the sum of the squared singular values that are kept at the last bond. Around a centre, it is the sum of the
squared elements of the part of the core that is kept.
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
    """A weight with a cache of its decompositions.

    Attributes:
        weight: an array.
        metric: the metric that weighs its columns, if there is one.
    """

    weight: Any
    metric: Metric | None = None
    _kept: dict[Any, Any] = field(default_factory=dict)

    def error(self, tree: Tree) -> float:
        """‖W − Ŵ‖ / ‖W‖ of the factors that decompositions give, with weighed columns if there is a metric."""
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
        """‖Ŵ‖² around a centre: the sum of squares in the kept part of the core of full rank."""
        squares = self._once(("core", tree.product), tree, (), lambda: self._core(tree))
        ranks = (tree.form.count(cut.bond) for cut in tree.around)
        return float(squares[tuple(min(r, size) - 1 for r, size in zip(ranks, squares.shape, strict=True))])

    def _core(self, tree: Tree) -> Any:
        """The cumulative sums of the squares of the core of full rank, along all bonds."""
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
        """‖Ŵ‖² along a tree: the sum of the squared singular values that are kept at the last bond."""
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
        """The remaining weight, projected onto the leading singular vectors at each of some bonds."""
        if not cuts:
            return rest
        cut, *others = cuts
        vectors, left = self._split(rest, tree, cut)
        left = self._projected(left, tree, others)
        axes = (*tree.shared, *cut.rows, *cut.columns)
        again = vectors @ unfolded(left, tree.shared, cut.bond, cut.columns)
        return Named(again.reshape(tree.form.shape(axes)), axes)

    def _split(self, rest: Named, tree: Tree, cut: Cut) -> tuple[Any, Named]:
        """The leading singular vectors at a bond, and the coefficients of the remaining weight in this basis."""
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
        """A result that depends on the weight and its unfolding but not on ranks, computed once."""
        axes = tree.form.axes
        key = (what, tree.form.shape(axes), *(tuple(map(axes.index, each)) for each in (rows, tree.shared)))
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]


def _whole(weight: Any, form: Form) -> Named:
    return Named(weight.reshape(form.shape(form.axes)), form.axes)
