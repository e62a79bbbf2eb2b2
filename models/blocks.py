"""The parts of a Transformer besides attention: norms, feed-forward layers, experts, residuals, embeddings.

Each is a layer that a model calls as `layer(x, scope="name")`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensornet.api as tn
from tensornet.errors import ShapeError

from .checked import Size, checked, chosen, real, sized_layer

ACTIVATIONS = ("gelu", "gelu_tanh", "quick_gelu", "relu", "silu", "tanh")

LOGITS = "logits[b,n,v] = h[b,n,c] * E[v,c]"
"""The output layer of a language model; its matrix may be that of the embedding."""

SHIFTED = "y[b,n,v] = x[b,n,v] + bias[v]"
"""Logits with a bias."""


def activated(name: str, value: str) -> str:
    """The expression that applies an activation to the expression `value`.

    Example:
        >>> activated("gelu", "x[b,c]"), activated("quick_gelu", "x[b,c]")
        ('gelu(x[b,c])', 'silu(1.702 * (x[b,c])) / 1.702')
    """
    return f"silu(1.702 * ({value})) / 1.702" if name == "quick_gelu" else f"{name}({value})"


@functools.cache
def norm(dim: Size, eps: float = 1e-5, *, bias: bool = True) -> tn.Graph:
    """y = γ ⊙ (x − μ)/√(σ² + ε) + β over the last axis.

    Input: x[..., c]. Output: y[..., c]. Parameters: 2·dim, `gain` (γ) and `bias` (β).

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
    return sized_layer(line, "x", {"c": dim})


@checked
@functools.cache
def rms_norm(dim: Size, eps: float = 1e-6) -> tn.Graph:
    """y = γ ⊙ x/√(mean(x²) + ε) over the last axis.

    Input: x[..., c]. Output: y[..., c]. Parameters: dim, `gain` (γ).

    Args:
        dim: the width.
        eps: ε.

    Source: Zhang and Sennrich (2019), "Root mean square layer normalization", eq. 4.

    Example:
        >>> tn.parameter_formula(rms_norm("D"))
        D
    """
    eps = real(eps, "eps", 0)
    text = f"""
        size[...] = mean[c](square(x[...,c]))
        y[...,c] = gain[c] * (x[...,c] * rsqrt(size[...] + {eps!r}))
    """
    return sized_layer(text, "x[...,c]", {"c": dim})


@functools.cache
def projection(dim: Size, out: Size, *, bias: bool = True, start: float | str | None = None) -> tn.Graph:
    """y = W·x + b over the last axis.

    Input: x[..., c]. Output: y[..., o]. Parameters: dim·out, and out for the bias.

    Args:
        dim: the width of x.
        out: the width of y.
        bias: whether b is added.
        start: the initial standard deviation of W, or "zeros"; derived from the equation if not given.

    Example:
        >>> tn.parameter_formula(projection("D", "K"))
        D*K + K
    """
    line = "y[...,o] = x[...,c] * W[o,c]" + (" + bias[o]" if bias else "")
    init = None if start is None else {"W": start}
    return sized_layer(line, "x", {"c": dim, "o": out}, init=init)


@functools.cache
def feed_forward(
    dim: Size, hidden: Size, *, activation: str = "gelu", dropout: float = 0.0, bias: bool = True
) -> tn.Graph:
    """y = W₂·f(W₁·x + b₁) + b₂ at every position.

    Input: x[..., c]. Output: y[..., c]. Parameters: 2·dim·hidden, and hidden + dim for the biases.

    Args:
        dim: the width of x and y.
        hidden: the width of the hidden layer.
        activation: f: "gelu", "gelu_tanh", "quick_gelu" (x·σ(1.702·x)), "relu", "silu" or "tanh".
        dropout: the share of hidden values dropped in training.
        bias: whether b₁ and b₂ are added.

    Raises:
        ShapeError: the activation is unknown.

    Source: Vaswani et al. (2017), eq. 2; thesis eq. 2.10.18.

    Example:
        >>> tn.parameter_formula(feed_forward("D", "4*D"))
        8*D**2 + 5*D
    """
    chosen(activation, ACTIVATIONS, "activation")
    dropout = real(dropout, "dropout", 0, 1)
    first, second = (" + b1[f]", " + b2[o]") if bias else ("", "")
    inner = activated(activation, f"x[...,c] * W1[f,c]{first}")
    inner = f"dropout({inner}, {dropout!r})" if dropout else inner
    line = f"y[...,o] = {inner} * W2[o,f]{second}"
    return sized_layer(line, "x", {"c": dim, "f": hidden, "o": dim})


@checked
@functools.cache
def gated_feed_forward(
    dim: Size, hidden: Size, *, activation: str = "silu", dropout: float = 0.0, bias: bool = False
) -> tn.Graph:
    """y = W₂·(f(W₁·x) ⊙ W₃·x) at every position: a gated linear unit, SwiGLU if f = silu.

    Input: x[..., c]. Output: y[..., c]. Parameters: 3·dim·hidden, and 2·hidden + dim for the biases.

    Args:
        dim: the width of x and y.
        hidden: the width of the hidden layer.
        activation: f, as in `feed_forward`.
        dropout: the share of hidden values dropped in training.
        bias: whether b₁, b₃ and b₂ are added.

    Raises:
        ShapeError: the activation is unknown.

    Source: Shazeer (2020), "GLU variants improve Transformer", eq. 5 and 6.

    Example:
        >>> tn.parameter_formula(gated_feed_forward("D", "F"))
        3*D*F
    """
    chosen(activation, ACTIVATIONS, "activation")
    dropout = real(dropout, "dropout", 0, 1)
    first, second, third = (" + b1[f]", " + b2[o]", " + b3[f]") if bias else ("", "", "")
    gate = activated(activation, f"x[...,c] * W1[f,c]{first}")
    text = f"""
        gate[...,f] = {f"dropout({gate}, {dropout!r})" if dropout else gate}
        up[...,f] = x[...,c] * W3[f,c]{third}
        y[...,o] = gate[...,f] * up[...,f] * W2[o,f]{second}
    """
    return sized_layer(text, "x", {"c": dim, "f": hidden, "o": dim})


@functools.cache
def residual(dropout: float = 0.0) -> tn.Graph:
    """z = x + y, where y = SubLayer(x): inputs x[...] and y[...] (thesis eq. 2.3.7).

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
    """LayerNorm(x + SubLayer(x)) (thesis, section 2.4.1), or x + SubLayer(LayerNorm(x)) with `pre`.

    Args:
        x: the tensor.
        compute: the sublayer.
        normed: the norm.
        pre: whether the norm comes before the sublayer.
        scope: the scope of the norm.
        dropout: the share of the sublayer's output dropped in training.
    """
    if pre:
        return residual(dropout)(x, compute(normed(x, scope=scope)))
    return normed(residual(dropout)(x, compute(x)), scope=scope)


def looking(
    attend: tn.Graph, others: Sequence[tn.Tensor], besides: list[tn.Tensor]
) -> Callable[[tn.Tensor], Any]:
    """An attention as a function of its first input, for `sublayer`.

    Args:
        attend: the attention.
        others: its other inputs.
        besides: a list to which its further outputs are appended, such as all keys and values so far.
    """

    def look(h: tn.Tensor) -> Any:
        found = attend(h, *others, scope="attention")
        found = found if isinstance(found, tuple) else (found,)
        besides.extend(found[1:])
        return found[0]

    return look


def dropped(x: tn.Tensor, rate: float) -> Any:
    """The tensor with a share of its values dropped in training."""
    return tn.layer(f"y[...] = dropout(x[...], {rate!r})", inputs="x")(x) if rate else x


@functools.cache
def encoder_layer(
    attend: tn.Graph,
    mlp: tn.Graph,
    normed: tn.Graph,
    *,
    pre: bool = True,
    dropout: float = 0.0,
    added: bool = True,
) -> tn.Graph:
    """x′ = x + Attention(LN(x)), x″ = x′ + MLP(LN(x′)); without `pre` the norms come after the sums.

    The inputs are those of the attention: x[b, i, c], then its others. The outputs are z[b, i, c], then the further
    outputs of the attention. The parts have the scopes `attention`, `mlp`, `norm1` and `norm2`.

    Args:
        attend: the attention.
        mlp: the feed-forward layer.
        normed: the norm.
        pre: whether norms come before the sublayers.
        dropout: the share of each sublayer's output dropped in training.
        added: whether x is added to the result of its attention.
    """

    def forward(x: tn.Tensor, *others: tn.Tensor) -> Any:
        besides: list[tn.Tensor] = []
        look = looking(attend, others, besides)

        def think(h: tn.Tensor) -> Any:
            return mlp(h, scope="mlp")

        if added:
            x = sublayer(x, look, normed, pre=pre, scope="norm1", dropout=dropout)
        else:
            x = look(normed(x, scope="norm1"))
        return (sublayer(x, think, normed, pre=pre, scope="norm2", dropout=dropout), *besides)

    return tn.model(forward, inputs=taken(attend))


def taken(graph: tn.Graph) -> list[str]:
    """Declarations of the inputs of a graph, to be those of a model around it."""
    return [str(leaf).removesuffix(": input") for leaf in graph.inputs]


@functools.cache
def embedding(vocabulary: Size, dim: Size, *, scale: bool = False) -> tn.Graph:
    """y[b, n] = E[t[b, n]]: the vectors of tokens.

    Input: t[b, n] of integers from 0. Output: y[b, n, c]. Parameters: vocabulary·dim.

    Args:
        vocabulary: the number of tokens.
        dim: the width.
        scale: whether the vectors are multiplied by √dim (Vaswani et al. 2017, §3.4) and E is initialized
            with variance 1/dim; otherwise its initial standard deviation is 0.02.

    Example:
        >>> print(embedding(100, 8).equations[0])
        y[b,n,c] = E[t[b,n],c]
    """
    if scale:
        text = "E[v,c]: parameter\ny[b,n,c] = E[t[b,n],c] * sqrt(c)"
    else:
        text = "E[v,c]: parameter(std=0.02)\ny[b,n,c] = E[t[b,n],c]"
    return sized_layer(text, "t[b,n]", {"v": vocabulary, "c": dim})


# ---------------------------------------------------------------------------- mixtures of experts


ROUTED = """
    s[...,e] = x[...,c] * R[e,c]
    p[...,k] = top[e,k](s[...,e])
    w[...,k] = softmax[k](s[...,p[...,k]])
"""
"""The scores of the experts for each token, the k chosen experts, and their weights."""

EXPERTS = """
    W1[e,f,c]: parameter
    W2[e,o,f]: parameter
    h[...,k,f] = {activated}{gate}
    y[...,o] = w[...,k] * h[...,k,f] * W2[p[...,k],o,f]
"""
GATE = " * sum[c](x[...,c] * W3[p[...,k],f,c])"

BALANCE = """
    share[e] = sum[...,k](onehot[e](p[...,k]))
    balance = e * share[e] / sum[e](share[e]) * mean[...](softmax[e](s[...,e]))
"""
"""E·Σ_e f_e·P_e: f_e is the share of choices of expert e, P_e its mean probability under the router."""


@checked
def mixture_of_experts(
    dim: Size,
    hidden: Size,
    experts: Size = 8,
    active: Size = 2,
    *,
    activation: str = "gelu",
    gated: bool = False,
    balance: bool = False,
) -> tn.Graph:
    """y = Σ_k w_k·W₂[p_k]·f(W₁[p_k]·x), where p are the experts with the largest scores R·x, w their softmax.

    Input: x[..., c]. Output: y[..., o]. Parameters: experts·(2·dim·hidden + dim), and experts·dim·hidden more if gated.
    The plan takes the way that it expects to be fastest: grouping the tokens by expert, multiplying each token with
    all experts, or gathering the matrices of each token.

    Args:
        dim: the width of x and y.
        hidden: the width of the hidden layer of each expert.
        experts: the number of experts.
        active: the number of experts that each token goes through.
        activation: f, as in `feed_forward`.
        gated: whether f(W₁·x) is multiplied by W₃·x.
        balance: whether the loss E·Σ_e f_e·P_e is the second output, `balance`. It is 1 if all experts are chosen
            equally often.

    Raises:
        ShapeError: the activation is unknown, or `active` exceeds `experts`.

    Source: Shazeer et al. (2017), "Outrageously large neural networks", eq. 1–5, without noise; Fedus et al. (2022),
    "Switch Transformers", eq. 4–6, for the loss; Jiang et al. (2024), "Mixtral of experts", for the weights.

    Example:
        >>> print(mixture_of_experts("D", "H", 16).equations[1])
        p[...,k] = top[e,k](s[...,e])
        >>> tn.parameter_formula(mixture_of_experts("D", "H", "E"))
        2*D*E*H + D*E
    """
    chosen(activation, ACTIVATIONS, "activation")
    if isinstance(experts, int) and isinstance(active, int) and active > experts:
        raise ShapeError(f"{active} experts are active of {experts}", fix=f"choose active={experts} or less")
    gate, declared = (GATE, "    W3[e,f,c]: parameter\n") if gated else ("", "")
    inner = activated(activation, "x[...,c] * W1[p[...,k],f,c]")
    text = ROUTED + declared + EXPERTS.format(activated=inner, gate=gate) + (BALANCE if balance else "")
    sizes = {"c": dim, "f": hidden, "e": experts, "k": active, "o": dim}
    outputs = "y balance" if balance else "y"
    return sized_layer(text, "x", sizes, outputs=outputs)
