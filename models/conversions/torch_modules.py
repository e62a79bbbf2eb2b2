"""Converters of modules from torch: attention and Transformers, recurrent layers, single layers and sequences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import tensornet.api as tn
from tensornet.errors import ShapeError

from ..attention import attention
from ..blocks import projection
from ..convolution import windows_of
from ..recurrent import LETTERS, gru, lstm, rnn
from ..transformer import transformer
from .names import (
    Converted,
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


def _multihead(module: Any, changes: dict[str, Any]) -> Converted:
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


def _torch_transformer(module: Any, changes: dict[str, Any]) -> Converted:
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


def _recurrent(module: Any, changes: dict[str, Any]) -> Converted:
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


# ---------------------------------------------------------------------------- layers

Layer = Callable[[Any], Converted]

PLACES = ("ijk", "pqr", "uvw")
"""The axes of the input, of the result and of the kernel, for up to three spatial dimensions."""

WEIGHTED: Names = {"W": "weight", "bias": "bias"}


def _pointwise(text: str) -> Layer:
    """The converter of an elementwise function; its text may contain attributes of the module."""

    def made(module: Any) -> Converted:
        value = text.format(module=module)
        return tn.layer(f"y[...] = {value}", inputs="x"), {}

    return made


def _linear(module: Any) -> Converted:
    graph = projection(module.in_features, module.out_features, bias=module.bias is not None)
    return graph, WEIGHTED


def _embedding(module: Any) -> Converted:
    refuse(module.max_norm is not None, "max_norm")
    sizes = {"v": module.num_embeddings, "c": module.embedding_dim}
    return tn.layer("E[v,c]: parameter\ny[...,c] = E[t[...],c]", inputs="t", **sizes), {"E": "weight"}


def _layer_norm(module: Any) -> Converted:
    shape = tuple(module.normalized_shape)
    names: Names = {"gain": "weight", "bias": "bias"}
    axes = [f"c{n}" for n in range(len(shape))]
    read = ",".join(axes)
    value = f"normalize[{read}](x[...,{read}], eps={module.eps!r})"
    value = f"gain[{read}] * {value}" if module.weight is not None else value
    value += f" + bias[{read}]" if module.bias is not None else ""
    text = f"y[...,{read}] = {value}"
    return tn.layer(text, inputs=f"x[...,{read}]", **dict(zip(axes, shape, strict=True))), names


def _rms_norm(module: Any) -> Converted:
    axes = [f"c{n}" for n in range(len(module.normalized_shape))]
    read = ",".join(axes)
    gain = f"gain[{read}] * " if module.weight is not None else ""
    text = f"""
        size[...] = mean[{read}](square(x[...,{read}]))
        y[...,{read}] = {gain}x[...,{read}] * rsqrt(size[...] + {_eps(module)!r})
    """
    sizes = dict(zip(axes, module.normalized_shape, strict=True))
    return tn.layer(text, inputs=f"x[...,{read}]", **sizes), {"gain": "weight"}


def _eps(module: Any) -> float:
    """The ε of an RMS norm; if it is None, the machine epsilon of the type of the weight."""
    if module.eps is not None:
        return float(module.eps)
    refuse(module.weight is None, "neither eps nor a weight, whose type would tell it,")
    one = module.weight.detach().new_ones(())
    return float(one.nextafter(2 * one) - one)


def batch_norm(eps: float, prefix: str = "") -> Names:
    """The gain and bias that a batch normalization with fixed statistics amounts to."""

    def scale(gain: Any, bias: Any, mean: Any, variance: Any) -> Any:
        return gain * (variance + eps) ** -0.5

    def shift(gain: Any, bias: Any, mean: Any, variance: Any) -> Any:
        return bias - mean * scale(gain, bias, mean, variance)

    keys = tuple(f"{prefix}{name}" for name in ("weight", "bias", "running_mean", "running_var"))
    return {"gain": Made(keys, scale), "bias": Made(keys, shift)}


def _batch_norm(module: Any) -> Converted:
    refuse(module.running_mean is None or module.weight is None, "a norm by the statistics of each batch")
    text = "y[b,c,...] = gain[c] * x[b,c,...] + bias[c]"
    return tn.layer(text, inputs="x[b,c,...]", c=module.num_features), batch_norm(module.eps)


# ---------------------------------------------------------------------------- windows


def _each(value: Any, dimensions: int) -> tuple[int, ...]:
    """One number for each spatial dimension."""
    return tuple(value) if isinstance(value, Sequence) else (value,) * dimensions


def _padded(
    lead: str, dimensions: int, pads: Sequence[tuple[int, int]], value: str = "0"
) -> tuple[str, list[str]]:
    """The name of the padded input and the equation that pads it, if there is padding."""
    places = PLACES[0][:dimensions]
    if not any(map(any, pads)):
        return "x", []
    around = ", ".join(f"{axis}={pad}" for axis, pad in zip(places, pads, strict=True))
    read = f"{lead},{','.join(places)}"
    return "padded", [f"padded[{read}] = pad(x[{read}], {around}, value={value})"]


def _convolution(module: Any) -> Converted:
    refuse(module.padding_mode != "zeros", f"padding_mode={module.padding_mode!r}")
    refuse(module.transposed, "a transposed convolution")
    dimensions, groups = len(module.kernel_size), module.groups
    backwards = module._reversed_padding_repeated_twice
    pads = [(backwards[2 * n], backwards[2 * n + 1]) for n in range(dimensions)][::-1]
    channels, out = ("(g,c)", "(g,o)") if groups > 1 else ("c", "o")
    name, lines = _padded(f"b,{channels}", dimensions, pads)
    places, results, kernel = (",".join(each[:dimensions]) for each in PLACES)
    read = windows_of(module.stride, module.dilation, *PLACES[1:])
    product = f"{name}[b,{channels},{read}] * W[{out},c,{kernel}]"
    bias = f" + bias[{out}]" if module.bias is not None else ""
    lines.append(f"y[b,{out},{results}] = {product}{bias}")
    sizes = dict(zip(kernel.split(","), module.kernel_size, strict=True))
    sizes |= {"c": module.in_channels // groups, "o": module.out_channels // groups}
    sizes |= {"g": groups} if groups > 1 else {}
    graph = tn.layer("\n".join(lines), inputs=f"x[b,{channels},{places}]", **sizes)
    return graph, WEIGHTED


def _pooling(function: str, dimensions: int, around: str) -> Layer:
    """The converter of a pooling layer: `function` over windows, with padding of the value `around`."""

    def made(module: Any) -> Converted:
        refuse(module.ceil_mode, "ceil_mode")
        refuse(getattr(module, "return_indices", False), "return_indices")
        refuse(getattr(module, "divisor_override", None) is not None, "divisor_override")
        padding = _each(module.padding, dimensions)
        refuse(not getattr(module, "count_include_pad", True) and any(padding), "count_include_pad=False")
        window, strides = _each(module.kernel_size, dimensions), _each(module.stride, dimensions)
        name, lines = _padded("b,c", dimensions, [(each, each) for each in padding], around)
        places, results, kernel = (",".join(each[:dimensions]) for each in PLACES)
        read = windows_of(strides, _each(getattr(module, "dilation", 1), dimensions), *PLACES[1:])
        lines.append(f"y[b,c,{results}] = {function}[{kernel}]({name}[b,c,{read}])")
        sizes: dict[str, Any] = dict(zip(kernel.split(","), window, strict=True))
        return tn.layer("\n".join(lines), inputs=f"x[b,c,{places}]", **sizes), {}

    return made


# ---------------------------------------------------------------------------- layers that depend on the rank


def _flatten(module: Any, rank: int) -> tn.Graph:
    """Flattens adjacent dimensions into one."""
    axes = [f"i{n}" for n in range(rank)]
    first, last = module.start_dim % rank, module.end_dim % rank
    one = f"({','.join(axes[first : last + 1])})" if last > first else axes[first]
    return tn.layer(
        f"y[{','.join([*axes[:first], one, *axes[last + 1 :]])}] = x[{','.join(axes)}]",
        inputs=f"x[{','.join(axes)}]",
    )


def _along(function: str) -> Callable[[Any, int], tn.Graph]:
    """The converter of a function along one dimension."""

    def made(module: Any, rank: int) -> tn.Graph:
        refuse(module.dim is None, "dim=None")
        axes = ",".join(f"i{n}" for n in range(rank))
        return tn.layer(f"y[{axes}] = {function}[i{module.dim % rank}](x[{axes}])", inputs=f"x[{axes}]")

    return made


POINTWISE = {
    "Identity": "x[...]",
    "Dropout": "dropout(x[...], {module.p!r})",
    "ReLU": "relu(x[...])",
    "ReLU6": "minimum(relu(x[...]), 6)",
    "SiLU": "silu(x[...])",
    "Mish": "mish(x[...])",
    "Tanh": "tanh(x[...])",
    "Sigmoid": "sigmoid(x[...])",
    "LogSigmoid": "log_sigmoid(x[...])",
    "Softsign": "softsign(x[...])",
    "SELU": "selu(x[...])",
    "ELU": "elu(x[...], alpha={module.alpha!r})",
    "LeakyReLU": "leaky_relu(x[...], slope={module.negative_slope!r})",
    "Hardsigmoid": "hardsigmoid(x[...])",
    "Hardswish": "hardswish(x[...])",
    "Softplus": "softplus({module.beta!r} * x[...]) / {module.beta!r}",
}
"""By the class of torch, elementwise functions."""

GELUS = {"none": _pointwise("gelu(x[...])"), "tanh": _pointwise("gelu_tanh(x[...])")}

LAYERS: dict[str, Layer] = {
    "Linear": _linear,
    "NonDynamicallyQuantizableLinear": _linear,
    "Embedding": _embedding,
    "LayerNorm": _layer_norm,
    "RMSNorm": _rms_norm,
    **{f"BatchNorm{n}d": _batch_norm for n in (1, 2, 3)},
    **{f"Conv{n}d": _convolution for n in (1, 2, 3)},
    **{f"MaxPool{n}d": _pooling("max", n, "-inf") for n in (1, 2, 3)},
    **{f"AvgPool{n}d": _pooling("mean", n, "0") for n in (1, 2, 3)},
    **{kind: _pointwise(text) for kind, text in POINTWISE.items()},
    "GELU": lambda module: GELUS[module.approximate](module),
}
"""By the class of torch, a function that returns the graph of a layer and its names of parameters."""

RANKED: dict[str, Callable[[Any, int], tn.Graph]] = {
    "Flatten": _flatten,
    "Softmax": _along("softmax"),
    "LogSoftmax": _along("log_softmax"),
}
"""By the class of torch, layers whose graphs depend on the number of dimensions of the input."""


# ---------------------------------------------------------------------------- sequences

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

    def converted(module: Any, changes: dict[str, Any]) -> Converted:
        _check_settings(type(module).__name__, changes, ())
        return layer(module)

    return converted


def _sequential(module: Any, changes: dict[str, Any]) -> Converted:
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


def _layer(module: Any, path: str, rank: int) -> Converted:
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
