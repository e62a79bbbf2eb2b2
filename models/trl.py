"""The tensor regression layer: an inner product with a weight tensor of low rank.

Y = ⟨X, W⟩_N + b,  W = G ×₀ U⁰ … ×_{N+1} U^{N+1}      (thesis eq. 3.0.5–3.0.7)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensornet.api as tn
from tensornet.weights.factorizations import factored, form_named
from tensornet.weights.ranks import Rank, check_sizes

from .checked import checked

__all__ = ["trl"]

FORMS = ("tucker", "cp", "tt", "dense", "low_rank", "tr")
"""The factorizations that do not need the outputs split into as many modes as the inputs."""


@checked
def trl(
    sizes: Sequence[int],
    outputs: int,
    *,
    rank: Rank = "same",
    factorization: str = "tucker",
    bias: bool = True,
) -> tn.Graph:
    """Y[…, o] = Σ X[…, i₁…i_N]·W[i₁…i_N, o] + b[o], the weight W factorized.

    Input: x[..., i1, …, iN]. Output: y[..., o].

    | factorization | W[i₁…i_N,o] = | parameters |
    |---|---|---|
    | tucker | Σ G[r₁…r_N,s]·∏ Uₖ[iₖ,rₖ]·V[o,s] | ∏ Rₖ·S + Σ IₖRₖ + O·S (eq. 3.0.8) |
    | cp | Σ ∏ Uₖ[iₖ,r]·V[o,r] | R·(Σ Iₖ + O) |
    | tt | Σ G₁[i₁,r₁]·G₂[r₁,i₂,r₂]…V[r_N,o] | I₁R₁ + Σ RₖIₖ₊₁Rₖ₊₁ + R_N·O |
    | low_rank | Σ_r U[i₁…i_N,r]·V[r,o] | R·(∏ Iₖ + O) |
    | tr | Σ ∏ Gₖ[rₖ,iₖ,rₖ₊₁]·V[s,o,r₁] | Σ Rₖ·Iₖ·Rₖ₊₁ + S·O·R₁ |
    | dense | W[i₁…i_N,o] | ∏ Iₖ·O |

    Args:
        sizes: I₁ … I_N, without the batch; up to 11 modes.
        outputs: O.
        rank: 'same' for full rank, a float for a fraction of the ∏ Iₖ·O dense parameters (the nearest that
            integer ranks reach, without the bias), an int for all ranks, or one int for each rank: N+1 for
            tucker (the modes, then the outputs) and tr, 1 for cp and low_rank, N for tt.
        factorization: one of the table above, in upper or lower case.
        bias: whether b[o] is added (O more parameters).

    Raises:
        ShapeError: sizes, rank or factorization do not fit.

    Warns:
        TensornetWarning: no ranks come within 10 % of the fraction, or the nearest ones exceed the dense count.

    Source: thesis eq. 3.0.5–3.0.8; Kossaifi et al. (2020), "Tensor regression networks".

    Example:
        >>> layer = trl((4, 4), 10, rank=(2, 2, 3))
        >>> print(layer.equations[0])
        y[...,o] = x[...,i1,i2] * G[r1,r2,s] * U1[i1,r1] * U2[i2,r2] * V[o,s] + bias[o]
        >>> tn.parameter_formula(layer), tn.parameter_count(layer)
        (i1*r1 + i2*r2 + o*s + o + r1*r2*s, 68)
    """
    sizes = check_sizes(sizes, "sizes")
    (outputs,) = check_sizes((outputs,), "outputs")
    kind, order = form_named(factorization, FORMS), len(sizes)
    modes = [f"i{n}" for n in range(1, order + 1)]
    called = {f"U{order + 1}": "V", f"G{order + 1}": "V", f"r{order + 1}": "s"}
    weight = factored(kind, (modes, ["o"]), (sizes, (outputs,)), rank, called)
    line = f"y[...,o] = x[...,{','.join(modes)}] * {weight}" + (" + bias[o]" if bias else "")
    named: dict[str, Any] = dict(zip(modes, sizes, strict=True)) | {"o": outputs} | dict(weight.ranks)
    return tn.layer(line, inputs="x", **named)
