"""Converters of XLNet from `transformers`."""

from __future__ import annotations

from typing import Any

import tensornet.api as tn

from ..xlnet import xlnet
from .names import Converter, Names, activation_of, affine, eps_of, known_class, mlp_names, refuse, under

__all__ = ["XLNETS"]


def _xlnet(model: Any, changes: dict[str, Any]) -> tuple[tn.Graph, Names]:
    config, kind = model.config, known_class(model, XLNETS)
    refuse(config.attn_type == "uni" and bool(config.same_length), "same_length")
    head = {"XLNetModel": None, "XLNetLMHeadModel": "tokens"}.get(kind, "classes")
    if head == "tokens":
        tied = model.lm_loss.weight is model.transformer.word_embedding.weight
        refuse(not tied, "an output matrix of its own (tie_word_embeddings=False)")
    if head == "classes":
        usual = config.summary_type == "last" and config.summary_activation == "tanh"
        refuse(
            not (usual and config.summary_use_proj), "a summary that is not tanh of a projection of the last"
        )
    settings = {
        "vocabulary": config.vocab_size,
        "dim": config.d_model,
        "depth": config.n_layer,
        "heads": config.n_head,
        "hidden": config.d_inner,
        "two_streams": False,
        "mask": None,
        "causal": config.attn_type == "uni",
        "segments": False,
        "clamp_len": config.clamp_len if config.clamp_len > 0 else None,
        "bi_data": bool(config.bi_data),
        "empty": "all",
        "head": head,
        "classes": config.num_labels,
        "logits_bias": head == "tokens",
        "activation": activation_of(model, "activation_function"),
        "eps": eps_of(model),
    }
    heads = {"Wq": "q", "Wk": "k", "Wv": "v", "Wo": "o", "Wr": "r", "segments": "seg_embed"}
    heads |= {"content_bias": "r_w_bias", "position_bias": "r_r_bias", "segment_bias": "r_s_bias"}
    names: Names = {
        "embedding.E": "word_embedding.weight",
        "w": "mask_emb",
        **{f"layers.#.attention.{ours}": f"layer.#.rel_attn.{theirs}" for ours, theirs in heads.items()},
        **affine("layers.#.norm1", "layer.#.rel_attn.layer_norm"),
        **affine("layers.#.norm2", "layer.#.ff.layer_norm"),
        **mlp_names("layers.#.mlp", "layer.#.ff.layer_1", "layer.#.ff.layer_2"),
    }
    names = names if kind == "XLNetModel" else under("transformer.", names)
    names |= {"head.bias": "lm_loss.bias"} if head == "tokens" else affine("head", "logits_proj", "W")
    names |= affine("summary", "sequence_summary.summary", "W")
    return xlnet(**{**settings, **changes}), names


XLNETS: dict[str, Converter] = {
    "XLNetModel": _xlnet,
    "XLNetLMHeadModel": _xlnet,
    "XLNetForSequenceClassification": _xlnet,
}
