"""Causal language models: the parts that GPT-2 and Llama have in common.

P(t_{n+1} | t_1 … t_n) = softmax(E·LN(z_L[n])),  where a query of each layer attends to the keys up to its position.

To decode step by step, the keys and values of earlier tokens are inputs. The outputs append those of the new tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensornet.api as tn

from .blocks import LOGITS, projection
from .dimensions import sized_model, when

__all__ = ["language_model", "masks"]


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
