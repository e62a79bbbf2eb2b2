"""What every Transformer is made of, besides attention: norms, feed-forward, residuals, embeddings.

Each is a layer, called as `layer(x, scope="name")` inside a model.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensornet as tn

from .dimensions import Size, chosen, hygienic, real

__all__ = [
    "ACTIVATIONS",
    "embedding",
    "encoder_layer",
    "feed_forward",
    "norm",
    "projection",
    "residual",
    "sublayer",
    "taken",
]

ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "silu", "tanh")


@functools.cache
def norm(dim: Size, eps: float = 1e-5, *, bias: bool = True) -> tn.Graph:
    """y = γ ⊙ (x − μ)/√(σ² + ε) + β over the last axis.

    Input x[..., c], output y[..., c]; 2·dim parameters, `gain` (γ) and `bias` (β).

    Args:
        dim: the width.
        eps: ε.
        bias: whether β is added.

    Source: thesis eq. 2.4.8–2.4.10; Ba et al. (2016), "Layer normalization".

    Example:
        >>> tn.parameter_formula(norm("D"))
        2*D
    """
    eps = real(eps, "eps", 0)
    line = f"y[...,c] = gain[c] * normalize[c](x[...,c], eps={eps!r})" + (" + bias[c]" if bias else "")
    return hygienic(lambda **sizes: tn.layer(line, inputs="x", **sizes), {"c": dim})


@functools.cache
def projection(dim: Size, out: Size, *, bias: bool = True, start: float | str | None = None) -> tn.Graph:
    """y = W·x + b over the last axis.

    Input x[..., c], output y[..., o]; dim·out parameters, and out more with the bias.

    Args:
        dim: the width of x.
        out: the width of y.
        bias: whether b is added.
        start: the standard deviation W starts with, or "zeros"; derived if not given.

    Example:
        >>> tn.parameter_formula(projection("D", "K"))
        D*K + K
    """
    line = "y[...,o] = x[...,c] * W[o,c]" + (" + bias[o]" if bias else "")
    init = None if start is None else {"W": start}
    return hygienic(lambda **sizes: tn.layer(line, inputs="x", init=init, **sizes), {"c": dim, "o": out})


@functools.cache
def feed_forward(
    dim: Size, hidden: Size, *, activation: str = "gelu", dropout: float = 0.0, bias: bool = True
) -> tn.Graph:
    """y = W₂·f(W₁·x + b₁) + b₂ at every position.

    Input x[..., c], output y[..., c]; 2·dim·hidden + hidden + dim parameters.

    Args:
        dim: the width of x and y.
        hidden: the width between.
        activation: f: "gelu", "gelu_tanh", "relu", "silu" or "tanh".
        dropout: the share of hidden values dropped in training.
        bias: whether b₁ and b₂ are added.

    Raises:
        ShapeError: there is no such activation.

    Source: Vaswani et al. (2017), eq. 2; thesis eq. 2.10.18.

    Example:
        >>> tn.parameter_formula(feed_forward("D", "4*D"))
        8*D**2 + 5*D
    """
    chosen(activation, ACTIVATIONS, "activation")
    dropout = real(dropout, "dropout", 0, 1)
    first, second = (" + b1[f]", " + b2[o]") if bias else ("", "")
    inner = f"{activation}(x[...,c] * W1[f,c]{first})"
    inner = f"dropout({inner}, {dropout!r})" if dropout else inner
    line = f"y[...,o] = {inner} * W2[o,f]{second}"
    return hygienic(lambda **sizes: tn.layer(line, inputs="x", **sizes), {"c": dim, "f": hidden, "o": dim})


@functools.cache
def residual(dropout: float = 0.0) -> tn.Graph:
    """z = x + SubLayer(x), given both: inputs x[...] and y[...] (thesis eq. 2.3.7).

    Args:
        dropout: the share of y dropped in training.

    Example:
        >>> print(residual().equations[0])
        z[...] = x[...] + y[...]
    """
    dropout = real(dropout, "dropout", 0, 1)
    added = f"dropout(y[...], {dropout!r})" if dropout else "y[...]"
    return tn.layer(f"z[...] = x[...] + {added}", inputs="x y")


def sublayer(
    x: tn.Tensor,
    compute: Callable[[tn.Tensor], tn.Tensor],
    normed: tn.Graph,
    *,
    pre: bool,
    scope: str,
    dropout: float = 0.0,
) -> Any:
    """LayerNorm(x + SubLayer(x)) (thesis eq. 2.4.11), or x + SubLayer(LayerNorm(x)) with `pre`.

    Args:
        x: the tensor.
        compute: the sublayer.
        normed: the norm.
        pre: whether the norm stands before the sublayer.
        scope: the scope of the norm.
        dropout: the share of the sublayer's output dropped in training.
    """
    if pre:
        return residual(dropout)(x, compute(normed(x, scope=scope)))
    return normed(residual(dropout)(x, compute(x)), scope=scope)


@functools.cache
def encoder_layer(
    attend: tn.Graph, mlp: tn.Graph, normed: tn.Graph, *, pre: bool = True, dropout: float = 0.0
) -> tn.Graph:
    """x′ = x + Attention(LN(x)), x″ = x′ + MLP(LN(x′)); with the norms after the sums if not `pre`.

    Inputs are those of the attention: x[b, i, c], then what it takes besides. Output z[b, i, c]. The
    parts have the scopes `attention`, `mlp`, `norm1` and `norm2`.

    Args:
        attend: the attention.
        mlp: the feed-forward layer.
        normed: the norm.
        pre: whether norms stand before the sublayers.
        dropout: the share of each sublayer's output dropped in training.
    """

    def forward(x: tn.Tensor, *others: tn.Tensor) -> Any:
        def look(h: tn.Tensor) -> Any:
            return attend(h, *others, scope="attention")

        def think(h: tn.Tensor) -> Any:
            return mlp(h, scope="mlp")

        x = sublayer(x, look, normed, pre=pre, scope="norm1", dropout=dropout)
        return sublayer(x, think, normed, pre=pre, scope="norm2", dropout=dropout)

    return tn.model(forward, inputs=taken(attend))


def taken(graph: tn.Graph) -> list[str]:
    """The inputs of a graph, as those of a model around it are declared."""
    return [str(leaf).removesuffix(": input") for leaf in graph.inputs]


@functools.cache
def embedding(vocabulary: Size, dim: Size, *, scale: bool = False) -> tn.Graph:
    """y[b, n] = E[t[b, n]]: the vectors of tokens.

    Input t[b, n] of whole numbers from 0, output y[b, n, c]; vocabulary·dim parameters.

    Args:
        vocabulary: the number of tokens.
        dim: the width.
        scale: whether the vectors are multiplied by √dim (Vaswani et al. 2017, §3.4), and E starts
            with variance 1/dim; it starts with a standard deviation of 0.02 otherwise.

    Example:
        >>> print(embedding(100, 8).equations[0])
        y[b,n,c] = E[t[b,n],c]
    """
    if scale:
        text = "E[v,c]: parameter\ny[b,n,c] = E[t[b,n],c] * sqrt(c)"
    else:
        text = "E[v,c]: parameter(std=0.02)\ny[b,n,c] = E[t[b,n],c]"
    return hygienic(lambda **sizes: tn.layer(text, inputs="t[b,n]", **sizes), {"v": vocabulary, "c": dim})
