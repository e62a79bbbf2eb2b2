"""Factors of any multilinear form by alternating least squares, and all factors at once near the end.

With all factors but one fixed, ‖W − Ŵ‖² + λ·Σ‖factor‖² is a least squares problem in that one:

    (Mᵀ·M + λ)·f = Mᵀ·(W − other terms),    M the product of the other factors in its term

Mᵀ·M is a contraction of the other factors with themselves. For a canonical (CP) form it is the Hadamard product
of small matrices. Rounds get slow in long valleys. All factors are then moved at once by a step of Levenberg and
Marquardt. The matrix of that step consists of the same kind of contractions.

Sources: T. Kolda, B. Bader, SIAM Review 51 (2009), 455, section 3.4; P. Comon, X. Luciani, A. de Almeida,
J. Chemometrics 23 (2009), 393; G. Tomasi, R. Bro, Comput. Stat. Data Anal. 50 (2006), 1700.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .contracting import Named, contract
from .forms import Factor, Form, Product
from .trees import leading, unfolded

__all__ = ["Least", "balanced", "started"]

DIRECT = 2048
"""The most unknowns for which the matrix is built and solved directly. More are found by conjugate gradients."""

STEPS = 10
"""The steps of conjugate gradients for one factor in one round."""

SMALL = 4096
"""A Gram matrix of a factor with up to this many elements is always kept; see `Least.square`."""

NEAR = 1e-12
"""The weight in float64 of the distance to the previous factor, relative to the mean diagonal of Mᵀ·M.

Directions that Mᵀ·M does not determine then stay as they were.
"""


@dataclass
class Least:
    """A least squares problem in the factors of a form, and their current values.

    Attributes:
        form: the sum of products; a factor to be found is in exactly one of them, once.
        weight: an array of the form's axes.
        arrays: all tensors that the form reads.
        wanted: the names of the factors to be found.
        norm: the norm that errors are relative to: ‖W‖, known terms included.
        regularization: λ, in units of the weight's mean square.
    """

    form: Form
    weight: Any
    arrays: dict[str, Any]
    wanted: tuple[str, ...]
    norm: float
    regularization: float = 0.0
    _squares: dict[str, Any] = field(default_factory=dict, init=False)
    _values: dict[Product, Any] = field(default_factory=dict, init=False)

    @functools.cached_property
    def terms(self) -> tuple[Product, ...]:
        """The products that have a factor to be found."""
        return tuple(p for p in self.form.products if any(f.name in self.wanted for f in p.factors))

    @functools.cached_property
    def penalty(self) -> float:
        """λ times the mean square of the weight."""
        return self.regularization * self.norm**2 / int(self.weight.size)

    def value(self, product: Product) -> Any:
        """The current value of a term. Axes of the weight that the term does not have are of size 1."""
        found = self._values.get(product)
        if found is None:
            read = {axis for factor in product.factors for axis in factor.axes}
            axes = tuple(axis for axis in self.form.axes if axis in read)
            made = contract([self._named(factor) for factor in product.factors], axes)
            shape = tuple(self.form.sizes[axis] if axis in read else 1 for axis in self.form.axes)
            found = self._values[product] = product.coefficient * made.reshape(shape)
        return found

    def whole(self) -> Any:
        """Ŵ."""
        total = np.zeros_like(self.weight)
        for product in self.form.products:
            total += self.value(product)
        return total

    def error(self) -> float:
        """‖W − Ŵ‖ / ‖W‖."""
        return float(np.linalg.norm(self.weight - self.whole())) / (self.norm or 1.0)

    def put(self, name: str, array: Any) -> None:
        """Replaces a factor, and drops cached values that depend on it."""
        self.arrays[name] = array
        self._squares.pop(name, None)
        self._values = {
            product: value
            for product, value in self._values.items()
            if all(factor.name != name for factor in product.factors)
        }

    def target(self, product: Product) -> Any:
        """The value that a term should have: the weight minus the other terms."""
        total: Any = self.weight
        for other in self.form.products:
            if other is not product:
                total = total - self.value(other)
        return total

    def _named(self, factor: Factor) -> Named:
        return Named(self.arrays[factor.name], factor.axes)

    # ---- one factor

    @functools.cached_property
    def widest(self) -> int:
        """The largest number of unknowns in one linear system."""
        factors = [
            factor for product in self.terms for factor in product.factors if factor.name in self.wanted
        ]
        outer = set(self.form.axes)
        return max(
            self.form.count(tuple(axis for axis in each.axes if axis not in outer)) for each in factors
        )

    def round(self) -> float:
        """Replaces each factor by its optimum. The result is the relative error, computed from sums of squares."""
        error = math.inf
        for product in self.terms:
            target = Named(self.target(product), self.form.axes)
            for factor in product.factors:
                if factor.name in self.wanted:
                    error = self._move(product, factor, target)
        return error

    def _move(self, product: Product, factor: Factor, target: Named) -> float:
        system = _System(self, product, factor)
        right = system.right(target)
        before = self.arrays[factor.name]
        if math.prod(self.form.shape(system.summed)) <= DIRECT:
            matrix = system.matrix()
            now = system.solved(matrix, right, before)
            fitted = float(np.vdot(now, system.times(matrix, now)))
        else:
            now = system.iterated(right, before)
            fitted = float(np.vdot(now, system.applied(now)))
        self.put(factor.name, now)
        square = float(np.vdot(target.array, target.array)) - 2 * float(np.vdot(right, now)) + fitted
        return math.sqrt(max(square, 0.0)) / (self.norm or 1.0)

    def square(self, factor: Factor) -> Named | None:
        """The Gram matrix of a factor, summed over its axes of the weight; None if it has none, or it is large.

        The matrix is cached until the factor changes.
        """
        inner = tuple(axis for axis in factor.axes if axis not in self.form.axes)
        small = max(SMALL, 4 * self.form.count(factor.axes))
        if len(inner) == len(factor.axes) or self.form.count(inner) ** 2 > small:
            return None
        axes = (*inner, *map(primed, inner))
        if factor.name not in self._squares:
            once = self._named(factor)
            twice = Named(once.array, tuple(primed(a) if a in inner else a for a in once.axes))
            self._squares[factor.name] = contract([once, twice], axes)
        return Named(self._squares[factor.name], axes)


def primed(axis: str) -> str:
    """The name of an axis in the second of two equal products."""
    return f"{axis}′"


@dataclass(frozen=True)
class _System:
    """The normal equations of one factor. Their axes are those of the factor, with its summed axes twice."""

    least: Least
    product: Product
    factor: Factor

    @functools.cached_property
    def others(self) -> tuple[Factor, ...]:
        """The other factors of the term."""
        return self.product.without(self.factor.name)

    @functools.cached_property
    def summed(self) -> tuple[str, ...]:
        """The axes of the factor that the weight does not have."""
        return tuple(axis for axis in self.factor.axes if axis not in self.least.form.axes)

    @functools.cached_property
    def batched(self) -> tuple[str, ...]:
        """The axes of the weight that both this factor and another one have."""
        read = {axis for other in self.others for axis in other.axes}
        return tuple(axis for axis in self.factor.axes if axis in self.least.form.axes and axis in read)

    @functools.cached_property
    def free(self) -> tuple[str, ...]:
        """The axes of the weight that only this factor has."""
        own = {*self.summed, *self.batched}
        return tuple(axis for axis in self.factor.axes if axis not in own)

    @functools.cached_property
    def repeats(self) -> int:
        """The number of elements of the weight to which one element of the term is broadcast."""
        read = {axis for factor in self.product.factors for axis in factor.axes}
        return self.least.form.count(tuple(axis for axis in self.least.form.axes if axis not in read))

    def right(self, target: Named) -> Any:
        """Mᵀ·(W − other terms), with the factor's axes."""
        others = [self.least._named(other) for other in self.others]
        return self.product.coefficient * contract([target, *others], self.factor.axes)

    def matrix(self) -> Any:
        """Mᵀ·M, with the axes batched, summed, summed′."""
        axes = (*self.batched, *self.summed, *map(primed, self.summed))
        operands: list[Named] = []
        for other in self.others:
            apart = not any(axis in other.axes for axis in self.batched) and self._alone(other)
            square = self.least.square(other) if apart else None
            if square is not None:
                operands.append(square)
            else:
                once = self.least._named(other)
                inner = self.least.form.axes
                operands += [
                    once,
                    Named(once.array, tuple(a if a in inner else primed(a) for a in once.axes)),
                ]
        scale = self.product.coefficient**2 * self.repeats
        return scale * contract(operands, axes) if operands else np.full((), scale)

    def _alone(self, other: Factor) -> bool:
        """Whether a factor shares no axis of the weight with a third factor."""
        rest = {axis for each in self.others if each != other for axis in each.axes}
        return not any(axis in rest and axis in self.least.form.axes for axis in other.axes)

    def _as_matrices(self, array: Any) -> Any:
        """An array with the factor's axes as matrices [batched, summed, free]."""
        axes = (*self.batched, *self.summed, *self.free)
        moved = array.transpose([self.factor.axes.index(axis) for axis in axes])
        count = self.least.form.count
        return moved.reshape(count(self.batched), count(self.summed), count(self.free))

    def _as_factor(self, matrices: Any) -> Any:
        axes = (*self.batched, *self.summed, *self.free)
        whole = matrices.reshape(self.least.form.shape(axes))
        return np.ascontiguousarray(whole.transpose([axes.index(axis) for axis in self.factor.axes]))

    def _square(self, matrix: Any) -> Any:
        count = self.least.form.count
        return matrix.reshape(count(self.batched), count(self.summed), count(self.summed))

    def times(self, matrix: Any, array: Any) -> Any:
        """Mᵀ·M·f."""
        return self._as_factor(self._square(matrix) @ self._as_matrices(array))

    def solved(self, matrix: Any, right: Any, before: Any) -> Any:
        """The optimal factor. Of several equally good ones, the one nearest to the previous factor."""
        squares, now = self._square(matrix), self._as_matrices(before)
        size = squares.shape[-1]
        mean = np.trace(squares, axis1=-2, axis2=-1).max() / size
        ridge, eye = self.least.penalty, np.eye(size, dtype=squares.dtype)
        if not mean + ridge:
            return before
        hold = NEAR if squares.dtype == np.float64 else 1e-6
        gap = self._as_matrices(right) - squares @ now - ridge * now
        return self._as_factor(now + np.linalg.solve(squares + (ridge + hold * mean) * eye, gap))

    def applied(self, array: Any) -> Any:
        """Mᵀ·M·f, without building the matrix."""
        others = [self.least._named(other) for other in self.others]
        read = {axis for factor in self.product.factors for axis in factor.axes}
        axes = tuple(axis for axis in self.least.form.axes if axis in read)
        value = contract([Named(array, self.factor.axes), *others], axes)
        back = contract([Named(value, axes), *others], self.factor.axes)
        return self.product.coefficient**2 * self.repeats * back

    def iterated(self, right: Any, before: Any) -> Any:
        """The factor after at most `STEPS` steps of conjugate gradients."""
        from scipy.sparse.linalg import LinearOperator, cg

        def times(vector: Any) -> Any:
            array = vector.reshape(before.shape)
            return (self.applied(array) + self.least.penalty * array).ravel()

        operator = LinearOperator((before.size, before.size), matvec=times, dtype=before.dtype)
        found, _ = cg(operator, right.ravel(), before.ravel(), rtol=1e-10, maxiter=STEPS)
        return found.reshape(before.shape)


# ---------------------------------------------------------------------------- start, and finish


def started(least: Least, first: bool, generator: Any) -> None:
    """Sets factors to their initial values.

    Args:
        least: the problem.
        first: whether factors start as leading singular vectors of the weight, unfolded to the axes that they
            share with it (De Lathauwer et al. 2000). Columns beyond the number of these vectors, and all columns
            otherwise, are random.
        generator: the source of random numbers.
    """
    taken: dict[tuple[str, ...], int] = {}
    for product in least.terms:
        for factor in product.factors:
            if factor.name in least.wanted:
                least.put(factor.name, _start(least, factor, taken if first else None, generator))


def _start(least: Least, factor: Factor, taken: dict[tuple[str, ...], int] | None, generator: Any) -> Any:
    """The initial value of a factor. It skips singular vectors that other factors with the same axes took."""
    form = least.form
    rows = tuple(axis for axis in factor.axes if axis in form.axes)
    inner = tuple(axis for axis in factor.axes if axis not in form.axes)
    height, width = form.count(rows), form.count(inner)
    made = generator.standard_normal((height, width)) / math.sqrt(height)
    if taken is not None and rows and height <= DIRECT:
        rest = tuple(axis for axis in form.axes if axis not in rows)
        begin = taken.get(rows, 0)
        vectors = leading(unfolded(Named(least.weight, form.axes), (), rows, rest), begin + width)
        found = vectors[:, begin : begin + width]
        made[:, : found.shape[1]] = found
        taken[rows] = begin + width
    whole = made.astype(least.weight.dtype).reshape(form.shape((*rows, *inner)))
    return np.ascontiguousarray(whole.transpose([(*rows, *inner).index(axis) for axis in factor.axes]))


def balanced(least: Least, generator: Any, rounds: int = 4) -> None:
    """Scales the factors of each term to equal norms along every axis between them. The product stays the same.

    Σ_r a_r·b_r = Σ_r (a_r·d_r)·(b_r / d_r): d_r gives both the same norm, so that both get gradients of equal size.
    Both are zero for ranks beyond the rank of the weight. One factor then gets random numbers, so that it can be
    trained.
    """
    for product in least.terms:
        own = [factor for factor in product.factors if factor.name in least.wanted]
        between = dict.fromkeys(a for each in own for a in each.axes if a not in least.form.axes)
        for axis in [*between] * rounds:
            _scaled(least, [factor for factor in own if axis in factor.axes], axis)
        _scaled(least, own, None)
        for axis in between:
            _woken(least, [factor for factor in own if axis in factor.axes], axis, generator)


def _norms(least: Least, factor: Factor, axis: str | None) -> Any:
    """The norm of a factor, at every position along an axis or as a whole."""
    over = tuple(n for n, each in enumerate(factor.axes) if each != axis)
    return np.sqrt((least.arrays[factor.name] ** 2).sum(axis=over))


def _along(factor: Factor, axis: str | None, values: Any) -> Any:
    """Values at every position along an axis of a factor, reshaped so that they broadcast."""
    return values.reshape([-1 if each == axis else 1 for each in factor.axes])


def _scaled(least: Least, factors: Sequence[Factor], axis: str | None) -> None:
    """Scales factors to their geometric mean norm, except where one of the norms is zero."""
    if len(factors) < 2:
        return
    norms = np.stack([_norms(least, factor, axis) for factor in factors])
    norms = np.where((norms > 0).all(axis=0), norms, 1.0)
    mean = np.exp(np.log(norms).mean(axis=0))
    for factor, norm in zip(factors, norms, strict=True):
        least.put(factor.name, least.arrays[factor.name] * _along(factor, axis, mean / norm))


def _woken(least: Least, factors: Sequence[Factor], axis: str, generator: Any) -> None:
    """Puts random numbers into the first factor where all factors are zero, scaled to its mean norm elsewhere."""
    norms = np.stack([_norms(least, factor, axis) for factor in factors])
    asleep = (norms == 0).all(axis=0)
    if len(factors) > 1 and asleep.any():
        first = factors[0]
        array = least.arrays[first.name]
        scale = max(float(norms[0].mean()), 1.0 if asleep.all() else 0.0) / math.sqrt(
            array.size / len(asleep)
        )
        random = generator.standard_normal(array.shape).astype(array.dtype) * scale
        least.put(first.name, array + _along(first, axis, asleep) * random)
