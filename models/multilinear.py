"""n-mode products (thesis eq. 3.0.1), and the layers built from them: contraction, regression, linear.

mode-n product      (X ×ₙ U)[i₁…r…i_N] = Σ_{iₙ} U[r,iₙ] · X[i₁…i_N]      (Kolda and Bader 2009, §2.5)
Tucker to tensor    X = G ×₁ U₁ … ×_N U_N,  Uₙ ∈ R^{Iₙ×Rₙ}
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensornet.api as tn
from tensornet.errors import ShapeError
from tensornet.weights.factorizations import Rank, check_sizes, choose_ranks, factored, form_named

from .checked import checked, composite


@checked
def multi_mode_dot(
    order: int,
    modes: Sequence[int] | None = None,
    *,
    vectors: Sequence[int] = (),
    transpose: bool = False,
    bias: bool = False,
) -> tn.Graph:
    """Y = X ×ₘ Uₘ over some modes: the multilinear map of a tensor by matrices and vectors.

    Inputs: X of shape (I₁, …, I_N), then for each mode m, in order, a matrix Uₘ of shape (Rₘ, Iₘ). A mode
    in `vectors` takes a vector of shape (Iₘ,) instead and disappears. With a bias, the last input has the
    shape of Y.

    Args:
        order: the number of modes N of X, 1 to 12.
        modes: the modes to multiply, from 0; all if not given.
        vectors: the modes among these that are multiplied by a vector.
        transpose: whether the matrices are given as (Iₘ, Rₘ).
        bias: whether a tensor of the shape of Y is added.

    Raises:
        ShapeError: a mode is out of range or named twice.

    Source: thesis eq. 3.0.1.

    Example:
        >>> print(multi_mode_dot(2).equations[0])
        y[r1,r2] = x[i1,i2] * U1[r1,i1] * U2[r2,i2]
    """
    _check(order, (), ())
    chosen = tuple(range(order)) if modes is None else tuple(modes)
    _check(order, chosen, tuple(vectors))
    result = [f"r{n + 1}" if n in chosen else f"i{n + 1}" for n in range(order) if n not in vectors]
    factors = []
    for mode in chosen:
        old, new = f"i{mode + 1}", f"r{mode + 1}"
        axes = [old] if mode in vectors else [old, new] if transpose else [new, old]
        factors.append(f"U{mode + 1}[{','.join(axes)}]")
    x = f"x[{','.join(f'i{n + 1}' for n in range(order))}]"
    y = f"y[{','.join(result)}]" if result else "y"
    added = f"bias[{','.join(result) or '()'}]"
    line = f"{y} = {' * '.join([x, *factors])}" + (f" + {added if result else 'bias'}" if bias else "")
    return tn.layer(line, inputs=[x, *factors, *([added] if bias else [])])


@checked
def mode_dot(order: int, mode: int, *, vector: bool = False, transpose: bool = False) -> tn.Graph:
    """Y = X ×ₘ U: one mode of a tensor multiplied by a matrix (or by a vector).

    Inputs: X of shape (I₁, …, I_N) and U of shape (R, Iₘ), (Iₘ, R) if `transpose`, (Iₘ,) if `vector`.

    Args:
        order: the number of modes of X.
        mode: the mode, from 0.
        vector: whether U is a vector.
        transpose: whether the matrix is given transposed.

    Raises:
        ShapeError: the mode is out of range.

    Source: Kolda and Bader (2009), §2.5.

    Example:
        >>> print(mode_dot(3, 1).equations[0])
        y[i1,r2,i3] = x[i1,i2,i3] * U2[r2,i2]
    """
    return multi_mode_dot(order, (mode,), vectors=(mode,) if vector else (), transpose=transpose)


@checked
def tucker_to_tensor(order: int) -> tn.Graph:
    """X = G ×₁ U₁ … ×_N U_N: the tensor of a Tucker decomposition.

    Inputs: the core G of shape (R₁, …, R_N), then factors Uₙ of shape (Iₙ, Rₙ).

    Args:
        order: the number of modes N, 1 to 12.

    Raises:
        ShapeError: the order is out of range.

    Source: thesis chapter 3, Tucker decomposition.

    Example:
        >>> print(tucker_to_tensor(2).equations[0])
        x[i1,i2] = G[r1,r2] * U1[i1,r1] * U2[i2,r2]
    """
    _check(order, (), ())
    numbers = range(1, order + 1)
    core = f"G[{','.join(f'r{n}' for n in numbers)}]"
    factors = [f"U{n}[i{n},r{n}]" for n in numbers]
    return tn.layer(
        f"x[{','.join(f'i{n}' for n in numbers)}] = {' * '.join([core, *factors])}", inputs=[core, *factors]
    )


def _check(order: int, modes: tuple[int, ...], vectors: tuple[int, ...]) -> None:
    if not 1 <= order <= 12:
        raise ShapeError(f"the order is {order}", fix="give 1 to 12")
    for mode in (*modes, *vectors):
        if not 0 <= mode < order or modes.count(mode) != 1:
            raise ShapeError(
                f"mode {mode} of {modes} does not fit a tensor of {order} modes",
                fix=f"use 0 to {order - 1}, each once",
            )


# ---------------------------------------------------------------------------- the tensor contraction layer
# X' = X ×₁ V¹ … ×_N Vᴺ,  Vᵏ ∈ R^{Rₖ×Iₖ},  parameters Σ Iₖ·Rₖ      (thesis eq. 3.0.2–3.0.3)


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


# ---------------------------------------------------------------------------- the tensor regression layer
# Y = ⟨X, W⟩_N + b,  W = G ×₀ U⁰ … ×_{N+1} U^{N+1}      (thesis eq. 3.0.5–3.0.7)


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


# ---------------------------------------------------------------------------- linear layers over tensorized features
# y[…, (o₁…o_N)] = Σ x[…, (i₁…i_N)] · W[(o₁…o_N), (i₁…i_N)] + b[(o₁…o_N)]


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
