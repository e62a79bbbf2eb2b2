"""Converters of Perceivers from `transformers`."""

from __future__ import annotations

from typing import Any

import tensornet.api as tn

from ..perceiver import perceiver
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
from .torch_layers import batch_norm

__all__ = ["PERCEIVERS"]


def _perceiver(model: Any, changes: dict[str, Any]) -> tuple[tn.Graph, Names]:
    config, kind = model.config, known_class(model, PERCEIVERS)
    inner = model if kind == "PerceiverModel" else model.perceiver
    refuse(inner.output_postprocessor is not None, "a postprocessor")
    refuse(bool(config.qk_channels or config.v_channels), "qk_channels or v_channels")
    refuse(not config.use_query_residual, "use_query_residual=False")
    refuse(config.num_blocks < 1, "num_blocks=0")
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
        "activation": activation_of(model, "intermediate_act_fn"),
        "eps": eps_of(model),
        **read,
        **decoded,
    }
    names: Names = {
        "latents": "embeddings.latents",
        **_perceiver_layer("cross.#", "encoder.cross_attention"),
        **_perceiver_layer("latent.#.#", "encoder.self_attends.#"),
        **under("input_preprocessor.", names_read),
        **under("decoder.", names_decoded),
    }
    names = names if inner is model else under("perceiver.", names)
    if kind == "PerceiverForMaskedLM":
        settings["tied"] = True
        names["head.bias"] = "embedding_decoder.bias"
    return perceiver(**{**settings, **changes}), names


def _perceiver_inputs(module: Any, config: Any) -> tuple[dict[str, Any], Names]:
    """The settings that a preprocessor determines, and the names of its parameters."""
    kind = type(module).__name__
    if module is None:
        return {"shape": None, "positions": None, "channels": config.d_model}, {}
    if kind == "PerceiverTextPreprocessor":
        size = module.position_embeddings.num_embeddings
        settings = {"vocabulary": module.embeddings.num_embeddings, "shape": size, "positions": "learned"}
        settings |= {"channels": module.num_channels}
        return settings, {"embedding.E": "embeddings.weight", "inputs.P": "position_embeddings.weight"}
    refuse(kind != "PerceiverImagePreprocessor", f"a {kind}")
    refuse(module.concat_or_add_pos != "concat", "positions that are added to pixels")
    places, side = module.position_embeddings, config.image_size
    settings = {
        "shape": (side, side) if isinstance(side, int) else tuple(side),
        "channels": module.in_channels,
    }
    if module.position_encoding_type == "fourier":
        usual = places.concat_pos and not places.sine_only and module.project_pos_dim <= 0
        refuse(not usual, "Fourier features without positions, without cosines or projected")
        settings |= {"resolution": tuple(places.max_resolution), "bands": places.num_bands}
    match module.prep_type, module.position_encoding_type:
        case "pixels", "fourier" if module.spatial_downsample == 1:
            return settings, {}
        case "conv", "fourier" if type(module.convnet.batchnorm).__name__ == "BatchNorm2d":
            names: Names = {"stem.F": "convnet.conv.weight"}
            found = batch_norm(module.convnet.batchnorm.eps, "convnet.batchnorm.")
            names |= {f"stem.{ours}": made for ours, made in found.items()}
            return {**settings, "stem": module.out_channels}, names
        case "conv1x1", "trainable" if module.spatial_downsample == 1:
            width = places.output_size()
            refuse(
                {module.out_channels, module.project_pos_dim} != {width},
                "positions of another width than pixels",
            )
            names = {"inputs.P": "position_embeddings.position_embeddings"}
            names |= {"inputs.V": "positions_projection.weight", "inputs.shift": "positions_projection.bias"}
            names |= affine("inputs", "convnet_1x1", "W")
            return {**settings, "positions": "learned", "position_dim": width}, names
    refuse(True, f"{module.prep_type} with {module.position_encoding_type} positions so prepared")
    raise AssertionError


def _perceiver_decoder(module: Any) -> tuple[dict[str, Any], Names]:
    """The settings that a decoder determines, and the names of its parameters."""
    if module is None:
        return {"head": None}, {}
    kind, within = type(module).__name__, ""
    if kind == "PerceiverClassificationDecoder":
        module, within = module.decoder, "decoder."
    elif kind != "PerceiverBasicDecoder":
        refuse(True, f"a {kind}")
    usual = module.position_encoding_type == "trainable" and not module.concat_preprocessed_input
    refuse(not usual or module.position_encoding_only, "queries that are not trained")
    refuse(not module.num_channels, "queries without channels")
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
    names: Names = {
        **_perceiver_layer("decoder", "decoding_cross_attention"),
        "decoder.queries": "output_position_encodings.position_embeddings",
        **affine("head", "final_layer", "W"),
    }
    return settings, under(within, names)


def _perceiver_layer(ours: str, theirs: str) -> Names:
    within = f"{theirs}.attention.self"
    return {
        **affine(f"{ours}.norm1", f"{within}.layernorm1"),
        **affine(f"{ours}.norm_inputs", f"{within}.layernorm2"),
        **attention_names(
            f"{ours}.attention",
            f"{within}.query",
            f"{within}.key",
            f"{within}.value",
            f"{theirs}.attention.output.dense",
        ),
        **affine(f"{ours}.norm2", f"{theirs}.layernorm"),
        **mlp_names(f"{ours}.mlp", f"{theirs}.mlp.dense1", f"{theirs}.mlp.dense2"),
    }


PERCEIVERS: dict[str, Converter] = {
    "PerceiverModel": _perceiver,
    "PerceiverForMaskedLM": _perceiver,
    "PerceiverForSequenceClassification": _perceiver,
    "PerceiverForImageClassificationFourier": _perceiver,
    "PerceiverForImageClassificationLearned": _perceiver,
    "PerceiverForImageClassificationConvProcessing": _perceiver,
}
