"""Interpolation of the position vectors of a grid of patches to another grid (Dosovitskiy et al. 2021, §3.2).

Interpolation is a matrix along each of the two modes: two mode products of the grid of vectors.
"""

from __future__ import annotations

import textwrap
from typing import Any

import tensornet.api as tn

from .checked import checked
from .dimensions import chosen, pair

__all__ = ["CONVENTIONS", "resize_positions"]

CONVENTIONS = ("bilinear_aligned", "bicubic", "bicubic_aligned", "bicubic_antialiased")

CENTRES = {
    "aligned": "at_{p}[{p}] = index({p}) * {step}",
    "centred": "at_{p}[{p}] = (index({p}) + 0.5) * {ratio} - 0.5",
}
"""The coordinate of new sample p on the old grid: with the corners aligned, or with half-pixel centres."""

CUBIC = (
    "where({t} <= 1, ({a} + 2) * {t}**3 - ({a} + 3) * {t}**2 + 1,"
    " where({t} < 2, {a} * ({t}**3 - 5 * {t}**2 + 8 * {t} - 4), 0))"
)
"""Keys' cubic convolution kernel at distance t, with parameter a."""

KERNELS = {
    "bilinear": "{A}[{p},{i}] = maximum(0, 1 - abs(at_{p}[{p}] - index({i})))",
    "bicubic": """
        tap_{p}[{p},s] = floor(at_{p}[{p}]) + index(s) - 1
        far_{p}[{p},s] = abs(at_{p}[{p}] - tap_{p}[{p},s])
        inside_{p}[{p},s] = minimum(maximum(tap_{p}[{p},s], 0), {old} - 1)
        share_{p}[{p},s] = {cubic}
        {A}[{p},{i}] = sum[s](where(inside_{p}[{p},s] == index({i}), share_{p}[{p},s], 0))
    """,
    "antialiased": """
        far_{p}[{p},{i}] = abs(at_{p}[{p}] - index({i})) / {stretch}
        share_{p}[{p},{i}] = {cubic}
        {A}[{p},{i}] = share_{p}[{p},{i}] / sum[{i}](share_{p}[{p},{i}])
    """,
}
"""The weight of old sample i in new sample p.

Bicubic taps beyond the ends read the sample at the end; antialiased weights are normalized instead.
"""

RESIZED = """
    row[i,j]         = {extra} + index(i) * {width} + index(j)
    grid[p,q,d]      = A[p,i] * B[q,j] * widen(pos[row[i,j],d])
    patches[(p,q),d] = grid[p,q,d]
    {joined}
"""
"""Two mode products of the grid of vectors, in float32 at least, since weights of both signs cancel."""


@checked
def resize_positions(
    old: int | tuple[int, int],
    new: int | tuple[int, int],
    *,
    convention: str = "bilinear_aligned",
    class_token: bool = True,
) -> tn.Graph:
    """E_pos′[(p,q)] = Σ A[p,i]·B[q,j]·E_pos[(i,j)]: the position vectors of one grid on another grid.

    Input: pos[n, d], with n the old height·width; with `class_token` one vector more, the first, which is kept.
    Output: y[m, d], the same for the new grid. No parameters.

    Args:
        old: height and width of the grid, in patches; or one number for both.
        new: height and width of the new grid; or one number for both.
        convention: "bilinear_aligned" (that of the original code: corners map to corners), "bicubic" (centres
            of patches, a = −0.75), "bicubic_aligned" (corners, a = −0.75) or "bicubic_antialiased"
            (centres, a = −0.5, a wider kernel if the grid shrinks).
        class_token: whether the first vector is that of a class token.

    Raises:
        ShapeError: a grid is not valid, or the convention is unknown.

    Source: Dosovitskiy et al. (2021), §3.2; Keys (1981) for the cubic kernel.

    Example:
        >>> import numpy as np
        >>> wider = tn.compile(resize_positions((1, 2), (1, 3), class_token=False))
        >>> wider({}, np.array([[0.0], [1.0]])).ravel()
        array([0. , 0.5, 1. ])
    """
    (height, width), (tall, wide) = pair(old, "old"), pair(new, "new")
    chosen(convention, CONVENTIONS, "convention")
    lines = [
        *_weights("A", "p", "i", height, tall, convention),
        *_weights("B", "q", "j", width, wide, convention),
    ]
    joined = "y[m,d] = concat[m](pos[0,d], patches[m,d])" if class_token else "y[m,d] = patches[m,d]"
    lines.append(textwrap.dedent(RESIZED.format(extra=int(class_token), width=width, joined=joined)))
    sizes: dict[str, Any] = {"i": height, "j": width, "p": tall, "q": wide}
    sizes |= {"s": 4} if _taps(convention) else {}
    count = f"{height}*{width} + {int(class_token)}"
    return tn.layer("\n".join(lines), inputs=f"pos[n:{count},d]", **sizes)


def _taps(convention: str) -> bool:
    return convention in ("bicubic", "bicubic_aligned")


def _weights(matrix: str, p: str, i: str, old: Any, new: Any, convention: str) -> list[str]:
    """The equations of the interpolation matrix along one mode."""
    aligned = convention.endswith("_aligned")
    step = (old - 1) / (new - 1) if new > 1 else 0.0
    centre = CENTRES["aligned" if aligned else "centred"].format(p=p, step=step, ratio=old / new)
    name = "bilinear" if "bilinear" in convention else "bicubic" if _taps(convention) else "antialiased"
    far = f"far_{p}[{p},{'s' if _taps(convention) else i}]"
    cubic = CUBIC.format(t=far, a=-0.75 if _taps(convention) else -0.5)
    kernel = KERNELS[name].format(A=matrix, p=p, i=i, old=old, cubic=cubic, stretch=max(old / new, 1.0))
    return [centre, textwrap.dedent(kernel)]
