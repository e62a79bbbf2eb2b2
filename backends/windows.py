"""Windows: padding, strided views, and the elements of pools.

Arrays have a dimension for the batch, one for channels, and one for each window. A window is described by its stride
from result to result, its dilation from element to element of the kernel, its first position, and the size of the
computed dimension.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

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


def strided_windows(xp: Any, strided: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    """The functions `windows` and `spaced` of a library with strided views, for the namespace of its backend.

    Args:
        xp: the library.
        strided: returns a view of an array with other sizes and strides.
    """

    def windows(x: Any, axis: int, first: int, by: int, apart: int, outer: int, inner: int) -> Any:
        """y[…,p,u,…] = x[…,first + by·p + apart·u,…], as a view of the same memory."""
        last = first + reach(by, apart, outer, inner)
        assert not outer * inner or last <= x.shape[axis], (x.shape, axis, last)
        x = x[(slice(None),) * axis + (slice(first, None),)]
        step = x.strides[axis]
        shape = (*x.shape[:axis], outer, inner, *x.shape[axis + 1 :])
        return strided(x, shape, (*x.strides[:axis], step * by, step * apart, *x.strides[axis + 1 :]))

    def spaced(x: Any, axis: int, first: int, by: int, size: int) -> Any:
        """y[…,first + by·p,…] = x[…,p,…], and 0 elsewhere along an axis of the given size."""
        made = xp.zeros((*x.shape[:axis], size, *x.shape[axis + 1 :]), dtype=x.dtype)
        before, count = (slice(None),) * axis, max(0, -((first - size) // by))
        places, read = (*before, slice(first, first + by * x.shape[axis], by)), (*before, slice(count))
        made[places] = x[read]
        return made

    return {"windows": windows, "spaced": spaced}


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
