"""Vision Transformers of `transformers`."""

from __future__ import annotations

from typing import Any

import tensornet as tn

from ..vit import vit
from .names import Converter, Made, Names, activation_of, affine, attention_names, eps_of, mlp_names, under

__all__ = ["VITS"]

_RESIZED = (
    "put positions of the new grid into the model first: models.resize_positions(old, new) makes them, "
    "with convention='bicubic' as transformers does, or leave out image= and patch="
)


def _vit(model: Any, changes: dict[str, Any]) -> tuple[tn.Graph, Names]:
    config, classifies = model.config, hasattr(model, "classifier")
    settings = {
        "image": config.image_size,
        "patch": config.patch_size,
        "dim": config.hidden_size,
        "depth": config.num_hidden_layers,
        "heads": config.num_attention_heads,
        "hidden": config.intermediate_size,
        "channels": config.num_channels,
        "classes": config.num_labels or None if classifies else None,
        "tokens": not classifies,
        "activation": activation_of(model, "activation_fn"),
        "qkv_bias": config.qkv_bias,
        "eps": eps_of(model),
    }
    layer = "layers.#."
    names: Names = {
        "embed.E": "embeddings.patch_embeddings.projection.weight",
        "embed.bias": "embeddings.patch_embeddings.projection.bias",
        "embed.cls": "embeddings.cls_token",
        "embed.pos": Made(("embeddings.position_embeddings",), fix=_RESIZED),
        **affine("blocks.#.norm1", f"{layer}layernorm_before"),
        **affine("blocks.#.norm2", f"{layer}layernorm_after"),
        **attention_names(
            "blocks.#.attention", *(f"{layer}attention.{part}_proj" for part in ("q", "k", "v", "o"))
        ),
        **mlp_names("blocks.#.mlp", f"{layer}mlp.fc1", f"{layer}mlp.fc2"),
        **affine("norm", "layernorm"),
    }
    names = {**under("vit.", names), **affine("head", "classifier", "W")} if classifies else names
    return vit(**{**settings, **changes}), names


VITS: dict[str, Converter] = {"ViTModel": _vit, "ViTForImageClassification": _vit}
