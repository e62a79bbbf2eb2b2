"""Converters of attention and Transformers from torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensornet.api as tn

from ..attention import attention
from ..transformer import transformer
from .names import (
    Converter,
    Names,
    activation_of,
    affine,
    alike,
    known_class,
    mlp_names,
    refuse,
    stacked_names,
)

__all__ = ["TORCH_TRANSFORMERS"]


def _multihead(module: Any, changes: dict[str, Any]) -> tuple[tn.Graph, Names]:
    settings = {
        **_attention_traits(module),
        "keys": module.kdim,
        "values": module.vdim,
        "qk": module.embed_dim,
    }
    graph = attention(**{**settings, **changes})
    return graph, stacked_names("", "", width=not module._qkv_same_embed_dim)


def _attention_traits(module: Any) -> dict[str, Any]:
    refuse(module.bias_k is not None or module.add_zero_attn, "add_bias_kv or add_zero_attn")
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
"""The classes of modules in a Transformer of torch, and the settings that each determines."""


def _traits(module: Any, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The settings on which all parts agree, without those in `changes`.

    Raises:
        ShapeError: two parts disagree.
    """
    found: dict[str, dict[str, Any]] = {"last_norms": {}}
    for path, part in module.named_modules():
        if path.rpartition(".")[2] != "activation":
            for setting, value in _PARTS[known_class(part, _PARTS, path)](part).items():
                found.setdefault(setting, {})[path] = value
    agreed = {name: alike(name, each) for name, each in found.items() if each and name not in changes}
    return {"last_norms": False, **agreed, "activation": activation_of(module, "activation")}


def _torch_transformer(module: Any, changes: dict[str, Any]) -> tuple[tn.Graph, Names]:
    kind, settings = known_class(module, TORCH_TRANSFORMERS), _traits(module, changes)
    layers = {"encoder": _layers(module, "Encoder"), "decoder": _layers(module, "Decoder")}
    depths = {side: len(found) for side, found in layers.items() if found is not None}
    refuse(0 in depths.values(), "a stack without layers")
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
        names |= affine(f"{side}.norm", f"{prefix[side]}norm")
    return transformer(**{**settings, **changes}), names


def _layers(module: Any, side: str) -> list[Any] | None:
    """The layers of a Transformer, a stack or one layer on a side, "Encoder" or "Decoder"; None without that side."""
    kind = known_class(module, TORCH_TRANSFORMERS)
    if kind == "Transformer":
        part = getattr(module, side.lower())
        refuse(
            known_class(part, _PARTS) != f"Transformer{side}", f"a {type(part).__name__} as {side.lower()}"
        )
        return _layers(part, side)
    if not kind.startswith(f"Transformer{side}"):
        return None
    layers = [module] if kind.endswith("Layer") else list(module.layers)
    for each in layers:
        found = known_class(each, _PARTS)
        refuse(found != f"Transformer{side}Layer", f"a {found} as a layer of the {side.lower()}")
    return layers


def _encoder_names(theirs: str) -> Names:
    return {
        **stacked_names("encoder.#.attention.", f"{theirs}self_attn."),
        **affine("encoder.#.norm1", f"{theirs}norm1"),
        **affine("encoder.#.norm2", f"{theirs}norm2"),
        **mlp_names("encoder.#.mlp", f"{theirs}linear1", f"{theirs}linear2"),
    }


def _decoder_names(theirs: str) -> Names:
    across = "decoder.#.across"
    return {
        **stacked_names("decoder.#.attention.", f"{theirs}self_attn."),
        **affine("decoder.#.norm0", f"{theirs}norm1"),
        **stacked_names(f"{across}.attention.", f"{theirs}multihead_attn."),
        **affine(f"{across}.norm1", f"{theirs}norm2"),
        **affine(f"{across}.norm2", f"{theirs}norm3"),
        **mlp_names(f"{across}.mlp", f"{theirs}linear1", f"{theirs}linear2"),
    }


TORCH_TRANSFORMERS: dict[str, Converter] = {
    "MultiheadAttention": _multihead,
    "Transformer": _torch_transformer,
    "TransformerEncoder": _torch_transformer,
    "TransformerEncoderLayer": _torch_transformer,
    "TransformerDecoder": _torch_transformer,
    "TransformerDecoderLayer": _torch_transformer,
}
