"""Weights and factors rounded to few bits, with errors compensated.

Codes are q = ±1, ±3, …, ±(2ᵇ − 1), or with 8 bits -127 to 127, and a scale s for each row or group: W ≈ s·q. Elements
are rounded one column after another, and the error of each, weighed by the second moments C of what the weight is
multiplied by, is moved to the columns after it (B. Hassibi, D. Stork, 1993; E. Frantar et al., 2023, "GPTQ"):

    W[:,j:] −= (W[:,j] − s·q[:,j]) / L[j,j] · L[j,j:],    Lᵀ·L = C⁻¹

Columns with large moments come first. Of a matrix of low rank, U·V, the rows of V are rounded so by C, the columns of U
by the moments G of the gradients, and then all scales are set to the least squares. What is lost of each rank by
itself adds up, so that one rounding at full rank tells the loss at each rank.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from .metrics import Metric, times

__all__ = ["Half", "Halves", "largest_code", "pack", "packed_bytes", "scaled", "unpack"]

T = TypeVar("T")

DAMPING = 5e-3
"""Added to moments, in units of their mean diagonal: without it, moved errors pile up where there are few data."""

PARTS = np.linspace(0.35, 1.0, 14)
"""The scales that are tried, in units of the one that holds the largest element of a row."""

EXACT = 6
"""The bits from which errors are too small to be compensated."""

BLOCK = 64
"""The columns after which moved errors are added to all the rest at once."""


def largest_code(bits: int) -> int:
    """The largest code."""
    return 127 if bits == 8 else 2**bits - 1


def codes_of(values: Any, bits: int) -> Any:
    """The nearest codes."""
    most = largest_code(bits)
    codes = np.round(values) if bits == 8 else 2 * np.floor(values / 2) + 1
    return np.clip(codes, -most, most)


def scales_of(rows: Any, bits: int, weights: Any) -> Any:
    """The scale of each row at which rounding loses least, where columns have weights."""
    largest = np.maximum(np.abs(rows).max(axis=-1), 1e-30) / largest_code(bits)
    best, found = np.full(largest.shape, np.inf), largest
    for part in PARTS[-4:] if bits > 4 else PARTS:
        scale = part * largest
        lost = (weights * (rows - codes_of(rows / scale[..., None], bits) * scale[..., None]) ** 2).sum(
            axis=-1
        )
        found, best = np.where(lost < best, scale, found), np.minimum(lost, best)
    return found


@dataclass(frozen=True, eq=False)
class Half:
    """Some dimensions of a weight, as the columns of a matrix, with their moments C = C₁ ⊗ C₂ ⊗ ….

    Attributes:
        parts: the size of each part of these dimensions, in order, and the metric that has its C, if there is one.
    """

    parts: tuple[tuple[int, Metric | None], ...]

    @staticmethod
    def of(metric: Metric | None, shape: tuple[int, ...], dims: Sequence[int]) -> Half:
        """The half with these dimensions of a weight."""
        sides = metric.sides if metric is not None else ()
        parts, left = list[tuple[int, Metric | None]](), [*dims]
        while left:
            side = next((each for each in sides if [*each.dims] == left[: len(each.dims)]), None)
            count = 1 if side is None else len(side.dims)
            parts.append((math.prod(shape[dim] for dim in left[:count]), side))
            left = left[count:]
        return Half(tuple(parts))

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the parts."""
        return tuple(size for size, _ in self.parts)

    @functools.cached_property
    def diagonals(self) -> tuple[Any, ...]:
        """The moment of each column of each part by itself."""
        return tuple(np.ones(size) if side is None else np.diagonal(side.damped) for size, side in self.parts)

    def times(self, matrix: Any, what: int) -> Any:
        """A matrix with these columns times C^½, its inverse or C: `what` is 0, 1 or 2."""
        array = matrix.reshape(len(matrix), *self.shape)
        for n, (_, side) in enumerate(self.parts):
            if side is not None:
                array = times(array, ((n + 1,), (*side.roots, side.damped)[what]))
        return array.reshape(matrix.shape)

    @functools.cached_property
    def orders(self) -> tuple[Any, ...]:
        """The columns of each part, those with large moments first."""
        return tuple(np.argsort(-each, kind="stable") for each in self.diagonals)

    @functools.cached_property
    def uppers(self) -> tuple[Any, ...]:
        """L of each part in this order, damped more."""
        found = []
        for (size, side), order in zip(self.parts, self.orders, strict=True):
            damped = np.eye(size) if side is None else side.damped[np.ix_(order, order)]
            damped = damped + DAMPING * damped.trace() / size * np.eye(size)
            found.append(np.linalg.cholesky(np.linalg.inv(damped)).T)
        return tuple(found)

    def rounded(self, matrix: Any, bits: int, group: int | None = None) -> tuple[Any, Any]:
        """The scale of each group of each row of a matrix with these columns, and the codes.

        Args:
            matrix: an array of two dimensions.
            bits: of each code.
            group: how many columns share a scale; all if None. It divides their number.
        """
        rows, columns = matrix.shape
        size, weights = group or columns, functools.reduce(np.multiply.outer, self.diagonals)
        scale = scales_of(matrix.reshape(rows, -1, size), bits, weights.reshape(-1, size))
        whole = np.repeat(scale, size, axis=1)
        if bits >= EXACT or all(side is None for _, side in self.parts):
            return scale, codes_of(matrix / whole, bits)
        order = np.arange(columns).reshape(self.shape)[np.ix_(*self.orders)].ravel()
        codes = np.empty_like(matrix)
        codes[:, order] = _compensated(matrix[:, order], whole[:, order], bits, self.uppers)
        return scale, codes


def _compensated(matrix: Any, scale: Any, bits: int, uppers: Sequence[Any]) -> Any:
    """The codes, column by column. Some rows of L, a Kronecker product, are made at a time."""
    left, columns = matrix.copy(), matrix.shape[1]
    shape = [len(each) for each in uppers]
    codes = np.empty_like(left)
    for first in range(0, columns, BLOCK):
        last = min(first + BLOCK, columns)
        places = np.unravel_index(np.arange(first, last), shape)
        upper = np.ones((last - first, 1))
        for each, rows in zip(uppers, places, strict=True):
            upper = (upper[:, :, None] * each[rows][:, None, :]).reshape(last - first, -1)
        moved = np.empty((len(left), last - first))
        for n in range(first, last):
            codes[:, n] = codes_of(left[:, n] / scale[:, n], bits)
            moved[:, n - first] = (left[:, n] - codes[:, n] * scale[:, n]) / upper[n - first, n]
            left[:, n:last] -= np.outer(moved[:, n - first], upper[n - first, n:last])
        left[:, last:] -= moved @ upper[:, last:]
    return codes


@dataclass(frozen=True, eq=False)
class Halves:
    """A weight as a matrix, of its first dimension by all others, with the moments of both.

    Attributes:
        weight: an array.
        metric: the metric, if there is one.
    """

    weight: Any
    metric: Metric | None
    _rounded: dict[Any, Any] = field(default_factory=dict)

    @functools.cached_property
    def matrix(self) -> Any:
        """The weight as a matrix."""
        return self.weight.reshape(len(self.weight), -1)

    @functools.cached_property
    def rows(self) -> Half:
        """The first dimension, with G."""
        return Half.of(self.metric, self.weight.shape, (0,))

    @functools.cached_property
    def columns(self) -> Half:
        """All others, with C."""
        return Half.of(self.metric, self.weight.shape, range(1, self.weight.ndim))

    @functools.cached_property
    def factors(self) -> tuple[Any, Any, Any]:
        """U·V = W of full rank, columns of U and rows of V orthogonal by G and by C, and the squares of the values."""
        turned = self.columns.times(self.rows.times(self.matrix.T, 0).T, 0)
        u, s, v = np.linalg.svd(turned, full_matrices=False)
        u, v = self.rows.times((u * np.sqrt(s)).T, 1).T, self.columns.times(np.sqrt(s)[:, None] * v, 1)
        return u, v, s**2

    def square(self, gap: Any) -> float:
        """‖G^½·gap·C^½‖²."""
        return float(np.vdot(self.rows.times(gap.T, 2).T, self.columns.times(gap, 2)))

    def dense(self, bits: int, group: int | None) -> tuple[Any, Any]:
        """The scales and codes of the weight itself."""
        return self._once(lambda: self.columns.rounded(self.matrix, bits, group), bits, group)

    def of_rank(self, bits: int) -> tuple[Any, Any, Any, Any]:
        """The scales and codes of U and V of full rank."""

        def rounded() -> tuple[Any, Any, Any, Any]:
            u, v, _ = self.factors
            scales, left = self.rows.rounded(np.ascontiguousarray(u.T), bits)
            return (scales[:, 0], left.T, *self.columns.rounded(v, bits))

        return self._once(rounded, bits)

    def _once(self, make: Callable[[], T], *key: Any) -> T:
        if key not in self._rounded:
            self._rounded[key] = make()
        found: T = self._rounded[key]
        return found

    @functools.cached_property
    def norm(self) -> float:
        """‖G^½·W·C^½‖²."""
        return self.square(self.matrix) or 1.0

    def dense_loss(self, bits: int, group: int | None) -> float:
        """The relative loss of the weight itself rounded."""
        return self.square(self.matrix - scaled(*self.dense(bits, group))) / self.norm

    def losses(self, bits: int) -> Any:
        """The relative losses at ranks 1, 2, …: what is left out, and what rounding each kept rank loses."""

        def lost() -> Any:
            (u, v, squares), (scales, left, others, right) = self.factors, self.of_rank(bits)
            lost_u, own_u = (_squares(self.rows, each.T) for each in (u - left * scales, u))
            lost_v, own_v = (_squares(self.columns, each) for each in (v - right * others, v))
            noise = lost_u * own_v + own_u * lost_v + lost_u * lost_v
            kept = np.cumsum(squares) - np.cumsum(noise)
            return np.maximum(squares.sum() - kept, 0.0) / self.norm

        return self._once(lost, "losses", bits)

    def low_rank(self, rank: int, bits: int) -> tuple[Any, Any, Any, Any]:
        """The scales and codes of U and V of a rank, with the scales that lose least together."""
        _, left, others, right = self.of_rank(bits)
        left, right, others = left[:, :rank], right[:rank], others[:rank]
        v = right * others
        by_rows, by_columns = self.rows.times(left.T, 2), self.columns.times(v, 2)
        gram = (by_rows @ left) * (by_columns @ v.T)
        wanted = np.einsum("ro,ro->r", by_rows, by_columns @ self.matrix.T)
        return np.linalg.lstsq(gram, wanted, rcond=1e-10)[0], left, others, right


def scaled(scale: Any, codes: Any) -> Any:
    """The matrix that codes and the scales of the groups of its rows make."""
    return codes * np.repeat(scale, codes.shape[1] // scale.shape[1], axis=1)


def _squares(half: Half, rows: Any) -> Any:
    """The squares of some rows by the moments of a half."""
    return np.einsum("ri,ri->r", rows, half.times(rows, 2))


# ---------------------------------------------------------------------------- packed codes


def packed_bytes(count: int, bits: int) -> int:
    """The number of bytes of packed codes."""
    return -(-count * bits // 8)


def pack(codes: Any, bits: int) -> Any:
    """Codes as bytes, without gaps between their bits, the lowest bits first.

    Example:
        >>> pack(np.array([-3, 1, 3, -1]), 2).tolist(), unpack(pack(np.array([-3, 1, 3, -1]), 2), 2, (4,)).tolist()
        ([120], [-3, 1, 3, -1])
    """
    if bits == 8:
        return codes.astype("int8").ravel().view("uint8")
    numbers = ((codes.astype("int64").ravel() + largest_code(bits)) // 2).astype("uint8")
    return np.packbits(numbers[:, None] >> np.arange(bits, dtype="uint8") & 1, bitorder="little")


def unpack(packed: Any, bits: int, shape: Sequence[int]) -> Any:
    """The codes, of int8, in packed bytes."""
    count = int(np.prod(shape))
    if bits == 8:
        return packed.view("int8").reshape(shape)
    found = np.unpackbits(packed, count=count * bits, bitorder="little").reshape(count, bits)
    numbers = (found.astype("int64") << np.arange(bits)).sum(axis=1)
    return (2 * numbers - largest_code(bits)).astype("int8").reshape(shape)
