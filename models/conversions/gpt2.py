"""Converters of GPT-2 from `transformers`; its weights are transposed, and queries, keys and values share one."""

from __future__ import annotations

from typing import Any

import tensornet.api as tn

from ..gpt2 import gpt2
from .names import Converter, Made, Names, activation_of, affine, eps_of, refuse, under

__all__ = ["GPT2S"]


def _turned(weight: Any) -> Any:
    """A contiguous copy of the transpose, since products with strided rows are slower."""
    return weight.T.contiguous()


def _transposed(ours: str, theirs: str, weight: str, bias: str) -> Names:
    """The names of a projection whose weight is transposed."""
    return {f"{ours}.{weight}": Made((f"{theirs}.weight",), _turned), f"{ours}.{bias}": f"{theirs}.bias"}


def _stacked(ours: str, theirs: str) -> Names:
    """The names of the weights and biases of queries, keys and values, which are concatenated in GPT-2."""
    found: Names = {}
    for number, part in enumerate("qkv"):

        def third(stacked: Any, number: int = number) -> Any:
            return stacked.chunk(3, -1)[number]

        def turned(stacked: Any, number: int = number) -> Any:
            return _turned(stacked.chunk(3, -1)[number])

        found[f"{ours}.W{part}"] = Made((f"{theirs}.weight",), turned)
        found[f"{ours}.b{part}"] = Made((f"{theirs}.bias",), third)
    return found


def _gpt2(model: Any, changes: dict[str, Any]) -> tuple[tn.Graph, Names]:
    config, inner = model.config, getattr(model, "transformer", model)
    refuse(config.add_cross_attention, "add_cross_attention")
    refuse(config.scale_attn_by_inverse_layer_idx, "scale_attn_by_inverse_layer_idx")
    writes = inner is not model
    settings = {
        "vocabulary": config.vocab_size,
        "dim": config.n_embd,
        "depth": config.n_layer,
        "heads": config.n_head,
        "hidden": config.n_inner or None,
        "length": config.n_positions,
        "logits": writes,
        "tied": writes and model.lm_head.weight is inner.wte.weight,
        "activation": activation_of(model, "act"),
        "beta": None if config.scale_attn_weights else 1.0,
        "eps": eps_of(model),
    }
    names: Names = {
        "embedding.E": "wte.weight",
        "positions.P": "wpe.weight",
        **affine("layers.#.norm1", "h.#.ln_1"),
        **_stacked("layers.#.attention", "h.#.attn.c_attn"),
        **_transposed("layers.#.attention", "h.#.attn.c_proj", "Wo", "bo"),
        **affine("layers.#.norm2", "h.#.ln_2"),
        **_transposed("layers.#.mlp", "h.#.mlp.c_fc", "W1", "b1"),
        **_transposed("layers.#.mlp", "h.#.mlp.c_proj", "W2", "b2"),
        **affine("norm", "ln_f"),
    }
    names = {**under("transformer.", names), "head.W": "lm_head.weight"} if writes else names
    return gpt2(**{**settings, **changes}), names


GPT2S: dict[str, Converter] = {"GPT2Model": _gpt2, "GPT2LMHeadModel": _gpt2}
