"""Converters of models of images from `transformers`: ViT, DeiT, CLIP with its texts, Swin and Perceivers."""

from __future__ import annotations

from typing import Any

from ..clip import clip_text, clip_vision
from ..perceiver import perceiver
from ..swin import swin
from ..vit import deit, vit
from .names import (
    ENCODER,
    Converted,
    Converter,
    Made,
    Names,
    activation_of,
    configured,
    eps_of,
    known_class,
    refuse,
    table,
)
from .torch_modules import batch_norm

IMAGE = {"image": "image_size", "patch": "patch_size", "channels": "num_channels"}
"""Our settings of images, and what configurations call them."""

# ---------------------------------------------------------------------------- ViT and DeiT

VIT = """
    is         embed.E             embeddings.patch_embeddings.projection.weight
    is         embed.bias          embeddings.patch_embeddings.projection.bias
    is         embed.cls           embeddings.cls_token
    is         embed.distill       embeddings.distillation_token
    norm       blocks.#.norm1      layers.#.layernorm_before
    norm       blocks.#.norm2      layers.#.layernorm_after
    attention  blocks.#.attention  layers.#.attention. q_proj k_proj v_proj o_proj
    mlp        blocks.#.mlp        layers.#.mlp. fc1 fc2
    norm       norm                layernorm
"""
RESIZED = (
    "put positions of the new grid into the model first: models.resize_positions(old, new) makes them, "
    "with convention='bicubic' as transformers does, or leave out image= and patch="
)


def _settings(model: Any, classes: int | None) -> dict[str, Any]:
    """The settings that ViT and DeiT have in common."""
    return configured(model, ENCODER | IMAGE, "activation_fn", qkv_bias="qkv_bias") | {"classes": classes}


def _vit_names(prefix: str) -> Names:
    positions = Made((f"{prefix}embeddings.position_embeddings",), fix=RESIZED)
    return {**table(VIT, prefix), "embed.pos": positions}


def _vit(model: Any, changes: dict[str, Any]) -> Converted:
    classifies = hasattr(model, "classifier")
    settings = _settings(model, model.config.num_labels or None if classifies else None)
    names = _vit_names("vit.") | table("linear head classifier") if classifies else _vit_names("")
    return vit(**{**settings, "tokens": not classifies, **changes}), names


def _deit(model: Any, changes: dict[str, Any]) -> Converted:
    taught, classifies = hasattr(model, "distillation_classifier"), not hasattr(model, "embeddings")
    refuse(classifies and not model.config.num_labels, "a classifier of no classes")
    settings = _settings(model, model.config.num_labels if classifies else None)
    names = _vit_names("deit." if classifies else "")
    if classifies:
        names |= table(f"linear head {'cls_classifier' if taught else 'classifier'}")
        names |= table("linear distilled_head distillation_classifier")
    return deit(**{**settings, "head": "both" if taught else "class", **changes}), names


# ---------------------------------------------------------------------------- CLIP

CLIP = """
    norm       layers.#.norm1      encoder.layers.#.layer_norm1
    norm       layers.#.norm2      encoder.layers.#.layer_norm2
    attention  layers.#.attention  encoder.layers.#.self_attn. q_proj k_proj v_proj out_proj
    mlp        layers.#.mlp        encoder.layers.#.mlp. fc1 fc2
"""
CLIP_VISION = """
    is         embed.E             embeddings.patch_embedding.weight
    is         embed.cls           embeddings.class_embedding
    is         embed.pos           embeddings.position_embedding.weight
    norm       norm_before         pre_layrnorm
    norm       norm                post_layernorm
"""
CLIP_TEXT = """
    is         embedding.E         embeddings.token_embedding.weight
    is         positions.P         embeddings.position_embedding.weight
    norm       norm                final_layer_norm
"""
LARGEST = 2
"""The `eos_token_id` with which `transformers` reads a text at its largest token."""


def _clip(model: Any, changes: dict[str, Any]) -> Converted:
    """The encoder of images or of texts."""
    config, kind = model.config, "vision" if "Vision" in known_class(model, IMAGES) else "text"
    theirs = {"vision": "visual", "text": "text"}[kind] + "_projection"
    projects = hasattr(model, theirs)
    settings = configured(model, ENCODER, "activation_fn") | {
        "out": config.projection_dim if projects else None,
        "pool": "token" if projects else None,
    }
    if kind == "vision":
        settings |= configured(model, IMAGE)
    else:
        settings |= configured(model, {}, vocabulary="vocab_size", length="max_position_embeddings")
        settings["end"] = None if config.eos_token_id == LARGEST else config.eos_token_id
    names = table(
        (CLIP_VISION if kind == "vision" else CLIP_TEXT) + CLIP, f"{kind}_model." if projects else ""
    )
    names |= {"projection.W": f"{theirs}.weight"} if projects else {}
    return (clip_vision if kind == "vision" else clip_text)(**{**settings, **changes}), names


# ---------------------------------------------------------------------------- Swin

BIASES = "relative_position_bias.relative_position_bias_table"

SWIN = f"""
    is         patches.E                     embeddings.patch_embeddings.projection.weight
    is         patches.bias                  embeddings.patch_embeddings.projection.bias
    norm       patches.norm                  embeddings.norm
    norm       stages.#.blocks.#.norm1       encoder.layers.#.blocks.#.layernorm_before
    norm       stages.#.blocks.#.norm2       encoder.layers.#.blocks.#.layernorm_after
    attention  stages.#.blocks.#.attention   encoder.layers.#.blocks.#.attention. q_proj k_proj v_proj o_proj
    is         stages.#.blocks.#.attention.B encoder.layers.#.blocks.#.attention.{BIASES}
    mlp        stages.#.blocks.#.mlp         encoder.layers.#.blocks.#.mlp. fc1 fc2
    norm       stages.#.merge.norm           encoder.layers.#.downsample.norm
    is         stages.#.merge.W              encoder.layers.#.downsample.reduction.weight
    norm       norm                          layernorm
"""


def _swin(model: Any, changes: dict[str, Any]) -> Converted:
    config, classifies = model.config, hasattr(model, "classifier")
    backbone = hasattr(model, "hidden_states_norms")
    refuse(bool(config.use_absolute_embeddings), "use_absolute_embeddings")
    settings = configured(
        model,
        IMAGE,
        dim="embed_dim",
        depths="depths",
        heads="num_heads",
        window="window_size",
        ratio="mlp_ratio",
        qkv_bias="qkv_bias",
    )
    settings |= {
        "classes": config.num_labels or None if classifies else None,
        "tokens": not classifies,
        "activation": activation_of(model, "activation_fn"),
        "eps": eps_of(model, "layernorm"),
        "patch_eps": eps_of(model, r"\bnorm$|hidden_states_norms"),
    }
    if backbone:
        refuse("stem" in model.out_features, "the stem as a feature map")
        settings |= {"maps": [model.stage_names.index(each) for each in model.out_features]}
        settings |= {"narrow": "shifted"}
    names = table(SWIN, "swin." if classifies or backbone else "")
    if classifies or backbone:
        names |= table("linear head classifier\nnorm maps.# hidden_states_norms.stage#")
    return swin(**{**settings, **changes}), names


# ---------------------------------------------------------------------------- Perceivers

PERCEIVER = """
    norm       {0}.norm1        {1}.attention.self.layernorm1
    norm       {0}.norm_inputs  {1}.attention.self.layernorm2
    attention  {0}.attention    {1}.attention. self.query self.key self.value output.dense
    norm       {0}.norm2        {1}.layernorm
    mlp        {0}.mlp          {1}.mlp. dense1 dense2
"""
"""The names of the parameters of a layer."""

LEARNED = """
    is         inputs.P         position_embeddings.position_embeddings
    is         inputs.V         positions_projection.weight
    is         inputs.shift     positions_projection.bias
    linear     inputs           convnet_1x1
"""


def _perceiver(model: Any, changes: dict[str, Any]) -> Converted:
    config, kind = model.config, known_class(model, IMAGES)
    inner = model if kind == "PerceiverModel" else model.perceiver
    refuse(inner.output_postprocessor is not None, "a postprocessor")
    refuse(bool(config.qk_channels or config.v_channels), "qk_channels or v_channels")
    refuse(not config.use_query_residual, "use_query_residual=False")
    refuse(config.num_blocks < 1, "num_blocks=0")
    prefix = "" if inner is model else "perceiver."
    read, names_read = _perceiver_inputs(inner.input_preprocessor, config, f"{prefix}input_preprocessor.")
    decoded, names_decoded = _perceiver_decoder(inner.decoder, f"{prefix}decoder.")
    settings = configured(
        model,
        {},
        "intermediate_act_fn",
        latents="num_latents",
        dim="d_latents",
        depth="num_self_attends_per_block",
        repeats="num_blocks",
        heads="num_self_attention_heads",
        cross_heads="num_cross_attention_heads",
        widening="self_attention_widening_factor",
        cross_widening="cross_attention_widening_factor",
    )
    settings |= {
        "cross_attends": 1,
        "cross_width": {"kv": "inputs", "q": "queries"}[config.cross_attention_shape_for_attention],
        **read,
        **decoded,
    }
    names: Names = {
        "latents": f"{prefix}embeddings.latents",
        **table(PERCEIVER.format("cross.#", "encoder.cross_attention"), prefix),
        **table(PERCEIVER.format("latent.#.#", "encoder.self_attends.#"), prefix),
        **names_read,
        **names_decoded,
    }
    if kind == "PerceiverForMaskedLM":
        settings["tied"] = True
        names["head.bias"] = "embedding_decoder.bias"
    return perceiver(**{**settings, **changes}), names


def _perceiver_inputs(module: Any, config: Any, prefix: str) -> tuple[dict[str, Any], Names]:
    """The settings that a preprocessor determines, and the names of its parameters."""
    kind = type(module).__name__
    if module is None:
        return {"shape": None, "positions": None, "channels": config.d_model}, {}
    if kind == "PerceiverTextPreprocessor":
        size = module.position_embeddings.num_embeddings
        settings = {"vocabulary": module.embeddings.num_embeddings, "shape": size, "positions": "learned"}
        names = table("is embedding.E embeddings.weight\nis inputs.P position_embeddings.weight", prefix)
        return {**settings, "channels": module.num_channels}, names
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
            names = table("is stem.F convnet.conv.weight", prefix)
            found = batch_norm(module.convnet.batchnorm.eps, f"{prefix}convnet.batchnorm.")
            names |= {f"stem.{ours}": made for ours, made in found.items()}
            return {**settings, "stem": module.out_channels}, names
        case "conv1x1", "trainable" if module.spatial_downsample == 1:
            width = places.output_size()
            refuse(
                {module.out_channels, module.project_pos_dim} != {width},
                "positions of another width than pixels",
            )
            return {**settings, "positions": "learned", "position_dim": width}, table(LEARNED, prefix)
    refuse(True, f"{module.prep_type} with {module.position_encoding_type} positions so prepared")
    raise AssertionError


def _perceiver_decoder(module: Any, prefix: str) -> tuple[dict[str, Any], Names]:
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
    text = (
        PERCEIVER.format("decoder", "decoding_cross_attention")
        + """
    is      decoder.queries  output_position_encodings.position_embeddings
    linear  head             final_layer
    """
    )
    return settings, table(text, prefix + within)


IMAGES: dict[str, Converter] = {
    **dict.fromkeys(("ViTModel", "ViTForImageClassification"), _vit),
    "DeiTModel": _deit,
    "DeiTForImageClassification": _deit,
    "DeiTForImageClassificationWithTeacher": _deit,
    **{f"CLIP{kind}Model{more}": _clip for kind in ("Vision", "Text") for more in ("", "WithProjection")},
    **{f"Swin{kind}": _swin for kind in ("Model", "ForImageClassification", "Backbone")},
    "PerceiverModel": _perceiver,
    "PerceiverForMaskedLM": _perceiver,
    "PerceiverForSequenceClassification": _perceiver,
    **{
        f"PerceiverForImageClassification{kind}": _perceiver
        for kind in ("Fourier", "Learned", "ConvProcessing")
    },
}
"""Converters of models of images by the class of `transformers`."""
