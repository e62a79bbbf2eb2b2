"""A linear layer over tensorized features, its weight dense or factorized.

y[…, (o₁…o_N)] = Σ x[…, (i₁…i_N)] · W[(o₁…o_N), (i₁…i_N)] + b[(o₁…o_N)]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import tensornet as tn
from tensornet.errors import ShapeError

from .checked import checked
from .ranks import Rank, check_sizes, choose_ranks

__all__ = ["FACTORIZATIONS", "linear"]


@dataclass(frozen=True)
class Factorization:
    """A form of the weight: its factors for N modes, the names and full values of its ranks."""

    factors: Callable[[int], list[str]]
    ranks: Callable[[int], list[str]]
    full: Callable[[tuple[int, ...], tuple[int, ...]], tuple[int, ...]]


@checked
def linear(
    in_sizes: Sequence[int],
    out_sizes: Sequence[int],
    *,
    factorization: str = "dense",
    rank: Rank = "same",
    bias: bool = True,
) -> tn.Graph:
    """y = W·x + b over features that are the composite of N modes.

    Input x[..., (i1…iN)], output y[..., (o1…oN)].

    | factorization | W = | parameters |
    |---|---|---|
    | dense | W[o₁…o_N,i₁…i_N] | ∏ Oₖ·∏ Iₖ |
    | tucker | Σ G[q₁…q_N,r₁…r_N]·∏ Aₖ[oₖ,qₖ]·∏ Bₖ[iₖ,rₖ] | ∏ Qₖ·∏ Rₖ + Σ OₖQₖ + Σ IₖRₖ |
    | cp | Σ ∏ Aₖ[oₖ,r]·∏ Bₖ[iₖ,r] | R·Σ (Oₖ + Iₖ) |
    | tt | a train of 2N cores, outputs first | Σ Rₖ₋₁·sizeₖ·Rₖ |
    | blocktt | Σ ∏ Gₖ[rₖ₋₁,oₖ,iₖ,rₖ], r₀ and r_N absent | Σ Rₖ₋₁OₖIₖRₖ |
    | kronecker | Σ_r ∏ Aₖ[r,oₖ,iₖ] | R·Σ OₖIₖ |

    Args:
        in_sizes: I₁ … I_N, whose product is the number of input features; up to 12 modes.
        out_sizes: O₁ … O_N, as many (for `dense` any number).
        factorization: one of the above, in any case.
        rank: 'same' for full rank, a float for a fraction of the ∏ Oₖ·∏ Iₖ dense parameters (the
            nearest number that ranks can give, the bias not counted), an int, or one for each rank:
            2N for tucker (outputs, then inputs), 1 for cp and kronecker, 2N−1 for tt, N−1 for blocktt.
        bias: whether b is added (∏ Oₖ more parameters).

    Raises:
        ShapeError: sizes, rank or factorization do not fit.

    Warns:
        TensornetWarning: no ranks come within 10 % of the fraction, or what comes nearest is more than dense.

    Source: Novikov et al. (2015), "Tensorizing neural networks", for block-TT.

    Example:
        >>> layer = linear((4, 8), (8, 4), factorization="blocktt", rank=2, bias=False)
        >>> print(layer.equations[0])
        y[...,(o1,o2)] = x[...,(i1,i2)] * G1[o1,i1,r1] * G2[r1,o2,i2]
        >>> tn.parameter_count(layer)
        128
    """
    ins, outs = check_sizes(in_sizes, "in_sizes"), check_sizes(out_sizes, "out_sizes")
    kind = factorization.lower()
    if kind not in FACTORIZATIONS:
        raise ShapeError(
            f"there is no factorization '{factorization}'", fix=f"choose of {', '.join(FACTORIZATIONS)}"
        )
    if kind == "dense":
        return _dense(ins, outs, bias)
    if len(ins) != len(outs):
        raise ShapeError(
            f"in_sizes {ins} has {len(ins)} mode(s), and out_sizes {outs} has {len(outs)}",
            fix="give as many of each",
        )
    form, order = FACTORIZATIONS[kind], len(ins)
    sizes = {f"i{n}": size for n, size in enumerate(ins, 1)} | {
        f"o{n}": size for n, size in enumerate(outs, 1)
    }
    names, full = form.ranks(order), form.full(ins, outs)
    factors = form.factors(order)

    def parameters(ranks: tuple[int, ...]) -> int:
        known = sizes | dict(zip(names, ranks, strict=True))
        return sum(prod(known[axis] for axis in _axes(factor)) for factor in factors)

    chosen = choose_ranks(rank, full, parameters, dense=prod(ins) * prod(outs))
    return _layer(order, order, factors, sizes | dict(zip(names, chosen, strict=True)), bias)


def _layer(inputs: int, outputs: int, factors: list[str], sizes: dict[str, Any], bias: bool) -> tn.Graph:
    x, y = _composite("i", inputs), _composite("o", outputs)
    line = f"y[...,{y}] = x[...,{x}] * {' * '.join(factors)}" + (f" + bias[{y}]" if bias else "")
    return tn.layer(line, inputs="x", **sizes)


def _dense(ins: tuple[int, ...], outs: tuple[int, ...], bias: bool) -> tn.Graph:
    sizes = {f"i{n}": size for n, size in enumerate(ins, 1)} | {
        f"o{n}": size for n, size in enumerate(outs, 1)
    }
    weight = f"W[{_composite('o', len(outs))},{_composite('i', len(ins))}]"
    return _layer(len(ins), len(outs), [weight], sizes, bias)


def _composite(letter: str, order: int) -> str:
    names = [f"{letter}{n}" for n in range(1, order + 1)]
    return f"({','.join(names)})" if order > 1 else names[0]


def _axes(factor: str) -> list[str]:
    return factor[factor.index("[") + 1 : -1].split(",")


def _tucker(order: int) -> list[str]:
    numbers = range(1, order + 1)
    core = ",".join([f"q{n}" for n in numbers] + [f"r{n}" for n in numbers])
    return [f"G[{core}]", *(f"A{n}[o{n},q{n}]" for n in numbers), *(f"B{n}[i{n},r{n}]" for n in numbers)]


def _cp(order: int) -> list[str]:
    numbers = range(1, order + 1)
    return [*(f"A{n}[o{n},r]" for n in numbers), *(f"B{n}[i{n},r]" for n in numbers)]


def _tt(order: int) -> list[str]:
    modes = [f"o{n}" for n in range(1, order + 1)] + [f"i{n}" for n in range(1, order + 1)]
    return [f"G{n}[{_linked(n, mode, len(modes))}]" for n, mode in enumerate(modes, 1)]


def _blocktt(order: int) -> list[str]:
    return [f"G{n}[{_linked(n, f'o{n},i{n}', order)}]" for n in range(1, order + 1)]


def _linked(number: int, modes: str, count: int) -> str:
    """The axes of one core of a train: the rank before, its modes, the rank after."""
    before = f"r{number - 1}," if number > 1 else ""
    after = f",r{number}" if number < count else ""
    return f"{before}{modes}{after}"


def _kronecker(order: int) -> list[str]:
    return [f"A{n}[r,o{n},i{n}]" for n in range(1, order + 1)]


def _train_ranks(sizes: Sequence[int]) -> tuple[int, ...]:
    return tuple(min(prod(sizes[:n]), prod(sizes[n:])) for n in range(1, len(sizes)))


FACTORIZATIONS: dict[str, Factorization] = {
    "dense": Factorization(lambda n: ["W"], lambda n: [], lambda i, o: ()),
    "tucker": Factorization(
        _tucker,
        lambda n: [f"q{k}" for k in range(1, n + 1)] + [f"r{k}" for k in range(1, n + 1)],
        lambda i, o: (*o, *i),
    ),
    "cp": Factorization(_cp, lambda n: ["r"], lambda i, o: (prod((*o, *i)) // max(*o, *i),)),
    "tt": Factorization(
        _tt, lambda n: [f"r{k}" for k in range(1, 2 * n)], lambda i, o: _train_ranks((*o, *i))
    ),
    "blocktt": Factorization(
        _blocktt,
        lambda n: [f"r{k}" for k in range(1, n)],
        lambda i, o: _train_ranks([a * b for a, b in zip(o, i, strict=True)]),
    ),
    "kronecker": Factorization(
        _kronecker,
        lambda n: ["r"],
        lambda i, o: (
            prod(a * b for a, b in zip(o, i, strict=True)) // max(a * b for a, b in zip(o, i, strict=True)),
        ),
    ),
}
