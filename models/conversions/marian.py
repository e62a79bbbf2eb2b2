"""Converters of Marian, a Transformer for translation, from `transformers`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensornet.api as tn

from ..positions import sinusoidal_positions
from ..transformer import transformer
from .names import Converter, Names, activation_of, affine, attention_names, eps_of, mlp_names, refuse, under

__all__ = ["MARIANS"]


def _marian(model: Any, changes: dict[str, Any]) -> tuple[tn.Graph, Names]:
    config, inner = model.config, getattr(model, "model", model)
    refuse(config.encoder_attention_heads != config.decoder_attention_heads, "other heads in the decoder")
    refuse(config.encoder_ffn_dim != config.decoder_ffn_dim, "another width in the decoder")
    for side in (inner.encoder, inner.decoder):
        refuse(not _are_sinusoids(side.embed_positions.weight), "a table of positions that are no sinusoids")
    sides = (inner.encoder.embed_tokens.weight, inner.decoder.embed_tokens.weight)
    shared, has_head = sides[0] is sides[1], inner is not model
    settings = {
        "vocabulary": config.vocab_size,
        "target_vocabulary": None if shared else len(sides[1]),
        "dim": config.d_model,
        "depth": config.encoder_layers,
        "decoder_depth": config.decoder_layers,
        "heads": config.encoder_attention_heads,
        "hidden": config.encoder_ffn_dim,
        "positions": "sines_first",
        "logits": has_head,
        "logits_bias": has_head,
        "tied": has_head and model.lm_head.weight is sides[1],
        "scale": config.scale_embedding,
        "activation": activation_of(model, "activation_fn"),
        "eps": eps_of(model),
    }

    def layer(ours: str, theirs: str, kinds: Mapping[str, tuple[str, str]]) -> Names:
        parts = ("q_proj", "k_proj", "v_proj", "out_proj")
        found: Names = {}
        for at, (attends, normed) in kinds.items():
            found |= attention_names(
                f"{ours}.{at}attention", *(f"{theirs}.{attends}.{part}" for part in parts)
            )
            found |= affine(f"{ours}.{normed}", f"{theirs}.{attends}_layer_norm")
        within = f"{ours}.across" if "across." in kinds else ours
        found |= affine(f"{within}.norm2", f"{theirs}.final_layer_norm")
        return found | mlp_names(f"{within}.mlp", f"{theirs}.fc1", f"{theirs}.fc2")

    names: Names = {
        "shared.E": "decoder.embed_tokens.weight",
        "source.E": "encoder.embed_tokens.weight",
        "target.E": "decoder.embed_tokens.weight",
        **layer("encoder.#", "encoder.layers.#", {"": ("self_attn", "norm1")}),
        **layer(
            "decoder.#",
            "decoder.layers.#",
            {"": ("self_attn", "norm0"), "across.": ("encoder_attn", "across.norm1")},
        ),
    }
    heads: Names = {"head.E": "lm_head.weight", "head.bias": "final_logits_bias"}
    return transformer(**{**settings, **changes}), {**under("model.", names), **heads} if has_head else names


def _are_sinusoids(table: Any) -> bool:
    """Whether a table of positions equals our sinusoids up to the rounding of its type."""
    place = sinusoidal_positions(table.shape[1], interleaved=False)
    ours = tn.compile(place, backend="torch")({}, table.new_zeros(1, *table.shape).double())[0]
    return float((table - ours).abs().max()) < 5e-3


MARIANS: dict[str, Converter] = {"MarianModel": _marian, "MarianMTModel": _marian}
