"""Sequence layers with a linear recurrence: state spaces, linear attention, matrix product states."""

from __future__ import annotations

import tensornet.api as tn

from .checked import checked
from .dimensions import Size, chosen, count, divided, sized_layer

__all__ = ["linear_attention", "matrix_product", "state_space"]

FEATURES = {
    "cosine": "where(index(p) == 0, cos(pi / 2 * x[b,t]), sin(pi / 2 * x[b,t]))",
    "share": "where(index(p) == 0, 1 - x[b,t], x[b,t])",
}
"""The two features p of a number from 0 to 1, for a matrix product."""


@checked
def state_space(dim: Size, states: Size = 16) -> tn.Graph:
    """h_t = a·h_{t-1} + (1 − a)·B·x_t, y_t = Σ C·h_t + D·x_t, channel by channel, with a = exp(−exp(step + rate)).

    Input: x[b, t, c]. Output: y[b, t, c]. Each channel has its own states, and each state its own decay rate.

    Args:
        dim: the number of channels.
        states: the number of states of each channel.

    Source: Gu et al. (2022), "On the parameterization and initialization of diagonal state space models", with
    real rates.

    Example:
        >>> tn.parameter_count(state_space(8, 4))
        112
    """
    text = """
        step[c]: parameter(value=-3)
        decay[c,n] = exp(-exp(step[c] + rate[c,n]))
        h[b,t,c,n] = decay[c,n] * h[b,t-1,c,n] + (1 - decay[c,n]) * B[c,n] * x[b,t,c]
        y[b,t,c] = h[b,t,c,n] * C[c,n] + D[c] * x[b,t,c]
    """
    sizes = {"c": dim, "n": states}
    return sized_layer(text, "x[b,t,c]", sizes)


@checked
def linear_attention(dim: Size, heads: Size = 1, *, bias: bool = False) -> tn.Graph:
    """y_t = φ(q_t)·S_t / (φ(q_t)·n_t), S_t = S_{t-1} + φ(k_t)⊗v_t, n_t = n_{t-1} + φ(k_t), with φ = elu + 1.

    Input: x[b, t, D]. Output: y[b, t, D]. Causal attention whose state does not grow with the length. q, k and v are
    projections of x, and the heads are joined by an output projection.

    Args:
        dim: the width D.
        heads: the number of heads, which divides the width.
        bias: whether the projections have biases.

    Raises:
        ShapeError: the heads do not divide the width.

    Source: Katharopoulos et al. (2020), "Transformers are RNNs", eq. 16 to 20.

    Example:
        >>> tn.parameter_count(linear_attention(16, 4))
        1024
    """
    lines = [
        f"{name}[b,t,h,d] = x[b,t,c] * W{name}[(h,d),c]" + (f" + b{name}[(h,d)]" if bias else "")
        for name in "qkv"
    ]
    text = "\n".join(
        [
            *lines,
            "f[b,t,h,d] = elu(q[b,t,h,d]) + 1",
            "g[b,t,h,d] = elu(k[b,t,h,d]) + 1",
            "S[b,t,h,d,e] = S[b,t-1,h,d,e] + g[b,t,h,d] * v[b,t,h,e]",
            "m[b,t,h,d] = m[b,t-1,h,d] + g[b,t,h,d]",
            "o[b,t,h,e] = f[b,t,h,d] * S[b,t,h,d,e] / sum[d](f[b,t,h,d] * m[b,t,h,d])",
            "y[b,t,a] = o[b,t,h,e] * Wo[a,(h,e)]" + (" + bo[a]" if bias else ""),
        ]
    )
    width = divided(dim, heads, "dim", "heads")
    sizes = {"c": dim, "a": dim, "h": heads, "d": width, "e": width}
    return sized_layer(text, "x[b,t,c]", sizes)


@checked
def matrix_product(length: int, classes: Size, *, bond: Size = 16, features: str = "cosine") -> tn.Graph:
    """v_t = v_{t-1} + v_{t-1}·(Σ_p A_t[p]·φ_p(x_t)), y = W·v_T: one matrix for each position, linear in φ(x_t).

    Input: x[b, t] of numbers from 0 to 1. Output: y[b, K]. The layer is a tensor train over the features of all
    positions. Its cores are initialized near the identity.

    Args:
        length: the number of positions, such as the pixels of an image.
        classes: K.
        bond: the size of the state, the rank of the train.
        features: φ, two features of a number: "cosine", cos(πx/2) and sin(πx/2), or "share", 1 − x and x.

    Raises:
        ShapeError: a choice is unknown.

    Source: Stoudenmire and Schwab (2016), "Supervised learning with tensor networks".

    Example:
        >>> tn.parameter_count(matrix_product(784, 10, bond=4))
        25132
    """
    count(length, "length", 1)
    chosen(features, tuple(FEATURES), "features")
    text = f"""
        A[t,r,p,s]: parameter(std={(length**-0.5) / 4:.6g})
        start[r]: parameter(value=1)
        f[b,t,p] = {FEATURES[features]}
        v[b,-1,r] = start[r]
        v[b,t,s] = v[b,t-1,s] + v[b,t-1,r] * A[t,r,p,s] * f[b,t,p]
        y[b,k] = v[b,-1,r] * W[k,r]
    """
    sizes = {"t": length, "k": classes, "r": bond, "p": 2}
    return sized_layer(text, "x[b,t]", sizes)
