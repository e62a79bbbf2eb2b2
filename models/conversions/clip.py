"""Converters of the image and text encoders of CLIP from `transformers`."""

from __future__ import annotations

from typing import Any

import tensornet.api as tn

from ..clip import clip_text, clip_vision
from .names import Converter, Names, activation_of, affine, attention_names, eps_of, mlp_names, under

__all__ = ["CLIPS"]

LARGEST = 2
"""The `eos_token_id` with which `transformers` reads a text at its largest token."""


def _settings(model: Any, projects: bool) -> dict[str, Any]:
    """The settings that both encoders have."""
    config = model.config
    return {
        "dim": config.hidden_size,
        "depth": config.num_hidden_layers,
        "heads": config.num_attention_heads,
        "hidden": config.intermediate_size,
        "out": config.projection_dim if projects else None,
        "pool": "token" if projects else None,
        "activation": activation_of(model, "activation_fn"),
        "eps": eps_of(model),
    }


def _layers() -> Names:
    """The names of the parameters of the layers, the same in both encoders."""
    theirs = "encoder.layers.#."
    return {
        **affine("layers.#.norm1", f"{theirs}layer_norm1"),
        **affine("layers.#.norm2", f"{theirs}layer_norm2"),
        **attention_names(
            "layers.#.attention",
            *(f"{theirs}self_attn.{part}" for part in ("q_proj", "k_proj", "v_proj", "out_proj")),
        ),
        **mlp_names("layers.#.mlp", f"{theirs}mlp.fc1", f"{theirs}mlp.fc2"),
    }


def _clip_vision(model: Any, changes: dict[str, Any]) -> tuple[tn.Graph, Names]:
    config, projects = model.config, hasattr(model, "visual_projection")
    settings = {
        **_settings(model, projects),
        "image": config.image_size,
        "patch": config.patch_size,
        "channels": config.num_channels,
    }
    names: Names = {
        "embed.E": "embeddings.patch_embedding.weight",
        "embed.cls": "embeddings.class_embedding",
        "embed.pos": "embeddings.position_embedding.weight",
        **affine("norm_before", "pre_layrnorm"),
        **affine("norm", "post_layernorm"),
        **_layers(),
    }
    if projects:
        names = {**under("vision_model.", names), "projection.W": "visual_projection.weight"}
    return clip_vision(**{**settings, **changes}), names


def _clip_text(model: Any, changes: dict[str, Any]) -> tuple[tn.Graph, Names]:
    config, projects = model.config, hasattr(model, "text_projection")
    settings = {
        **_settings(model, projects),
        "vocabulary": config.vocab_size,
        "length": config.max_position_embeddings,
        "end": None if config.eos_token_id == LARGEST else config.eos_token_id,
    }
    names: Names = {
        "embedding.E": "embeddings.token_embedding.weight",
        "positions.P": "embeddings.position_embedding.weight",
        **affine("norm", "final_layer_norm"),
        **_layers(),
    }
    if projects:
        names = {**under("text_model.", names), "projection.W": "text_projection.weight"}
    return clip_text(**{**settings, **changes}), names


CLIPS: dict[str, Converter] = {
    "CLIPVisionModel": _clip_vision,
    "CLIPVisionModelWithProjection": _clip_vision,
    "CLIPTextModel": _clip_text,
    "CLIPTextModelWithProjection": _clip_text,
}
