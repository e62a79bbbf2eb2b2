"""Factors that form a tree, fitted by singular value decompositions.

The axes that are summed between two factors are their bond. Each axis of the weight belongs to one factor, or to
all. Low rank, Kronecker products of two, tensor trains, block tensor trains, Tucker and hierarchical Tucker forms
are of this kind. A factor at an end of the tree holds the leading singular vectors of the weight, unfolded to the
axes of the factor and all others. The remainder is a weight of the rest of the tree:

    W(rows, columns) ≈ U · (Uᵀ·W),    U the R leading left singular vectors, R the size of the bond

Factors around a centre are found from the whole weight each, and the centre from them. Then each is found again from
the weight in the bases of all others (higher-order orthogonal iteration). Since U has orthonormal columns,

    ‖W − Ŵ‖² = ‖W‖² − ‖Ŵ‖²,    ‖Ŵ‖ the norm of the factor that is found last

Around a centre, ‖Ŵ‖² is at first a sum over a part of the core of full rank, so that one decomposition gives the error
at all ranks. The squared error is at most the sum of the squared errors of the truncated unfoldings of W, one for each
bond. With two factors this is optimal.

Sources: C. Eckart, G. Young, Psychometrika 1 (1936); L. De Lathauwer, B. De Moor, J. Vandewalle, SIAM J. Matrix
Anal. Appl. 21 (2000), 1253, and 1324 for the iteration; I. Oseledets, SIAM J. Sci. Comput. 33 (2011), 2295;
N. Vannieuwenhoven, R. Vandebril, K. Meerbergen, SIAM J. Sci. Comput. 34 (2012), A1027; for Kronecker products:
C. Van Loan, N. Pitsianis, in Linear Algebra for Large Scale and Real-Time Applications (1993), 293.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..weights.factorizations import Factor
from .forms import Axes, Form, Product, contract, kept, moved
from .metrics import Metric

Dims = tuple[int, ...]
"""Dimensions of a weight, by number."""


@dataclass(frozen=True)
class Cut:
    """A factor that is split off a tree.

    Attributes:
        factor: the factor.
        rows: the axes of the remaining weight that the factor alone has.
        bond: the axes between the factor and the rest of the tree.
    """

    factor: Factor
    rows: Axes
    bond: Axes


@dataclass(frozen=True)
class Tree:
    """A product whose factors form a tree.

    Attributes:
        form: the form that has the product.
        product: the product.
        shared: the axes of the weight that all factors have, if there are several.
        cuts: the factors in the order of decomposition. Around a centre, each is cut from the whole weight. Else at
            each step the end of the remaining tree with fewest rows.
        last: the factor that is found last.
        has_centre: whether this one is connected to all others.
    """

    form: Form
    product: Product
    shared: Axes
    cuts: tuple[Cut, ...]
    last: Factor
    has_centre: bool

    def places(self, axes: Axes) -> Dims:
        """The dimensions of the weight, one for each axis of the form, that some axes are."""
        return tuple(map(self.form.axes.index, axes))

    def basis(self, cut: Cut, vectors: Any) -> tuple[Any, Axes]:
        """The leading vectors of a cut, zeros if there are fewer than the bond is wide, and their axes."""
        rank, own = self.form.count(cut.bond), (*self.shared, *cut.rows, *cut.bond)
        leading = vectors[..., :rank]
        spare = [(0, 0)] * (leading.ndim - 1) + [(0, rank - leading.shape[-1])]
        return np.pad(leading, spare).reshape(self.form.shape(own)), own


def tree_of(form: Form) -> Tree | None:
    """The tree that the factors of the one product of a form are, or None."""
    product, *others = form.products
    waiting, cuts, axes = [*product.factors], list[Cut](), form.axes
    readers = Counter(axis for factor in waiting for axis in factor.axes)
    shared = tuple(axis for axis in axes if readers[axis] == len(waiting) > 1)
    inner = readers.keys() - {*axes}
    wanted = dict.fromkeys(inner, 2) | {axis: 1 for axis in axes if axis not in shared}
    if others or any(readers[axis] != count for axis, count in wanted.items()):
        return None

    def bond(one: Factor, other: Factor) -> Axes:
        return tuple(axis for axis in one.axes if axis in other.axes and axis in inner)

    def neighbours(factor: Factor) -> list[Factor]:
        others = [other for other in waiting if other is not factor]
        return [each for each in others if len(product.factors) == 2 or bond(factor, each)]

    def rows(factor: Factor) -> Axes:
        return tuple(axis for axis in factor.axes if axis in axes and axis not in shared)

    def height(factor: Factor) -> int:
        return form.count(rows(factor))

    centres = [each for each in waiting if len(neighbours(each)) == len(waiting) - 1]
    centre = max(centres, key=height, default=None)
    while len(waiting) > 1:
        ends = [each for each in waiting if each is not centre and len(neighbours(each)) == 1]
        if not ends:
            return None
        end = min(ends, key=height) if centre is None else ends[0]
        cuts.append(Cut(end, rows(end), bond(end, *neighbours(end))))
        if centre is None:
            axes = (*cuts[-1].bond, *(axis for axis in axes if axis not in cuts[-1].rows))
        waiting.remove(end)
    return Tree(form, product, shared, tuple(cuts), waiting[0], centre is not None)


@dataclass(frozen=True, eq=False)
class Decomposed:
    """A weight with a cache of its singular vectors, which trees of any rank share.

    Attributes:
        weight: an array with a dimension for each axis of the forms.
        sides: the sides of a metric that it is weighed on.
        is_whole: whether these are all sides of the metric.
    """

    weight: Any
    sides: Sequence[Metric] = ()
    is_whole: bool = True

    def factors(self, tree: Tree) -> dict[str, Any]:
        """The factors of a tree, by one decomposition for each bond."""
        found, rest, axes = dict[str, Any](), self.weight, tree.form.axes
        for cut in tree.cuts:
            if found and not tree.has_centre:
                vectors = leading(unfolded(rest, axes, tree.shared, cut.rows), tree.form.count(cut.bond))
            else:
                vectors = self._vectors(tree.places(tree.shared), tree.places(cut.rows))
            basis = tree.basis(cut, vectors)
            found[cut.factor.name] = moved(*basis, cut.factor.axes)
            left = (*tree.shared, *cut.bond, *(axis for axis in axes if axis not in basis[1]))
            rest, axes = contract([basis, (rest, axes)], left), left
        return {**found, tree.last.name: moved(rest, axes, tree.last.axes) / tree.product.coefficient}

    def turn(self, tree: Tree, factors: dict[str, Any]) -> float:
        """Finds each factor around a centre again, with all others as they are, and then the centre.

        Returns:
            ‖W − Ŵ‖ / ‖W‖.
        """
        for cut in tree.cuts:
            axes = (*cut.rows, *(axis for axis in tree.last.axes if axis not in cut.bond))
            matrix = unfolded(self._within(tree, factors, axes, cut), axes, tree.shared, cut.rows)
            basis = tree.basis(cut, leading(matrix, tree.form.count(cut.bond)))
            factors[cut.factor.name] = moved(*basis, cut.factor.axes)
        core = self._within(tree, factors, tree.last.axes)
        factors[tree.last.name] = core / tree.product.coefficient
        return self._lost(float(np.vdot(core, core)))

    def _within(self, tree: Tree, factors: Mapping[str, Any], axes: Axes, but: Cut | None = None) -> Any:
        """The weight in the bases of the factors around a centre, or of all but one."""
        bases = [cut.factor for cut in tree.cuts if cut is not but]
        return contract([(self.weight, tree.form.axes), *((factors[f.name], f.axes) for f in bases)], axes)

    def error(self, tree: Tree) -> float:
        """‖W − Ŵ‖ / ‖W‖ of the factors that decompositions give."""
        if tree.has_centre:
            ranks = (slice(tree.form.count(cut.bond)) for cut in tree.cuts)
            return self._lost(float(self.squares(tree)[tuple(ranks)].sum()))
        last = self.factors(tree)[tree.last.name]
        return self._lost(float(np.linalg.norm(last) * tree.product.coefficient) ** 2)

    def _lost(self, kept: float) -> float:
        """‖W − Ŵ‖ / ‖W‖ if Ŵ is a projection of W with this ‖Ŵ‖²."""
        return math.sqrt(max(0.0, 1.0 - kept / self._square)) if self._square else 0.0

    @functools.cached_property
    def _square(self) -> float:
        """‖W‖²."""
        return float(np.vdot(self.weight, self.weight))

    def squares(self, tree: Tree) -> Any:
        """The squares of the core of full rank, summed over all axes but the bonds, along the cuts of the tree."""
        return self._squares(tree.places(tree.shared), *(tree.places(cut.rows) for cut in tree.cuts))

    @kept
    def _squares(self, shared: Dims, *cuts: Dims) -> Any:
        axes, sizes = tuple(range(self.weight.ndim)), self.weight.shape
        named = [(self.weight, axes)]
        for bond, rows in enumerate(cuts, len(axes)):
            own = (*shared, *rows)
            vectors = self._vectors(shared, rows).reshape(*(sizes[dim] for dim in own), -1)
            named.append((vectors, (*own, bond)))
        rest = tuple(axis for axis in axes if not any(axis in rows for rows in cuts))
        core = contract(named, (*range(len(axes), len(axes) + len(cuts)), *rest))
        return (core**2).sum(tuple(range(len(cuts), core.ndim)), dtype=np.float64)

    @kept
    def _vectors(self, shared: Dims, rows: Dims) -> Any:
        """All left singular vectors of an unfolding of the weight."""
        return singular_vectors(unfolded(self.weight, tuple(range(self.weight.ndim)), shared, rows))


# ---------------------------------------------------------------------------- matrices


def unfolded(array: Any, axes: Any, shared: Any, rows: Any) -> Any:
    """An array with named axes as matrices of some rows, one for each position along the shared axes."""
    rest = tuple(axis for axis in axes if axis not in (*shared, *rows))
    made, cut = moved(array, axes, (*shared, *rows, *rest)), len(shared) + len(rows)
    return made.reshape(*made.shape[: len(shared)], -1, math.prod(made.shape[cut:]))


def leading(matrix: Any, rank: int) -> Any:
    """The `rank` leading left singular vectors of A[..., m, n], or all min(m, n) of them."""
    return singular_vectors(matrix)[..., :rank]


def singular_vectors(matrix: Any) -> Any:
    """All min(m, n) left singular vectors of A[..., m, n], those of the largest values first.

    A wide float64 matrix is decomposed by A·Aᵀ, a tall one by its triangular factor. The long side then costs one
    product.
    """
    rows, columns = matrix.shape[-2:]
    if 2 * columns <= rows:
        outer, inner = np.linalg.qr(matrix)
        return outer @ singular_vectors(inner)
    if 2 * rows <= columns and matrix.dtype == np.float64:
        _, vectors = np.linalg.eigh(matrix @ matrix.mT)
        return vectors[..., ::-1]
    return np.linalg.svd(matrix, full_matrices=False)[0]
