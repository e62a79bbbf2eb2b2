"""Factors of any multilinear form by alternating least squares.

With all factors but one fixed, ‖W − Ŵ‖² + λ·Σ‖factor‖² is a least squares problem in that one:

    (Mᵀ·M + λ)·f = Mᵀ·(W − other terms),    M the product of the other factors in its term

Mᵀ·M is a contraction of the other factors with themselves. For a canonical (CP) form it is the Hadamard product
of small matrices.

Sources: T. Kolda, B. Bader, SIAM Review 51 (2009), 455, section 3.4; P. Comon, X. Luciani, A. de Almeida,
J. Chemometrics 23 (2009), 393.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .forms import Factor, Form, Named, Product, contract
from .least_squares import Problem
from .trees import leading, unfolded

__all__ = ["Least", "balanced"]

DIRECT = 2048
"""The most unknowns of one linear system. More are found by L-BFGS."""

NEAR = 1e-12
"""The weight in float64 of the distance to the previous factor, relative to the mean diagonal of Mᵀ·M.

Directions that Mᵀ·M does not determine then stay as they were.
"""


@dataclass(kw_only=True)
class Least(Problem):
    """Least squares in the factors of a form. A factor to be found is in exactly one of its products, once."""

    form: Form

    @functools.cached_property
    def terms(self) -> tuple[tuple[Product, tuple[Factor, ...]], ...]:
        """The products that have factors to be found, with these factors."""
        found = ((p, tuple(f for f in p.factors if f.name in self.wanted)) for p in self.form.products)
        return tuple((product, own) for product, own in found if own)

    def value(self, product: Product) -> Any:
        """The current value of a term. Axes of the weight that the term does not have are of size 1."""
        axes = tuple(axis for axis in self.form.axes if axis in product.axes)
        made = product.coefficient * contract(self.named(product.factors), axes)
        return made.reshape([self.form.sizes[axis] if axis in axes else 1 for axis in self.form.axes])

    def whole(self) -> Any:
        """Ŵ."""
        return sum(map(self.value, self.form.products), np.zeros_like(self.weight))

    def pulled_back(self, gap: Any) -> Mapping[str, Any]:
        """Jᵀ·gap for each factor, J the derivative of Ŵ."""
        return {each.name: self.derivative(product, each, gap) for product, own in self.terms for each in own}

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

    def gram(self, product: Product, factor: Factor, axes: Sequence[str]) -> Any:
        """Mᵀ·M, with some axes of a factor."""
        others = product.without(factor.name)
        operands = [*self.named(others), *self.named(others, primes=True)]
        alone = (axis for axis in self.form.axes if axis not in product.axes)
        scale = product.coefficient**2 * self.form.count(tuple(alone))
        return scale * contract(operands, tuple(axes)) if operands else np.full((), scale)

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
                self.arrays[factor.name] = now
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
        matrix = self.gram(product, factor, (*batched, *summed, *map(self._primed, summed)))
        squares = matrix.reshape(height, size, size)
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
            self.arrays[factor.name] = np.ascontiguousarray(whole.transpose(order))


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
            least.arrays[factor.name] = least.arrays[factor.name] * _along(factor, axis, mean / norm)


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
        least.arrays[factors[0].name] = array + _along(factors[0], axis, asleep) * scaled
