"""Position vectors of a grid of patches, interpolated to another grid (Dosovitskiy et al. 2021, §3.2).

Interpolation is a matrix along each of the two modes: two mode products of the grid of vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensornet as tn

from .dimensions import chosen, pair

__all__ = ["CONVENTIONS", "interpolation_matrix", "resize_positions"]

CONVENTIONS = ("bilinear_aligned", "bicubic", "bicubic_aligned", "bicubic_antialiased")

RESIZED = """
    row[i,j]    = extra + index(i) * width + index(j)
    grid[p,q,d] = A[p,i] * B[q,j] * pos[row[i,j],d]
    patches[(p,q),d] = grid[p,q,d]
"""


def resize_positions(
    old: int | Sequence[int],
    new: int | Sequence[int],
    *,
    convention: str = "bilinear_aligned",
    class_token: bool = True,
) -> tn.Graph:
    """E_pos′[(p,q)] = Σ A[p,i]·B[q,j]·E_pos[(i,j)]: the positions of a grid on another grid.

    Input pos[n, d] of n = old height·width vectors, and one for the class token before them, which
    is kept; output likewise. No parameters.

    Args:
        old: height and width of the grid, in patches; one number for both.
        new: height and width of the new grid.
        convention: "bilinear_aligned" (the original's: corners stay corners), "bicubic" (centres of
            patches, a = −0.75), "bicubic_aligned" (corners, a = −0.75) or "bicubic_antialiased"
            (centres, a = −0.5, wider kernel when the grid shrinks).
        class_token: whether the first vector is that of a class token.

    Raises:
        ShapeError: a grid or the convention is none.

    Source: Dosovitskiy et al. (2021), §3.2; Keys (1981) for the cubic kernel.

    Example:
        >>> import numpy as np
        >>> wider = tn.compile(resize_positions((1, 2), (1, 3), class_token=False))
        >>> wider({}, np.array([[0.0], [1.0]])).ravel()
        array([0. , 0.5, 1. ])
    """
    (height, width), (tall, wide) = pair(old, "old"), pair(new, "new")
    chosen(convention, CONVENTIONS, "convention")
    matrices = {
        "A": interpolation_matrix(height, tall, convention),
        "B": interpolation_matrix(width, wide, convention),
    }
    text = RESIZED.replace("extra", "1" if class_token else "0").replace("width", str(width))
    if class_token:
        text += "    y[m,d] = concat[m](pos[0,d], patches[m,d])\n"
    return tn.layer(text, inputs="pos[n,d]", constants=matrices)


def interpolation_matrix(old: Any, new: Any, convention: str) -> Any:
    """The weights with which `old` samples along a line make `new` ones: a [new, old] array.

    Raises:
        ShapeError: there is no such convention.

    Example:
        >>> interpolation_matrix(2, 3, "bilinear_aligned")
        array([[1. , 0. ],
               [0.5, 0.5],
               [0. , 1. ]])
    """
    import numpy as np

    chosen(convention, CONVENTIONS, "convention")
    at = np.arange(new, dtype=np.float64)
    aligned = at * ((old - 1) / (new - 1) if new > 1 else 0.0)
    centred = (at + 0.5) * (old / new) - 0.5
    centres = aligned if convention.endswith("_aligned") else centred
    if convention == "bicubic_antialiased":
        stretch = max(old / new, 1.0)
        weights = _cubic((centres[:, None] - np.arange(old)) / stretch, -0.5)
        return weights / weights.sum(1, keepdims=True)
    first = np.floor(centres).astype(int)
    weights = np.zeros((new, old))
    for tap in range(-1, 3):  # samples beyond the ends are those at the ends
        distance = centres - (first + tap)
        value = np.maximum(0.0, 1 - abs(distance)) if "bilinear" in convention else _cubic(distance, -0.75)
        np.add.at(weights, (np.arange(new), np.clip(first + tap, 0, old - 1)), value)
    return weights


def _cubic(distance: Any, a: float) -> Any:
    """Keys' cubic convolution kernel."""
    import numpy as np

    t = abs(distance)
    near = (a + 2) * t**3 - (a + 3) * t**2 + 1
    far = a * (t**3 - 5 * t**2 + 8 * t - 4)
    return np.where(t <= 1, near, np.where(t < 2, far, 0.0))
