"""A linear layer over tensorized features, with a dense or factorized weight.

y[…, (o₁…o_N)] = Σ x[…, (i₁…i_N)] · W[(o₁…o_N), (i₁…i_N)] + b[(o₁…o_N)]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensornet.api as tn
from tensornet.errors import ShapeError
from tensornet.weights.factorizations import factored, form_named
from tensornet.weights.ranks import Rank, check_sizes

from .checked import checked
from .dimensions import composite

__all__ = ["linear"]


@checked
def linear(
    in_sizes: Sequence[int],
    out_sizes: Sequence[int],
    *,
    factorization: str = "dense",
    rank: Rank = "same",
    bias: bool = True,
) -> tn.Graph:
    """y = W·x + b over features that are a composite of N modes.

    Input: x[..., (i1…iN)]. Output: y[..., (o1…oN)].

    | factorization | W = | parameters |
    |---|---|---|
    | dense | W[o₁…o_N,i₁…i_N] | ∏ Oₖ·∏ Iₖ |
    | tucker | Σ G[q₁…q_N,r₁…r_N]·∏ Aₖ[oₖ,qₖ]·∏ Bₖ[iₖ,rₖ] | ∏ Qₖ·∏ Rₖ + Σ OₖQₖ + Σ IₖRₖ |
    | cp | Σ ∏ Aₖ[oₖ,r]·∏ Bₖ[iₖ,r] | R·Σ (Oₖ + Iₖ) |
    | tt | a train of 2N cores, outputs first | Σ Rₖ₋₁·sizeₖ·Rₖ |
    | blocktt | Σ ∏ Gₖ[rₖ₋₁,oₖ,iₖ,rₖ], r₀ and r_N absent | Σ Rₖ₋₁OₖIₖRₖ |
    | kronecker | Σ_r ∏ Aₖ[r,oₖ,iₖ] | R·Σ OₖIₖ |
    | low_rank | Σ_r U[o₁…o_N,r]·V[r,i₁…i_N] | R·(∏ Oₖ + ∏ Iₖ) |
    | tr | a ring of 2N cores, outputs first: Gₖ[rₖ,modeₖ,rₖ₊₁], r_{2N+1} = r₁ | Σ Rₖ·sizeₖ·Rₖ₊₁ |
    | btt (N = 2) | Σ_r L[o₁,o₂,i₁,r]·R[o₂,i₁,r,i₂] | R·O₂I₁·(O₁ + I₂) |
    | monarch (N = 2) | L[o₁,o₂,i₁]·R[o₂,i₁,i₂] | O₂I₁·(O₁ + I₂) |

    Args:
        in_sizes: I₁ … I_N, whose product is the number of input features; up to 12 modes.
        out_sizes: O₁ … O_N, the same number of modes (for `dense` any number).
        factorization: one of the table above, in upper or lower case.
        rank: 'same' for full rank, a float for a fraction of the ∏ Oₖ·∏ Iₖ dense parameters (the nearest that
            integer ranks reach, without the bias), an int for all ranks, or one int for each rank: 2N for
            tucker (outputs, then inputs) and tr, 1 for cp, kronecker, low_rank and btt, 2N−1 for tt, N−1 for
            blocktt; monarch has none.
        bias: whether b is added (∏ Oₖ more parameters).

    Raises:
        ShapeError: sizes, rank or factorization do not fit.

    Warns:
        TensornetWarning: no ranks come within 10 % of the fraction, or the nearest ones exceed the dense count.

    Source: Novikov et al. (2015), "Tensorizing neural networks", for block-TT; Zhao et al. (2016), "Tensor ring
    decomposition"; Dao et al. (2022), "Monarch"; Qiu et al. (2024), "Compute better spent", for btt.

    Example:
        >>> layer = linear((4, 8), (8, 4), factorization="blocktt", rank=2, bias=False)
        >>> print(layer.equations[0])
        y[...,(o1,o2)] = x[...,(i1,i2)] * G1[o1,i1,r1] * G2[r1,o2,i2]
        >>> tn.parameter_count(layer)
        128
    """
    ins, outs = check_sizes(in_sizes, "in_sizes"), check_sizes(out_sizes, "out_sizes")
    kind = form_named(factorization)
    if kind != "dense" and len(ins) != len(outs):
        raise ShapeError(
            f"in_sizes {ins} has {len(ins)} mode(s), and out_sizes {outs} has {len(outs)}",
            fix="give as many of each",
        )
    inputs = [f"i{n}" for n in range(1, len(ins) + 1)]
    outputs = [f"o{n}" for n in range(1, len(outs) + 1)]
    weight = factored(kind, (outputs, inputs), (outs, ins), rank, _names(kind, len(ins), len(outs)))
    x, y = composite(inputs), composite(outputs)
    line = f"y[...,{y}] = x[...,{x}] * {weight}" + (f" + bias[{y}]" if bias else "")
    sizes: dict[str, Any] = dict(zip([*inputs, *outputs], [*ins, *outs], strict=True)) | dict(weight.ranks)
    return tn.layer(line, inputs="x", **sizes)


def _names(kind: str, inputs: int, outputs: int) -> dict[str, str]:
    """New names of factors and ranks: A and q for the modes of the outputs, B and r for those of the inputs."""
    if kind not in ("tucker", "cp"):
        return {}
    numbers = [
        *((n, "A", "q") for n in range(1, outputs + 1)),
        *((n, "B", "r") for n in range(1, inputs + 1)),
    ]
    found: dict[str, str] = {}
    for mode, (number, factor, rank) in enumerate(numbers, 1):
        found |= {f"U{mode}": f"{factor}{number}", f"r{mode}": f"{rank}{number}"}
    return found
