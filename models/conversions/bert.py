"""Converters of BERT from `transformers`."""

from __future__ import annotations

from typing import Any

import tensornet.api as tn

from ..bert import bert
from .names import (
    Converter,
    Names,
    activation_of,
    affine,
    attention_names,
    eps_of,
    known_class,
    mlp_names,
    refuse,
    under,
)

__all__ = ["BERTS"]

HEADS = {
    "BertModel": None,
    "BertForMaskedLM": "tokens",
    "BertForSequenceClassification": "classes",
    "BertForTokenClassification": "labels",
}


def _bert(model: Any, changes: dict[str, Any]) -> tuple[tn.Graph, Names]:
    config, head = model.config, HEADS[known_class(model, HEADS)]
    refuse(config.is_decoder, "is_decoder")
    if head == "tokens":
        tied = model.cls.predictions.decoder.weight is model.bert.embeddings.word_embeddings.weight
        refuse(not tied, "an output matrix of its own (tie_word_embeddings=False)")
    settings = {
        "vocabulary": config.vocab_size,
        "dim": config.hidden_size,
        "depth": config.num_hidden_layers,
        "heads": config.num_attention_heads,
        "hidden": config.intermediate_size,
        "length": config.max_position_embeddings,
        "kinds": config.type_vocab_size,
        "head": head,
        "classes": config.num_labels,
        "activation": activation_of(model, "intermediate_act_fn", "transform_act_fn"),
        "eps": eps_of(model),
    }
    theirs = "encoder.layer.#."
    within = (*(f"attention.self.{part}" for part in ("query", "key", "value")), "attention.output.dense")
    names: Names = {
        "embedding.E": "embeddings.word_embeddings.weight",
        "positions.P": "embeddings.position_embeddings.weight",
        "segments.S": "embeddings.token_type_embeddings.weight",
        **affine("embedding.norm", "embeddings.LayerNorm"),
        **attention_names("layers.#.attention", *(theirs + part for part in within)),
        **affine("layers.#.norm1", f"{theirs}attention.output.LayerNorm"),
        **mlp_names("layers.#.mlp", f"{theirs}intermediate.dense", f"{theirs}output.dense"),
        **affine("layers.#.norm2", f"{theirs}output.LayerNorm"),
        **affine("pool", "pooler.dense", "W"),
    }
    if head is not None:
        names = {**under("bert.", names), **affine("head", "classifier", "W")}
        names |= affine("transform", "cls.predictions.transform.dense", "W")
        names |= affine("transform.norm", "cls.predictions.transform.LayerNorm")
        names |= {"head.bias": "cls.predictions.bias"} if head == "tokens" else {}
    return bert(**{**settings, **changes}), names


BERTS: dict[str, Converter] = dict.fromkeys(HEADS, _bert)
