"""The tensor regression layer: an inner product with a weight tensor of low rank.

Y = ⟨X, W⟩_N + b,  W = G ×₀ U⁰ … ×_{N+1} U^{N+1}      (thesis eq. 3.0.5–3.0.7)
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import tensornet as tn
from tensornet.errors import ShapeError

from .checked import checked
from .ranks import Rank, check_sizes, choose_ranks

__all__ = ["trl"]


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

    Input x[..., i1, …, iN], output y[..., o].

    | factorization | W[i₁…i_N,o] = | parameters |
    |---|---|---|
    | tucker | Σ G[r₁…r_N,s]·∏ Uₖ[iₖ,rₖ]·V[o,s] | ∏ Rₖ·S + Σ IₖRₖ + O·S (eq. 3.0.8) |
    | cp | Σ ∏ Uₖ[iₖ,r]·V[o,r] | R·(Σ Iₖ + O) |
    | tt | Σ G₁[i₁,r₁]·G₂[r₁,i₂,r₂]…V[r_N,o] | I₁R₁ + Σ RₖIₖ₊₁Rₖ₊₁ + R_N·O |
    | dense | W[i₁…i_N,o] | ∏ Iₖ·O |

    Args:
        sizes: I₁ … I_N, without the batch; up to 11 modes.
        outputs: O.
        rank: 'same' for full rank, a float for a fraction of the ∏ Iₖ·O dense parameters (the nearest
            number that ranks can give, the bias not counted), an int, or a rank for each: N+1 for
            tucker (the modes, then the outputs), 1 for cp, N for tt.
        factorization: one of the above, in any case.
        bias: whether b[o] is added (O more parameters).

    Raises:
        ShapeError: sizes, rank or factorization do not fit.

    Warns:
        TensornetWarning: no ranks come within 10 % of the fraction, or what comes nearest is more than dense.

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
    kind = factorization.lower()
    if kind not in _WEIGHTS:
        raise ShapeError(
            f"there is no factorization '{factorization}'", fix=f"choose of {', '.join(_WEIGHTS)}"
        )
    chosen: tuple[int, ...] = ()
    if kind != "dense":
        full, dense = _full_ranks(kind, sizes, outputs), prod(sizes) * outputs
        chosen = choose_ranks(rank, full, lambda ranks: _count(kind, sizes, outputs, ranks), dense)
    numbers = range(1, len(sizes) + 1)
    named: dict[str, Any] = {f"i{n}": size for n, size in enumerate(sizes, 1)} | {"o": outputs}
    named |= dict(zip(_rank_names(kind, len(sizes)), chosen, strict=True))
    x = f"x[...,{','.join(f'i{n}' for n in numbers)}]"
    line = f"y[...,o] = {x} * {_WEIGHTS[kind](len(sizes))}" + (" + bias[o]" if bias else "")
    return tn.layer(line, inputs="x", **named)


def _tucker(order: int) -> str:
    numbers = range(1, order + 1)
    core = f"G[{','.join(f'r{n}' for n in numbers)},s]"
    return " * ".join([core, *(f"U{n}[i{n},r{n}]" for n in numbers), "V[o,s]"])


def _cp(order: int) -> str:
    return " * ".join([*(f"U{n}[i{n},r]" for n in range(1, order + 1)), "V[o,r]"])


def _tt(order: int) -> str:
    cores = [f"G{n}[{f'r{n - 1},' if n > 1 else ''}i{n},r{n}]" for n in range(1, order + 1)]
    return " * ".join([*cores, f"V[r{order},o]"])


def _dense(order: int) -> str:
    return f"W[{','.join(f'i{n}' for n in range(1, order + 1))},o]"


_WEIGHTS = {"tucker": _tucker, "cp": _cp, "tt": _tt, "dense": _dense}


def _rank_names(kind: str, order: int) -> list[str]:
    numbers = [f"r{n}" for n in range(1, order + 1)]
    return {"tucker": [*numbers, "s"], "cp": ["r"], "tt": numbers, "dense": []}[kind]


def _full_ranks(kind: str, sizes: tuple[int, ...], outputs: int) -> tuple[int, ...]:
    """The largest ranks that add anything."""
    if kind == "tucker":
        return (*sizes, outputs)
    if kind == "cp":
        return (prod((*sizes, outputs)) // max(*sizes, outputs),)
    if kind == "tt":
        return tuple(min(prod(sizes[: n + 1]), prod(sizes[n + 1 :]) * outputs) for n in range(len(sizes)))
    return ()


def _count(kind: str, sizes: tuple[int, ...], outputs: int, ranks: tuple[int, ...]) -> int:
    if kind == "tucker":
        return prod(ranks) + sum(i * r for i, r in zip((*sizes, outputs), ranks, strict=True))
    if kind == "cp":
        return ranks[0] * (sum(sizes) + outputs)
    if kind == "tt":
        links = (1, *ranks)
        return sum(links[n] * sizes[n] * links[n + 1] for n in range(len(sizes))) + ranks[-1] * outputs
    return prod(sizes) * outputs
