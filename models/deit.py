"""DeiT, the data-efficient image Transformer: a Vision Transformer with a second token for distillation.

z₀  = [x_class; x_distill; x_p¹E; …; x_pᴺE] + E_pos,   then as `vit`
y   = (W_c·z_L⁰ + b_c + W_d·z_L¹ + b_d) / 2                              (Touvron et al. 2021, §4)
"""

from __future__ import annotations

from typing import Any

import tensornet.api as tn

from .attention import attention
from .blocks import encoder_layer, feed_forward, norm, projection
from .checked import checked
from .dimensions import Size, chosen, count, divided, sized_model, when
from .patches import CLASS_TOKEN, grid_of, patch_embedding

__all__ = ["PRESETS", "deit"]

PRESETS: dict[str, dict[str, Any]] = {
    f"deit_{name}_16": {"dim": dim, "heads": heads}
    for name, dim, heads in [("ti", 192, 3), ("s", 384, 6), ("b", 768, 12)]
}
"""The distilled models of Touvron et al. (2021), table 1. `vit_ti_16`, `vit_s_16`, `vit_b_16` lack the second token."""

HEADS = ("both", "class")

DISTILLED = "y[b,d] = z[b,1,d]"
"""The distillation token, which learns from the teacher."""

MEAN = "y[b,k] = (p[b,k] + q[b,k]) / 2"


@checked
def deit(
    image: Size | tuple[Size, Size] = 224,
    patch: Size | tuple[Size, Size] = 16,
    dim: Size = 768,
    depth: int = 12,
    heads: Size = 12,
    hidden: Size | None = None,
    classes: Size | None = 1000,
    *,
    channels: Size = 3,
    head: str = "both",
    activation: str = "gelu",
    qkv_bias: bool = True,
    eps: float = 1e-6,
    dropout: float = 0.0,
) -> tn.Graph:
    """A distilled Vision Transformer over images.

    Input: x[b, C, H, W]. Output: logits[b, K]; without classes all tokens LN(z_L)[b, N+2, D]: the class token, the
    distillation token and the patches.

    Parameters: those of `vit`, 2·D (the second token and its position) and, with head="both", D·K + K (its classifier).

    Args:
        image: H and W, or one number for both.
        patch: P; it divides H and W. Patches need not be square.
        dim: D.
        depth: L, the number of layers.
        heads: the number of attention heads, which divides D.
        hidden: F, the width inside the MLP; 4·D if not given.
        classes: K, or None for no classifier.
        channels: C.
        head: "both": the mean of the logits of both tokens, as in evaluation; "class": those of the class token.
        activation, qkv_bias, eps, dropout: as in `vit`.

    Raises:
        ShapeError: the patch does not divide the image, or the heads do not divide the width.

    Source: Touvron et al. (2021), "Training data-efficient image transformers & distillation through attention".

    Example:
        >>> tn.parameter_count(deit(dim=384, heads=6))
        22436432
    """
    grid, sides = grid_of(image, patch)
    hidden = f"4*({dim})" if hidden is None else hidden
    chosen(head, HEADS, "head")
    divided(dim, heads, "dim", "heads")
    count(depth, "depth")
    cut, ln = patch_embedding("D", sides, tokens=("cls", "distill")), norm("D", eps)
    mlp = feed_forward("D", "F", activation=activation, dropout=dropout)
    layer = encoder_layer(attention("D", "h", bias=qkv_bias), mlp, ln, dropout=dropout)

    def forward(x: tn.Tensor) -> Any:
        z = cut(x, scope="embed")
        for number in range(depth):
            z = layer(z, scope=f"blocks.{number}")
        z = ln(z, scope="norm")
        if classes is None:
            return z
        classify = projection("D", "K")
        y = classify(tn.layer(CLASS_TOKEN, inputs="z")(z), scope="head")
        if head == "class":
            return y
        taught = classify(tn.layer(DISTILLED, inputs="z")(z), scope="distilled_head")
        return tn.layer(MEAN, inputs="p q")(y, taught)

    sizes = {"C": channels, **grid, "D": dim}
    sizes |= when(depth, h=heads, F=hidden) | when(classes is not None, K=classes)
    return sized_model(forward, "x[b,C,H,W]", sizes)
