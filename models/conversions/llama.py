"""Converters of Llama from `transformers`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensornet.api as tn

from ..llama import llama
from ..positions import Rotary
from .names import Converter, Names, activation_of, alike, attention_names, refuse, under

__all__ = ["LLAMAS"]

SCALED = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
"""The keys by which Llama 3.1 configures the scaling of its frequencies."""


def _llama(model: Any, changes: dict[str, Any]) -> tuple[tn.Graph, Names]:
    config, inner = model.config, getattr(model, "model", model)
    writes = inner is not model
    norms = {path: each for path, each in model.named_modules() if type(each).__name__ == "LlamaRMSNorm"}
    settings = {
        "vocabulary": config.vocab_size,
        "dim": config.hidden_size,
        "depth": config.num_hidden_layers,
        "heads": config.num_attention_heads,
        "hidden": config.intermediate_size,
        "groups": config.num_key_value_heads,
        "width": config.head_dim,
        "base": config.rope_parameters["rope_theta"],
        "scaling": _scaling(config.rope_parameters, inner.rotary_emb),
        "logits": writes,
        "tied": writes and model.lm_head.weight is inner.embed_tokens.weight,
        "activation": activation_of(model, "act_fn"),
        "bias": config.attention_bias,
        "mlp_bias": config.mlp_bias,
        "eps": alike("eps", {path: each.variance_epsilon for path, each in norms.items()}),
    }
    theirs = "layers.#."
    projections = (f"{theirs}self_attn.{part}_proj" for part in ("q", "k", "v", "o"))
    names: Names = {
        "embedding.E": "embed_tokens.weight",
        "layers.#.norm1.gain": f"{theirs}input_layernorm.weight",
        **attention_names("layers.#.attention", *projections),
        "layers.#.norm2.gain": f"{theirs}post_attention_layernorm.weight",
        "norm.gain": "norm.weight",
    }
    for number, part in ((1, "gate"), (2, "down"), (3, "up")):
        names[f"layers.#.mlp.W{number}"] = f"{theirs}mlp.{part}_proj.weight"
        names[f"layers.#.mlp.b{number}"] = f"{theirs}mlp.{part}_proj.bias"
    names = {**under("model.", names), "head.W": "lm_head.weight"} if writes else names
    return llama(**{**settings, **changes}), names


def _scaling(told: Mapping[str, Any], rotary: Any) -> tuple[float, ...] | None:
    """Our `scaling` of frequencies.

    Raises:
        ShapeError: it does not give the frequencies of the model.
    """
    keys = {"default": (), "linear": SCALED[:1], "llama3": SCALED}.get(told["rope_type"])
    refuse(keys is None, f"rope_type {told['rope_type']!r}")
    scaling = tuple(float(told[key]) for key in keys or ())
    theirs = rotary.inv_freq.double()
    rotation = Rotary.of(told["rope_theta"], scaling, False)
    lines = [
        line for line in rotation.tables("i", past=False) if line.startswith(("plain", "kept", "frequency"))
    ]
    ours = tn.compile(tn.layer("\n".join(lines), w=len(theirs)), backend="torch", dtype="float64")({})
    refuse(
        rotary.attention_scaling != 1.0 or float((ours / theirs - 1).abs().max()) > 1e-5,
        "a table of frequencies of its own",
    )
    return scaling or None


LLAMAS: dict[str, Converter] = {"LlamaModel": _llama, "LlamaForCausalLM": _llama}
