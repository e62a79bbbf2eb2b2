"""Weights and factors rounded to few bits, with errors compensated.

Codes are q = ±1, ±3, …, ±(2ᵇ − 1), or with 8 bits -127 to 127, and a scale s for each row or group: W ≈ s·q. Elements
are rounded one column after another, and the error of each, weighed by the second moments C of what the weight is
multiplied by, is moved to the columns after it (B. Hassibi, D. Stork, 1993; E. Frantar et al., 2023, "GPTQ"):

    q[:,j] = round((W[:,j] + Σ_{k<j} (W − s·q)[:,k]·U[k,j]/U[j,j]) / s),    U·Uᵀ = C, U upper triangular

Then, with C in the place of U and all other columns k, each code becomes what loses least with all others as they are
(K. Behdin et al., 2023, "QuantEase").
Rows that take up the errors of others need wider scales, up to 2.6 times as wide for signs; some rows tell.
Columns with large moments come first. Of a matrix of low rank, U·V, the rows of V are rounded so by C, the columns of U
by the moments G of the gradients, and then all scales are set to the least squares. What is lost of each rank by
itself adds up, so that one rounding at full rank tells the loss at each rank. Large ranks have more bits, so that
all lose about as much for a byte (reverse water-filling: T. Berger, 1971).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from ..weights.equations import WIDTHS
from .forms import kept
from .metrics import Metric, times

Rounded: TypeAlias = tuple[Any, Any]
"""Scales, and the codes that they belong to."""

Kind: TypeAlias = tuple[int, int | None]
"""The bits of each code, and how many columns share a scale; all if None."""

DAMPING = 5e-3
"""Added to moments, in units of their mean diagonal: without it, moved errors pile up where there are few data."""

PARTS = {
    8: [np.linspace(-0.15, 0.0, 4)],
    4: [np.linspace(-0.6, 0.0, 7), np.linspace(-0.05, 0.05, 3)],
    2: [np.linspace(-0.9, 0.0, 19)],
}
"""The steps from 1 in which a scale is looked for, in units of the one that holds the largest element of a row.

They are for codes of up to so many bits, from wide steps to narrow ones.
"""

MULTIPLES = {8: (1.0,), 4: (1.0, 1.12, 1.25), 2: (1.0, 1.15, 1.35, 1.6), 1: (1.0, 1.3, 1.6, 2.0, 2.6)}
"""The multiples of such a scale that are tried where errors are moved: rows then hold more than elements of their own.

They are for codes of up to so many bits.
"""

TOLD = 64
"""The most rows that tell which multiple loses least."""

PRICES = 0.6 ** np.arange(60)
"""The prices of a byte at which bits of ranks are chosen, in units of what the first rank is worth."""

SWEEPS = 3
"""How often the ranks with each number of bits are rounded."""

CACHED = 1 << 15
"""The number of elements whose scales are looked for at a time."""

SAMPLED = 1 << 17
"""The number of elements that tell what rounding loses. Of a matrix with more than twice as many, some rows do."""

BLOCK = 64
"""The columns after which moved errors are added to all the rest at once."""


def largest_code(bits: Any) -> Any:
    """The largest code of so many bits, a number or an array."""
    return 2**bits - 1 - 128 * (bits == 8)


def _of_bits(table: Mapping[int, Any], bits: int) -> Any:
    """The entry of a table for the least number of bits that is not less."""
    return table[min(each for each in table if bits <= each)]


def nearest(rows: Any, bits: int, weights: Any) -> Rounded:
    """The scale of each row at which rounding loses least, where columns have weights, and the nearest codes.

    Few rows are rounded at a time, so that they stay in the cache, and scales are tried in float32.
    """
    searches, weights = _of_bits(PARTS, bits), np.float32(weights)
    scale, codes, apart = np.empty(rows.shape[:-1]), np.empty(rows.shape, np.int8), 1 + (bits != 8)
    count = max(1, CACHED // math.prod(rows.shape[1:]))
    for first in range(0, len(rows), count):
        some = slice(first, first + count)
        largest = np.maximum(np.abs(rows[some]).max(axis=-1), 1e-30) / largest_code(bits)
        values = np.float32(rows[some] / (largest * apart)[..., None])
        part = np.ones(largest.shape, np.float32)
        for steps in searches:
            tried = [np.float32(part + step) for step in steps]
            lost = [each**2 * _lost(values / each[..., None], bits, weights) for each in tried]
            part = np.choose(np.argmin(lost, axis=0), tried)
        scale[some] = largest * part
        steps = np.rint((rows[some] / scale[some, ..., None] - apart + 1) / apart)
        codes[some] = (apart * steps + apart - 1).clip(-largest_code(bits), largest_code(bits))
    return scale, codes


def _lost(values: Any, bits: int, weights: Any) -> Any:
    """The weighed squares that rounding to the nearest codes loses of each row, in units of the distance of two."""
    apart = 1 + (bits != 8)
    most = largest_code(bits) // apart
    values -= np.float32((apart - 1) / 2)
    gap = np.rint(values).clip(1 - apart - most, most)
    gap -= values
    gap *= gap
    return np.vecdot(gap, weights)


@dataclass(frozen=True, eq=False)
class Half:
    """Some dimensions of a weight, as the columns of a matrix, with their moments C = C₁ ⊗ C₂ ⊗ ….

    Attributes:
        parts: the size of each part of these dimensions, in order, and the metric that has its C, if there is one.
    """

    parts: tuple[tuple[int, Metric | None], ...]

    @staticmethod
    def of(metric: Metric | None, shape: tuple[int, ...], dims: Sequence[int]) -> Half:
        """The half with these dimensions of a weight. Moments along dimensions that are apart do not count."""
        sides = [replace(side) for side in (metric.sides if metric else ()) if {*side.dims} <= {*dims}]
        sides = [side for side in sides if side.dims[-1] - side.dims[0] < len(side.dims)]
        parts = itertools.groupby(dims, {dim: side for side in sides for dim in side.dims}.get)
        return Half(tuple((math.prod(shape[dim] for dim in part), side) for side, part in parts))

    @functools.cached_property
    def diagonals(self) -> tuple[Any, ...]:
        """The moment of each column of each part by itself."""
        return tuple(np.ones(size) if side is None else np.diagonal(side.damped) for size, side in self.parts)

    def times(self, matrix: Any, what: int) -> Any:
        """A matrix with these columns times C^½, its inverse or C: `what` is 0, 1 or 2."""
        array = matrix.reshape(len(matrix), *(size for size, _ in self.parts))
        for n, (_, side) in enumerate(self.parts):
            if side is not None:
                array = times(array, ((n + 1,), side.damped if what == 2 else side.roots[what]))
        return array.reshape(matrix.shape)

    @functools.cached_property
    def order(self) -> Any:
        """The columns, those with large moments in each part first."""
        orders = [np.argsort(-each, kind="stable") for each in self.diagonals]
        return np.ravel_multi_index(np.ix_(*orders), [*map(len, orders)]).ravel()

    @functools.cached_property
    def feedback(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """U of each part, damped more, and C, in this order. Each column is divided by its diagonal element."""
        triangles, moments = list[Any](), list[Any]()
        for (size, side), diagonal in zip(self.parts, self.diagonals, strict=True):
            last = np.argsort(-diagonal, kind="stable")[::-1]
            whole = np.float32(np.eye(size) if side is None else side.damped[np.ix_(last, last)])
            damped = whole.copy()
            np.fill_diagonal(damped, diagonal[last] + DAMPING * diagonal.mean())
            for found, each in ((triangles, np.linalg.cholesky(damped)), (moments, whole)):
                found.append((each / np.diagonal(each))[::-1, ::-1])
        return tuple(triangles), tuple(moments)

    def solved(self, matrix: Any, rows: Any) -> Any:
        """X of least ‖(matrix − Xᵀ·rows)·C^½‖."""
        turned = self.times(rows, 2)
        return np.linalg.lstsq(turned @ rows.T, turned @ matrix.T, rcond=1e-10)[0]

    def rounded(self, matrix: Any, kinds: Sequence[Kind], descends: bool = False) -> list[Rounded]:
        """For each kind, the scale of each group of each row of a matrix with these columns, and the codes.

        Args:
            matrix: an array of two dimensions.
            kinds: how many bits a code has, and how many columns share a scale; all if None. It divides their number.
            descends: whether codes are also moved to what loses least with all others as they are.
        """
        found, weights = list[Rounded](), functools.reduce(np.multiply.outer, self.diagonals)
        for bits, group in kinds:
            groups = (-1, group or weights.size)
            scale, codes = nearest(matrix.reshape(len(matrix), *groups), bits, weights.reshape(groups))
            found.append((scale, codes.reshape(matrix.shape)))
        if all(side is None for _, side in self.parts):
            return found
        some = slice(None, None, -(-len(matrix) // TOLD))
        tries = [(n, each) for n, (bits, _) in enumerate(kinds) for each in _of_bits(MULTIPLES, bits)]
        told = [(found[n][0][some] * each, found[n][1][some].copy()) for n, each in tries]
        self._compensate(matrix[some], [kinds[n][0] for n, _ in tries], told, descends)
        lost = [float(each.sum()) for each in self._squares(matrix[some], told)]
        for n, (scale, _) in enumerate(found):
            scale *= min((loss, each) for loss, (m, each) in zip(lost, tries, strict=True) if m == n)[1]
        self._compensate(matrix, [bits for bits, _ in kinds], found, descends)
        return found

    def _compensate(self, matrix: Any, bits: Sequence[int], found: Sequence[Rounded], descends: bool) -> None:
        """Changes codes in place so that they make up for the errors of others, and scales to the least squares."""
        widths = np.repeat(bits, len(matrix))
        apart = 1 + (widths != 8)
        most = largest_code(widths) // apart
        units = [np.repeat(scale, matrix.shape[1] // scale.shape[1], axis=1) for scale, _ in found]
        wanted, unit = (np.concatenate(each)[:, self.order].T for each in ([matrix] * len(bits), units))
        largest = unit.max(axis=0)
        pair = (wanted - (apart - 1) * unit) / largest, apart * unit / largest
        wanted, unit = (np.ascontiguousarray(each, np.float32) for each in pair)
        made = wanted / unit
        for feedback in self.feedback[: 1 + descends]:
            _sweep(wanted, unit, made, (1 - apart - most, most), feedback)
        for (_, codes), each in zip(found, np.split((apart * made + apart - 1).T, len(bits)), strict=True):
            codes[:, self.order] = each
        for scale, codes in found if descends else ():
            made = scaled(scale, codes)
            turned = self.times(made, 2)
            scale *= (_sums(matrix, turned) / np.maximum(_sums(made, turned), 1e-30))[:, None]

    def lost(self, rows: Any, kinds: Sequence[Kind], descends: bool = False) -> list[Any]:
        """The square that rounding loses of each row, for each kind."""
        return self._squares(rows, self.rounded(rows, kinds, descends))

    def _squares(self, rows: Any, found: Sequence[Rounded]) -> list[Any]:
        """The square of each row of what each rounding loses."""
        gaps = [rows - scaled(*each) for each in found]
        return [_sums(gap, self.times(gap, 2)) for gap in gaps]


def _sweep(wanted: Any, unit: Any, codes: Any, limits: tuple[Any, Any], feedback: Sequence[Any]) -> None:
    """Rounds one column after another, each to what makes up for the errors of the others.

        q[:,j] = round((W[:,j] + Σ_{k≠j} (W − s·q)[:,k]·F[k,j]) / s[:,j])

    Args:
        wanted, unit: Wᵀ, and the distance of two codes of each element.
        codes: qᵀ, changed in place. Where it is W / s, as of columns to come, there are no errors.
        limits: the least and the largest code of each row.
        feedback: F, a Kronecker product of these matrices. Some columns of it are made at a time.
    """
    left, shape = wanted - codes * unit, [len(each) for each in feedback]
    for first in range(0, len(codes), BLOCK):
        columns = np.arange(first, min(first + BLOCK, len(codes)))
        parts = [each[:, at] for each, at in zip(feedback, np.unravel_index(columns, shape), strict=True)]
        errors = functools.reduce(lambda a, b: (a[:, None] * b).reshape(-1, len(columns)), parts)
        moved, own = errors.T @ left, errors[columns]
        moved += wanted[columns] - left[columns]
        for n, column in enumerate(columns):
            code = np.rint(moved[n] / unit[column], out=codes[column])
            np.clip(code, *limits, out=code)
            before = left[column].copy()
            np.subtract(wanted[column], code * unit[column], out=left[column])
            before -= left[column]
            moved[n + 1 :] -= own[n, n + 1 :, None] * before


@dataclass(frozen=True, eq=False)
class Halves:
    """A weight as a matrix, of its first dimension by all others, with the moments of both.

    Attributes:
        weight: an array.
        metric: the metric, if there is one.
    """

    weight: Any
    metric: Metric | None

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
    def factors(self) -> tuple[Any, Any, Any, float]:
        """Uᵀ and V of U·V = W of full rank, rows orthogonal by G and by C; the squares of the values, and their sum.

        Only the roots of the moments of the shorter side are needed: of M·C·Mᵀ, M with this side first.
        """
        turns = len(self.matrix) > self.matrix.shape[1]
        short, long = (self.rows, self.columns)[:: -1 if turns else 1]
        matrix = self.matrix.T if turns else self.matrix
        squares = long.times(matrix, 2) @ matrix.T
        one = short.times(np.linalg.eigh(short.times(short.times(squares, 0).T, 0))[1].T[::-1], 1)
        other = short.times(one, 2)
        values = np.sqrt(np.maximum(_sums(other @ squares, other), 0.0))
        roots = np.sqrt(np.maximum(values, 1e-30))[:, None]
        u, v = (one * roots, other @ matrix / roots)[:: -1 if turns else 1]
        return u, v, values**2, float(np.vdot(values, values)) or 1.0

    @functools.cached_property
    def told(self) -> tuple[Any, Any]:
        """The rows whose rounding tells what that of all loses, and the part of the loss that a square of each is.

        Of a large matrix, rows are drawn at equal distances of the sum of squares, so that large rows count.
        """
        weights, count = self.rows.diagonals[0] / self.factors[3], SAMPLED // self.matrix.shape[1] + 1
        if 2 * count > len(weights):
            return slice(None), weights
        columns = functools.reduce(np.multiply.outer, self.columns.diagonals).ravel()
        squares = self.matrix**2 @ columns * weights + 1e-300
        ends = squares.cumsum()
        at = np.searchsorted(ends, (np.arange(count) + 0.5) / count * ends[-1])
        return at, weights[at] / squares[at] * ends[-1] / count

    @kept
    def dense_loss(self, kinds: tuple[Kind, ...]) -> Mapping[Kind, float]:
        """The relative loss of the weight itself, rounded in each way: errors of different rows are independent."""
        at, weights = self.told
        lost = self.columns.lost(self.matrix[at], kinds, descends=True)
        return {kind: float(each @ weights) for kind, each in zip(kinds, lost, strict=True)}

    @kept
    def noise(self, widths: tuple[int, ...]) -> Mapping[int, Any]:
        """What rounding to so many bits loses of each rank; between those that are rounded it is interpolated."""
        u, v, squares, _ = self.factors
        at, every = slice(None, None, max(u.size, v.size) // SAMPLED or 1), np.arange(len(squares))
        own, kinds = np.sqrt(squares[at]) + 1e-15, [(bits, None) for bits in widths]
        parts = zip(self.rows.lost(u[at], kinds), self.columns.lost(v[at], kinds), strict=True)
        lost = [np.interp(every, every[at], (1 + a / own) * (1 + b / own) - 1) * squares for a, b in parts]
        return dict(zip(widths, lost, strict=True))

    def loss(self, bits: Sequence[int]) -> float:
        """The relative loss with so many bits for each kept rank: of what is left out, and of rounding each."""
        known = self.noise(WIDTHS if {*bits} <= {*WIDTHS} else tuple({*bits}))
        noise = sum(float(known[each][: len(bits)][np.equal(bits, each)].sum()) for each in {*bits})
        return (float(self.factors[2][len(bits) :].sum()) + noise) / self.factors[3]

    def mixtures(self) -> list[tuple[int, ...]]:
        """Numbers of ranks with each number of bits: those of least loss plus bytes, at ever lower prices of a byte."""
        squares, count = self.factors[2], sum(self.matrix.shape)
        lost = np.stack([*self.noise(WIDTHS).values(), squares])
        sizes = np.array([*(bits * count + 64 for bits in WIDTHS), 0])[:, None]  # and two scales
        chosen = ((lost + price * sizes).argmin(axis=0) for price in squares[0] / count * PRICES)
        counts = (np.bincount(each, minlength=len(sizes))[:-1].tolist() for each in chosen)
        return [*dict.fromkeys(tuple(each) for each in counts if sum(each))]

    def low_rank(self, bits: Sequence[int]) -> tuple[Any, Any, Any, Any]:
        """The scales and codes of U and V with so many bits for each rank.

        Ranks of equal bits are fitted to what all others leave, U to V as it is, and V to U as it is rounded. All
        scales are then those that lose least together.
        """
        left, right = (each[: len(bits)].copy() for each in self.factors[:2])
        scales, others = np.ones((2, len(bits), 1))
        tried = list[tuple[float, tuple[Any, Any, Any, Any]]]()
        for _ in range(SWEEPS):
            for each in dict.fromkeys(bits):
                at = np.equal(bits, each)
                rest = self.matrix - (left * scales)[~at].T @ (right * others)[~at]
                u = self.columns.solved(rest, (right * others)[at])
                ((scales[at], left[at]),) = self.rows.rounded(u, [(each, None)])
                v = self.rows.solved(rest.T, (left * scales)[at])
                ((others[at], right[at]),) = self.columns.rounded(v, [(each, None)])
            tried.append(self._joined(left, others, right))
        return max(tried, key=lambda one: one[0])[1]

    def _joined(self, left: Any, others: Any, right: Any) -> tuple[float, Any]:
        """What U and V explain of the squares, and copies of them with the scales of U that lose least together."""
        v = right * others
        by_rows, by_columns = self.rows.times(left.astype(v.dtype), 2), self.columns.times(v, 2)
        gram = (by_rows @ left.T) * (by_columns @ v.T)
        wanted = _sums(by_rows, by_columns @ self.matrix.T)
        scales = np.linalg.lstsq(gram, wanted, rcond=1e-10)[0]
        return float(wanted @ scales), (scales, left.T.copy(), others.copy(), right.copy())


def scaled(scale: Any, codes: Any) -> Any:
    """The matrix that codes and the scales of the groups of its rows make."""
    return codes * np.repeat(scale, codes.shape[1] // scale.shape[1], axis=1)


def _sums(one: Any, other: Any) -> Any:
    """The inner product of each row of two matrices."""
    return np.einsum("ri,ri->r", one, other)


# ---------------------------------------------------------------------------- packed codes


def packed_bytes(shape: Sequence[int], bits: Any) -> int:
    """The number of bytes of packed codes."""
    return (int(np.broadcast_to(bits, shape).sum()) + 7) // 8


def pack(codes: Any, bits: Any) -> Any:
    """Codes as bytes, without gaps between their bits, the lowest bits first.

    Args:
        codes: an array.
        bits: of each code, an array that broadcasts to the shape of the codes.

    Example:
        >>> pack(np.array([-3, 1, 3, -1]), 2).tolist(), unpack(pack(np.array([-3, 1, 3, -1]), 2), 2, (4,)).tolist()
        ([120], [-3, 1, 3, -1])
    """
    each, wide = np.broadcast_to(bits, codes.shape).reshape(-1, 1), codes.astype("int16").reshape(-1, 1)
    numbers = np.where(each == 8, wide, (wide + largest_code(each)) // 2).astype("uint8")
    unpacked = np.unpackbits(numbers, axis=1, bitorder="little")
    return np.packbits(unpacked[np.arange(8) < each], bitorder="little")


def unpack(packed: Any, bits: Any, shape: Sequence[int]) -> Any:
    """The codes, of int8, in packed bytes."""
    each = np.broadcast_to(bits, shape).reshape(-1, 1)
    rows = np.zeros((len(each), 8), dtype="uint8")
    rows[np.arange(8) < each] = np.unpackbits(packed, count=int(each.sum()), bitorder="little")
    numbers = np.packbits(rows, axis=1, bitorder="little")
    codes = np.where(each == 8, numbers.view("int8"), 2 * numbers.astype("int16") - largest_code(each))
    return codes.astype("int8").reshape(shape)
