"""The Vision Transformer: an image as a sequence of patches (Dosovitskiy et al. 2021).

z₀  = [x_class; x_p¹E; …; x_pᴺE] + E_pos,   E ∈ R^{(P²·C)×D}, E_pos ∈ R^{(N+1)×D}      (1)
z′ₗ = MSA(LN(zₗ₋₁)) + zₗ₋₁                                          l = 1 … L           (2)
zₗ  = MLP(LN(z′ₗ)) + z′ₗ                                            l = 1 … L           (3)
y   = LN(z_L⁰)                                                                          (4)
"""

from __future__ import annotations

from typing import Any

import tensornet.api as tn

from .attention import attention
from .blocks import encoder_layer, feed_forward, norm, projection
from .checked import checked
from .dimensions import Size, chosen, count, divided, sized_model, when
from .patches import CLASS_TOKEN, grid_of, patch_embedding

__all__ = ["PRESETS", "vit"]

PRESETS: dict[str, dict[str, Any]] = {
    f"vit_{name}_{patch}": {"patch": patch, "dim": dim, "depth": depth, "heads": heads}
    for name, dim, depth, heads in [
        ("ti", 192, 12, 3),
        ("s", 384, 12, 6),
        ("b", 768, 12, 12),
        ("l", 1024, 24, 16),
        ("h", 1280, 32, 16),
    ]
    for patch in (14, 16, 32)
}
"""ViT-B, -L and -H of table 1 of the paper; -Ti and -S of Touvron et al. (2021)."""

HIDDEN = "h[b,f] = tanh(x[b,c] * W[f,c] + bias[f])"
"""The hidden layer of the head in pre-training."""

HEADS = ("linear", "mlp")


@checked
def vit(
    image: Size | tuple[Size, Size] = 224,
    patch: Size | tuple[Size, Size] = 16,
    dim: Size = 768,
    depth: int = 12,
    heads: Size = 12,
    hidden: Size | None = None,
    classes: Size | None = 1000,
    *,
    channels: Size = 3,
    head: str = "linear",
    tokens: bool = False,
    activation: str = "gelu",
    qkv_bias: bool = True,
    eps: float = 1e-6,
    dropout: float = 0.0,
) -> tn.Graph:
    """A Vision Transformer over images, or over the feature map of another network.

    Input: x[b, C, H, W]. Output: logits[b, K]. A hybrid model takes a feature map instead of an image, with
    patches of any size, even 1 × 1: `vit(image=14, patch=1, channels=1024)`.

    Parameters: P²·C·D + D (E), D (class token), (N+1)·D (positions), 4D² + 2DF + 9D + F for each
    layer, 2D (the last norm), D·K + K (the head).

    Args:
        image: H and W, or one number for both.
        patch: P; it divides H and W. Patches need not be square.
        dim: D.
        depth: L, the number of layers.
        heads: the number of attention heads, which divides D.
        hidden: F, the width inside the MLP; 4·D if not given.
        classes: K; without it the output is y[b, D] of eq. 4.
        channels: C.
        head: "linear" is initialized with zeros, as for fine-tuning; "mlp" has one hidden layer, as in
            pre-training (§3.1); its width D and tanh are those of the authors' code.
        tokens: whether the output is LN(z_L)[b, N+1, D] of all tokens instead.
        activation: the activation of the MLP.
        qkv_bias: whether queries, keys and values have biases.
        eps: ε of the norms.
        dropout: the share dropped in training, of sublayer outputs and of hidden values of the MLP.

    Raises:
        ShapeError: the patch does not divide the image, or the heads do not divide the width.

    Source: Dosovitskiy et al. (2021), "An image is worth 16×16 words", eq. 1–4.

    Example:
        >>> tn.parameter_count(vit())
        86567656
    """
    grid, sides = grid_of(image, patch)
    hidden = f"4*({dim})" if hidden is None else hidden
    chosen(head, HEADS, "head")
    divided(dim, heads, "dim", "heads")
    count(depth, "depth")
    cut, ln = patch_embedding("D", sides), norm("D", eps)
    mlp = feed_forward("D", "F", activation=activation, dropout=dropout)
    layer = encoder_layer(attention("D", "h", bias=qkv_bias), mlp, ln, dropout=dropout)

    def forward(x: tn.Tensor) -> Any:
        z = cut(x, scope="embed")  # eq. 1
        for number in range(depth):  # eq. 2 and 3
            z = layer(z, scope=f"blocks.{number}")
        if tokens:
            return ln(z, scope="norm")
        y = ln(tn.layer(CLASS_TOKEN, inputs="z")(z), scope="norm")  # eq. 4
        if classes is None:
            return y
        if head == "mlp":
            y = tn.layer(HIDDEN, inputs="x", f="D")(y, scope="pre_head")
        return projection("D", "K", start="zeros" if head == "linear" else None)(y, scope="head")

    sizes = {"C": channels, **grid, "D": dim}
    sizes |= when(depth, h=heads, F=hidden) | when(classes is not None and not tokens, K=classes)
    return sized_model(forward, "x[b,C,H,W]", sizes)
