"""A Transformer encoder that classifies texts (attention lecture, `TransformerClassifier`)."""

from __future__ import annotations

from typing import Any

import tensornet.api as tn

from .blocks import projection
from .checked import checked
from .dimensions import Size, chosen, count, divided, sized_model, when
from .transformer import POSITIONS, Stack

__all__ = ["transformer_classifier"]

POOLS = {
    "max": ("y[b,k] = max[n]({x})", "where(keep[b,n] != 0, x[b,n,k], -1e30)"),
    "mean": ("y[b,k] = mean[n](x[b,n,k])", ""),
    "first": ("y[b,k] = x[b,0,k]", ""),
}
MASKED_MEAN = """
    there[b,n] = where(keep[b,n] != 0, 1, 0)
    y[b,k] = x[b,n,k] * there[b,n] / maximum(sum[n](there[b,n]), 1)
"""


@checked
def transformer_classifier(
    vocabulary: Size = 30000,
    classes: Size = 2,
    dim: Size = 128,
    depth: int = 2,
    heads: Size = 4,
    hidden: Size = 256,
    *,
    pool: str = "max",
    padding: bool = True,
    pre: bool = False,
    positions: str | None = "sinusoidal",
    length: Size = 512,
    scale: bool = True,
    embedding_norm: bool = False,
    activation: str = "relu",
    bias: bool = False,
    out_bias: bool = True,
    eps: float = 1e-6,
    dropout: float = 0.0,
) -> tn.Graph:
    """A Transformer encoder that classifies texts.

    Inputs: t[b, n] of tokens; with `padding` keep[b, n], nonzero at tokens that are not padding.
    Output: logits[b, K].

    Args:
        vocabulary: the number of tokens.
        classes: K.
        dim, depth, heads, hidden, pre, positions, length, scale: as in `transformer`.
        activation, bias, out_bias, eps, dropout: as in `transformer`.
        embedding_norm: whether a norm follows the embedding and its positions.
        pool: which logits of the positions are the result: their "max", their "mean", or the "first". A text that is
            all padding has a "max" of −1e30.
        padding: whether `keep` is an input.

    Raises:
        ShapeError: the heads do not divide the width, or a choice is unknown.

    Source: attention lecture, `TransformerClassifier`.

    Example:
        >>> lecture = transformer_classifier(50002, 2, 32, 1, 2, 128, dropout=0.1)  # its configuration
        >>> tn.parameter_count(lecture) - 50002 * 32
        12674
    """
    chosen(pool, tuple(POOLS), "pool")
    chosen(positions, POSITIONS, "positions")
    divided(dim, heads, "dim", "heads")
    count(depth, "depth")
    stack = Stack(
        *(pre, pre, positions, padding, scale, activation, bias, out_bias, eps, dropout),
        embedding_norm=embedding_norm,
    )
    line, masked = POOLS[pool]
    if pool == "mean" and padding:
        line = MASKED_MEAN
    line = line.format(x=masked if padding else "x[b,n,k]")
    used = padding and pool != "first"

    def forward(t: tn.Tensor, *keep: tn.Tensor) -> Any:
        x = stack.embed(t, "V", "embedding", "source")
        x = stack.encode(x, list(keep), depth)
        x = projection("D", "K")(x, scope="head")
        pooled = tn.layer(line, inputs=["x[b,n,k]", *(["keep[b,n]"] if used else [])])
        return pooled(x, *(keep if used else ()))

    sizes = {"V": vocabulary, "K": classes, "D": dim}
    sizes |= when(depth, h=heads, F=hidden) | when(positions == "learned", L=length)
    inputs = ["t[b,n]", *(["keep[b,n]"] if padding else [])]
    return sized_model(forward, inputs, sizes)
