"""n-mode products: the multilinear map that every layer here is built from (thesis eq. 3.0.1).

mode-n product      (X ×ₙ U)[i₁…r…i_N] = Σ_{iₙ} U[r,iₙ] · X[i₁…i_N]      (Kolda and Bader 2009, §2.5)
Tucker to tensor    X = G ×₁ U₁ … ×_N U_N,  Uₙ ∈ R^{Iₙ×Rₙ}
"""

from __future__ import annotations

from collections.abc import Sequence

import tensornet.api as tn
from tensornet.errors import ShapeError

from .checked import checked

__all__ = ["mode_dot", "multi_mode_dot", "tucker_to_tensor"]


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
