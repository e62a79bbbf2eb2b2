"""The patch embedding: an image as a sequence of patches, with trained tokens before them and positions."""

from __future__ import annotations

from collections.abc import Sequence

import tensornet.api as tn

from .dimensions import Size, divided, pair, sized_layer

__all__ = ["CLASS_TOKEN", "grid_of", "patch_embedding"]

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
