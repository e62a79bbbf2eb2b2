"""Factors that hang together as a tree, fitted by singular value decompositions.

Two factors share the axes that are summed between them, their bond, and each axis of the weight belongs to one
factor, or to all: such are low rank, Kronecker products of two, tensor trains, block tensor trains, Tucker and
hierarchical Tucker forms. A factor at the end of the tree holds the leading singular vectors of the weight,
unfolded to its axes and all others; what is left is a weight of the rest of the tree:

    W(rows, columns) ≈ U · (Uᵀ·W),    U the R leading left singular vectors, R the size of the bond

so that the squared error is at most the sum of what the unfoldings of W leave out, one for each bond. With two
factors nothing is nearer.

Sources: C. Eckart, G. Young, Psychometrika 1 (1936); L. De Lathauwer, B. De Moor, J. Vandewalle, SIAM J. Matrix
Anal. Appl. 21 (2000), 1253 and 1324; I. Oseledets, SIAM J. Sci. Comput. 33 (2011), 2295; N. Vannieuwenhoven,
R. Vandebril, K. Meerbergen, SIAM J. Sci. Comput. 34 (2012), A1027; of Kronecker products: C. Van Loan,
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
    """A factor taken off a tree.

    Attributes:
        factor: it.
        rows, columns: the axes of what is left of the weight that it has, and the others.
        bond: the axes between it and the rest.
    """

    factor: Factor
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    bond: tuple[str, ...]


@dataclass(frozen=True)
class Tree:
    """A product whose factors hang together as a tree.

    Attributes:
        form: what it is of.
        product: its factors hang together as a tree.
        shared: the axes of the weight that all of several factors have.
        bonds: the pairs of factors that are joined, and the axes between them, none where these are apart.
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
        """Whether nothing comes nearer than `decomposed`."""
        return len(self.factors) <= 2

    @property
    def is_around(self) -> bool:
        """Whether factors at its ends are found each by itself, and the centre of what they leave."""
        return self.centre is not None and not self.is_optimal

    @property
    def centre(self) -> Factor | None:
        """The factor that all others are joined to, where there is one."""
        around = Counter(name for pair in self.bonds for name in pair)
        return next((each for each in self.factors if around[each.name] == len(self.factors) - 1), None)

    def bond(self, a: str, b: str) -> tuple[str, ...]:
        """The axes between two factors that are joined."""
        return self.bonds[frozenset((a, b))]

    @functools.cached_property
    def cuts(self) -> tuple[Cut, ...]:
        """A factor after another at an end of what is left of the tree, the one of the fewest rows first."""
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
        """Each factor at an end of its own, all others being around a centre."""
        assert self.centre is not None
        found, axes = list[Cut](), self.form.axes
        for factor in self.ends:
            bond = self.bond(factor.name, self.centre.name)
            rows = tuple(axis for axis in factor.axes if axis not in (*bond, *self.shared))
            columns = tuple(axis for axis in axes if axis not in (*rows, *self.shared))
            found.append(Cut(factor, rows, columns, bond))
        return tuple(found)

    def decomposed(self, weight: Any) -> dict[str, Any]:
        """The factors, by one decomposition for each bond; no two bonds need the same unfolding.

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
        """A factor, and what is left of the weight without its axes."""
        matrix = unfolded(rest, self.shared, cut.rows, cut.columns)
        vectors, left = split(matrix, self.form.count(cut.bond))
        ours, theirs = (*self.shared, *cut.rows, *cut.bond), (*self.shared, *cut.bond, *cut.columns)
        made = _moved(Named(vectors.reshape(self.form.shape(ours)), ours), cut.factor.axes)
        return made, Named(left.reshape(self.form.shape(theirs)), theirs)

    def truncated(self, weight: Any) -> dict[str, Any]:
        """The factors where all others are around a centre: the leading singular vectors of each unfolding of W."""
        whole = Named(weight, self.form.axes)
        return self._with_centre(weight, {factor.name: self._basis(whole, factor) for factor in self.ends})

    def iterated(self, weight: Any, factors: Mapping[str, Any]) -> dict[str, Any]:
        """Better factors where all others are around a centre: one round of higher-order orthogonal iteration.

        With the other factors as they are, the leading singular vectors of Y = Wᵀ·(other factors) are best.

        Args:
            weight: an array of the form's axes.
            factors: as `truncated` gives them: all but the centre have orthonormal columns, or zero ones.
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
        """A factor at an end: the leading singular vectors of what is unfolded to its axes."""
        assert self.centre is not None
        bond = self.bond(factor.name, self.centre.name)
        rows = tuple(axis for axis in factor.axes if axis not in bond and axis not in self.shared)
        columns = tuple(axis for axis in rest.axes if axis not in rows and axis not in self.shared)
        vectors, _ = split(unfolded(rest, self.shared, rows, columns), self.form.count(bond))
        axes = (*self.shared, *rows, *bond)
        return _moved(Named(vectors.reshape(self.form.shape(axes)), axes), factor.axes)

    def _projected(self, weight: Any, factors: Sequence[Factor], made: Mapping[str, Any]) -> Named:
        """The weight, some of its axes taken to the bonds of their factors."""
        operands = [Named(made[factor.name], factor.axes) for factor in factors]
        gone = {axis for factor in factors for axis in factor.axes if axis in self.form.axes}
        kept = tuple(axis for axis in self.form.axes if axis not in gone or axis in self.shared)
        new = tuple(axis for factor in factors for axis in factor.axes if axis not in self.form.axes)
        return Named(contract([Named(weight, self.form.axes), *operands], (*kept, *new)), (*kept, *new))


def tree_of(form: Form, product: Product) -> Tree | None:
    """The tree that the factors of a product are, or nothing."""
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
    """The bonds, and between parts that none joins one of no axes; nothing if there is a circle."""
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
    """The tensor as matrices, one for each place along the shared axes."""
    moved = _moved(tensor, (*shared, *rows, *columns))
    shape = moved.shape
    cut = len(shared) + len(rows)
    rest = int(np.prod(shape[cut:], dtype=np.int64))
    return moved.reshape((*shape[: len(shared)], -1, rest))


def _moved(tensor: Named, axes: tuple[str, ...]) -> Any:
    return np.ascontiguousarray(tensor.array.transpose([tensor.axes.index(axis) for axis in axes]))


def split(matrix: Any, rank: int, vectors: Any = None) -> tuple[Any, Any]:
    """U·V ≈ A, the columns of U orthonormal, and those beyond the rows of A zero.

    Args:
        matrix: A[..., m, n].
        rank: R, the columns of U[..., m, R] and the rows of V[..., R, n].
        vectors: all left singular vectors of A, if they are known.
    """
    vectors = leading(matrix, rank) if vectors is None else vectors[..., :rank]
    left = vectors.swapaxes(-1, -2) @ matrix
    spare = [(0, 0)] * (matrix.ndim - 2), (0, rank - vectors.shape[-1])
    return np.pad(vectors, [*spare[0], (0, 0), spare[1]]), np.pad(left, [*spare[0], spare[1], (0, 0)])


def leading(matrix: Any, rank: int) -> Any:
    """The `rank` leading left singular vectors of A[..., m, n], or all min(m, n) of them."""
    rows, columns = matrix.shape[-2:]
    if rows <= rank and rows <= columns:
        return np.broadcast_to(np.eye(rows, dtype=matrix.dtype), (*matrix.shape[:-2], rows, rows))
    if 2 * columns <= rows:
        outer, inner = np.linalg.qr(matrix)
        return outer @ leading(inner, rank)
    return singular_vectors(matrix)[..., :rank]


def singular_vectors(matrix: Any) -> Any:
    """All min(m, n) left singular vectors of A[..., m, n], those of the largest values first.

    A wide matrix is decomposed by A·Aᵀ, a tall one by its triangular factor, so that the long side costs one product.
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
    """The squares of the singular values of A[..., m, n], the largest first, by A·Aᵀ or Aᵀ·A, whichever is smaller."""
    other = matrix.swapaxes(-1, -2)
    square = other @ matrix if matrix.shape[-1] < matrix.shape[-2] else matrix @ other
    return np.maximum(np.linalg.eigvalsh(square), 0.0)[..., ::-1]
