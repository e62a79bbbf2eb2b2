"""The tensor contraction layer: every mode of the input multiplied by a small matrix.

X' = X ×₁ V¹ … ×_N Vᴺ,  Vᵏ ∈ R^{Rₖ×Iₖ},  parameters Σ Iₖ·Rₖ      (thesis eq. 3.0.2–3.0.3)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensornet.api as tn
from tensornet.weights.ranks import Rank, check_sizes, choose_ranks

from .checked import checked

__all__ = ["tcl"]


@checked
def tcl(sizes: Sequence[int], ranks: Rank, *, bias: bool = False) -> tn.Graph:
    """Y = X ×₁ U₁ … ×_N U_N over the last N modes; any leading axes are batch.

    Input: x[..., i1, …, iN]. Output: y[..., r1, …, rN]. Parameters: factors Uₖ of shape (Rₖ, Iₖ), Σ Iₖ·Rₖ
    in all, and ∏ Rₖ with a bias.

    Args:
        sizes: I₁ … I_N, without the batch; up to 12 modes.
        ranks: R₁ … R_N, an int for all, 'same' for Rₖ = Iₖ, or a float for a fraction of the Σ Iₖ²
            parameters that 'same' has (the nearest number that integer ranks reach).
        bias: whether a bias of the output's shape is added.

    Raises:
        ShapeError: sizes or ranks do not fit.

    Warns:
        TensornetWarning: no ranks come within 10 % of the fraction.

    Source: thesis eq. 3.0.2; Kossaifi et al. (2017), "Tensor contraction layers for parsimonious
    deep nets".

    Example:
        >>> layer = tcl((4, 4, 3), (4, 4, 6))
        >>> print(layer.equations[0])
        y[...,r1,r2,r3] = x[...,i1,i2,i3] * U1[r1,i1] * U2[r2,i2] * U3[r3,i3]
        >>> tn.parameter_formula(layer), tn.parameter_count(layer)
        (i1*r1 + i2*r2 + i3*r3, 50)
    """
    sizes = check_sizes(sizes, "sizes")
    chosen = choose_ranks(ranks, sizes, lambda r: sum(i * k for i, k in zip(sizes, r, strict=True)))
    numbers = range(1, len(sizes) + 1)
    old, new = ",".join(f"i{n}" for n in numbers), ",".join(f"r{n}" for n in numbers)
    factors = " * ".join(f"U{n}[r{n},i{n}]" for n in numbers)
    line = f"y[...,{new}] = x[...,{old}] * {factors}" + (f" + bias[{new}]" if bias else "")
    named: dict[str, Any] = {f"i{n}": size for n, size in enumerate(sizes, 1)} | {
        f"r{n}": rank for n, rank in enumerate(chosen, 1)
    }
    return tn.layer(line, inputs="x", **named)
