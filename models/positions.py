"""What tells a Transformer where its inputs are: added vectors, or concatenated Fourier features."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tensornet as tn
from tensornet.errors import ShapeError

from .checked import checked
from .dimensions import Size, divided, hygienic

__all__ = ["fourier_features", "learned_positions", "sinusoidal_positions"]


@functools.cache
def learned_positions(length: Size, dim: Size, *, past: bool = False, std: float = 0.02) -> tn.Graph:
    """y[b, n] = x[b, n] + P[n], with a trained vector for each position.

    Input x[b, n, c] with n up to `length`, output y[b, n, c]; length·dim parameters.

    Args:
        length: the number of positions.
        dim: the width.
        past: whether positions go on from those of stored keys, `past` of them.
        std: the standard deviation P starts with.

    Example:
        >>> tn.parameter_formula(learned_positions("N", "D"))
        D*N
    """
    text = f"""
        P[m,c]: parameter(std={std!r})
        at[n] = index(n){" + past" if past else ""}
        y[b,n,c] = x[b,n,c] + P[at[n],c]
    """
    known: dict[str, Any] = {"past": "past"} if past else {}
    return hygienic(lambda **sizes: tn.layer(text, inputs="x", **known, **sizes), {"m": length, "c": dim})


@functools.cache
def sinusoidal_positions(dim: Size, *, interleaved: bool = True, past: bool = False) -> tn.Graph:
    """y[b, n] = x[b, n] + PE[n]: sines and cosines of position, of wavelengths 2π to 10000·2π.

    PE(n, 2k) = sin(n/10000^(2k/dim)),  PE(n, 2k+1) = cos(n/10000^(2k/dim))

    Input x[b, n, c], output y[b, n, c]. No parameters.

    Args:
        dim: the width, even.
        interleaved: sines and cosines by turns, as the paper has it, or all sines first.
        past: whether positions go on from those of stored keys, `past` of them.

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
    sizes = {"k": divided(dim, 2, "dim", "a sine and a cosine"), "c": dim}
    known: dict[str, Any] = {"past": "past"} if past else {}
    return hygienic(lambda **given: tn.layer(text, inputs="x", s=2, **known, **given), sizes)


@checked
def fourier_features(
    shape: Sequence[int] | None,
    channels: Size,
    *,
    bands: Size = 64,
    resolution: Sequence[float] | None = None,
) -> tn.Graph:
    """Inputs with their positions: [x, p, sin(π·f_k·p_d) …, cos(π·f_k·p_d) …] at every index.

    Input x[b, C, I1, …, IN] with positions from −1 to 1 along each of the N modes; without a shape,
    x[b, M, C] and positions p[b, M, N], as of a point cloud. Output y[b, M, C + N·(2K + 1)]: the
    channels, the positions, all sines (mode by mode), all cosines. No parameters.

    Args:
        shape: I1 … IN: one mode for audio, two for images, three for video (time first).
        channels: C.
        bands: K, the number of frequencies.
        resolution: μ for each mode; the shape if not given.

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
    return hygienic(
        lambda **given: tn.layer("\n".join(lines), inputs=inputs, constants=constants, **given), sizes
    )
