"""Windows and im2col: padding, strided views, pooling and convolution without library kernels.

Arrays have a dimension for the batch, one for channels, and one for each window. A window is described by its stride
from result to result, its dilation from element to element of the kernel, its first position, and the size of the
computed dimension.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Pools", "Unfolding", "Windows", "convolutions", "elements", "margins", "reach"]

Windows = tuple[tuple[int, int, int, int], ...]
"""By (stride), apart (dilation), first and size, for each dimension."""
Convolution = Callable[[Any, Any, int, Windows], Any]
"""Takes two operands, the number of groups and the windows."""


def reach(by: int, apart: int, outer: int, inner: int) -> int:
    """The number of positions that `outer` windows of `inner` elements span."""
    return (outer - 1) * by + (inner - 1) * apart + 1


def margins(
    extents: Sequence[int], windows: Windows, outer: Sequence[int], inner: Sequence[int]
) -> tuple[tuple[int, int], ...]:
    """The padding before and after each dimension of an operand that all windows need; negative if they read less."""
    return tuple(
        (-first, first + reach(by, apart, *counts) - size)
        for size, (by, apart, first, _), *counts in zip(extents, windows, outer, inner, strict=True)
    )


def convolutions(
    result: Convolution,
    operand: Convolution,
    kernel: Convolution,
    zeros: Callable[[Any, Any, tuple[int, ...]], Any],
) -> tuple[Convolution, Convolution, Convolution]:
    """A library's convolution and its vjps by each operand; they return zeros if an operand has no elements.

    Libraries raise an error for such operands, return another shape, or divide by the number of groups, which is 0.

    Args:
        result, operand, kernel: the convolution of x and k, the vjp from y and k, and that from x and y.
        zeros: creates an array of zeros of a shape from two operands, of the type of the first.
    """

    def whole(function: Convolution, shape: Callable[[Any, Any, int], tuple[int, ...]]) -> Convolution:
        def checked(a: Any, b: Any, groups: int, windows: Windows) -> Any:
            if 0 in (*a.shape, *b.shape):
                return zeros(a, b, (*shape(a, b, groups), *(size for *_, size in windows)))
            return function(a, b, groups, windows)

        return checked

    return (
        whole(result, lambda x, k, groups: (x.shape[0], k.shape[0])),
        whole(operand, lambda y, k, groups: (y.shape[0], k.shape[1] * groups)),
        whole(kernel, lambda x, y, groups: (y.shape[1], x.shape[1] // max(groups, 1))),
    )


@dataclass(frozen=True)
class Unfolding:
    """Convolutions for a library.

    Attributes:
        xp: the library.
        strided: returns a view of an array with other sizes and strides.
    """

    xp: Any
    strided: Any

    def functions(self) -> dict[str, Callable[..., Any]]:
        """The functions for the namespace of a backend, by name."""
        names = ("convolution", "convolution_x", "convolution_k")
        found = convolutions(self.result, self.operand, self.kernel, self.zeros)
        return {**dict(zip(names, found, strict=True)), "windows": self.windows, "spaced": self.spaced}

    def zeros(self, one: Any, other: Any, shape: tuple[int, ...]) -> Any:
        """Zeros of a shape, in the type of the first of two operands."""
        return self.xp.zeros(shape, dtype=one.dtype)

    def result(self, x: Any, k: Any, groups: int, windows: Windows) -> Any:
        """y[b,go,p] = Σ x[b,gc,first + by·p + apart·u] · k[go,c,u]."""
        outer, inner = [size for *_, size in windows], k.shape[2:]
        columns = self._columns(x, groups, windows, outer, inner)
        rows = k.reshape(groups, k.shape[0] // groups, math.prod(k.shape[1:]))
        return self.xp.matmul(rows, columns).reshape(x.shape[0], k.shape[0], *outer)

    def operand(self, y: Any, k: Any, groups: int, windows: Windows) -> Any:
        """x[b,gc,i] = Σ y[b,go,p] · k[go,c,u] where i is first + by·p + apart·u."""
        outer, inner, batch = y.shape[2:], k.shape[2:], y.shape[0]
        rows = k.reshape(groups, k.shape[0] // groups, math.prod(k.shape[1:])).swapaxes(1, 2)
        columns = self.xp.matmul(rows, y.reshape(batch, groups, y.shape[1] // groups, math.prod(outer)))
        columns = columns.reshape(batch * groups * k.shape[1], *inner, *outer)
        spanned = tuple(
            (by, apart, 0, *counts) for (by, apart, *_), *counts in zip(windows, outer, inner, strict=True)
        )
        spans = [reach(by, apart, *counts) for by, apart, _, *counts in spanned]
        made = self.xp.zeros((len(columns), *spans), dtype=columns.dtype)
        for at, each in zip(itertools.product(*map(range, inner)), elements(made, spanned), strict=True):
            here: Any = (slice(None), *at)
            each += columns[here]
        made = made.reshape(batch, groups * k.shape[1], *spans)
        shifted = (
            (first, size - first - span) for span, (*_, first, size) in zip(spans, windows, strict=True)
        )
        return self._within(made, tuple(shifted))

    def kernel(self, x: Any, y: Any, groups: int, windows: Windows) -> Any:
        """k[go,c,u] = Σ x[b,gc,first + by·p + apart·u] · y[b,go,p]."""
        outer, inner = y.shape[2:], [size for *_, size in windows]
        columns = self._columns(x, groups, windows, outer, inner)
        rows = y.reshape(y.shape[0], groups, y.shape[1] // groups, math.prod(outer))
        made = self.xp.matmul(rows, columns.swapaxes(-1, -2)).sum(axis=0)
        return made.reshape(y.shape[1], x.shape[1] // groups, *inner)

    def windows(self, x: Any, axis: int, first: int, by: int, apart: int, outer: int, inner: int) -> Any:
        """y[…,p,u,…] = x[…,first + by·p + apart·u,…], as a view of the same memory."""
        last = first + reach(by, apart, outer, inner)
        assert not outer * inner or last <= x.shape[axis], (x.shape, axis, last)
        x = x[(slice(None),) * axis + (slice(first, None),)]
        step = x.strides[axis]
        shape = (*x.shape[:axis], outer, inner, *x.shape[axis + 1 :])
        return self.strided(x, shape, (*x.strides[:axis], step * by, step * apart, *x.strides[axis + 1 :]))

    def spaced(self, x: Any, axis: int, first: int, by: int, size: int) -> Any:
        """y[…,first + by·p,…] = x[…,p,…], and 0 elsewhere along an axis of the given size."""
        made = self.xp.zeros((*x.shape[:axis], size, *x.shape[axis + 1 :]), dtype=x.dtype)
        made[(slice(None),) * axis + (slice(first, first + by * x.shape[axis], by),)] = x
        return made

    def _columns(
        self, x: Any, groups: int, windows: Windows, outer: Sequence[int], inner: Sequence[int]
    ) -> Any:
        """The im2col matrix, with one row per element of the kernel: batch, groups, channels · inner, outer."""
        x = self._within(x, margins(x.shape[2:], windows, outer, inner))
        steps = x.strides[2:]
        strides = (
            *x.strides[:2],
            *(step * apart for step, (_, apart, *_) in zip(steps, windows, strict=True)),
            *(step * by for step, (by, *_) in zip(steps, windows, strict=True)),
        )
        seen = self.strided(x, (*x.shape[:2], *inner, *outer), strides)
        rows = x.shape[1] // groups * math.prod(inner)
        return seen.reshape(x.shape[0], groups, rows, math.prod(outer))

    def _within(self, x: Any, amounts: tuple[tuple[int, int], ...]) -> Any:
        """An array padded with zeros before and after its last dimensions; a negative amount removes elements."""
        cut = tuple(
            slice(max(0, -before), size - max(0, -after))
            for size, (before, after) in zip(x.shape[2:], amounts, strict=True)
        )
        whole = slice(None), slice(None), *cut
        x = x[whole]
        grown = tuple((max(0, before), max(0, after)) for before, after in amounts)
        return self.xp.pad(x, ((0, 0), (0, 0), *grown)) if any(map(any, grown)) else x


Pools = tuple[tuple[int, int, int, int, int], ...]
"""By, apart, first, the size of the result, and the elements of a window, for each dimension but the first."""


def elements(x: Any, windows: Pools) -> Iterator[Any]:
    """For each element of a window, the slice of the array that it reads at all results."""
    for at in itertools.product(*(range(inner) for *_, inner in windows)):
        places = tuple(
            slice(start := first + u * apart, start + (size - 1) * by + 1, by)
            for u, (by, apart, first, size, _) in zip(at, windows, strict=True)
        )
        whole: Any = (slice(None), *places)
        yield x[whole]
