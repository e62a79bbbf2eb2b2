"""Positions of Transformers: added vectors, rotary embeddings, Fourier features; vectors resized to another grid."""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensornet.api as tn
from tensornet.errors import ShapeError

from .checked import Size, checked, chosen, halved, pair, real, sized_layer, when


@functools.cache
def learned_positions(length: Size, dim: Size, *, past: bool = False, std: float = 0.02) -> tn.Graph:
    """y[b, n] = x[b, n] + P[n], with a trained vector for each position.

    Input: x[b, n, c] with n up to `length`. Output: y[b, n, c]. Parameters: length·dim.

    Args:
        length: the number of positions.
        dim: the width.
        past: whether positions start at `past`, the number of stored keys.
        std: the initial standard deviation of P.

    Example:
        >>> tn.parameter_formula(learned_positions("N", "D"))
        D*N
    """
    text = f"""
        P[m,c]: parameter(std={std!r})
        at[n] = index(n){" + past" if past else ""}
        y[b,n,c] = x[b,n,c] + P[at[n],c]
    """
    return sized_layer(text, "x", {"m": length, "c": dim}, **when(past, past="past"))


@functools.cache
def sinusoidal_positions(dim: Size, *, interleaved: bool = True, past: bool = False) -> tn.Graph:
    """y[b, n] = x[b, n] + PE[n]: sines and cosines of the position, with wavelengths from 2π to 10000·2π.

    PE(n, 2k) = sin(n/10000^(2k/dim)),  PE(n, 2k+1) = cos(n/10000^(2k/dim))

    Input: x[b, n, c]. Output: y[b, n, c]. No parameters.

    Args:
        dim: the width, even.
        interleaved: whether sines and cosines alternate, as in the paper; otherwise all sines come first.
        past: whether positions start at `past`, the number of stored keys.

    Source: thesis eq. 2.3.1–2.3.2; Vaswani et al. (2017), §3.5.

    Example:
        >>> print(sinusoidal_positions(8).equations[1])
        PE[n,(k,s)] = where(index(s) == 0, sin(angle[n,k]), cos(angle[n,k]))
    """
    position = "(index(n) + past)" if past else "index(n)"
    entry = "(k,s)" if interleaved else "(s,k)"
    text = f"""
        angle[n,k] = {position} / 10000 ** (2 * index(k) / c)
        PE[n,{entry}] = where(index(s) == 0, sin(angle[n,k]), cos(angle[n,k]))
        y[b,n,c] = x[b,n,c] + PE[n,c]
    """
    sizes = {"k": halved(dim, "dim"), "c": dim}
    return sized_layer(text, "x", sizes, s=2, **when(past, past="past"))


@dataclass(frozen=True)
class Rotary:
    """The equations that rotate queries and keys by their positions.

    Attributes:
        base: the frequency of pair w of W is base^(−w/W).
        scaling: the scaling of the frequencies, as `rotary_embedding` takes it.
        neighbours: whether the channels of a pair are neighbours, or half the width apart.
    """

    base: float
    scaling: tuple[float, ...] = ()
    neighbours: bool = False

    @staticmethod
    def of(base: float, scaling: Sequence[float] | None, neighbours: bool) -> Rotary:
        """A `Rotary` with checked numbers.

        Raises:
            ShapeError: they do not fit.
        """
        found = tuple(real(each, "scaling", 0) for each in scaling or ())
        if len(found) not in (0, 1, 4) or 0.0 in found:
            raise ShapeError(
                f"scaling={found!r}",
                fix="give a factor, or a factor, low, high and a length, none of them zero",
            )
        return Rotary(real(base, "base", 1), found, neighbours)

    def tables(self, at: str, *, past: bool) -> list[str]:
        """The equations of `turn_cos` and `turn_sin` at the positions along the axis `at`."""
        frequency = f"1 / {self.base!r} ** (index(w) / w)"
        lines = [f"frequency[w] = {frequency}"]
        match self.scaling:
            case (factor,):
                lines = [f"frequency[w] = {frequency} / {factor!r}"]
            case (factor, low, high, length):
                turns = f"({length!r} * plain[w] / (2 * pi) - {low!r}) / {high - low!r}"
                lines = [
                    f"plain[w] = {frequency}",
                    f"kept[w] = minimum(maximum({turns}, 0), 1)",
                    f"frequency[w] = plain[w] * (kept[w] + (1 - kept[w]) / {factor!r})",
                ]
        position = f"(index({at}) + past)" if past else f"index({at})"
        return [
            *lines,
            f"angle[{at},w] = {position} * frequency[w]",
            f"turn_cos[{at},w] = cos(angle[{at},w])",
            f"turn_sin[{at},s,w] = (2 * index(s) - 1) * sin(angle[{at},w])",
        ]

    def turned(self, to: str, name: str, lead: str, at: str) -> str:
        """The equation that rotates each pair of channels of a tensor [lead, at, (s,w)] by the tables."""
        pair = "(w,s)" if self.neighbours else "(s,w)"
        read = f"{name}[{lead},{at},{pair}]"
        turned = f"{read} * turn_cos[{at},w] + roll({read}, s=1) * turn_sin[{at},s,w]"
        return f"{to}[{lead},{at},{pair}] = {turned}"


@checked
def rotary_embedding(
    width: Size,
    *,
    base: float = 10000.0,
    scaling: Sequence[float] | None = None,
    neighbours: bool = False,
    past: bool = False,
) -> tn.Graph:
    """y[…, n] = R(n)·x[…, n]: each pair of channels is rotated by n times its own frequency.

    (y₁, y₂) = (x₁·cos nθ_w − x₂·sin nθ_w, x₁·sin nθ_w + x₂·cos nθ_w),  θ_w = base^(−w/W), W = width/2

    The product of a rotated query and a rotated key depends on positions only by their distance.
    Input: x[..., n, d]. Output: y[..., n, d]. No parameters.

    Args:
        width: the width of x, which is even: that of a head.
        base: the base of the frequencies.
        scaling: for texts longer than in training. (factor,) divides all frequencies by it. (factor, low, high,
            length) divides those with fewer than `low` turns within `length` positions, keeps those with more
            than `high` turns, and interpolates between.
        neighbours: whether a pair is channels 2w and 2w + 1, as in the paper, instead of w and w + W, as in Llama.
        past: whether positions start at `past`, the number of stored keys.

    Raises:
        ShapeError: the width is odd, or `scaling` does not have one or four numbers, none of them zero.

    Source: Su et al. (2021), "RoFormer", eq. 14, 15 and 34; Dubey et al. (2024), "The Llama 3 herd of models".

    Example:
        >>> import numpy as np
        >>> x = np.array([[1.0, 0.0], [1.0, 0.0]])
        >>> tn.compile(rotary_embedding(2))({}, x).round(2)
        array([[1.  , 0.  ],
               [0.54, 0.84]])
    """
    rotary = Rotary.of(base, scaling, neighbours)
    text = "\n".join([*rotary.tables("n", past=past), rotary.turned("y", "x", "...", "n")])
    sizes = {"w": halved(width, "width"), "d": width}
    return sized_layer(text, "x[...,n,d]", sizes, s=2, **when(past, past="past"))


@checked
def fourier_features(
    shape: Sequence[int] | None,
    channels: Size,
    *,
    bands: Size = 64,
    resolution: Sequence[float] | None = None,
) -> tn.Graph:
    """Inputs with their positions: [x, p, sin(π·f_k·p_d) …, cos(π·f_k·p_d) …] at every index.

    Input: x[b, C, I1, …, IN] with positions from −1 to 1 along each of the N modes. Without a shape:
    x[b, M, C] and positions p[b, M, N], such as a point cloud. Output: y[b, M, C + N·(2K + 1)]: the
    channels, the positions, all sines (mode by mode), all cosines. No parameters.

    Args:
        shape: I1 … IN: one mode for audio, two for images, three for video (time first).
        channels: C.
        bands: K, the number of frequencies.
        resolution: μ for each mode, whose frequencies f_k go from 1 to μ/2; the shape if not given.

    Raises:
        ShapeError: neither a shape nor a resolution is given, or they disagree.

    Source: Jaegle et al. (2021), §3.2.

    Example:
        >>> import numpy as np
        >>> tn.compile(fourier_features((4, 4), 3, bands=2))({}, np.zeros((1, 3, 4, 4))).shape
        (1, 16, 13)
    """
    if resolution is None and shape is None:
        raise ShapeError(
            "positions need shape= or resolution=", fix="give resolution=, a number for each mode"
        )
    mu = [float(each) for each in (shape if resolution is None else resolution)]  # type: ignore[union-attr]
    if shape is not None and len(mu) != len(shape):
        raise ShapeError(
            f"resolution={resolution} has {len(mu)} mode(s), and shape={tuple(shape)} has {len(shape)}",
            fix="give one number for each mode",
        )
    batch, modes = ("b,", "") if shape is None else ("", ",".join(f"i{n + 1}" for n in range(len(mu))))
    lines = [] if shape is None else [f"x[b,({modes}),c] = pixels[b,c,{modes}]"]
    for number, size in enumerate(shape or (), 1):
        lines.append(f"p{number}[i{number}] = 2 * index(i{number}) / {max(size - 1, 1)} - 1")
    if shape is not None:
        grid = ", ".join(f"p{number}[i{number}]" for number in range(1, len(shape) + 1))
        lines.append(f"p[({modes}),n] = concat[n]({grid})")
    spread = max(bands - 1, 1) if isinstance(bands, int) else "(k - 1)"
    angle = f"pi * widen(p[{batch}m,n]) * f[n,k]"
    lines += [
        f"f[n,k] = 1 + index(k) * (mu[n] / 2 - 1) / {spread}",
        f"sines[{batch}m,(n,k)] = sin({angle})",
        f"cosines[{batch}m,(n,k)] = cos({angle})",
        f"y[b,m,e] = concat[e](x[b,m,e], p[{batch}m,e], sines[{batch}m,e], cosines[{batch}m,e])",
    ]
    inputs = "x[b,m,c] p[b,m,n]" if shape is None else f"pixels[b,c,{modes}]"
    sizes: dict[str, Size] = {f"i{number}": size for number, size in enumerate(shape or (), 1)}
    sizes |= {"c": channels, "k": bands}
    constants = {"mu": mu}
    return sized_layer("\n".join(lines), inputs, sizes, constants=constants)


# ---------------------------------------------------------------------------- position vectors on another grid
# Dosovitskiy et al. 2021, §3.2.
# Interpolation is a matrix along each of the two modes: two mode products of the grid of vectors.


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
