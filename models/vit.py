"""The Vision Transformer: an image as a sequence of patches (Dosovitskiy et al. 2021); and DeiT.

z₀  = [x_class; x_p¹E; …; x_pᴺE] + E_pos,   E ∈ R^{(P²·C)×D}, E_pos ∈ R^{(N+1)×D}      (1)
z′ₗ = MSA(LN(zₗ₋₁)) + zₗ₋₁                                          l = 1 … L           (2)
zₗ  = MLP(LN(z′ₗ)) + z′ₗ                                            l = 1 … L           (3)
y   = LN(z_L⁰)                                                                          (4)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensornet.api as tn

from .attention import attention
from .blocks import encoder_layer, feed_forward, norm, projection
from .checked import (
    Size,
    chosen,
    divided,
    encoder_sizes,
    pair,
    sized_layer,
    sized_model,
    when,
    with_presets,
)

VIT_PRESETS: dict[str, dict[str, Any]] = {
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


@with_presets(VIT_PRESETS)
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
    chosen(head, HEADS, "head")
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

    sizes = {"C": channels, **grid, **encoder_sizes(dim, depth, heads, hidden)}
    sizes |= when(classes is not None and not tokens, K=classes)
    return sized_model(forward, "x[b,C,H,W]", sizes)


# ---------------------------------------------------------------------------- DeiT
#
# The data-efficient image Transformer has a second token, for distillation.
#
# z₀  = [x_class; x_distill; x_p¹E; …; x_pᴺE] + E_pos,   then as `vit`
# y   = (W_c·z_L⁰ + b_c + W_d·z_L¹ + b_d) / 2                              (Touvron et al. 2021, §4)


DEIT_PRESETS: dict[str, dict[str, Any]] = {
    f"deit_{name}_16": {"dim": dim, "heads": heads}
    for name, dim, heads in [("ti", 192, 3), ("s", 384, 6), ("b", 768, 12)]
}
"""The distilled models of Touvron et al. (2021), table 1. `vit_ti_16`, `vit_s_16`, `vit_b_16` lack the second token."""

DEIT_HEADS = ("both", "class")

DISTILLED = "y[b,d] = z[b,1,d]"
"""The distillation token, which learns from the teacher."""

MEAN = "y[b,k] = (p[b,k] + q[b,k]) / 2"


@with_presets(DEIT_PRESETS)
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
    chosen(head, DEIT_HEADS, "head")
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

    sizes = {"C": channels, **grid, **encoder_sizes(dim, depth, heads, hidden)}
    sizes |= when(classes is not None, K=classes)
    return sized_model(forward, "x[b,C,H,W]", sizes)


# ---------------------------------------------------------------------------- the patch embedding


PATCHES = """
    p[b,(p1,p2),d] = x[b,c,(p1,u),(p2,v)] * E[d,c,u,v]{bias}
    z[b,n,d]       = concat[n]({tokens}, p[b,n,d])
    z0[b,n,d]      = z[b,n,d] + pos[n,d]
"""
"""Eq. 1 of ViT: patches of P × P pixels, flattened and multiplied by E; the tokens; the positions."""

CLASS_TOKEN = "y[b,d] = z[b,0,d]"
"""The first of all tokens, z_L⁰ of eq. 4."""


def patch_embedding(
    dim: Size, patch: tuple[Size, Size], *, tokens: Sequence[str] = ("cls",), bias: bool = True
) -> tn.Graph:
    """z₀ = [tokens; x_p¹E; …; x_pᴺE] + E_pos (eq. 1).

    Input: x[b, c, H, W]. Output: z0[b, n, d], the T tokens and then the N patches. Parameters: P²·C·dim (E), T·dim
    (tokens), (N + T)·dim (positions), and dim with a bias.

    Args:
        dim: the width.
        patch: the height and the width of patches.
        tokens: the names of the vectors before the patches.
        bias: whether a bias is added to the patches.

    Source: Dosovitskiy et al. (2021), eq. 1.
    """
    text = PATCHES.format(
        bias=" + bias[d]" if bias else "", tokens=", ".join(f"{token}[1,d]" for token in tokens)
    )
    start = dict.fromkeys([*tokens, "pos"], 0.02)
    sizes = dict(zip("uvd", (*patch, dim), strict=True))
    return sized_layer(text, "x", sizes, init=start)


def grid_of(
    image: Size | tuple[Size, Size], patch: Size | tuple[Size, Size]
) -> tuple[dict[str, Size], tuple[str, str]]:
    """The sizes of an image and its patches by name, and the names of the height and width of a patch.

    Raises:
        ShapeError: the patch does not divide the image.
    """
    (height, width), (u, v) = pair(image, "image"), pair(patch, "patch")
    divided(height, u, "image height", "patch height")
    divided(width, v, "image width", "patch width")
    sizes = {"H": height, "W": width, "P": u}
    return (sizes, ("P", "P")) if u == v else ({**sizes, "Q": v}, ("P", "Q"))
