"""Converters of modules from torch: attention and Transformers, recurrent layers, single layers and sequences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import tensornet.api as tn
from tensornet.errors import ShapeError

from ..attention import attention
from ..recurrent import LETTERS, gru, lstm, rnn
from ..transformer import transformer
from .names import (
    Converter,
    Made,
    Names,
    activation_of,
    alike,
    known_class,
    part_of,
    refuse,
    resolved,
    stacked_names,
    table,
)
from .torch_layers import LAYERS, RANKED, Layer

# ---------------------------------------------------------------------------- attention and Transformers

SIDES: dict[str, tuple[str, dict[str, str]]] = {
    "encoder": (
        """
        norm  encoder.#.norm1         norm1
        norm  encoder.#.norm2         norm2
        mlp   encoder.#.mlp           linear 1 2
        """,
        {"attention": "self_attn"},
    ),
    "decoder": (
        """
        norm  decoder.#.norm0         norm1
        norm  decoder.#.across.norm1  norm2
        norm  decoder.#.across.norm2  norm3
        mlp   decoder.#.across.mlp    linear 1 2
        """,
        {"attention": "self_attn", "across.attention": "multihead_attn"},
    ),
}
"""The names of the parameters of a layer of each side, and those of its attentions."""


TRANSFORMERS = (
    *("Transformer", "TransformerEncoder", "TransformerEncoderLayer"),
    *("TransformerDecoder", "TransformerDecoderLayer"),
)


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
    kind, settings = known_class(module, TRANSFORMERS), _traits(module, changes)
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
        text, stacks = SIDES[side]
        names |= table(text, within[side]) | table(f"norm {side}.norm {prefix[side]}norm")
        for ours, theirs in stacks.items():
            names |= stacked_names(f"{side}.#.{ours}.", f"{within[side]}{theirs}.")
    return transformer(**{**settings, **changes}), names


def _layers(module: Any, side: str) -> list[Any] | None:
    """The layers of a Transformer, a stack or one layer on a side, "Encoder" or "Decoder"; None without that side."""
    kind = known_class(module, TRANSFORMERS)
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


# ---------------------------------------------------------------------------- recurrent layers

RECURRENT: dict[str, Callable[..., tn.Graph]] = {"RNN": rnn, "LSTM": lstm, "GRU": gru}


def _recurrent(module: Any, changes: dict[str, Any]) -> tuple[tn.Graph, Names]:
    kind = known_class(module, RECURRENT)
    refuse(getattr(module, "proj_size", 0) > 0, "proj_size")
    refuse(module.dropout > 0 and module.num_layers > 1, "dropout between layers")
    settings: dict[str, Any] = {
        "layers": module.num_layers,
        "bidirectional": module.bidirectional,
        "bias": module.bias,
    }
    if kind == "RNN":
        settings["nonlinearity"] = module.nonlinearity
    graph = RECURRENT[kind](module.input_size, module.hidden_size, **{**settings, **changes})
    return graph, dict(_recurrent_names(module, kind))


def _recurrent_names(module: Any, kind: str) -> Iterator[tuple[str, Made]]:
    """The source of each of our weights: one gate of a stack in torch. The two biases of a gate are added to one.

    The candidate gate n of a GRU keeps both biases.
    """
    letters = LETTERS[kind.lower()]
    for way, suffix in (("onward", ""), ("backward", "_reverse"))[: 1 + module.bidirectional]:
        ours, theirs = f"layers.#.{way}", f"l#{suffix}"
        for number, letter in enumerate(letters):
            biases: tuple[str, ...] = (f"bias_ih_{theirs}", f"bias_hh_{theirs}")
            sources: dict[str, tuple[str, ...]] = {f"b{letter}": biases}
            if kind == "GRU" and letter == "n":
                sources = {"bn": biases[:1], "un": biases[1:]}
            sources |= {f"W{letter}": (f"weight_ih_{theirs}",), f"U{letter}": (f"weight_hh_{theirs}",)}
            for name, keys in sources.items():
                yield f"{ours}.{name}", part_of(*keys, number=number, count=len(letters))


# ---------------------------------------------------------------------------- layers and sequences

ENCODERS = ("TransformerEncoder", "TransformerEncoderLayer")
"""The classes with one input among those that have their own converters."""

KNOWN = ("Sequential", *LAYERS, *RANKED, *ENCODERS)

FIRST: dict[str, str] = {
    **{
        f"{kind}{n}d": f"x[b,c,{','.join('ijk'[:n])}]"
        for kind in ("Conv", "MaxPool", "AvgPool")
        for n in (1, 2, 3)
    },
    **{f"BatchNorm{n}d": f"x[b,c,{','.join('ijk'[:n])}]" for n in (2, 3)},
    "Embedding": "t[b,n]",
    **dict.fromkeys(ENCODERS, "x[b,n,c]"),
}
"""The default input of a sequence by the class of its first layer; for others it is x[b, c]."""


def _one(layer: Layer) -> Converter:
    """The converter of a single layer, which accepts no settings."""

    def converted(module: Any, changes: dict[str, Any]) -> tuple[tn.Graph, Names]:
        _check_settings(type(module).__name__, changes, ())
        return layer(module)

    return converted


def _sequential(module: Any, changes: dict[str, Any]) -> tuple[tn.Graph, Names]:
    _check_settings("Sequential", changes, ("inputs",))
    declared = changes["inputs"] if "inputs" in changes else _input(module)
    names: Names = {}

    def forward(x: tn.Tensor) -> Any:
        for theirs, scope, layer in _layers_in(module):
            graph, found = _layer(layer, theirs, len(x.dims))
            for ours, made in resolved(graph, found, type(layer).__name__, {}).items():
                names[f"{scope}.{ours}"] = replace(made, keys=tuple(f"{theirs}.{key}" for key in made.keys))
            x = graph(x, scope=scope)
        return x

    return tn.model(forward, inputs=declared), names


def _layers_in(module: Any, theirs: str = "", scope: str = "") -> Iterator[tuple[str, str, Any]]:
    """All layers of a sequence and of nested ones: the path of each in the module, its scope, and the layer."""
    for name, layer in module._modules.items():  # a layer that is contained twice runs twice
        path = f"{theirs}{name}"
        own = f"{scope}{name}" if name.isidentifier() else f"{scope}layers.{name}"
        if known_class(layer, KNOWN, path) == "Sequential":
            yield from _layers_in(layer, f"{path}.", f"{own}.")
        else:
            yield path, own, layer


def _layer(module: Any, path: str, rank: int) -> tuple[tn.Graph, Names]:
    """The graph of one layer of a sequence, and its names of parameters."""
    kind = known_class(module, KNOWN, path)
    if kind in RANKED:
        return RANKED[kind](module, rank), {}
    return _torch_transformer(module, {}) if kind in ENCODERS else LAYERS[kind](module)


def _input(module: Any) -> str:
    """The declaration of the input of a sequence, from the first layer that determines it."""
    for path, _, layer in _layers_in(module):
        kind = known_class(layer, KNOWN, path)
        if kind in RANKED:
            raise ShapeError(
                f"nothing tells the dimensions of the input of '{path}', a {kind}",
                fix='tell the input of the whole, such as inputs="x[b,c:3,i:32,j:32]"',
            )
        if kind in FIRST or next(layer.parameters(), None) is not None:
            return FIRST.get(kind, "x[b,c]")
    return "x[b,c]"


def _check_settings(kind: str, changes: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for name in changes:
        if name not in known:
            fix = f"its settings: {', '.join(known)}" if known else "leave it out"
            raise ShapeError(f"'{kind}' has no setting '{name}'", fix=fix)


MODULES: dict[str, Converter] = {
    **{kind: _one(layer) for kind, layer in LAYERS.items()},
    "Sequential": _sequential,
    "MultiheadAttention": _multihead,
    **dict.fromkeys(TRANSFORMERS, _torch_transformer),
    **dict.fromkeys(RECURRENT, _recurrent),
}
"""Converters by the class of torch."""
