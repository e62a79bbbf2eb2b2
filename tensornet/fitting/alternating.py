"""Factors of any multilinear form by alternating least squares, and all factors at once near the end.

With all factors but one fixed, ‖W − Ŵ‖² + λ·Σ‖factor‖² is a least squares problem in that one:

    (Mᵀ·M + λ)·f = Mᵀ·(W − other terms),    M the product of the other factors in its term

Mᵀ·M is a contraction of the other factors with themselves. For a canonical (CP) form it is the Hadamard product
of small matrices. Rounds get slow in long valleys. All factors are then moved at once by a step of Levenberg and
Marquardt, (JᵀJ + μ)·δ = Jᵀ·(W − Ŵ), J the derivative of Ŵ by all factors. A block of JᵀJ belongs to two factors. It is
the same kind of contraction, and is diagonal in the axes of the weight that the two share. J itself is never built.

Sources: T. Kolda, B. Bader, SIAM Review 51 (2009), 455, section 3.4; P. Comon, X. Luciani, A. de Almeida,
J. Chemometrics 23 (2009), 393; D. Marquardt, J. SIAM 11 (1963), 431; G. Tomasi, R. Bro, Comput. Stat. Data Anal. 50
(2006), 1700.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .contracting import Named, contract
from .forms import Factor, Form, Product
from .trees import leading, unfolded

__all__ = ["Least", "Together", "balanced"]

DIRECT = 2048
"""The most unknowns for which the matrix is built and solved directly. More are found by conjugate gradients."""

STEPS = 10
"""The steps of conjugate gradients for one factor in one round."""

NEAR = 1e-12
"""The weight in float64 of the distance to the previous factor, relative to the mean diagonal of Mᵀ·M.

Directions that Mᵀ·M does not determine then stay as they were.
"""

UNKNOWNS = 500
"""The most elements that all factors may have together to be moved at once. The matrix has this many rows."""

FIRST, LOWEST, HIGHEST = 1e-3, 1e-15, 1e6
"""The first value of μ, in units of the mean of the diagonal, and its bounds."""


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
    _values: dict[Product, Any] = field(default_factory=dict, init=False)

    @functools.cached_property
    def terms(self) -> tuple[tuple[Product, tuple[Factor, ...]], ...]:
        """The products that have factors to be found, with these factors."""
        found = ((p, tuple(f for f in p.factors if f.name in self.wanted)) for p in self.form.products)
        return tuple((product, own) for product, own in found if own)

    @functools.cached_property
    def penalty(self) -> float:
        """λ times the mean square of the weight."""
        return self.regularization * self.norm**2 / int(self.weight.size)

    def value(self, product: Product) -> Any:
        """The current value of a term. Axes of the weight that the term does not have are of size 1."""
        if product not in self._values:
            axes = tuple(axis for axis in self.form.axes if axis in product.axes)
            made = contract(self.named(product.factors), axes)
            shape = tuple(self.form.sizes[axis] if axis in axes else 1 for axis in self.form.axes)
            self._values[product] = product.coefficient * made.reshape(shape)
        return self._values[product]

    def whole(self) -> Any:
        """Ŵ."""
        return sum(map(self.value, self.form.products), np.zeros_like(self.weight))

    def loss(self) -> float:
        """‖W − Ŵ‖² + λ·Σ‖factor‖²."""
        gap = self.weight - self.whole()
        return float(np.vdot(gap, gap)) + self.ridge()

    def ridge(self) -> float:
        """λ·Σ‖factor‖²."""
        squares = (float(np.linalg.norm(self.arrays[name]) ** 2) for name in self.wanted if self.penalty)
        return self.penalty * sum(squares)

    def error(self) -> float:
        """(‖W − Ŵ‖² + λ·Σ‖factor‖²)^½ / ‖W‖."""
        return math.sqrt(self.loss()) / (self.norm or 1.0)

    def put(self, name: str, array: Any) -> None:
        """Replaces a factor, and drops cached values that depend on it."""
        self.arrays[name] = array
        for product in [each for each in self._values if any(f.name == name for f in each.factors)]:
            del self._values[product]

    def named(self, factors: Sequence[Factor], primes: bool = False) -> list[Named]:
        """Some factors; with primes, their summed axes have the names that they have in the second of two products."""
        return [
            Named(self.arrays[each.name], tuple(map(self._primed, each.axes)) if primes else each.axes)
            for each in factors
        ]

    def _primed(self, axis: str) -> str:
        return axis if axis in self.form.axes else f"{axis}′"

    def derivative(self, product: Product, factor: Factor, gap: Any) -> Any:
        """Mᵀ·gap, with the axes of a factor."""
        others = self.named(product.without(factor.name))
        return product.coefficient * contract([Named(gap, self.form.axes), *others], factor.axes)

    def gram(self, first: Product, a: Factor, second: Product, b: Factor, axes: Sequence[str]) -> Named:
        """∂Ŵ/∂a · ∂Ŵ/∂b, with those of some axes in which it is not the identity."""
        once, twice = first.without(a.name), second.without(b.name)
        operands = [*self.named(once), *self.named(twice, primes=True)]
        read = {axis for each in operands for axis in each.axes}
        kept = tuple(axis for axis in axes if axis in read)
        alone = (axis for axis in self.form.axes if axis not in first.axes and axis not in second.axes)
        scale = first.coefficient * second.coefficient * self.form.count(tuple(alone))
        return Named(scale * contract(operands, kept) if operands else np.full((), scale), kept)

    # ---- one factor

    @functools.cached_property
    def widest(self) -> int:
        """The largest number of unknowns in one linear system."""
        inner = (tuple(a for a in f.axes if a not in self.form.axes) for _, own in self.terms for f in own)
        return max(map(self.form.count, inner))

    def round(self) -> float:
        """Replaces each factor by its optimum. The result is the relative error, computed from sums of squares."""
        error = math.inf
        for product, own in self.terms:
            target = self.weight - sum(
                self.value(other) for other in self.form.products if other is not product
            )
            square = float(np.vdot(target, target))
            for factor in own:
                right, before = self.derivative(product, factor, target), self.arrays[factor.name]
                now, times = self._optimum(product, factor, right, before)
                self.put(factor.name, now)
                square_now = square - 2 * float(np.vdot(right, now)) + float(np.vdot(now, times))
                error = math.sqrt(max(square_now, 0.0) + self.ridge()) / (self.norm or 1.0)
        return error

    def _optimum(self, product: Product, factor: Factor, right: Any, before: Any) -> tuple[Any, Any]:
        """The optimal factor f, and Mᵀ·M·f. Of several equally good ones, the one nearest to the previous factor."""
        read = {axis for each in product.without(factor.name) for axis in each.axes}
        outer = [axis for axis in factor.axes if axis in self.form.axes]
        summed = tuple(axis for axis in factor.axes if axis not in outer)
        batched = tuple(axis for axis in outer if axis in read)
        axes = (*batched, *summed, *(axis for axis in outer if axis not in read))
        height, size = self.form.count(batched), self.form.count(summed)
        if size > DIRECT:
            return self._iterated(product, factor, right, before)
        matrix = self.gram(product, factor, product, factor, (*batched, *summed, *map(self._primed, summed)))
        squares = matrix.array.reshape(height, size, size)
        turn = [factor.axes.index(axis) for axis in axes]

        def matrices(array: Any) -> Any:
            return array.transpose(turn).reshape(height, size, -1)

        def whole(array: Any) -> Any:
            return np.ascontiguousarray(array.reshape(self.form.shape(axes)).transpose(np.argsort(turn)))

        mean = np.trace(squares, axis1=-2, axis2=-1).max() / size
        ridge, now = self.penalty, matrices(before)
        if mean + ridge:
            hold = NEAR if squares.dtype == np.float64 else 1e-6
            gap = matrices(right) - squares @ now - ridge * now
            eye = np.eye(size, dtype=squares.dtype)
            now = now + np.linalg.solve(squares + (ridge + hold * mean) * eye, gap)
        return whole(now), whole(squares @ now)

    def _iterated(self, product: Product, factor: Factor, right: Any, before: Any) -> tuple[Any, Any]:
        """The factor after at most `STEPS` steps of conjugate gradients, without building the matrix."""
        from scipy.sparse.linalg import LinearOperator, cg

        others = self.named(product.without(factor.name))
        axes = tuple(axis for axis in self.form.axes if axis in product.axes)
        repeats = self.form.count(tuple(axis for axis in self.form.axes if axis not in axes))
        scale = product.coefficient**2 * repeats

        def applied(array: Any) -> Any:
            made = contract([Named(array, factor.axes), *others], axes)
            return scale * contract([Named(made, axes), *others], factor.axes)

        def times(vector: Any) -> Any:
            array = vector.reshape(before.shape)
            return (applied(array) + self.penalty * array).ravel()

        operator = LinearOperator((before.size, before.size), matvec=times, dtype=before.dtype)
        found, _ = cg(operator, right.ravel(), before.ravel(), rtol=1e-10, maxiter=STEPS)
        now = found.reshape(before.shape)
        return now, applied(now)

    # ---- start

    def start(self, first: bool, generator: Any) -> None:
        """Sets factors to their initial values.

        Args:
            first: whether factors start as leading singular vectors of the weight, unfolded to the axes that they
                share with it (De Lathauwer et al. 2000). Factors with the same axes take different ones. Columns
                beyond the number of these vectors, and all columns otherwise, are random.
            generator: the source of random numbers.
        """
        taken: dict[tuple[str, ...], int] = {}
        for factor in [factor for _, own in self.terms for factor in own]:
            rows = tuple(axis for axis in factor.axes if axis in self.form.axes)
            inner = tuple(axis for axis in factor.axes if axis not in self.form.axes)
            height, width = self.form.count(rows), self.form.count(inner)
            made = generator.standard_normal((height, width)) / math.sqrt(height)
            if first and rows and height <= DIRECT:
                rest = tuple(axis for axis in self.form.axes if axis not in rows)
                begin = taken.get(rows, 0)
                matrix = unfolded(Named(self.weight, self.form.axes), (), rows, rest)
                found = leading(matrix, begin + width)[:, begin : begin + width]
                made[:, : found.shape[1]] = found
                taken[rows] = begin + width
            whole = made.astype(self.weight.dtype).reshape(self.form.shape((*rows, *inner)))
            order = [(*rows, *inner).index(axis) for axis in factor.axes]
            self.put(factor.name, np.ascontiguousarray(whole.transpose(order)))


# ---------------------------------------------------------------------------- all factors


class Together:
    """Steps of Levenberg and Marquardt from the current factors of a problem."""

    def __init__(self, least: Least) -> None:
        self.least = least
        self.factors = [(product, factor) for product, own in least.terms for factor in own]
        ends = [0, *itertools.accumulate(least.form.count(factor.axes) for _, factor in self.factors)]
        self.places = [slice(*pair) for pair in itertools.pairwise(ends)]
        self.count = ends[-1]
        self.weight = FIRST

    @property
    def fits(self) -> bool:
        """Whether the factors are small enough to be moved together."""
        return self.count <= UNKNOWNS

    def round(self) -> float:
        """Takes one step that lowers the loss, if there is one. The result is the relative error."""
        least, before = self.least, self.least.loss()
        matrix, gradient = self.matrix(), self.gradient()
        mean = float(np.trace(matrix)) / self.count or 1.0
        kept = {factor.name: least.arrays[factor.name] for _, factor in self.factors}
        while self.weight <= HIGHEST:
            step = np.linalg.solve(matrix + self.weight * mean * np.eye(self.count), gradient)
            for (name, old), place in zip(kept.items(), self.places, strict=True):
                least.put(name, old + step[place].reshape(old.shape))
            if least.loss() < before:
                self.weight = max(self.weight / 5, LOWEST)
                return least.error()
            self.weight *= 4
        for name, array in kept.items():
            least.put(name, array)
        return least.error()

    def gradient(self) -> Any:
        """Jᵀ·(W − Ŵ) − λ·factors."""
        least = self.least
        gap = least.weight - least.whole()
        parts = (least.derivative(p, f, gap) - least.penalty * least.arrays[f.name] for p, f in self.factors)
        return np.concatenate([part.ravel() for part in parts])

    def matrix(self) -> Any:
        """JᵀJ + λ."""
        whole = self.least.penalty * np.eye(self.count, dtype=self.least.weight.dtype)
        pairs = itertools.combinations_with_replacement(zip(self.factors, self.places, strict=True), 2)
        for (one, at), (two, to) in pairs:
            block = self._block(*one, *two)
            whole[at, to] += block
            if at != to:
                whole[to, at] += block.T
        return whole

    def _block(self, first: Product, a: Factor, second: Product, b: Factor) -> Any:
        """The block of JᵀJ for two factors, as a matrix."""
        form, (twice,) = self.least.form, self.least.named((b,), primes=True)
        axes = tuple(dict.fromkeys((*a.axes, *twice.axes)))
        made = self.least.gram(first, a, second, b, axes)
        sizes = dict(zip((*a.axes, *twice.axes), (*form.shape(a.axes), *form.shape(b.axes)), strict=True))
        value = made.array.reshape([sizes[axis] if axis in made.axes else 1 for axis in axes])
        block = np.zeros([sizes[axis] for axis in (*a.axes, *twice.axes)], self.least.weight.dtype)
        number = {axis: n for n, axis in enumerate(axes)}
        diagonal = np.einsum(block, [number[axis] for axis in (*a.axes, *twice.axes)], [*range(len(axes))])
        diagonal[...] = value
        return block.reshape(form.count(a.axes), form.count(b.axes))


def balanced(least: Least, generator: Any, rounds: int = 4) -> None:
    """Scales the factors of each term to equal norms along every axis between them. The product stays the same.

    Σ_r a_r·b_r = Σ_r (a_r·d_r)·(b_r / d_r): d_r gives both the same norm, so that both get gradients of equal size.
    Both are zero for ranks beyond the rank of the weight. One factor then gets random numbers, so that it can be
    trained.
    """
    for _, own in least.terms:
        between = [*dict.fromkeys(a for each in own for a in each.axes if a not in least.form.axes)]
        for axis in (*between * rounds, None):
            _scaled(least, own, axis)
        for axis in between:
            _woken(least, own, axis, generator)


def _norms(least: Least, factors: Sequence[Factor], axis: str | None) -> Any:
    """The norm of each factor, as a whole or at every position along an axis."""
    over = (tuple(n for n, each in enumerate(f.axes) if each != axis) for f in factors)
    squares = (least.arrays[f.name] ** 2 for f in factors)
    return np.sqrt([square.sum(axis=dims) for square, dims in zip(squares, over, strict=True)])


def _along(factor: Factor, axis: str | None, values: Any) -> Any:
    """Values at every position along an axis of a factor, reshaped so that they broadcast."""
    return values.reshape([-1 if each == axis else 1 for each in factor.axes])


def _scaled(least: Least, own: Sequence[Factor], axis: str | None) -> None:
    """Scales factors to their geometric mean norm, except where one of the norms is zero."""
    factors = [factor for factor in own if axis is None or axis in factor.axes]
    if len(factors) > 1:
        norms = _norms(least, factors, axis)
        norms = np.where((norms > 0).all(axis=0), norms, 1.0)
        mean = np.exp(np.log(norms).mean(axis=0))
        for factor, norm in zip(factors, norms, strict=True):
            least.put(factor.name, least.arrays[factor.name] * _along(factor, axis, mean / norm))


def _woken(least: Least, own: Sequence[Factor], axis: str, generator: Any) -> None:
    """Puts random numbers into the first factor where all factors are zero, scaled to its mean norm elsewhere."""
    factors = [factor for factor in own if axis in factor.axes]
    norms = _norms(least, factors, axis)
    asleep = (norms == 0).all(axis=0)
    if len(factors) > 1 and asleep.any():
        array = least.arrays[factors[0].name]
        norm = max(float(norms[0].mean()), 1.0 if asleep.all() else 0.0)
        random = generator.standard_normal(array.shape).astype(array.dtype)
        scaled = random * (norm / math.sqrt(array.size / len(asleep)))
        least.put(factors[0].name, array + _along(factors[0], axis, asleep) * scaled)
