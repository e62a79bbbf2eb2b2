"""How each model that can be converted is built, and what its parameters are called there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensornet as tn
from tensornet.errors import ShapeError

from .attention import attention
from .perceiver import perceiver
from .swin import swin
from .transformer import transformer
from .vit import vit
from .xlnet import xlnet

__all__ = ["TORCH", "TRANSFORMERS", "Converter", "Names"]

Names = dict[str, Any]
"""Our names to theirs, or to what is computed of their tensors."""

Converter = Callable[[Any, dict[str, Any]], "tuple[tn.Graph, Names]"]

_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}


def _under(prefix: str, names: Names) -> Names:
    return {ours: theirs if callable(theirs) else prefix + theirs for ours, theirs in names.items()}


def _affine(ours: str, theirs: str, weight: str = "gain") -> dict[str, str]:
    """A weight and a bias: of a norm (`gain`), or of a projection (`W`)."""
    return {f"{ours}.{weight}": f"{theirs}.weight", f"{ours}.bias": f"{theirs}.bias"}


def _attention(ours: str, query: str, key: str, value: str, out: str) -> dict[str, str]:
    parts = {"q": query, "k": key, "v": value, "o": out}
    return {
        f"{ours}.{kind}{part}": f"{theirs}.{name}"
        for part, theirs in parts.items()
        for kind, name in (("W", "weight"), ("b", "bias"))
    }


def _stacked(ours: str, theirs: str, width: bool = False) -> dict[str, str]:
    """Attention of torch: q, k and v in one array, unless their inputs differ in width."""
    found = {f"{ours}Wo": f"{theirs}out_proj.weight", f"{ours}bo": f"{theirs}out_proj.bias"}
    for number, part in enumerate("qkv"):
        found[f"{ours}b{part}"] = f"{theirs}in_proj_bias|{number}"
        found[f"{ours}W{part}"] = (
            f"{theirs}{part}_proj_weight" if width else f"{theirs}in_proj_weight|{number}"
        )
    return found


def _mlp(ours: str, first: str, second: str) -> dict[str, str]:
    return {
        f"{ours}.W1": f"{first}.weight",
        f"{ours}.b1": f"{first}.bias",
        f"{ours}.W2": f"{second}.weight",
        f"{ours}.b2": f"{second}.bias",
    }


def _activation(name: Any) -> str:
    if not isinstance(name, str):
        exact = getattr(name, "approximate", "none") == "none"
        name = getattr(name, "__name__", type(name).__name__).lower()
        name = name if exact else "gelu_pytorch_tanh"
    if name not in _ACTIVATIONS:
        raise ShapeError(
            f"the activation {name!r} is not supported", fix=f"there is {', '.join(_ACTIVATIONS)}"
        )
    return _ACTIVATIONS[name]


def _refuse(condition: bool, what: str) -> None:
    if condition:
        raise ShapeError(f"{what} is not supported", fix="convert a model without it")


# ---------------------------------------------------------------------------- transformers


def _vit(model: Any, changes: dict[str, Any]) -> tuple[tn.Graph, Names]:
    config, classifies = model.config, type(model).__name__ == "ViTForImageClassification"
    settings = {
        "image": config.image_size,
        "patch": config.patch_size,
        "dim": config.hidden_size,
        "depth": config.num_hidden_layers,
        "heads": config.num_attention_heads,
        "hidden": config.intermediate_size,
        "channels": config.num_channels,
        "classes": config.num_labels if classifies else None,
        "tokens": not classifies,
        "activation": _activation(config.hidden_act),
        "qkv_bias": config.qkv_bias,
        "eps": config.layer_norm_eps,
    }
    layer = "layers.#."
    names = {
        "embed.E": "embeddings.patch_embeddings.projection.weight",
        "embed.bias": "embeddings.patch_embeddings.projection.bias",
        "embed.cls": "embeddings.cls_token",
        "embed.pos": "embeddings.position_embeddings",
        **_affine("blocks.#.norm1", f"{layer}layernorm_before"),
        **_affine("blocks.#.norm2", f"{layer}layernorm_after"),
        **_attention(
            "blocks.#.attention", *(f"{layer}attention.{part}_proj" for part in ("q", "k", "v", "o"))
        ),
        **_mlp("blocks.#.mlp", f"{layer}mlp.fc1", f"{layer}mlp.fc2"),
        **_affine("norm", "layernorm"),
    }
    names = {**_under("vit.", names), **_affine("head", "classifier", "W")} if classifies else names
    return vit(**{**settings, **changes}), names


def _swin(model: Any, changes: dict[str, Any]) -> tuple[tn.Graph, Names]:
    config, classifies = model.config, type(model).__name__ == "SwinForImageClassification"
    _refuse(bool(config.use_absolute_embeddings), "use_absolute_embeddings")
    settings = {
        "image": config.image_size,
        "patch": config.patch_size,
        "dim": config.embed_dim,
        "depths": config.depths,
        "heads": config.num_heads,
        "window": config.window_size,
        "ratio": config.mlp_ratio,
        "channels": config.num_channels,
        "classes": config.num_labels if classifies else None,
        "tokens": not classifies,
        "activation": _activation(config.hidden_act),
        "qkv_bias": config.qkv_bias,
        "eps": config.layer_norm_eps,
    }
    ours, theirs = "stages.#.blocks.#", "encoder.layers.#.blocks.#."
    names = {
        "patches.E": "embeddings.patch_embeddings.projection.weight",
        "patches.bias": "embeddings.patch_embeddings.projection.bias",
        **_affine("patches.norm", "embeddings.norm"),
        **_affine(f"{ours}.norm1", f"{theirs}layernorm_before"),
        **_affine(f"{ours}.norm2", f"{theirs}layernorm_after"),
        **_attention(
            f"{ours}.attention", *(f"{theirs}attention.{part}_proj" for part in ("q", "k", "v", "o"))
        ),
        f"{ours}.attention.B": f"{theirs}attention.relative_position_bias.relative_position_bias_table",
        **_mlp(f"{ours}.mlp", f"{theirs}mlp.fc1", f"{theirs}mlp.fc2"),
        **_affine("stages.#.merge.norm", "encoder.layers.#.downsample.norm"),
        "stages.#.merge.W": "encoder.layers.#.downsample.reduction.weight",
        **_affine("norm", "layernorm"),
    }
    names = {**_under("swin.", names), **_affine("head", "classifier", "W")} if classifies else names
    return swin(**{**settings, **changes}), names


def _perceiver(model: Any, changes: dict[str, Any]) -> tuple[tn.Graph, Names]:
    config, kind = model.config, type(model).__name__
    inner = model if kind == "PerceiverModel" else model.perceiver
    _refuse(inner.output_postprocessor is not None, "a postprocessor")
    _refuse(bool(config.qk_channels or config.v_channels), "qk_channels or v_channels")
    _refuse(not config.use_query_residual, "use_query_residual=False")
    _refuse(config.num_blocks < 1, "num_blocks=0")
    read, names_read = _perceiver_inputs(inner.input_preprocessor, config)
    decoded, names_decoded = _perceiver_decoder(inner.decoder)
    settings = {
        "latents": config.num_latents,
        "dim": config.d_latents,
        "depth": config.num_self_attends_per_block,
        "repeats": config.num_blocks,
        "heads": config.num_self_attention_heads,
        "cross_heads": config.num_cross_attention_heads,
        "cross_attends": 1,
        "cross_width": {"kv": "inputs", "q": "queries"}[config.cross_attention_shape_for_attention],
        "widening": config.self_attention_widening_factor,
        "cross_widening": config.cross_attention_widening_factor,
        "activation": _activation(config.hidden_act),
        **read,
        **decoded,
    }
    names = {
        "latents": "embeddings.latents",
        **_perceiver_layer("cross.#", "encoder.cross_attention"),
        **_perceiver_layer("latent.#.#", "encoder.self_attends.#"),
        **_under("input_preprocessor.", names_read),
        **_under("decoder.", names_decoded),
    }
    names = names if inner is model else _under("perceiver.", names)
    if kind == "PerceiverForMaskedLM":
        settings["tied"] = True
        names["head.bias"] = "embedding_decoder.bias"
    return perceiver(**{**settings, **changes}), names


def _perceiver_inputs(module: Any, config: Any) -> tuple[dict[str, Any], Names]:
    """The settings of a preprocessor, and the names within it."""
    kind = type(module).__name__
    if module is None:
        return {"shape": None, "positions": None, "channels": config.d_model}, {}
    if kind == "PerceiverTextPreprocessor":
        size = module.position_embeddings.num_embeddings
        settings = {"vocabulary": module.embeddings.num_embeddings, "shape": size, "positions": "learned"}
        settings |= {"channels": module.num_channels}
        return settings, {"embedding.E": "embeddings.weight", "inputs.P": "position_embeddings.weight"}
    _refuse(kind != "PerceiverImagePreprocessor", f"a {kind}")
    _refuse(module.concat_or_add_pos != "concat", "positions that are added to pixels")
    places, side = module.position_embeddings, config.image_size
    settings = {
        "shape": (side, side) if isinstance(side, int) else tuple(side),
        "channels": module.in_channels,
    }
    if module.position_encoding_type == "fourier":
        usual = places.concat_pos and not places.sine_only and module.project_pos_dim <= 0
        _refuse(not usual, "Fourier features without positions, without cosines or projected")
        settings |= {"resolution": tuple(places.max_resolution), "bands": places.num_bands}
    match module.prep_type, module.position_encoding_type:
        case "pixels", "fourier" if module.spatial_downsample == 1:
            return settings, {}
        case "conv", "fourier" if type(module.convnet.batchnorm).__name__ == "BatchNorm2d":
            names: Names = {"stem.F": "convnet.conv.weight", **_batch_norm(module.convnet.batchnorm)}
            return {**settings, "stem": module.out_channels}, names
        case "conv1x1", "trainable" if module.spatial_downsample == 1:
            width = places.output_size()
            _refuse(
                {module.out_channels, module.project_pos_dim} != {width},
                "positions of another width than pixels",
            )
            names = {"inputs.P": "position_embeddings.position_embeddings"}
            names |= {"inputs.V": "positions_projection.weight", "inputs.shift": "positions_projection.bias"}
            names |= _affine("inputs", "convnet_1x1", "W")
            return {**settings, "positions": "learned", "position_dim": width}, names
    _refuse(True, f"{module.prep_type} with {module.position_encoding_type} positions so prepared")
    raise AssertionError


def _perceiver_decoder(module: Any) -> tuple[dict[str, Any], Names]:
    """The settings of a decoder, and the names within it."""
    if module is None:
        return {"head": None}, {}
    kind, within = type(module).__name__, ""
    if kind == "PerceiverClassificationDecoder":
        module, within = module.decoder, "decoder."
    elif kind != "PerceiverBasicDecoder":
        _refuse(True, f"a {kind}")
    usual = module.position_encoding_type == "trainable" and not module.concat_preprocessed_input
    _refuse(not usual or module.position_encoding_only, "queries that are not trained")
    layer, projected = module.decoding_cross_attention, module.final_project
    attends = layer.attention.self
    settings = {
        "head": "query",
        "outputs": None if within else module.output_position_encodings.position_embeddings.shape[0],
        "query_dim": module.num_channels,
        "query_residual": layer.attention.use_query_residual,
        "decoder_heads": attends.num_heads,
        "decoder_width": attends.qk_channels,
        "decoder_values": attends.v_channels,
        "decoder_widening": layer.mlp.dense1.out_features // module.num_channels,
        "classes": module.final_layer.out_features if projected else None,
    }
    names = {
        **_perceiver_layer("decoder", "decoding_cross_attention"),
        "decoder.queries": "output_position_encodings.position_embeddings",
        **_affine("head", "final_layer", "W"),
    }
    return settings, _under(within, names)


def _batch_norm(module: Any) -> Names:
    """Gain and bias of a batch normalisation with its statistics fixed."""
    scale = (module.weight * (module.running_var + module.eps) ** -0.5).detach()
    bias = module.bias.detach() - module.running_mean * scale
    return {"stem.gain": lambda state: scale, "stem.bias": lambda state: bias}


def _perceiver_layer(ours: str, theirs: str) -> dict[str, str]:
    within = f"{theirs}.attention.self"
    return {
        **_affine(f"{ours}.norm1", f"{within}.layernorm1"),
        **_affine(f"{ours}.norm_inputs", f"{within}.layernorm2"),
        **_attention(
            f"{ours}.attention",
            f"{within}.query",
            f"{within}.key",
            f"{within}.value",
            f"{theirs}.attention.output.dense",
        ),
        **_affine(f"{ours}.norm2", f"{theirs}.layernorm"),
        **_mlp(f"{ours}.mlp", f"{theirs}.mlp.dense1", f"{theirs}.mlp.dense2"),
    }


def _xlnet(model: Any, changes: dict[str, Any]) -> tuple[tn.Graph, Names]:
    config, kind = model.config, type(model).__name__
    _refuse(config.attn_type == "uni" and bool(config.same_length), "same_length")
    head = {"XLNetModel": None, "XLNetLMHeadModel": "tokens"}.get(kind, "classes")
    if head == "tokens":
        tied = model.lm_loss.weight is model.transformer.word_embedding.weight
        _refuse(not tied, "an output matrix of its own (tie_word_embeddings=False)")
    if head == "classes":
        usual = config.summary_type == "last" and config.summary_activation == "tanh"
        _refuse(
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
        "activation": _activation(config.ff_activation),
        "eps": config.layer_norm_eps,
    }
    heads = {"Wq": "q", "Wk": "k", "Wv": "v", "Wo": "o", "Wr": "r", "segments": "seg_embed"}
    heads |= {"content_bias": "r_w_bias", "position_bias": "r_r_bias", "segment_bias": "r_s_bias"}
    names = {
        "embedding.E": "word_embedding.weight",
        "w": "mask_emb",
        **{f"layers.#.attention.{ours}": f"layer.#.rel_attn.{theirs}" for ours, theirs in heads.items()},
        **_affine("layers.#.norm1", "layer.#.rel_attn.layer_norm"),
        **_affine("layers.#.norm2", "layer.#.ff.layer_norm"),
        **_mlp("layers.#.mlp", "layer.#.ff.layer_1", "layer.#.ff.layer_2"),
    }
    names = names if kind == "XLNetModel" else _under("transformer.", names)
    names |= {"head.bias": "lm_loss.bias"} if head == "tokens" else _affine("head", "logits_proj", "W")
    names |= _affine("summary", "sequence_summary.summary", "W")
    return xlnet(**{**settings, **changes}), names


def _marian(model: Any, changes: dict[str, Any]) -> tuple[tn.Graph, Names]:
    config = model.config
    _refuse(config.encoder_attention_heads != config.decoder_attention_heads, "other heads in the decoder")
    _refuse(config.encoder_ffn_dim != config.decoder_ffn_dim, "another width in the decoder")
    sides = (model.model.encoder.embed_tokens.weight, model.model.decoder.embed_tokens.weight)
    shared = sides[0] is sides[1]
    settings = {
        "vocabulary": config.vocab_size,
        "target_vocabulary": None if shared else len(sides[1]),
        "dim": config.d_model,
        "depth": config.encoder_layers,
        "decoder_depth": config.decoder_layers,
        "heads": config.encoder_attention_heads,
        "hidden": config.encoder_ffn_dim,
        "positions": "sines_first",
        "logits_bias": True,
        "tied": model.lm_head.weight is sides[1],
        "scale": config.scale_embedding,
        "activation": _activation(config.activation_function),
    }

    def layer(ours: str, theirs: str, kinds: Mapping[str, tuple[str, str]]) -> dict[str, str]:
        parts = ("q_proj", "k_proj", "v_proj", "out_proj")
        found: dict[str, str] = {}
        for at, (attends, normed) in kinds.items():
            found |= _attention(f"{ours}.{at}attention", *(f"{theirs}.{attends}.{part}" for part in parts))
            found |= _affine(f"{ours}.{normed}", f"{theirs}.{attends}_layer_norm")
        within = f"{ours}.across" if "across." in kinds else ours
        found |= _affine(f"{within}.norm2", f"{theirs}.final_layer_norm")
        return found | _mlp(f"{within}.mlp", f"{theirs}.fc1", f"{theirs}.fc2")

    names = {
        "shared.E": "model.decoder.embed_tokens.weight",
        "source.E": "model.encoder.embed_tokens.weight",
        "target.E": "model.decoder.embed_tokens.weight",
        "head.E": "lm_head.weight",
        "head.bias": "final_logits_bias",
        **layer("encoder.#", "model.encoder.layers.#", {"": ("self_attn", "norm1")}),
        **layer(
            "decoder.#",
            "model.decoder.layers.#",
            {"": ("self_attn", "norm0"), "across.": ("encoder_attn", "across.norm1")},
        ),
    }
    return transformer(**{**settings, **changes}), names


# ---------------------------------------------------------------------------- torch


def _multihead(module: Any, changes: dict[str, Any]) -> tuple[tn.Graph, Names]:
    _refuse(module.bias_k is not None or module.add_zero_attn, "add_bias_kv or add_zero_attn")
    biased = module.in_proj_bias is not None
    graph = attention(
        module.embed_dim,
        module.num_heads,
        keys=module.kdim,
        values=module.vdim,
        qk=module.embed_dim,
        **{"bias": biased, "out_bias": biased, **changes},
    )
    return graph, _stacked("", "", width=not module._qkv_same_embed_dim)


def _torch_transformer(module: Any, changes: dict[str, Any]) -> tuple[tn.Graph, Names]:
    layers = [*module.encoder.layers, *module.decoder.layers]
    _refuse(not module.encoder.layers, "an encoder without layers")
    kinds = {
        (
            layer.self_attn.num_heads,
            _activation(layer.activation),
            layer.norm_first,
            layer.linear1.out_features,
            *(norm.eps for name, norm in layer.named_children() if name.startswith("norm")),
        )[:5]
        for layer in layers
    }
    ends = [getattr(part.norm, "eps", None) for part in (module.encoder, module.decoder)]
    _refuse(
        len(kinds) > 1, f"layers that differ (heads, activation, norm_first, width, eps: {sorted(kinds)})"
    )
    _refuse(any(eps != layers[0].norm1.eps for eps in ends), f"last norms of another eps ({ends})")
    settings = {
        "dim": module.d_model,
        "heads": layers[0].self_attn.num_heads,
        "depth": len(module.encoder.layers),
        "decoder_depth": len(module.decoder.layers),
        "hidden": layers[0].linear1.out_features,
        "pre": layers[0].norm_first,
        "last_norms": True,
        "activation": _activation(layers[0].activation),
        "eps": layers[0].norm1.eps,
        "bias": layers[0].linear1.bias is not None,
    }
    back, across = "decoder.layers.#.", "decoder.#.across"
    names = {
        **_stacked("encoder.#.attention.", "encoder.layers.#.self_attn."),
        **_affine("encoder.#.norm1", "encoder.layers.#.norm1"),
        **_affine("encoder.#.norm2", "encoder.layers.#.norm2"),
        **_mlp("encoder.#.mlp", "encoder.layers.#.linear1", "encoder.layers.#.linear2"),
        **_affine("encoder.norm", "encoder.norm"),
        **_stacked("decoder.#.attention.", f"{back}self_attn."),
        **_affine("decoder.#.norm0", f"{back}norm1"),
        **_stacked(f"{across}.attention.", f"{back}multihead_attn."),
        **_affine(f"{across}.norm1", f"{back}norm2"),
        **_affine(f"{across}.norm2", f"{back}norm3"),
        **_mlp(f"{across}.mlp", f"{back}linear1", f"{back}linear2"),
        **_affine("decoder.norm", "decoder.norm"),
    }
    return transformer(**{**settings, **changes}), names


TRANSFORMERS: dict[str, Converter] = {
    "ViTModel": _vit,
    "ViTForImageClassification": _vit,
    "SwinModel": _swin,
    "SwinForImageClassification": _swin,
    "PerceiverModel": _perceiver,
    "PerceiverForMaskedLM": _perceiver,
    "PerceiverForSequenceClassification": _perceiver,
    "PerceiverForImageClassificationFourier": _perceiver,
    "PerceiverForImageClassificationLearned": _perceiver,
    "PerceiverForImageClassificationConvProcessing": _perceiver,
    "XLNetModel": _xlnet,
    "XLNetLMHeadModel": _xlnet,
    "XLNetForSequenceClassification": _xlnet,
    "MarianMTModel": _marian,
}

TORCH: dict[str, Converter] = {
    "MultiheadAttention": _multihead,
    "Transformer": _torch_transformer,
    "MarianMTModel": _marian,
}
