"""GPT-2: a causal Transformer with learned positions and norms before its sublayers.

z₀ = E(t_n) + P(n),   x = zₗ₋₁ + MSA(LN(zₗ₋₁)),   zₗ = x + MLP(LN(x)),   logits = E·LN(z_L)

Radford et al. (2019), "Language models are unsupervised multitask learners".
"""

from __future__ import annotations

from typing import Any

import tensornet.api as tn

from .attention import attention
from .blocks import embedding, encoder_layer, feed_forward, norm
from .causal import language_model, masks
from .checked import checked
from .dimensions import Size, count, divided, when
from .positions import learned_positions

__all__ = ["PRESETS", "gpt2"]

PRESETS: dict[str, dict[str, Any]] = {
    name: {"dim": dim, "depth": depth, "heads": heads}
    for name, dim, depth, heads in [
        ("gpt2_small", 768, 12, 12),
        ("gpt2_medium", 1024, 24, 16),
        ("gpt2_large", 1280, 36, 20),
        ("gpt2_xl", 1600, 48, 25),
    ]
}
"""Radford et al. (2019), table 2."""


@checked
def gpt2(
    vocabulary: Size = 50257,
    dim: Size = 768,
    depth: int = 12,
    heads: Size = 12,
    hidden: Size | None = None,
    *,
    length: Size = 1024,
    logits: bool = True,
    tied: bool = True,
    padding: bool = False,
    past: bool = False,
    activation: str = "gelu_tanh",
    beta: float | None = None,
    eps: float = 1e-5,
    dropout: float = 0.0,
) -> tn.Graph:
    """GPT-2 over tokens.

    Input: t[b, n] of tokens. Output: logits[b, n, V] of the next tokens. To generate text, use `past=True`: begin
    with empty stored keys and values [b, h, 0, D/h], and pass the returned ones to the next step:

        logits, *stored = step(parameters, tokens, *stored)

    Each step then computes its own tokens only. The arrays grow by a token a step; JAX compiles again for each size.

    Parameters: V·D + length·D (embedding), 4D² + 2DF + 9D + F for each layer, 2D (the last norm), V·D
    (the output matrix, unless tied).

    Args:
        vocabulary: V.
        dim: D.
        depth: L, the number of layers.
        heads: the number of attention heads, which divides D.
        hidden: F, the width inside the MLP; 4·D if not given.
        length: the number of positions.
        logits: whether the output is logits instead of vectors [b, n, D].
        tied: whether the output matrix is the embedding.
        padding: whether keep[b, n] is a further input, nonzero at tokens that are not padding; with `past` it is
            keep[b, past + n] and covers stored tokens too. Padding counts in the positions.
        past: whether stored keys and values keys0, values0, keys1, … are inputs, and all of them outputs.
        activation: the activation of the MLP.
        beta: the inverse temperature of the attention; 1/√(D/h) if not given.
        eps: ε of the norms.
        dropout: the share dropped in training, of embeddings, attention weights, sublayer outputs and hidden values.

    Raises:
        ShapeError: the heads do not divide D, or a choice is unknown.

    Source: Radford et al. (2019), §2.3.

    Example:
        >>> tn.parameter_count(gpt2())
        124439808
    """
    divided(dim, heads, "dim", "heads")
    count(depth, "depth")
    attend = attention("D", "h", beta=beta, mask=masks(padding), dropout=dropout, past=past)
    mlp = feed_forward("D", "F", activation=activation, dropout=dropout)

    def embed(t: tn.Tensor) -> Any:
        x = embedding("V", "D")(t, scope="embedding")
        x = learned_positions("L", "D", past=past)(x, scope="positions")
        return tn.layer(f"y[...] = dropout(x[...], {dropout!r})", inputs="x")(x) if dropout else x

    ln, hidden = norm("D", eps), f"4*({dim})" if hidden is None else hidden
    sizes = {"V": vocabulary, "L": length, "D": dim, **when(depth, h=heads, F=hidden)}
    return language_model(
        *(embed, encoder_layer(attend, mlp, ln, dropout=dropout), ln, sizes),
        depth=depth,
        stored="[b,h,past,d:D/h]",
        logits=logits,
        tied=tied,
        padding=padding,
        past=past,
    )
