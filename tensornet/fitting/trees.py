"""Factors that form a tree, fitted by singular value decompositions.

The axes that are summed between two factors are their bond. Each axis of the weight belongs to one factor, or to
all. Low rank, Kronecker products of two, tensor trains, block tensor trains, Tucker and hierarchical Tucker forms
are of this kind. A factor at an end of the tree holds the leading singular vectors of the weight, unfolded to the
axes of the factor and all others. The remainder is a weight of the rest of the tree:

    W(rows, columns) ≈ U · (Uᵀ·W),    U the R leading left singular vectors, R the size of the bond

Factors around a centre are found from the whole weight each, and the centre from them. Since U has orthonormal columns,

    ‖W − Ŵ‖² = ‖W‖² − ‖Ŵ‖²,    ‖Ŵ‖ the norm of the factor that is found last

Around a centre, ‖Ŵ‖² is a sum over a part of the core of full rank, so that one decomposition gives the error at all
ranks. The squared error is at most the sum of the squared errors of the truncated unfoldings of W, one for each bond.
With two factors this is optimal.

Sources: C. Eckart, G. Young, Psychometrika 1 (1936); L. De Lathauwer, B. De Moor, J. Vandewalle, SIAM J. Matrix
Anal. Appl. 21 (2000), 1253 and 1324; I. Oseledets, SIAM J. Sci. Comput. 33 (2011), 2295; N. Vannieuwenhoven,
R. Vandebril, K. Meerbergen, SIAM J. Sci. Comput. 34 (2012), A1027; for Kronecker products: C. Van Loan,
N. Pitsianis, in Linear Algebra for Large Scale and Real-Time Applications (1993), 293.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .forms import Factor, Form, Named, Product

__all__ = ["Cut", "Decomposed", "Tree", "leading", "tree_of", "unfolded"]


@dataclass(frozen=True)
class Cut:
    """A factor that is split off a tree.

    Attributes:
        factor: the factor.
        rows, columns: the axes of the remaining weight that the factor has, and those that it does not have.
        bond: the axes between the factor and the rest of the tree.
    """

    factor: Factor
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    bond: tuple[str, ...]


@dataclass(frozen=True)
class Tree:
    """A product whose factors form a tree.

    Attributes:
        form: the form that has the product.
        product: the product.
        shared: the axes of the weight that all factors have, if there are several.
        bonds: pairs of connected factors to the axes between them; an empty bond connects separate parts.
    """

    form: Form
    product: Product
    shared: tuple[str, ...]
    bonds: Mapping[frozenset[str], tuple[str, ...]]

    @property
    def factors(self) -> tuple[Factor, ...]:
        """The factors."""
        return self.product.factors

    @functools.cached_property
    def last(self) -> Factor:
        """The factor that is found last."""
        cut = [each.factor for each in self.cuts]
        return next(factor for factor in self.factors if factor not in cut)

    @functools.cached_property
    def centre(self) -> Factor | None:
        """The factor that is connected to all others, if there is one; of two factors the one with more rows."""
        around = Counter(name for pair in self.bonds for name in pair)
        found = [each for each in self.factors if around[each.name] == len(self.factors) - 1]
        return max(found, key=self._height, default=None)

    @functools.cached_property
    def cuts(self) -> tuple[Cut, ...]:
        """The factors in the order of decomposition.

        Around a centre, all others, each cut from the whole weight. Else at each step the end of the remaining tree
        with fewest rows.
        """
        found, axes, joined = list[Cut](), self.form.axes, dict(self.bonds)
        if (centre := self.centre) is not None:
            ends = [each for each in self.factors if each != centre]
            return tuple(self._cut(each, axes, joined[frozenset((each.name, centre.name))]) for each in ends)
        waiting = {factor.name: factor for factor in self.factors}
        while len(waiting) > 1:
            around = Counter(name for pair in joined for name in pair)
            ends = [factor for name, factor in waiting.items() if around[name] == 1]
            factor = min(ends, key=functools.partial(self._height, axes=axes))
            pair = next(pair for pair in joined if factor.name in pair)
            found.append(self._cut(factor, axes, joined.pop(pair)))
            axes = (*self.shared, *found[-1].bond, *found[-1].columns)
            del waiting[factor.name]
        return tuple(found)

    def _cut(self, factor: Factor, axes: tuple[str, ...], bond: tuple[str, ...]) -> Cut:
        rows = tuple(axis for axis in factor.axes if axis in axes and axis not in self.shared)
        columns = tuple(axis for axis in axes if axis not in rows and axis not in self.shared)
        return Cut(factor, rows, columns, bond)

    def _height(self, factor: Factor, axes: tuple[str, ...] | None = None) -> int:
        """The number of rows of the unfolding to the axes of a factor."""
        known = self.form.axes if axes is None else axes
        return self.form.count(tuple(a for a in factor.axes if a in known and a not in self.shared))

    def rank(self, cut: Cut) -> int:
        """The size of a bond."""
        return self.form.count(cut.bond)

    def end(self, cut: Cut, vectors: Any) -> Any:
        """The factor that has the leading ones of some singular vectors as its columns. Further columns are zero."""
        axes = (*self.shared, *cut.rows, *cut.bond)
        columns = _resized(vectors, -1, self.rank(cut)).reshape(self.form.shape(axes))
        return _moved(Named(columns, axes), cut.factor.axes)


def tree_of(form: Form, product: Product | None = None) -> Tree | None:
    """The tree that the factors of a product form, the first if none is given, or None."""
    product = product or form.products[0]
    factors = product.factors
    readers = Counter(axis for factor in factors for axis in factor.axes)
    if set(form.axes) - set(readers) or len({factor.name for factor in factors}) < len(factors):
        return None
    shared = tuple(axis for axis in form.axes if readers[axis] == len(factors) > 1)
    for axis, count in readers.items():
        if count != (1 if axis in form.axes else 2) and axis not in shared:
            return None
    bonds: dict[frozenset[str], tuple[str, ...]] = {}
    for a, b in itertools.combinations(factors, 2):
        between = tuple(axis for axis in a.axes if axis in b.axes and axis not in form.axes)
        if between:
            bonds[frozenset((a.name, b.name))] = between
    found = _spanning(bonds, [factor.name for factor in factors])
    return None if found is None else Tree(form, product, shared, found)


def _spanning(
    bonds: Mapping[frozenset[str], tuple[str, ...]], names: Sequence[str]
) -> dict[frozenset[str], tuple[str, ...]] | None:
    """The bonds, plus empty bonds that connect separate parts; None if the bonds form a cycle."""
    part = {name: name for name in names}

    def join(a: str, b: str) -> bool:
        old, new = part[a], part[b]
        part.update((name, new) for name in names if part[name] == old)
        return old != new

    if not all(join(*pair) for pair in bonds):
        return None
    apart = [(a, b) for a, b in itertools.pairwise(names) if join(a, b)]
    return {**bonds, **{frozenset(pair): () for pair in apart}}


@dataclass(frozen=True, eq=False)
class Decomposed:
    """A weight with a cache of its singular vectors, which trees of any rank share.

    Attributes:
        weight: an array.
    """

    weight: Any
    _kept: dict[Any, Any] = field(default_factory=dict)

    @functools.cached_property
    def square(self) -> float:
        """‖W‖²."""
        return float(np.vdot(self.weight, self.weight))

    def factors(self, tree: Tree) -> dict[str, Any]:
        """The factors of a tree whose coefficient is 1, by one decomposition for each bond."""
        found = dict[str, Any]()
        if tree.centre is not None:
            found = {cut.factor.name: tree.end(cut, self._vectors(tree, cut)) for cut in tree.cuts}
            return {**found, tree.last.name: self._centre(tree)}
        rest = Named(self._whole(tree), tree.form.axes)
        for cut in tree.cuts:
            matrix, rank = unfolded(rest, tree.shared, cut.rows, cut.columns), tree.rank(cut)
            vectors = leading(matrix, rank) if found else self._vectors(tree, cut)[..., :rank]
            found[cut.factor.name] = tree.end(cut, vectors)
            left, axes = _resized(vectors.mT @ matrix, -2, rank), (*tree.shared, *cut.bond, *cut.columns)
            rest = Named(left.reshape(tree.form.shape(axes)), axes)
        return {**found, tree.last.name: _moved(rest, tree.last.axes)}

    def error(self, tree: Tree) -> float:
        """‖W − Ŵ‖ / ‖W‖ of the factors that decompositions give."""
        if tree.centre is not None:
            kept = float(self.squares(tree)[tuple(slice(tree.rank(cut)) for cut in tree.cuts)].sum())
        else:
            kept = float(np.linalg.norm(self.factors(tree)[tree.last.name])) ** 2
        return math.sqrt(max(0.0, 1.0 - kept / self.square)) if self.square else 0.0

    def nearest(self, tree: Tree) -> Any:
        """Ŵ of the factors that decompositions give, with the form's axes."""
        made = self.factors(tree)
        rest = Named(made[tree.last.name], tree.last.axes)
        for cut in reversed(tree.cuts):
            end = unfolded(Named(made[cut.factor.name], cut.factor.axes), tree.shared, cut.rows, cut.bond)
            columns = tuple(axis for axis in rest.axes if axis not in (*tree.shared, *cut.bond))
            axes = (*tree.shared, *cut.rows, *columns)
            again = end @ unfolded(rest, tree.shared, cut.bond, columns)
            rest = Named(again.reshape(tree.form.shape(axes)), axes)
        return _moved(rest, tree.form.axes)

    def squares(self, tree: Tree) -> Any:
        """The squares of the core of full rank, summed over all axes but the bonds, along the cuts of the tree."""

        def summed() -> Any:
            core, bonds = self._core(tree), tuple(cut.factor.name for cut in tree.cuts)
            array = _moved(core, (*bonds, *(axis for axis in core.axes if axis not in bonds)))
            return (array**2).sum(tuple(range(len(bonds), array.ndim)), dtype=np.float64)

        return self._once("squares", tree, tree.cuts, summed)

    def _centre(self, tree: Tree) -> Any:
        """The factor in the centre: the leading part of the core."""
        (array, names), axes = self._core(tree), list[str]()
        cuts = {cut.factor.name: cut for cut in tree.cuts}
        for n, name in enumerate(names):
            array = _resized(array, n, tree.rank(cuts[name])) if name in cuts else array
            axes += cuts[name].bond if name in cuts else (name,)
        return _moved(Named(array.reshape(tree.form.shape(tuple(axes))), tuple(axes)), tree.last.axes)

    def _core(self, tree: Tree) -> Named:
        """The core of full rank; its axis along a bond has the name of the factor there."""
        shared = tree.shared
        axes = tree.form.axes
        for cut in tree.cuts:
            axes = (*shared, cut.factor.name, *(axis for axis in axes if axis not in (*shared, *cut.rows)))

        def core() -> Any:
            rest = Named(self._whole(tree), tree.form.axes)
            for cut in tree.cuts:
                columns = tuple(axis for axis in rest.axes if axis not in (*shared, *cut.rows))
                left = self._vectors(tree, cut).mT @ unfolded(rest, shared, cut.rows, columns)
                sizes = (rest.array.shape[rest.axes.index(axis)] for axis in columns)
                made = left.reshape(*tree.form.shape(shared), left.shape[-2], *sizes)
                rest = Named(made, (*shared, cut.factor.name, *columns))
            return rest.array

        return Named(self._once("core", tree, tree.cuts, core), axes)  # other forms name these axes otherwise

    def _vectors(self, tree: Tree, cut: Cut) -> Any:
        """All left singular vectors of an unfolding of the weight."""
        whole = Named(self._whole(tree), tree.form.axes)
        matrix = functools.partial(unfolded, whole, tree.shared, cut.rows, cut.columns)
        return self._once("vectors", tree, (cut,), lambda: singular_vectors(matrix()))

    def _whole(self, tree: Tree) -> Any:
        return self.weight.reshape(tree.form.shape(tree.form.axes))

    def _once(self, what: str, tree: Tree, cuts: Sequence[Cut], make: Callable[[], Any]) -> Any:
        """A result that depends on the weight and its unfoldings but not on ranks, computed once."""
        axes = tree.form.axes
        places = tuple(tuple(map(axes.index, each)) for each in (tree.shared, *(cut.rows for cut in cuts)))
        key = (what, tree.form.shape(axes), places)
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]


# ---------------------------------------------------------------------------- matrices


def unfolded(tensor: Named, shared: tuple[str, ...], rows: tuple[str, ...], columns: tuple[str, ...]) -> Any:
    """The tensor as matrices, one for each position along the shared axes."""
    moved = _moved(tensor, (*shared, *rows, *columns))
    cut = len(shared) + len(rows)
    return moved.reshape((*moved.shape[: len(shared)], -1, math.prod(moved.shape[cut:])))


def _moved(tensor: Named, axes: tuple[str, ...]) -> Any:
    return np.ascontiguousarray(tensor.array.transpose([tensor.axes.index(axis) for axis in axes]))


def _resized(array: Any, dim: int, size: int) -> Any:
    """The array cut off, or with zeros, at a size along one dimension."""
    cut, spare = [slice(None)] * array.ndim, [(0, 0)] * array.ndim
    cut[dim] = slice(size)
    spare[dim] = (0, max(0, size - array.shape[dim]))
    return np.pad(array[tuple(cut)], spare)


def leading(matrix: Any, rank: int) -> Any:
    """The `rank` leading left singular vectors of A[..., m, n], or all min(m, n) of them.

    The identity, which spans the same space, if m is at most `rank` and n.
    """
    rows, columns = matrix.shape[-2:]
    if rows <= rank and rows <= columns:
        return np.broadcast_to(np.eye(rows, dtype=matrix.dtype), (*matrix.shape[:-2], rows, rows))
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
