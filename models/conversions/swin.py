"""Converters of Swin Transformers from `transformers`."""

from __future__ import annotations

from typing import Any

import tensornet.api as tn

from ..swin import swin
from .names import Converter, Names, activation_of, affine, attention_names, eps_of, mlp_names, refuse, under

__all__ = ["SWINS"]


def _swin(model: Any, changes: dict[str, Any]) -> tuple[tn.Graph, Names]:
    config, classifies = model.config, hasattr(model, "classifier")
    backbone = hasattr(model, "hidden_states_norms")
    refuse(bool(config.use_absolute_embeddings), "use_absolute_embeddings")
    settings = {
        "image": config.image_size,
        "patch": config.patch_size,
        "dim": config.embed_dim,
        "depths": config.depths,
        "heads": config.num_heads,
        "window": config.window_size,
        "ratio": config.mlp_ratio,
        "channels": config.num_channels,
        "classes": config.num_labels or None if classifies else None,
        "tokens": not classifies,
        "activation": activation_of(model, "activation_fn"),
        "qkv_bias": config.qkv_bias,
        "eps": eps_of(model, "layernorm"),
        "patch_eps": eps_of(model, r"\bnorm$|hidden_states_norms"),
    }
    if backbone:
        refuse("stem" in model.out_features, "the stem as a feature map")
        settings |= {"maps": [model.stage_names.index(each) for each in model.out_features]}
        settings |= {"narrow": "shifted"}
    ours, theirs = "stages.#.blocks.#", "encoder.layers.#.blocks.#."
    names: Names = {
        "patches.E": "embeddings.patch_embeddings.projection.weight",
        "patches.bias": "embeddings.patch_embeddings.projection.bias",
        **affine("patches.norm", "embeddings.norm"),
        **affine(f"{ours}.norm1", f"{theirs}layernorm_before"),
        **affine(f"{ours}.norm2", f"{theirs}layernorm_after"),
        **attention_names(
            f"{ours}.attention", *(f"{theirs}attention.{part}_proj" for part in ("q", "k", "v", "o"))
        ),
        f"{ours}.attention.B": f"{theirs}attention.relative_position_bias.relative_position_bias_table",
        **mlp_names(f"{ours}.mlp", f"{theirs}mlp.fc1", f"{theirs}mlp.fc2"),
        **affine("stages.#.merge.norm", "encoder.layers.#.downsample.norm"),
        "stages.#.merge.W": "encoder.layers.#.downsample.reduction.weight",
        **affine("norm", "layernorm"),
    }
    if classifies or backbone:
        names = {**under("swin.", names), **affine("head", "classifier", "W")}
        names |= affine("maps.#", "hidden_states_norms.stage#")
    return swin(**{**settings, **changes}), names


SWINS: dict[str, Converter] = {
    "SwinModel": _swin,
    "SwinForImageClassification": _swin,
    "SwinBackbone": _swin,
}
