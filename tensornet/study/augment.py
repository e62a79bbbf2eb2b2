"""Augmentation: one random affine map of the plane for each training image."""

from __future__ import annotations

import math
from typing import Any

from .libraries import library
from .recipe import Recipe

__all__ = ["augmented"]


def augmented(images: Any, recipe: Recipe, seed: int) -> Any:
    """Images (n, …, H, W) shifted, rotated, zoomed and mirrored at random, as the recipe allows.

    Pixels from outside an image are 0; values between pixels are interpolated bilinearly. Random numbers
    are drawn on the CPU, so that they are the same on every device.
    """
    if not recipe.augments:
        return images
    torch = library("torch")
    draw = torch.Generator().manual_seed(seed)
    count, *_, height, width = images.shape
    planes = images.reshape(count, -1, height, width)

    def uniform(limit: float) -> Any:
        return limit * (2.0 * torch.rand(count, generator=draw) - 1.0)

    angle = uniform(math.radians(recipe.rotate))
    size = 1.0 / (1.0 + uniform(recipe.zoom))
    right, down = 2.0 * uniform(recipe.shift) / width, 2.0 * uniform(recipe.shift) / height
    side = 1.0 - 2.0 * (torch.rand(count, generator=draw) < (0.5 if recipe.flip else 0.0))
    cosine, sine = size * angle.cos(), size * angle.sin()
    # maps of coordinates in [-1, 1]; the sides may differ, so the rotation depends on their ratio
    rows = [side * cosine, -sine * height / width, right, side * sine * width / height, cosine, down]
    maps = torch.stack(rows, dim=1).reshape(count, 2, 3).to(images.device, images.dtype)
    functional = torch.nn.functional
    places = functional.affine_grid(maps, list(planes.shape), align_corners=False)
    return functional.grid_sample(planes, places, align_corners=False).reshape(images.shape)
