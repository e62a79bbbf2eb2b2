"""What the windows of a convolution reach, and padding that comes out of it; for all libraries.

Arrays have a dimension for the batch, one for channels, and one for each window, which is told by how far it goes
from result to result, how far from element to element of the kernel, where it begins, and the size of what is made.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["Windows", "margins", "reach"]

Windows = tuple[tuple[int, int, int, int], ...]
"""By, apart, first and size, for each dimension."""


def reach(by: int, apart: int, outer: int, inner: int) -> int:
    """How many positions so many windows of so many elements span."""
    return (outer - 1) * by + (inner - 1) * apart + 1


def margins(
    extents: Sequence[int], windows: Windows, outer: Sequence[int], inner: Sequence[int]
) -> tuple[tuple[int, int], ...]:
    """What is missing before and after each dimension of an operand for all windows; below 0, what is not reached."""
    return tuple(
        (-first, first + reach(by, apart, *counts) - size)
        for size, (by, apart, first, _), *counts in zip(extents, windows, outer, inner, strict=True)
    )
