"""How each model that can be converted is built, and what its parameters are called there."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import tensornet as tn
from tensornet.errors import ShapeError

from .attention import attention
from .blocks import ACTIVATIONS
from .perceiver import perceiver
from .positions import sinusoidal_positions
from .swin import swin
from .transformer import transformer
from .vit import vit
from .xlnet import xlnet

__all__ = ["TORCH", "TRANSFORMERS", "UNREAD", "Converter", "Made", "Names", "known_class"]


@dataclass(frozen=True)
class Made:
    """What one of our parameters is made of there, and what to do where the shapes differ."""

    keys: tuple[str, ...]
    make: Callable[..., Any] = lambda tensor: tensor
    fix: str = "convert a model whose sizes fit its inputs, such as a window no larger than the grid"


Names = dict[str, "str | Made"]
"""Our names to theirs, or to what is computed of their tensors."""

Converter = Callable[[Any, dict[str, Any]], "tuple[tn.Graph, Names]"]

UNREAD = re.compile(
    r"pooler\.|mask_token$|mask_emb$|seg_embed$|r_s_bias$|(embed_positions|shared)\.weight$|^swin\.layernorm\."
)
"""Parameters that outputs do not depend on, unless asked for, and tables that we compute."""


def known_class(model: Any, known: Iterable[str], path: str = "") -> str:
    """The name of the class of torch or transformers whose computation that of `model` is.

    Args:
        model: the model, or a module of one.
        known: the names of the classes.
        path: where in a model it is.

    Raises:
        ShapeError: there is none, or a class derived from it computes something else.
    """
    for number, kind in enumerate(type(model).__mro__):
        if kind.__name__ in known and kind.__module__.partition(".")[0] in ("torch", "transformers"):
            _check_derived(type(model), type(model).__mro__[:number], kind)
            return kind.__name__
    what = f"'{path}', a {type(model).__name__}," if path else f"a {type(model).__name__}"
    raise ShapeError(f"{what} cannot be converted", fix=f"there is {', '.join(known)}")


def _check_derived(model: type, derived: Iterable[type], base: type) -> None:
    """Refuses classes derived from `base` that redefine how it computes."""
    for name in {name for each in derived for name in vars(each)} - _HARMLESS:
        if callable(getattr(base, name, None)) and not name.startswith("__"):
            raise ShapeError(
                f"{model.__name__} has a {name}() other than {base.__name__} has, and may compute something else",
                fix=f"convert a {base.__name__}, and write the rest as a layer",
            )


_HARMLESS = {"extra_repr", "reset_parameters", "_reset_parameters", "_init_weights", "train", "eval"}


def _under(prefix: str, names: Names) -> Names:
    return {
        ours: prefix + theirs
        if isinstance(theirs, str)
        else replace(theirs, keys=tuple(prefix + key for key in theirs.keys))
        for ours, theirs in names.items()
    }


def _affine(ours: str, theirs: str, weight: str = "gain") -> Names:
    """A weight and a bias: of a norm (`gain`), or of a projection (`W`)."""
    return {f"{ours}.{weight}": f"{theirs}.weight", f"{ours}.bias": f"{theirs}.bias"}


def _attention(ours: str, query: str, key: str, value: str, out: str) -> Names:
    parts = {"q": query, "k": key, "v": value, "o": out}
    return {
        f"{ours}.{kind}{part}": f"{theirs}.{name}"
        for part, theirs in parts.items()
        for kind, name in (("W", "weight"), ("b", "bias"))
    }


def _stacked(ours: str, theirs: str, width: bool = False) -> Names:
    """Attention of torch: q, k and v in one array, unless their inputs differ in width."""
    found: Names = {f"{ours}Wo": f"{theirs}out_proj.weight", f"{ours}bo": f"{theirs}out_proj.bias"}
    for number, part in enumerate("qkv"):

        def third(stacked: Any, number: int = number) -> Any:
            return stacked.chunk(3)[number]

        found[f"{ours}b{part}"] = Made((f"{theirs}in_proj_bias",), third)
        stacked = Made((f"{theirs}in_proj_weight",), third)
        found[f"{ours}W{part}"] = f"{theirs}{part}_proj_weight" if width else stacked
    return found


def _mlp(ours: str, first: str, second: str) -> Names:
    return {
        f"{ours}.W1": f"{first}.weight",
        f"{ours}.b1": f"{first}.bias",
        f"{ours}.W2": f"{second}.weight",
        f"{ours}.b2": f"{second}.bias",
    }


def _alike(what: str, found: Mapping[str, Any]) -> Any:
    """The one value that all modules have, by their paths.

    Raises:
        ShapeError: two differ.
    """
    (first, value), *others = found.items()
    for path, other in others:
        if other != value:
            raise ShapeError(
                f"{what} differs: {value!r} in '{first}', {other!r} in '{path}'",
                fix="convert a model whose layers are alike",
            )
    return value


def _eps(model: Any, where: str = "") -> float:
    """The ε of all norms whose paths match `where`."""
    norms = {path: each for path, each in model.named_modules() if type(each).__name__ == "LayerNorm"}
    found = {path: each.eps for path, each in norms.items() if re.search(where, path)}
    return float(_alike("eps", found)) if found else 1e-5


def _activation(model: Any, attribute: str) -> str:
    """Our name of the function that all modules hold under that name."""
    like = next(model.parameters()).new_empty(0).double()
    names: Names = {
        path: _recognized(getattr(each, attribute), path or type(model).__name__, like)
        for path, each in model.named_modules()
        if hasattr(each, attribute)
    }
    return str(_alike("activation", names)) if names else ACTIVATIONS[0]


def _recognized(function: Any, path: str, like: Any) -> str:
    """Our name of a function, known by its values: names say little."""
    points = like.new_tensor([step / 8 for step in range(-160, 161)])
    values = function(points)
    for name in ACTIVATIONS:
        ours = _pointwise(name)({}, points)
        if values.shape == ours.shape and float((values - ours).abs().max()) < 1e-8:
            return name
    label = getattr(function, "__name__", type(function).__name__)
    raise ShapeError(
        f"the activation '{label}' of '{path}' is not supported", fix=f"there is {', '.join(ACTIVATIONS)}"
    )


@functools.cache
def _pointwise(name: str) -> Any:
    return tn.compile(tn.layer(f"y[i] = {name}(x[i])", inputs="x"), backend="torch")


def _refuse(condition: bool, what: str) -> None:
    if condition:
        raise ShapeError(f"{what} is not supported", fix="convert a model without it")


# ---------------------------------------------------------------------------- transformers


_RESIZED = (
    "put positions of the new grid into the model first: models.resize_positions(old, new) makes them, "
    "with convention='bicubic' as transformers does, or leave out image= and patch="
)


def _vit(model: Any, changes: dict[str, Any]) -> tuple[tn.Graph, Names]:
    config, classifies = model.config, hasattr(model, "classifier")
    settings = {
        "image": config.image_size,
        "patch": config.patch_size,
        "dim": config.hidden_size,
        "depth": config.num_hidden_layers,
        "heads": config.num_attention_heads,
        "hidden": config.intermediate_size,
        "channels": config.num_channels,
        "classes": config.num_labels or None if classifies else None,
        "tokens": not classifies,
        "activation": _activation(model, "activation_fn"),
        "qkv_bias": config.qkv_bias,
        "eps": _eps(model),
    }
    layer = "layers.#."
    names: Names = {
        "embed.E": "embeddings.patch_embeddings.projection.weight",
        "embed.bias": "embeddings.patch_embeddings.projection.bias",
        "embed.cls": "embeddings.cls_token",
        "embed.pos": Made(("embeddings.position_embeddings",), fix=_RESIZED),
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
    config, classifies = model.config, hasattr(model, "classifier")
    backbone = hasattr(model, "hidden_states_norms")
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
        "classes": config.num_labels or None if classifies else None,
        "tokens": not classifies,
        "activation": _activation(model, "activation_fn"),
        "qkv_bias": config.qkv_bias,
        "eps": _eps(model, "layernorm"),
        "patch_eps": _eps(model, r"\bnorm$|hidden_states_norms"),
    }
    if backbone:
        _refuse("stem" in model.out_features, "the stem as a feature map")
        settings |= {"maps": [model.stage_names.index(each) for each in model.out_features]}
        settings |= {"narrow": "shifted"}
    ours, theirs = "stages.#.blocks.#", "encoder.layers.#.blocks.#."
    names: Names = {
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
    if classifies or backbone:
        names = {**_under("swin.", names), **_affine("head", "classifier", "W")}
        names |= _affine("maps.#", "hidden_states_norms.stage#")
    return swin(**{**settings, **changes}), names


def _perceiver(model: Any, changes: dict[str, Any]) -> tuple[tn.Graph, Names]:
    config, kind = model.config, known_class(model, TRANSFORMERS)
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
        "activation": _activation(model, "intermediate_act_fn"),
        "eps": _eps(model),
        **read,
        **decoded,
    }
    names: Names = {
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
            names: Names = {"stem.F": "convnet.conv.weight", **_batch_norm(module.convnet.batchnorm.eps)}
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
    _refuse(not module.num_channels, "queries without channels")
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
        **_affine("head", "final_layer", "W"),
    }
    return settings, _under(within, names)


def _batch_norm(eps: float) -> Names:
    """Gain and bias of a batch normalisation with its statistics fixed."""

    def scale(gain: Any, bias: Any, mean: Any, variance: Any) -> Any:
        return gain * (variance + eps) ** -0.5

    def shift(gain: Any, bias: Any, mean: Any, variance: Any) -> Any:
        return bias - mean * scale(gain, bias, mean, variance)

    keys = tuple(f"convnet.batchnorm.{name}" for name in ("weight", "bias", "running_mean", "running_var"))
    return {"stem.gain": Made(keys, scale), "stem.bias": Made(keys, shift)}


def _perceiver_layer(ours: str, theirs: str) -> Names:
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
    config, kind = model.config, known_class(model, TRANSFORMERS)
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
        "activation": _activation(model, "activation_function"),
        "eps": _eps(model),
    }
    heads = {"Wq": "q", "Wk": "k", "Wv": "v", "Wo": "o", "Wr": "r", "segments": "seg_embed"}
    heads |= {"content_bias": "r_w_bias", "position_bias": "r_r_bias", "segment_bias": "r_s_bias"}
    names: Names = {
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
    config, inner = model.config, getattr(model, "model", model)
    _refuse(config.encoder_attention_heads != config.decoder_attention_heads, "other heads in the decoder")
    _refuse(config.encoder_ffn_dim != config.decoder_ffn_dim, "another width in the decoder")
    for side in (inner.encoder, inner.decoder):
        _refuse(not _are_sinusoids(side.embed_positions.weight), "a table of positions that are no sinusoids")
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
        "activation": _activation(model, "activation_fn"),
        "eps": _eps(model),
    }

    def layer(ours: str, theirs: str, kinds: Mapping[str, tuple[str, str]]) -> Names:
        parts = ("q_proj", "k_proj", "v_proj", "out_proj")
        found: Names = {}
        for at, (attends, normed) in kinds.items():
            found |= _attention(f"{ours}.{at}attention", *(f"{theirs}.{attends}.{part}" for part in parts))
            found |= _affine(f"{ours}.{normed}", f"{theirs}.{attends}_layer_norm")
        within = f"{ours}.across" if "across." in kinds else ours
        found |= _affine(f"{within}.norm2", f"{theirs}.final_layer_norm")
        return found | _mlp(f"{within}.mlp", f"{theirs}.fc1", f"{theirs}.fc2")

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
    return transformer(**{**settings, **changes}), {**_under("model.", names), **heads} if has_head else names


def _are_sinusoids(table: Any) -> bool:
    """Whether a table of positions is the one that we compute, up to the rounding of its type."""
    place = sinusoidal_positions(table.shape[1], interleaved=False)
    ours = tn.compile(place, backend="torch")({}, table.new_zeros(1, *table.shape).double())[0]
    return float((table - ours).abs().max()) < 5e-3


# ---------------------------------------------------------------------------- torch


def _multihead(module: Any, changes: dict[str, Any]) -> tuple[tn.Graph, Names]:
    settings = {
        **_attention_traits(module),
        "keys": module.kdim,
        "values": module.vdim,
        "qk": module.embed_dim,
    }
    graph = attention(**{**settings, **changes})
    return graph, _stacked("", "", width=not module._qkv_same_embed_dim)


def _attention_traits(module: Any) -> dict[str, Any]:
    _refuse(module.bias_k is not None or module.add_zero_attn, "add_bias_kv or add_zero_attn")
    return {
        "dim": module.embed_dim,
        "heads": module.num_heads,
        "bias": module.in_proj_bias is not None,
        "out_bias": module.out_proj.bias is not None,
        "dropout": module.dropout,
    }


def _layer_traits(module: Any) -> dict[str, Any]:
    return {"hidden": module.linear1.out_features, "pre": module.norm_first}


def _norm_traits(module: Any) -> dict[str, Any]:
    return {"dim": module.normalized_shape[-1], "eps": module.eps, "norm_bias": module.bias is not None}


_PARTS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "Transformer": lambda module: {},
    "TransformerEncoder": lambda module: {"last_norms": module.norm is not None},
    "TransformerDecoder": lambda module: {"last_norms": module.norm is not None},
    "TransformerEncoderLayer": _layer_traits,
    "TransformerDecoderLayer": _layer_traits,
    "MultiheadAttention": _attention_traits,
    "LayerNorm": _norm_traits,
    "Linear": lambda module: {"mlp_bias": module.bias is not None},
    "NonDynamicallyQuantizableLinear": lambda module: {},
    "Dropout": lambda module: {"dropout": module.p},
    "ModuleList": lambda module: {},
}
"""All that a Transformer of torch is made of, and what each part says of the settings."""


def _traits(module: Any, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that all parts agree on; those in `changes` need no agreement."""
    found: dict[str, dict[str, Any]] = {"last_norms": {}}
    for path, part in module.named_modules():
        if path.rpartition(".")[2] != "activation":
            for setting, value in _PARTS[known_class(part, _PARTS, path)](part).items():
                found.setdefault(setting, {})[path] = value
    agreed = {name: _alike(name, each) for name, each in found.items() if each and name not in changes}
    return {"last_norms": False, **agreed, "activation": _activation(module, "activation")}


def _torch_transformer(module: Any, changes: dict[str, Any]) -> tuple[tn.Graph, Names]:
    kind, settings = known_class(module, TORCH), _traits(module, changes)
    layers = {"encoder": _layers(module, "Encoder"), "decoder": _layers(module, "Decoder")}
    depths = {side: len(found) for side, found in layers.items() if found is not None}
    _refuse(0 in depths.values(), "a stack without layers")
    settings |= {
        "part": "both" if len(depths) == 2 else next(iter(depths)),
        "depth": depths.get("encoder", 0),
        "decoder_depth": depths.get("decoder", 0),
    }
    prefix = {side: f"{side}." if kind == "Transformer" else "" for side in depths}
    within = {side: "" if kind.endswith("Layer") else f"{prefix[side]}layers.#." for side in depths}
    names: Names = {}
    for side in depths:
        names |= (_encoder_names if side == "encoder" else _decoder_names)(within[side])
        names |= _affine(f"{side}.norm", f"{prefix[side]}norm")
    return transformer(**{**settings, **changes}), names


def _layers(module: Any, side: str) -> list[Any] | None:
    """The layers of the encoder or the decoder of a Transformer, of either alone, or of one layer."""
    kind = known_class(module, TORCH)
    if kind == "Transformer":
        part = getattr(module, side.lower())
        _refuse(
            known_class(part, _PARTS) != f"Transformer{side}", f"a {type(part).__name__} as {side.lower()}"
        )
        return _layers(part, side)
    if not kind.startswith(f"Transformer{side}"):
        return None
    layers = [module] if kind.endswith("Layer") else list(module.layers)
    for each in layers:
        found = known_class(each, _PARTS)
        _refuse(found != f"Transformer{side}Layer", f"a {found} as a layer of the {side.lower()}")
    return layers


def _encoder_names(theirs: str) -> Names:
    return {
        **_stacked("encoder.#.attention.", f"{theirs}self_attn."),
        **_affine("encoder.#.norm1", f"{theirs}norm1"),
        **_affine("encoder.#.norm2", f"{theirs}norm2"),
        **_mlp("encoder.#.mlp", f"{theirs}linear1", f"{theirs}linear2"),
    }


def _decoder_names(theirs: str) -> Names:
    across = "decoder.#.across"
    return {
        **_stacked("decoder.#.attention.", f"{theirs}self_attn."),
        **_affine("decoder.#.norm0", f"{theirs}norm1"),
        **_stacked(f"{across}.attention.", f"{theirs}multihead_attn."),
        **_affine(f"{across}.norm1", f"{theirs}norm2"),
        **_affine(f"{across}.norm2", f"{theirs}norm3"),
        **_mlp(f"{across}.mlp", f"{theirs}linear1", f"{theirs}linear2"),
    }


TRANSFORMERS: dict[str, Converter] = {
    "ViTModel": _vit,
    "ViTForImageClassification": _vit,
    "SwinModel": _swin,
    "SwinForImageClassification": _swin,
    "SwinBackbone": _swin,
    "PerceiverModel": _perceiver,
    "PerceiverForMaskedLM": _perceiver,
    "PerceiverForSequenceClassification": _perceiver,
    "PerceiverForImageClassificationFourier": _perceiver,
    "PerceiverForImageClassificationLearned": _perceiver,
    "PerceiverForImageClassificationConvProcessing": _perceiver,
    "XLNetModel": _xlnet,
    "XLNetLMHeadModel": _xlnet,
    "XLNetForSequenceClassification": _xlnet,
    "MarianModel": _marian,
    "MarianMTModel": _marian,
}

TORCH: dict[str, Converter] = {
    "MultiheadAttention": _multihead,
    "Transformer": _torch_transformer,
    "TransformerEncoder": _torch_transformer,
    "TransformerEncoderLayer": _torch_transformer,
    "TransformerDecoder": _torch_transformer,
    "TransformerDecoderLayer": _torch_transformer,
    "MarianModel": _marian,
    "MarianMTModel": _marian,
}
