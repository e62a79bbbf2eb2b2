"""Converters of models of texts from `transformers`: BERT, GPT-2, Llama, Marian and XLNet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensornet.api as tn

from ..bert import bert
from ..causal import gpt2, llama
from ..positions import Rotary, sinusoidal_positions
from ..transformer import transformer
from ..xlnet import xlnet
from .names import (
    ENCODER,
    Converted,
    Converter,
    Names,
    alike,
    configured,
    known_class,
    part_of,
    refuse,
    table,
)

BERT = """
    is         embedding.E         embeddings.word_embeddings.weight
    is         positions.P         embeddings.position_embeddings.weight
    is         segments.S          embeddings.token_type_embeddings.weight
    norm       embedding.norm      embeddings.LayerNorm
    attention  layers.#.attention  encoder.layer.#.attention. self.query self.key self.value output.dense
    norm       layers.#.norm1      encoder.layer.#.attention.output.LayerNorm
    mlp        layers.#.mlp        encoder.layer.#. intermediate.dense output.dense
    norm       layers.#.norm2      encoder.layer.#.output.LayerNorm
    linear     pool                pooler.dense
"""
BERT_HEADS = """
    linear     head                classifier
    linear     transform           cls.predictions.transform.dense
    norm       transform.norm      cls.predictions.transform.LayerNorm
"""
HEADS = {
    "BertModel": None,
    "BertForMaskedLM": "tokens",
    "BertForSequenceClassification": "classes",
    "BertForTokenClassification": "labels",
}


def _bert(model: Any, changes: dict[str, Any]) -> Converted:
    config, head = model.config, HEADS[known_class(model, HEADS)]
    refuse(config.is_decoder, "is_decoder")
    if head == "tokens":
        tied = model.cls.predictions.decoder.weight is model.bert.embeddings.word_embeddings.weight
        refuse(not tied, "an output matrix of its own (tie_word_embeddings=False)")
    settings = configured(
        model,
        ENCODER,
        *("intermediate_act_fn", "transform_act_fn"),
        vocabulary="vocab_size",
        length="max_position_embeddings",
        kinds="type_vocab_size",
        classes="num_labels",
    )
    settings["head"] = head
    names = table(BERT) if head is None else table(BERT, "bert.") | table(BERT_HEADS)
    names |= {"head.bias": "cls.predictions.bias"} if head == "tokens" else {}
    return bert(**{**settings, **changes}), names


# ---------------------------------------------------------------------------- GPT-2

GPT2 = """
    is         embedding.E         wte.weight
    is         positions.P         wpe.weight
    norm       layers.#.norm1      h.#.ln_1
    is         layers.#.attention.bo  h.#.attn.c_proj.bias
    norm       layers.#.norm2      h.#.ln_2
    is         layers.#.mlp.b1     h.#.mlp.c_fc.bias
    is         layers.#.mlp.b2     h.#.mlp.c_proj.bias
    norm       norm                ln_f
"""
TRANSPOSED = {"attention.Wo": "attn.c_proj", "mlp.W1": "mlp.c_fc", "mlp.W2": "mlp.c_proj"}


def _gpt2(model: Any, changes: dict[str, Any]) -> Converted:
    """GPT-2: its weights are transposed, and queries, keys and values share one."""
    config, inner = model.config, getattr(model, "transformer", model)
    refuse(config.add_cross_attention, "add_cross_attention")
    refuse(config.scale_attn_by_inverse_layer_idx, "scale_attn_by_inverse_layer_idx")
    writes = inner is not model
    settings = configured(
        model,
        {},
        "act",
        vocabulary="vocab_size",
        dim="n_embd",
        depth="n_layer",
        heads="n_head",
        length="n_positions",
    )
    settings |= {
        "hidden": config.n_inner or None,
        "logits": writes,
        "tied": writes and model.lm_head.weight is inner.wte.weight,
        "beta": None if config.scale_attn_weights else 1.0,
    }
    prefix = "transformer." if writes else ""
    names = table(GPT2, prefix)
    for number, part in enumerate("qkv"):
        for kind, key, turned in (("W", "weight", True), ("b", "bias", False)):
            made = part_of(f"{prefix}h.#.attn.c_attn.{key}", number=number, axis=-1, turned=turned)
            names[f"layers.#.attention.{kind}{part}"] = made
    for ours, theirs in TRANSPOSED.items():
        names[f"layers.#.{ours}"] = part_of(f"{prefix}h.#.{theirs}.weight", count=1, turned=True)
    return gpt2(**{**settings, **changes}), names | ({"head.W": "lm_head.weight"} if writes else {})


# ---------------------------------------------------------------------------- Llama

LLAMA = """
    is         embedding.E           embed_tokens.weight
    is         layers.#.norm1.gain   layers.#.input_layernorm.weight
    attention  layers.#.attention    layers.#.self_attn. q_proj k_proj v_proj o_proj
    is         layers.#.norm2.gain   layers.#.post_attention_layernorm.weight
    is         norm.gain             norm.weight
    mlp        layers.#.mlp          layers.#.mlp. gate_proj down_proj up_proj
"""
SCALED = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
"""The keys by which Llama 3.1 configures the scaling of its frequencies."""


def _llama(model: Any, changes: dict[str, Any]) -> Converted:
    config, inner = model.config, getattr(model, "model", model)
    writes = inner is not model
    norms = {path: each for path, each in model.named_modules() if type(each).__name__ == "LlamaRMSNorm"}
    settings = configured(
        model,
        ENCODER,
        "act_fn",
        vocabulary="vocab_size",
        groups="num_key_value_heads",
        width="head_dim",
        bias="attention_bias",
        mlp_bias="mlp_bias",
    )
    settings |= {
        "base": config.rope_parameters["rope_theta"],
        "scaling": _scaling(config.rope_parameters, inner.rotary_emb),
        "logits": writes,
        "tied": writes and model.lm_head.weight is inner.embed_tokens.weight,
        "eps": alike("eps", {path: each.variance_epsilon for path, each in norms.items()}),
    }
    names = table(LLAMA, "model.") | {"head.W": "lm_head.weight"} if writes else table(LLAMA)
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


# ---------------------------------------------------------------------------- Marian

MARIAN = """
    is         shared.E                    decoder.embed_tokens.weight
    is         source.E                    encoder.embed_tokens.weight
    is         target.E                    decoder.embed_tokens.weight
    attention  encoder.#.attention         encoder.layers.#.self_attn. q_proj k_proj v_proj out_proj
    norm       encoder.#.norm1             encoder.layers.#.self_attn_layer_norm
    norm       encoder.#.norm2             encoder.layers.#.final_layer_norm
    mlp        encoder.#.mlp               encoder.layers.#. fc1 fc2
    attention  decoder.#.attention         decoder.layers.#.self_attn. q_proj k_proj v_proj out_proj
    norm       decoder.#.norm0             decoder.layers.#.self_attn_layer_norm
    attention  decoder.#.across.attention  decoder.layers.#.encoder_attn. q_proj k_proj v_proj out_proj
    norm       decoder.#.across.norm1      decoder.layers.#.encoder_attn_layer_norm
    norm       decoder.#.across.norm2      decoder.layers.#.final_layer_norm
    mlp        decoder.#.across.mlp        decoder.layers.#. fc1 fc2
"""


def _marian(model: Any, changes: dict[str, Any]) -> Converted:
    """Marian, a Transformer for translation."""
    config, inner = model.config, getattr(model, "model", model)
    refuse(config.encoder_attention_heads != config.decoder_attention_heads, "other heads in the decoder")
    refuse(config.encoder_ffn_dim != config.decoder_ffn_dim, "another width in the decoder")
    for side in (inner.encoder, inner.decoder):
        refuse(not _are_sinusoids(side.embed_positions.weight), "a table of positions that are no sinusoids")
    sides = (inner.encoder.embed_tokens.weight, inner.decoder.embed_tokens.weight)
    shared, has_head = sides[0] is sides[1], inner is not model
    settings = configured(
        model,
        {},
        "activation_fn",
        vocabulary="vocab_size",
        dim="d_model",
        depth="encoder_layers",
        decoder_depth="decoder_layers",
        heads="encoder_attention_heads",
        hidden="encoder_ffn_dim",
        scale="scale_embedding",
    )
    settings |= {
        "target_vocabulary": None if shared else len(sides[1]),
        "positions": "sines_first",
        "logits": has_head,
        "logits_bias": has_head,
        "tied": has_head and model.lm_head.weight is sides[1],
    }
    heads: Names = {"head.E": "lm_head.weight", "head.bias": "final_logits_bias"}
    names = table(MARIAN, "model.") | heads if has_head else table(MARIAN)
    return transformer(**{**settings, **changes}), names


def _are_sinusoids(table: Any) -> bool:
    """Whether a table of positions equals our sinusoids up to the rounding of its type."""
    place = sinusoidal_positions(table.shape[1], interleaved=False)
    ours = tn.compile(place, backend="torch")({}, table.new_zeros(1, *table.shape).double())[0]
    return float((table - ours).abs().max()) < 5e-3


# ---------------------------------------------------------------------------- XLNet

XLNET = """
    is         embedding.E                        word_embedding.weight
    is         w                                  mask_emb
    is         layers.#.attention.Wq              layer.#.rel_attn.q
    is         layers.#.attention.Wk              layer.#.rel_attn.k
    is         layers.#.attention.Wv              layer.#.rel_attn.v
    is         layers.#.attention.Wo              layer.#.rel_attn.o
    is         layers.#.attention.Wr              layer.#.rel_attn.r
    is         layers.#.attention.segments        layer.#.rel_attn.seg_embed
    is         layers.#.attention.content_bias    layer.#.rel_attn.r_w_bias
    is         layers.#.attention.position_bias   layer.#.rel_attn.r_r_bias
    is         layers.#.attention.segment_bias    layer.#.rel_attn.r_s_bias
    norm       layers.#.norm1                     layer.#.rel_attn.layer_norm
    norm       layers.#.norm2                     layer.#.ff.layer_norm
    mlp        layers.#.mlp                       layer.#.ff. layer_1 layer_2
"""
XLNET_CLASSES = """
    linear     head                               logits_proj
    linear     summary                            sequence_summary.summary
"""


def _xlnet(model: Any, changes: dict[str, Any]) -> Converted:
    config, kind = model.config, known_class(model, TEXTS)
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
    settings = configured(
        model,
        {},
        "activation_function",
        vocabulary="vocab_size",
        dim="d_model",
        depth="n_layer",
        heads="n_head",
        hidden="d_inner",
        classes="num_labels",
    )
    settings |= {
        "two_streams": False,
        "mask": None,
        "causal": config.attn_type == "uni",
        "segments": False,
        "clamp_len": config.clamp_len if config.clamp_len > 0 else None,
        "bi_data": bool(config.bi_data),
        "empty": "all",
        "head": head,
        "logits_bias": head == "tokens",
    }
    names = table(XLNET, "" if kind == "XLNetModel" else "transformer.")
    names |= {"head.bias": "lm_loss.bias"} if head == "tokens" else table(XLNET_CLASSES)
    return xlnet(**{**settings, **changes}), names


TEXTS: dict[str, Converter] = {
    **dict.fromkeys(HEADS, _bert),
    **dict.fromkeys(("GPT2Model", "GPT2LMHeadModel"), _gpt2),
    **dict.fromkeys(("LlamaModel", "LlamaForCausalLM"), _llama),
    **dict.fromkeys(("MarianModel", "MarianMTModel"), _marian),
    **dict.fromkeys(("XLNetModel", "XLNetLMHeadModel", "XLNetForSequenceClassification"), _xlnet),
}
"""Converters of models of texts by the class of `transformers`."""
