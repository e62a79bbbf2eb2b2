"""BERT: a bidirectional Transformer encoder with segment embeddings and learned positions.

z₀ = LN(E(t_n) + S(segment_n) + P(n)),   zₗ = LN(x + MLP(x)), x = LN(zₗ₋₁ + MSA(zₗ₋₁))

Devlin et al. (2019), "BERT: pre-training of deep bidirectional Transformers for language understanding".
"""

from __future__ import annotations

from typing import Any

import tensornet.api as tn

from .attention import attention
from .blocks import (
    LOGITS,
    SHIFTED,
    activated,
    dropped,
    embedding,
    encoder_layer,
    feed_forward,
    norm,
    projection,
)
from .checked import Size, chosen, encoder_sizes, sized_model, when, with_presets
from .positions import learned_positions

PRESETS: dict[str, dict[str, Any]] = {
    "bert_base": {"dim": 768, "depth": 12, "heads": 12},
    "bert_large": {"dim": 1024, "depth": 24, "heads": 16},
}
"""Devlin et al. (2019), §3, uncased."""

SEGMENTS = "S[s,c]: parameter(std=0.02)\ny[b,n,c] = x[b,n,c] + S[{row},c]"
"""The segment embedding, which distinguishes the first text from the second."""

POOLED = "y[b,f] = tanh(x[b,0,c] * W[f,c] + bias[f])"
"""The pooled vector, which a text is classified by: a projection of its first token."""


HEADS = (None, "pooled", "classes", "labels", "tokens")


@with_presets(PRESETS)
def bert(
    vocabulary: Size = 30522,
    dim: Size = 768,
    depth: int = 12,
    heads: Size = 12,
    hidden: Size | None = None,
    *,
    length: Size = 512,
    kinds: Size = 2,
    segments: bool = False,
    padding: bool = False,
    head: str | None = None,
    classes: Size = 2,
    activation: str = "gelu",
    eps: float = 1e-12,
    dropout: float = 0.0,
) -> tn.Graph:
    """BERT over tokens.

    Inputs: t[b, n] of tokens; with `padding` keep[b, n], nonzero at tokens that are not padding; with `segments`
    segment[b, n], the number of the text that a token belongs to. Without it all tokens belong to text 0.

    | head | output | meaning |
    |---|---|---|
    | None | y[b, n, D] | the vectors of all tokens |
    | pooled | y[b, D] | tanh(W·z⁰ + b) of the first token |
    | classes | logits[b, K] | classes of the text, from the pooled vector |
    | labels | logits[b, n, K] | classes of each token |
    | tokens | logits[b, n, V] | the masked language model |

    Parameters: (V + length + kinds)·D + 2D (embedding), 4D² + 2DF + 9D + F for each layer, and those of the head:
    D² + D (pooled), D² + D + D·K + K (classes), D·K + K (labels), D² + 3D + V (tokens; its output matrix is the
    embedding).

    Args:
        vocabulary: V.
        dim: D.
        depth: L, the number of layers.
        heads: the number of attention heads, which divides D.
        hidden: F, the width inside the MLP; 4·D if not given.
        length: the number of positions.
        kinds: the number of segments.
        segments: whether `segment` is an input.
        padding: whether `keep` is an input.
        head: one of the table above.
        classes: K.
        activation: of the MLP, and of the head "tokens".
        eps: ε of the norms.
        dropout: the share dropped in training, of embeddings, attention weights, sublayer outputs and hidden values.

    Raises:
        ShapeError: the heads do not divide D, or a choice is unknown.

    Source: Devlin et al. (2019), §3 and appendix A.

    Example:
        >>> tn.parameter_count(bert(head="pooled"))
        109482240
    """
    chosen(head, HEADS, "head")
    ln = norm("D", eps)
    attend = attention("D", "h", mask=["padding"] if padding else None, dropout=dropout)
    mlp = feed_forward("D", "F", activation=activation, dropout=dropout)
    layer = encoder_layer(attend, mlp, ln, pre=False, dropout=dropout)

    def embed(t: tn.Tensor, segment: tn.Tensor | None) -> Any:
        x = embedding("V", "D")(t, scope="embedding")
        x = learned_positions("L", "D")(x, scope="positions")
        read = [] if segment is None else [segment]
        row, inputs = ("segment[b,n]", "x[b,n,c] segment[b,n]") if read else ("0", "x[b,n,c]")
        told = tn.layer(SEGMENTS.format(row=row), inputs=inputs, s="S", c="D")
        return dropped(ln(told(x, *read, scope="segments"), scope="embedding.norm"), dropout)

    def forward(given: dict[str, tn.Tensor]) -> Any:
        z = embed(given["t"], given.get("segment"))
        for number in range(depth):
            z = layer(z, *([given["keep"]] if padding else []), scope=f"layers.{number}")
        return _read(z, head, activation, ln)

    inputs = {"t": "t[b,n]", **when(padding, keep="keep[b,n]"), **when(segments, segment="segment[b,n]")}
    sizes = {"V": vocabulary, "L": length, "S": kinds, **encoder_sizes(dim, depth, heads, hidden)}
    sizes |= when(head in ("classes", "labels"), K=classes)
    return sized_model(forward, inputs, sizes)


def _read(z: tn.Tensor, head: str | None, activation: str, ln: tn.Graph) -> Any:
    """Applies a head to the vectors of all tokens."""
    if head in ("pooled", "classes"):
        y = tn.layer(POOLED, inputs="x", f="D")(z, scope="pool")
        return projection("D", "K")(y, scope="head") if head == "classes" else y
    if head == "labels":
        return projection("D", "K")(z, scope="head")
    if head == "tokens":
        line = f"y[b,n,f] = {activated(activation, 'x[b,n,c] * W[f,c] + bias[f]')}"
        h = ln(tn.layer(line, inputs="x", f="D")(z, scope="transform"), scope="transform.norm")
        y = tn.layer(LOGITS, inputs="h", v="V", c="D")(h, scope="embedding")
        return tn.layer(SHIFTED, inputs="x")(y, scope="head")
    return z
