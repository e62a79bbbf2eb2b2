"""All factors moved at once, for problems where alternating rounds get slow.

The step of Levenberg and Marquardt solves (JᵀJ + μ)·δ = Jᵀ·(W − Ŵ), J the derivative of Ŵ by all factors. A block
of JᵀJ belongs to two factors. It is a contraction of the others with themselves, and is diagonal in the axes of the
weight that the two share. J itself is never built.

Sources: D. Marquardt, J. SIAM 11 (1963), 431; G. Tomasi, R. Bro, Comput. Stat. Data Anal. 50 (2006), 1700.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from .alternating import Least, primed
from .contracting import Named, contract
from .forms import Factor, Product

__all__ = ["Together", "fits_in"]

UNKNOWNS = 500
"""The most elements that all factors may have together. The matrix has this many rows and columns."""

FIRST, LOWEST, HIGHEST = 1e-3, 1e-15, 1e6
"""The first value of μ, in units of the mean of the diagonal, and its bounds."""


def fits_in(least: Least) -> bool:
    """Whether the factors are small enough to be moved together."""
    return sum(int(least.arrays[name].size) for name in least.wanted) <= UNKNOWNS


class Together:
    """Steps of Levenberg and Marquardt from the current factors of a problem."""

    def __init__(self, least: Least) -> None:
        self.least = least
        self.factors = [(p, f) for p in least.terms for f in p.factors if f.name in least.wanted]
        sizes = [least.form.count(factor.axes) for _, factor in self.factors]
        ends = list(itertools.accumulate(sizes))
        self.places = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
        self.count = ends[-1]
        self.weight = FIRST

    def loss(self) -> float:
        """‖W − Ŵ‖² + λ·Σ‖factor‖²."""
        least = self.least
        gap = least.weight - least.whole()
        ridge = sum(float(np.vdot(least.arrays[f.name], least.arrays[f.name])) for _, f in self.factors)
        return float(np.vdot(gap, gap)) + least.penalty * ridge

    def round(self) -> float:
        """Takes one step that lowers the loss, if there is one. The result is the relative error."""
        least, before = self.least, self.loss()
        matrix, gradient = self.matrix(), self.gradient()
        mean = float(np.trace(matrix)) / self.count or 1.0
        kept = {factor.name: least.arrays[factor.name] for _, factor in self.factors}
        while self.weight <= HIGHEST:
            step = np.linalg.solve(matrix + self.weight * mean * np.eye(self.count), gradient)
            for (_, factor), place in zip(self.factors, self.places, strict=True):
                old = kept[factor.name]
                least.put(factor.name, old + step[place].reshape(old.shape))
            if self.loss() < before:
                self.weight = max(self.weight / 5, LOWEST)
                break
            self.weight *= 4
        else:
            for name, array in kept.items():
                least.put(name, array)
        return least.error()

    def gradient(self) -> Any:
        """Jᵀ·(W − Ŵ) − λ·factors."""
        least = self.least
        gap = Named(least.weight - least.whole(), least.form.axes)
        found = np.empty(self.count, least.weight.dtype)
        for (product, factor), place in zip(self.factors, self.places, strict=True):
            others = [Named(least.arrays[each.name], each.axes) for each in product.without(factor.name)]
            part = product.coefficient * contract([gap, *others], factor.axes)
            found[place] = (part - least.penalty * least.arrays[factor.name]).ravel()
        return found

    def matrix(self) -> Any:
        """JᵀJ + λ."""
        whole = self.least.penalty * np.eye(self.count, dtype=self.least.weight.dtype)
        for (one, at), (two, to) in itertools.combinations_with_replacement(
            zip(self.factors, self.places, strict=True), 2
        ):
            block = self._block(*one, *two)
            whole[at, to] += block
            if at != to:
                whole[to, at] += block.T
        return whole

    def _block(self, first: Product, a: Factor, second: Product, b: Factor) -> Any:
        """The block of JᵀJ for two factors: ∂Ŵ/∂a · ∂Ŵ/∂b, as a matrix."""
        form, outer = self.least.form, set(self.least.form.axes)
        other = tuple(axis if axis in outer else primed(axis) for axis in b.axes)
        axes = tuple(dict.fromkeys((*a.axes, *other)))
        operands = self._operands(first, a, second, b)
        read = {axis for operand in operands for axis in operand.axes}
        made = tuple(axis for axis in axes if axis in read)
        sizes = {**form.sizes, **{primed(axis): size for axis, size in form.sizes.items()}}
        having = {axis for each in (*first.factors, *second.factors) for axis in each.axes}
        repeats = form.count(tuple(axis for axis in form.axes if axis not in having))
        value = contract(operands, made) if operands else np.ones(())
        value = value.reshape([sizes[axis] if axis in read else 1 for axis in axes])
        block = np.zeros([sizes[axis] for axis in (*a.axes, *other)], self.least.weight.dtype)
        number = {axis: n for n, axis in enumerate(axes)}
        diagonal = np.einsum(block, [number[axis] for axis in (*a.axes, *other)], [*range(len(axes))])
        diagonal[...] = first.coefficient * second.coefficient * repeats * value
        return block.reshape(form.count(a.axes), form.count(b.axes))

    def _operands(self, first: Product, a: Factor, second: Product, b: Factor) -> list[Named]:
        """The other factors of both products.

        A factor of both becomes its Gram matrix if that is small and no other factor shares its axes of the weight.
        """
        outer = set(self.least.form.axes)
        once, twice = list(first.without(a.name)), list(second.without(b.name))
        found: list[Named] = []
        for factor in [each for each in once if each in twice and first == second]:
            rest = {axis for each in (*first.factors, a, b) if each != factor for axis in each.axes}
            square = None if outer & rest & set(factor.axes) else self.least.square(factor)
            if square is not None:
                once.remove(factor)
                twice.remove(factor)
                found.append(square)
        found += [Named(self.least.arrays[each.name], each.axes) for each in once]
        for each in twice:
            axes = tuple(axis if axis in outer else primed(axis) for axis in each.axes)
            found.append(Named(self.least.arrays[each.name], axes))
        return found
