"""Converters of Vision Transformers, including DeiT, from `transformers`."""

from __future__ import annotations

from typing import Any

import tensornet.api as tn

from ..deit import deit
from ..vit import vit
from .names import (
    Converter,
    Made,
    Names,
    activation_of,
    affine,
    attention_names,
    eps_of,
    mlp_names,
    refuse,
    under,
)

__all__ = ["VITS"]

_RESIZED = (
    "put positions of the new grid into the model first: models.resize_positions(old, new) makes them, "
    "with convention='bicubic' as transformers does, or leave out image= and patch="
)


def _settings(model: Any, classes: int | None) -> dict[str, Any]:
    """The settings that ViT and DeiT have in common."""
    config = model.config
    return {
        "image": config.image_size,
        "patch": config.patch_size,
        "dim": config.hidden_size,
        "depth": config.num_hidden_layers,
        "heads": config.num_attention_heads,
        "hidden": config.intermediate_size,
        "channels": config.num_channels,
        "classes": classes,
        "activation": activation_of(model, "activation_fn"),
        "qkv_bias": config.qkv_bias,
        "eps": eps_of(model),
    }


def _names() -> Names:
    """The names of the parameters that ViT and DeiT have in common."""
    layer = "layers.#."
    return {
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


def _vit(model: Any, changes: dict[str, Any]) -> tuple[tn.Graph, Names]:
    classifies = hasattr(model, "classifier")
    settings = _settings(model, model.config.num_labels or None if classifies else None)
    names = {**under("vit.", _names()), **affine("head", "classifier", "W")} if classifies else _names()
    return vit(**{**settings, "tokens": not classifies, **changes}), names


def _deit(model: Any, changes: dict[str, Any]) -> tuple[tn.Graph, Names]:
    taught, classifies = hasattr(model, "distillation_classifier"), not hasattr(model, "embeddings")
    refuse(classifies and not model.config.num_labels, "a classifier of no classes")
    settings = _settings(model, model.config.num_labels if classifies else None)
    names: Names = {**_names(), "embed.distill": "embeddings.distillation_token"}
    if classifies:
        names = {**under("deit.", names), **affine("head", "cls_classifier" if taught else "classifier", "W")}
        names |= affine("distilled_head", "distillation_classifier", "W")
    return deit(**{**settings, "head": "both" if taught else "class", **changes}), names


VITS: dict[str, Converter] = {
    "ViTModel": _vit,
    "ViTForImageClassification": _vit,
    "DeiTModel": _deit,
    "DeiTForImageClassification": _deit,
    "DeiTForImageClassificationWithTeacher": _deit,
}
