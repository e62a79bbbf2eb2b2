"""What every Transformer is made of, besides attention: norms, feed-forward, residuals, embeddings.

Each is a layer, called as `layer(x, scope="name")` inside a model.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import tensornet as tn

from .dimensions import Size, chosen

__all__ = [
    "ACTIVATIONS",
    "embedding",
    "feed_forward",
    "learned_positions",
    "norm",
    "projection",
    "residual",
    "sinusoidal_positions",
    "sublayer",
]

ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "silu", "tanh")


@functools.cache
def norm(dim: Size, eps: float = 1e-5) -> tn.Graph:
    """y = γ ⊙ (x − μ)/√(σ² + ε) + β over the last axis.

    Input x[..., c], output y[..., c]; 2·dim parameters, `gain` (γ) and `bias` (β).

    Args:
        dim: the width.
        eps: ε.

    Source: thesis eq. 2.4.8–2.4.10; Ba et al. (2016), "Layer normalization".

    Example:
        >>> tn.parameter_formula(norm("D"))
        2*D
    """
    return tn.layer(f"y[...,c] = gain[c] * normalize[c](x[...,c], eps={eps!r}) + bias[c]", inputs="x", c=dim)


@functools.cache
def projection(dim: Size, out: Size, *, bias: bool = True, zeros: bool = False) -> tn.Graph:
    """y = W·x + b over the last axis.

    Input x[..., c], output y[..., o]; dim·out parameters, and out more with the bias.

    Args:
        dim: the width of x.
        out: the width of y.
        bias: whether b is added.
        zeros: whether W starts at zero instead of the derived variance.

    Example:
        >>> tn.parameter_formula(projection("D", "K"))
        D*K + K
    """
    line = "y[...,o] = x[...,c] * W[o,c]" + (" + bias[o]" if bias else "")
    return tn.layer(line, inputs="x", init={"W": "zeros"} if zeros else None, c=dim, o=out)


@functools.cache
def feed_forward(dim: Size, hidden: Size, *, activation: str = "gelu", dropout: float = 0.0) -> tn.Graph:
    """y = W₂·f(W₁·x + b₁) + b₂ at every position.

    Input x[..., c], output y[..., c]; 2·dim·hidden + hidden + dim parameters.

    Args:
        dim: the width of x and y.
        hidden: the width between.
        activation: f: "gelu", "gelu_tanh", "relu", "silu" or "tanh".
        dropout: the share of hidden values dropped in training.

    Raises:
        ShapeError: there is no such activation.

    Source: Vaswani et al. (2017), eq. 2; thesis eq. 2.10.18.

    Example:
        >>> tn.parameter_formula(feed_forward("D", "4*D"))
        8*D**2 + 5*D
    """
    chosen(activation, ACTIVATIONS, "activation")
    inner = f"{activation}(x[...,c] * W1[f,c] + b1[f])"
    inner = f"dropout({inner}, {dropout!r})" if dropout else inner
    return tn.layer(f"y[...,o] = {inner} * W2[o,f] + b2[o]", inputs="x", c=dim, f=hidden, o=dim)


@functools.cache
def residual(dropout: float = 0.0) -> tn.Graph:
    """z = x + SubLayer(x), given both: inputs x[...] and y[...] (thesis eq. 2.3.7).

    Args:
        dropout: the share of y dropped in training.

    Example:
        >>> print(residual().equations[0])
        z[...] = x[...] + y[...]
    """
    added = f"dropout(y[...], {dropout!r})" if dropout else "y[...]"
    return tn.layer(f"z[...] = x[...] + {added}", inputs="x y")


def sublayer(
    x: tn.Tensor,
    compute: Callable[[tn.Tensor], tn.Tensor],
    normed: tn.Graph | None,
    *,
    pre: bool,
    scope: str,
    dropout: float = 0.0,
) -> tn.Tensor:
    """LayerNorm(x + SubLayer(x)) (thesis eq. 2.4.11), or x + SubLayer(LayerNorm(x)) with `pre`.

    Args:
        x: the tensor.
        compute: the sublayer.
        normed: the norm, or nothing.
        pre: whether the norm stands before the sublayer.
        scope: the scope of the norm.
        dropout: the share of the sublayer's output dropped in training.
    """
    if normed is None:
        return residual(dropout)(x, compute(x))
    if pre:
        return residual(dropout)(x, compute(normed(x, scope=scope)))
    return normed(residual(dropout)(x, compute(x)), scope=scope)


@functools.cache
def embedding(vocabulary: Size, dim: Size, *, scale: bool = False, std: float = 0.02) -> tn.Graph:
    """y[b, n] = E[t[b, n]]: the vectors of tokens.

    Input t[b, n] of whole numbers from 0, output y[b, n, c]; vocabulary·dim parameters.

    Args:
        vocabulary: the number of tokens.
        dim: the width.
        scale: whether the vectors are multiplied by √dim (Vaswani et al. 2017, §3.4).
        std: the standard deviation E starts with.

    Example:
        >>> print(embedding(100, 8).equations[0])
        y[b,n,c] = E[t[b,n],c]
    """
    text = f"E[v,c]: parameter(std={std!r})\ny[b,n,c] = E[t[b,n],c]" + (" * sqrt(c)" if scale else "")
    return tn.layer(text, inputs="t[b,n]", v=vocabulary, c=dim)


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
    return tn.layer(text, inputs="x", m=length, c=dim, **({"past": "past"} if past else {}))


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
    return tn.layer(text, inputs="x", k=f"({dim})/2", s=2, c=dim, **({"past": "past"} if past else {}))
