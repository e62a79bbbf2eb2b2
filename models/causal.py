"""Causal language models: GPT-2 and Llama.

P(t_{n+1} | t_1 … t_n) = softmax(E·LN(z_L[n])),  where a query of each layer attends to the keys up to its position.

To decode step by step, the keys and values of earlier tokens are inputs. The outputs append those of the new tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensornet.api as tn

from .attention import attention
from .blocks import (
    LOGITS,
    dropped,
    embedding,
    encoder_layer,
    feed_forward,
    gated_feed_forward,
    norm,
    projection,
    rms_norm,
)
from .checked import Size, count, divided, encoder_sizes, halved, sized_model, when, with_presets
from .positions import learned_positions


def masks(padding: object, causal: bool = True) -> list[str]:
    """The names of the masks of the attention."""
    return [*(["causal"] if causal else []), *(["padding"] if padding else [])]


def language_model(
    embed: Callable[[tn.Tensor], Any],
    layer: tn.Graph,
    normed: tn.Graph,
    sizes: Mapping[str, Any],
    *,
    depth: int,
    stored: str,
    logits: bool,
    tied: bool,
    padding: bool,
    past: bool,
) -> tn.Graph:
    """A language model of equal layers.

    Inputs: t[b, n] of tokens; with `padding` keep[b, n], nonzero at tokens that are not padding; with `past` the stored
    keys and values of each layer: keys0, values0, keys1, … With both, keep[b, past + n] covers stored tokens too.
    Outputs: logits[b, n, V], or vectors [b, n, D]; with `past` then all keys and values, in the same order.

    Args:
        embed: computes the vectors of tokens.
        layer: takes the vectors, then the further inputs of its attention.
        normed: the last norm.
        sizes: the sizes of the model: V, D and those of the layer.
        depth: the number of layers.
        stored: the axes of stored keys and values, such as "[b,h,past,d:D/h]".
        logits: whether there is an output layer.
        tied: whether the output matrix is that of the embedding.
        padding: whether `keep` is an input.
        past: whether to continue from stored keys and values.
    """
    inputs = {"t": "t[b,n]", **when(padding, keep="keep[b,j:past + n]" if past else "keep[b,n]")}
    kept = [f"{what}{number}" for number in range(depth) for what in ("keys", "values")] if past else []
    inputs |= {name: f"{name}{stored}" for name in kept}

    def forward(given: dict[str, tn.Tensor]) -> Any:
        z, grown = embed(given["t"]), list[tn.Tensor]()
        keep = [given["keep"]] if padding else []
        for number in range(depth):
            before = [given[name] for name in kept[2 * number : 2 * number + 2]]
            found = layer(z, *keep, *before, scope=f"layers.{number}")
            z, *more = found if isinstance(found, tuple) else (found,)
            grown += more
        z = normed(z, scope="norm")
        if logits and tied:
            z = tn.layer(LOGITS, inputs="h", v="V", c="D")(z, scope="embedding")
        elif logits:
            z = projection("D", "V", bias=False)(z, scope="head")
        return (z, *grown)

    return sized_model(forward, inputs, sizes)


# ---------------------------------------------------------------------------- GPT-2
#
# Learned positions, and norms before its sublayers.
#
# z₀ = E(t_n) + P(n),   x = zₗ₋₁ + MSA(LN(zₗ₋₁)),   zₗ = x + MLP(LN(x)),   logits = E·LN(z_L)
#
# Radford et al. (2019), "Language models are unsupervised multitask learners".


GPT2_PRESETS: dict[str, dict[str, Any]] = {
    name: {"dim": dim, "depth": depth, "heads": heads}
    for name, dim, depth, heads in [
        ("gpt2_small", 768, 12, 12),
        ("gpt2_medium", 1024, 24, 16),
        ("gpt2_large", 1280, 36, 20),
        ("gpt2_xl", 1600, 48, 25),
    ]
}
"""Radford et al. (2019), table 2."""


@with_presets(GPT2_PRESETS)
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
    attend = attention("D", "h", beta=beta, mask=masks(padding), dropout=dropout, past=past)
    mlp = feed_forward("D", "F", activation=activation, dropout=dropout)

    def embed(t: tn.Tensor) -> Any:
        x = embedding("V", "D")(t, scope="embedding")
        return dropped(learned_positions("L", "D", past=past)(x, scope="positions"), dropout)

    ln, sizes = norm("D", eps), {"V": vocabulary, "L": length, **encoder_sizes(dim, depth, heads, hidden)}
    return language_model(
        *(embed, encoder_layer(attend, mlp, ln, dropout=dropout), ln, sizes),
        depth=depth,
        stored="[b,h,past,d:D/h]",
        logits=logits,
        tied=tied,
        padding=padding,
        past=past,
    )


# ---------------------------------------------------------------------------- Llama
#
# Rotary embeddings, grouped-query attention, RMS norms and a gated MLP.
#
# z₀ = E(t_n),   x = zₗ₋₁ + GQA(RMS(zₗ₋₁)),   zₗ = x + W₂·(silu(W₁·RMS(x)) ⊙ W₃·RMS(x)),   logits = H·RMS(z_L)
#
# Touvron et al. (2023), "Llama 2: open foundation and fine-tuned chat models"; Dubey et al. (2024), "The Llama 3 herd
# of models".


_SECOND: dict[str, Any] = {"vocabulary": 32000, "eps": 1e-5}
_THIRD: dict[str, Any] = {"vocabulary": 128256, "groups": 8, "base": 500000.0, "eps": 1e-5}

LLAMA_PRESETS: dict[str, dict[str, Any]] = {
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


@with_presets(LLAMA_PRESETS)
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
