"""CLIP: an image encoder and a text encoder whose vectors are similar for an image and its text.

z₀ = LN([x_class; x_p¹E; …; x_pᴺE] + E_pos),  I = W_I·LN(z_L⁰)          an image
z₀ = [E(t₁); …; E(t_n)] + E_pos,  causal attention,  T = W_T·LN(z_L at the last token)      a text

Radford et al. (2021), "Learning transferable visual models from natural language supervision".
"""

from __future__ import annotations

from typing import Any

import tensornet.api as tn

from .attention import attention
from .blocks import embedding, encoder_layer, feed_forward, norm, projection
from .causal import masks
from .checked import Size, chosen, encoder_sizes, sized_model, when, with_presets
from .positions import learned_positions
from .vit import CLASS_TOKEN, grid_of, patch_embedding

_SIZES = [("b_32", 32, 768, 12, 12, 512), ("b_16", 16, 768, 12, 12, 512), ("l_14", 14, 1024, 24, 16, 768)]

VISION_PRESETS: dict[str, dict[str, Any]] = {
    f"clip_vision_{name}": {"patch": patch, "dim": dim, "depth": depth, "heads": heads, "out": out}
    for name, patch, dim, depth, heads, out in _SIZES
}
TEXT_PRESETS: dict[str, dict[str, Any]] = {
    "clip_text_b": {"dim": 512, "heads": 8, "out": 512},
    "clip_text_l": {"dim": 768, "heads": 12, "out": 768},
}
"""Radford et al. (2021), table 20."""

POOLS = ("token", None)

LAST = {
    "largest": "at[b,n] = hardmax[n](t[b,n])",
    "end": "at[b,n] = hardmax[n](where(t[b,n] == {end}, 1, 0))",
}
TAKEN = "y[b,c] = at[b,n] * x[b,n,c]"
"""The vector of the token at which `at` is 1: the first that matches."""


@with_presets(VISION_PRESETS)
def clip_vision(
    image: Size | tuple[Size, Size] = 224,
    patch: Size | tuple[Size, Size] = 32,
    dim: Size = 768,
    depth: int = 12,
    heads: Size = 12,
    hidden: Size | None = None,
    out: Size | None = 512,
    *,
    channels: Size = 3,
    pool: str | None = "token",
    activation: str = "quick_gelu",
    eps: float = 1e-5,
    dropout: float = 0.0,
) -> tn.Graph:
    """The image encoder: a Vision Transformer with a norm before its layers and no bias in the patch embedding.

    Input: x[b, C, H, W]. Output: y[b, E]; y[b, D] without a projection; all tokens [b, N+1, D] without a pool.

    Parameters: P²·C·D (E), D (class token), (N+1)·D (positions), 4D² + 2DF + 9D + F for each layer, 4D (the norms),
    D·E (the projection).

    Args:
        image: H and W, or one number for both.
        patch: P; it divides H and W.
        dim: D.
        depth: L, the number of layers.
        heads: the number of attention heads, which divides D.
        hidden: F, the width inside the MLP; 4·D if not given.
        out: E, the common width of image and text vectors; None for no projection.
        channels: C.
        pool: "token", the norm of the class token; or None, which also omits the projection.
        activation, eps, dropout: as in `vit`.

    Raises:
        ShapeError: the patch does not divide the image, or the heads do not divide the width.

    Source: Radford et al. (2021), §2.4.

    Example:
        >>> tn.parameter_count(clip_vision())
        87849216
    """
    grid, sides = grid_of(image, patch)
    chosen(pool, POOLS, "pool")
    cut, ln = patch_embedding("D", sides, bias=False), norm("D", eps)
    layer = _layer(activation, eps, dropout, causal=False)
    projects = pool is not None and out is not None

    def forward(x: tn.Tensor) -> Any:
        z = ln(cut(x, scope="embed"), scope="norm_before")
        for number in range(depth):
            z = layer(z, scope=f"layers.{number}")
        if pool is None:
            return z
        y = ln(tn.layer(CLASS_TOKEN, inputs="z")(z), scope="norm")
        return projection("D", "K", bias=False)(y, scope="projection") if projects else y

    sizes = {"C": channels, **grid, **encoder_sizes(dim, depth, heads, hidden), **when(projects, K=out)}
    return sized_model(forward, "x[b,C,H,W]", sizes)


@with_presets(TEXT_PRESETS)
def clip_text(
    vocabulary: Size = 49408,
    dim: Size = 512,
    depth: int = 12,
    heads: Size = 8,
    hidden: Size | None = None,
    out: Size | None = 512,
    *,
    length: Size = 77,
    end: int | None = None,
    pool: str | None = "token",
    padding: bool = False,
    activation: str = "quick_gelu",
    eps: float = 1e-5,
    dropout: float = 0.0,
) -> tn.Graph:
    """The text encoder: a Transformer with causal attention.

    Inputs: t[b, n] of tokens; with `padding` keep[b, n], nonzero at tokens that are not padding. Output: y[b, E];
    y[b, D] without a projection; all tokens [b, n, D] without a pool.

    Parameters: V·D (tokens), length·D (positions), 4D² + 2DF + 9D + F for each layer, 2D (the norm), D·E.

    Args:
        vocabulary: V.
        dim: D.
        depth: L, the number of layers.
        heads: the number of attention heads, which divides D.
        hidden: F, the width inside the MLP; 4·D if not given.
        out: E, the common width of image and text vectors; None for no projection.
        length: the number of positions.
        end: the token that ends a text, read at its first occurrence; the largest token of the text if not given.
        pool: "token", the vector at the end of the text; or None, which also omits the projection.
        padding: whether `keep` is an input.
        activation, eps, dropout: as in `vit`.

    Raises:
        ShapeError: the heads do not divide the width.

    Source: Radford et al. (2021), §2.4.

    Example:
        >>> tn.parameter_count(clip_text())
        63428096
    """
    chosen(pool, POOLS, "pool")
    layer = _layer(activation, eps, dropout, causal=True, padding=padding)
    last = LAST["largest"] if end is None else LAST["end"].format(end=end)
    projects = pool is not None and out is not None

    def forward(t: tn.Tensor, *keep: tn.Tensor) -> Any:
        z = learned_positions("L", "D")(embedding("V", "D")(t, scope="embedding"), scope="positions")
        for number in range(depth):
            z = layer(z, *keep, scope=f"layers.{number}")
        z = norm("D", eps)(z, scope="norm")
        if pool is None:
            return z
        y = tn.layer(f"{last}\n{TAKEN}", inputs="t[b,n] x[b,n,c]")(t, z)
        return projection("D", "K", bias=False)(y, scope="projection") if projects else y

    sizes = {
        "V": vocabulary,
        "L": length,
        **encoder_sizes(dim, depth, heads, hidden),
        **when(projects, K=out),
    }
    inputs = ["t[b,n]", *(["keep[b,n]"] if padding else [])]
    return sized_model(forward, inputs, sizes)


def _layer(activation: str, eps: float, dropout: float, *, causal: bool, padding: bool = False) -> tn.Graph:
    """One layer of either encoder."""
    mlp = feed_forward("D", "F", activation=activation, dropout=dropout)
    return encoder_layer(
        attention("D", "h", mask=masks(padding, causal)), mlp, norm("D", eps), dropout=dropout
    )
