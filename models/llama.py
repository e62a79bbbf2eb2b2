"""Llama: a causal Transformer with rotary embeddings, grouped-query attention, RMS norms and a gated MLP.

z₀ = E(t_n),   x = zₗ₋₁ + GQA(RMS(zₗ₋₁)),   zₗ = x + W₂·(silu(W₁·RMS(x)) ⊙ W₃·RMS(x)),   logits = H·RMS(z_L)

Touvron et al. (2023), "Llama 2: open foundation and fine-tuned chat models"; Dubey et al. (2024), "The Llama 3 herd
of models".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensornet.api as tn

from .attention import attention
from .blocks import embedding, encoder_layer, gated_feed_forward, rms_norm
from .causal import language_model, masks
from .checked import checked
from .dimensions import Size, count, divided, halved, when

__all__ = ["PRESETS", "llama"]

_SECOND: dict[str, Any] = {"vocabulary": 32000, "eps": 1e-5}
_THIRD: dict[str, Any] = {"vocabulary": 128256, "groups": 8, "base": 500000.0, "eps": 1e-5}

PRESETS: dict[str, dict[str, Any]] = {
    name: {"dim": dim, "depth": depth, "heads": heads, "hidden": hidden, **more}
    for name, dim, depth, heads, hidden, more in [
        ("llama_2_7b", 4096, 32, 32, 11008, _SECOND),
        ("llama_2_13b", 5120, 40, 40, 13824, _SECOND),
        ("llama_2_70b", 8192, 80, 64, 28672, {**_SECOND, "groups": 8}),
        ("llama_3_8b", 4096, 32, 32, 14336, _THIRD),
        ("llama_3_70b", 8192, 80, 64, 28672, _THIRD),
        ("llama_3_1_8b", 4096, 32, 32, 14336, {**_THIRD, "scaling": (8, 1, 4, 8192)}),
        ("llama_3_2_1b", 2048, 16, 32, 8192, {**_THIRD, "scaling": (32, 1, 4, 8192), "tied": True}),
    ]
}
"""Touvron et al. (2023), table 1 and the published configurations; Dubey et al. (2024), table 3."""


@checked
def llama(
    vocabulary: Size = 32000,
    dim: Size = 4096,
    depth: int = 32,
    heads: Size = 32,
    hidden: Size = 11008,
    *,
    groups: Size | None = None,
    width: Size | None = None,
    base: float = 10000.0,
    scaling: Sequence[float] | None = None,
    logits: bool = True,
    tied: bool = False,
    padding: bool = False,
    past: bool = False,
    activation: str = "silu",
    bias: bool = False,
    mlp_bias: bool = False,
    eps: float = 1e-6,
    dropout: float = 0.0,
) -> tn.Graph:
    """Llama over tokens.

    Input: t[b, n] of tokens. Output: logits[b, n, V] of the next tokens. To generate text, use `past=True`: begin
    with empty stored keys and values [b, G, 0, d], and pass the returned ones to the next step:

        logits, *stored = step(parameters, tokens, *stored)

    Each step then computes its own tokens only. The arrays grow by a token a step; JAX compiles again for each size.

    Parameters without biases: V·D (embedding), 2·D·h·d + 2·D·G·d + 3·D·F + 2·D for each layer, D (the last norm), V·D
    (the output matrix, unless tied).

    Args:
        vocabulary: V.
        dim: D.
        depth: L, the number of layers.
        heads: h, the number of heads of queries.
        hidden: F, the width inside the gated MLP.
        groups: G, the number of heads of keys and values; h if not given.
        width: d, the width of each head; D/h if not given.
        base, scaling: as in `rotary_embedding`.
        logits: whether the output is logits instead of vectors [b, n, D].
        tied: whether the output matrix is the embedding.
        padding: whether keep[b, n] is a further input, nonzero at tokens that are not padding; with `past` it is
            keep[b, past + n] and covers stored tokens too. Padding counts in the positions.
        past: whether stored keys and values keys0, values0, keys1, … are inputs, and all of them outputs.
        activation: the activation of the gated MLP.
        bias: whether the attention has biases.
        mlp_bias: whether the MLP has biases.
        eps: ε of the norms.
        dropout: the share dropped in training, of attention weights, sublayer outputs and hidden values.

    Raises:
        ShapeError: the heads do not divide D, the groups do not divide the heads, or a choice is unknown.

    Source: Touvron et al. (2023), §2.2; Dubey et al. (2024), §3.2.

    Example:
        >>> tn.parameter_count(llama())
        6738415616
    """
    width = divided(dim, heads, "dim", "heads") if width is None else width
    groups = heads if groups is None else groups
    divided(heads, groups, "heads", "groups")
    halved(width, "width")
    count(depth, "depth")
    attend = attention(
        *("D", "h"),
        groups="h" if groups == heads else "G",
        qk="h*w",
        mask=masks(padding),
        rotary=base,
        scaling=scaling,
        bias=bias,
        out_bias=bias,
        dropout=dropout,
        past=past,
    )
    mlp = gated_feed_forward("D", "F", activation=activation, dropout=dropout, bias=mlp_bias)
    ln, sizes = rms_norm("D", eps), {"V": vocabulary, "D": dim, **when(depth, h=heads, w=width, F=hidden)}
    sizes |= when(depth and groups != heads, G=groups)

    def embed(t: tn.Tensor) -> Any:
        return embedding("V", "D")(t, scope="embedding")

    return language_model(
        *(embed, encoder_layer(attend, mlp, ln, dropout=dropout), ln, sizes),
        depth=depth,
        stored=f"[b,{'h' if groups == heads else 'G'},past,d:w]",
        logits=logits,
        tied=tied,
        padding=padding,
        past=past,
    )
