"""Factors that form a tree, fitted by singular value decompositions.

The axes that are summed between two factors are their bond. Each axis of the weight belongs to one factor, or to
all. Low rank, Kronecker products of two, tensor trains, block tensor trains, Tucker and hierarchical Tucker forms
are of this kind. A factor at an end of the tree holds the leading singular vectors of the weight, unfolded to the
axes of the factor and all others. The remainder is a weight of the rest of the tree:

    W(rows, columns) ≈ U · (Uᵀ·W),    U the R leading left singular vectors, R the size of the bond

The squared error is at most the sum of the squared errors of the truncated unfoldings of W, one for each bond. With
two factors this is optimal.

Sources: C. Eckart, G. Young, Psychometrika 1 (1936); L. De Lathauwer, B. De Moor, J. Vandewalle, SIAM J. Matrix
Anal. Appl. 21 (2000), 1253 and 1324; I. Oseledets, SIAM J. Sci. Comput. 33 (2011), 2295; N. Vannieuwenhoven,
R. Vandebril, K. Meerbergen, SIAM J. Sci. Comput. 34 (2012), A1027; for Kronecker products: C. Van Loan,
N. Pitsianis, in Linear Algebra for Large Scale and Real-Time Applications (1993), 293.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .contracting import Named, contract
from .forms import Factor, Form, Product

__all__ = ["Cut", "Tree", "leading", "singular_vectors", "split", "squared_values", "tree_of", "unfolded"]


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

    @property
    def is_optimal(self) -> bool:
        """Whether `decomposed` gives the least error."""
        return len(self.factors) <= 2

    @property
    def is_around(self) -> bool:
        """Whether three or more factors form a star. The ends are found separately, then the centre from them."""
        return self.centre is not None and not self.is_optimal

    @property
    def centre(self) -> Factor | None:
        """The factor that is connected to all others, if there is one."""
        around = Counter(name for pair in self.bonds for name in pair)
        return next((each for each in self.factors if around[each.name] == len(self.factors) - 1), None)

    def bond(self, a: str, b: str) -> tuple[str, ...]:
        """The axes between two connected factors."""
        return self.bonds[frozenset((a, b))]

    @functools.cached_property
    def cuts(self) -> tuple[Cut, ...]:
        """The factors in the order of decomposition: at each step the end of the remaining tree with fewest rows."""
        waiting = {factor.name: factor for factor in self.factors}
        joined, axes, found = dict(self.bonds), self.form.axes, list[Cut]()
        while len(waiting) > 1:
            factor, pair = self._end(waiting, joined, axes)
            rows = tuple(axis for axis in factor.axes if axis in axes and axis not in self.shared)
            columns = tuple(axis for axis in axes if axis not in rows and axis not in self.shared)
            found.append(Cut(factor, rows, columns, joined.pop(pair)))
            axes = (*self.shared, *found[-1].bond, *columns)
            del waiting[factor.name]
        return tuple(found)

    @functools.cached_property
    def around(self) -> tuple[Cut, ...]:
        """The cut of each factor around the centre, each from the whole weight."""
        assert self.centre is not None
        found, axes = list[Cut](), self.form.axes
        for factor in self.ends:
            bond = self.bond(factor.name, self.centre.name)
            rows = tuple(axis for axis in factor.axes if axis not in (*bond, *self.shared))
            columns = tuple(axis for axis in axes if axis not in (*rows, *self.shared))
            found.append(Cut(factor, rows, columns, bond))
        return tuple(found)

    def decomposed(self, weight: Any) -> dict[str, Any]:
        """The factors, by one decomposition for each bond. Each bond has a different unfolding.

        Args:
            weight: an array of the form's axes.
        """
        rest, found = Named(weight, self.form.axes), dict[str, Any]()
        for cut in self.cuts:
            found[cut.factor.name], rest = self._split(rest, cut)
        (last,) = (factor for factor in self.factors if factor.name not in found)
        found[last.name] = _moved(rest, last.axes)
        return found

    def _end(
        self, waiting: Mapping[str, Factor], joined: Mapping[frozenset[str], Any], axes: tuple[str, ...]
    ) -> tuple[Factor, frozenset[str]]:
        """The factor at an end of the tree whose unfolding has the fewest rows, and its bond."""
        around = Counter(name for pair in joined for name in pair)
        ends = [factor for name, factor in waiting.items() if around[name] == 1]

        def rows(factor: Factor) -> int:
            return self.form.count(tuple(a for a in factor.axes if a in axes and a not in self.shared))

        chosen = min(ends, key=rows)
        return chosen, next(pair for pair in joined if chosen.name in pair)

    def _split(self, rest: Named, cut: Cut) -> tuple[Any, Named]:
        """A factor, and the remaining weight with the bond in place of the factor's rows."""
        matrix = unfolded(rest, self.shared, cut.rows, cut.columns)
        vectors, left = split(matrix, self.form.count(cut.bond))
        ours, theirs = (*self.shared, *cut.rows, *cut.bond), (*self.shared, *cut.bond, *cut.columns)
        made = _moved(Named(vectors.reshape(self.form.shape(ours)), ours), cut.factor.axes)
        return made, Named(left.reshape(self.form.shape(theirs)), theirs)

    def truncated(self, weight: Any) -> dict[str, Any]:
        """The factors of a star: each end holds the leading singular vectors of its unfolding of W."""
        whole = Named(weight, self.form.axes)
        return self._with_centre(weight, {factor.name: self._basis(whole, factor) for factor in self.ends})

    def iterated(self, weight: Any, factors: Mapping[str, Any]) -> dict[str, Any]:
        """Better factors of a star, by one round of higher-order orthogonal iteration.

        With the other factors fixed, the leading singular vectors of Y = Wᵀ·(other factors) are optimal.

        Args:
            weight: an array of the form's axes.
            factors: factors as from `truncated`: columns of all but the centre are orthonormal or zero.
        """
        made = dict(factors)
        for factor in self.ends:
            rest = self._projected(weight, [each for each in self.ends if each != factor], made)
            made[factor.name] = self._basis(rest, factor)
        return self._with_centre(weight, made)

    @property
    def ends(self) -> tuple[Factor, ...]:
        """The factors around the centre."""
        return tuple(factor for factor in self.factors if factor != self.centre)

    def _with_centre(self, weight: Any, made: Mapping[str, Any]) -> dict[str, Any]:
        centre = self.centre
        assert centre is not None
        return {**made, centre.name: _moved(self._projected(weight, self.ends, made), centre.axes)}

    def _basis(self, rest: Named, factor: Factor) -> Any:
        """The factor at an end: the leading singular vectors of a tensor, unfolded to the axes of the factor."""
        assert self.centre is not None
        bond = self.bond(factor.name, self.centre.name)
        rows = tuple(axis for axis in factor.axes if axis not in bond and axis not in self.shared)
        columns = tuple(axis for axis in rest.axes if axis not in rows and axis not in self.shared)
        vectors, _ = split(unfolded(rest, self.shared, rows, columns), self.form.count(bond))
        axes = (*self.shared, *rows, *bond)
        return _moved(Named(vectors.reshape(self.form.shape(axes)), axes), factor.axes)

    def _projected(self, weight: Any, factors: Sequence[Factor], made: Mapping[str, Any]) -> Named:
        """The weight contracted with some factors, so that bonds replace the axes of these factors."""
        operands = [Named(made[factor.name], factor.axes) for factor in factors]
        gone = {axis for factor in factors for axis in factor.axes if axis in self.form.axes}
        kept = tuple(axis for axis in self.form.axes if axis not in gone or axis in self.shared)
        new = tuple(axis for factor in factors for axis in factor.axes if axis not in self.form.axes)
        return Named(contract([Named(weight, self.form.axes), *operands], (*kept, *new)), (*kept, *new))


def tree_of(form: Form, product: Product) -> Tree | None:
    """The tree that the factors of a product form, or None."""
    factors = product.factors
    readers = Counter(axis for factor in factors for axis in factor.axes)
    if set(form.axes) - set(readers) or len({factor.name for factor in factors}) < len(factors):
        return None
    shared = tuple(axis for axis in form.axes if readers[axis] == len(factors) > 1)
    for axis, count in readers.items():
        if count != (1 if axis in form.axes else 2) and axis not in shared:
            return None
    bonds = _spanning(_bonds(form, factors), [factor.name for factor in factors])
    return None if bonds is None else Tree(form, product, shared, bonds)


def _bonds(form: Form, factors: Sequence[Factor]) -> dict[frozenset[str], tuple[str, ...]]:
    found: dict[frozenset[str], tuple[str, ...]] = {}
    for a, b in itertools.combinations(factors, 2):
        between = tuple(axis for axis in a.axes if axis in b.axes and axis not in form.axes)
        if between:
            found[frozenset((a.name, b.name))] = between
    return found


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


# ---------------------------------------------------------------------------- matrices


def unfolded(tensor: Named, shared: tuple[str, ...], rows: tuple[str, ...], columns: tuple[str, ...]) -> Any:
    """The tensor as matrices, one for each position along the shared axes."""
    moved = _moved(tensor, (*shared, *rows, *columns))
    shape = moved.shape
    cut = len(shared) + len(rows)
    rest = int(np.prod(shape[cut:], dtype=np.int64))
    return moved.reshape((*shape[: len(shared)], -1, rest))


def _moved(tensor: Named, axes: tuple[str, ...]) -> Any:
    return np.ascontiguousarray(tensor.array.transpose([tensor.axes.index(axis) for axis in axes]))


def split(matrix: Any, rank: int, vectors: Any = None) -> tuple[Any, Any]:
    """U·V ≈ A, where the first min(m, n) columns of U are orthonormal and further ones are zero.

    Args:
        matrix: A[..., m, n].
        rank: R, the number of columns of U[..., m, R] and of rows of V[..., R, n].
        vectors: all left singular vectors of A, if they are known.
    """
    vectors = leading(matrix, rank) if vectors is None else vectors[..., :rank]
    left = vectors.swapaxes(-1, -2) @ matrix
    spare = [(0, 0)] * (matrix.ndim - 2), (0, rank - vectors.shape[-1])
    return np.pad(vectors, [*spare[0], (0, 0), spare[1]]), np.pad(left, [*spare[0], spare[1], (0, 0)])


def leading(matrix: Any, rank: int) -> Any:
    """The `rank` leading left singular vectors of A[..., m, n], or all min(m, n) of them.

    The identity, which spans the same space, if m is at most `rank` and n.
    """
    rows, columns = matrix.shape[-2:]
    if rows <= rank and rows <= columns:
        return np.broadcast_to(np.eye(rows, dtype=matrix.dtype), (*matrix.shape[:-2], rows, rows))
    if 2 * columns <= rows:
        outer, inner = np.linalg.qr(matrix)
        return outer @ leading(inner, rank)
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
        _, vectors = np.linalg.eigh(matrix @ matrix.swapaxes(-1, -2))
        return vectors[..., ::-1]
    return np.linalg.svd(matrix, full_matrices=False)[0]


def squared_values(matrix: Any) -> Any:
    """The squared singular values of A[..., m, n], the largest first, from the smaller one of A·Aᵀ and Aᵀ·A."""
    other = matrix.swapaxes(-1, -2)
    square = other @ matrix if matrix.shape[-1] < matrix.shape[-2] else matrix @ other
    return np.maximum(np.linalg.eigvalsh(square), 0.0)[..., ::-1]
