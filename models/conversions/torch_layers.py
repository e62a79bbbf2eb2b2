"""Converters of layers from torch: products, convolutions, pooling, norms, embeddings, activations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensornet.api as tn

from ..blocks import norm, projection
from ..convolution import windows_of
from .names import Made, Names, refuse

Layer = Callable[[Any], "tuple[tn.Graph, Names]"]

PLACES = ("ijk", "pqr", "uvw")
"""The axes of the input, of the result and of the kernel, for up to three spatial dimensions."""

WEIGHTED: Names = {"W": "weight", "bias": "bias"}


def _pointwise(text: str) -> Layer:
    """The converter of an elementwise function; its text may contain attributes of the module."""

    def made(module: Any) -> tuple[tn.Graph, Names]:
        value = text.format(module=module)
        return tn.layer(f"y[...] = {value}", inputs="x"), {}

    return made


def _gelu(module: Any) -> tuple[tn.Graph, Names]:
    return tn.layer(
        f"y[...] = {'gelu' if module.approximate == 'none' else 'gelu_tanh'}(x[...])", inputs="x"
    ), {}


def _linear(module: Any) -> tuple[tn.Graph, Names]:
    graph = projection(module.in_features, module.out_features, bias=module.bias is not None)
    return graph, WEIGHTED


def _embedding(module: Any) -> tuple[tn.Graph, Names]:
    refuse(module.max_norm is not None, "max_norm")
    sizes = {"v": module.num_embeddings, "c": module.embedding_dim}
    return tn.layer("E[v,c]: parameter\ny[...,c] = E[t[...],c]", inputs="t", **sizes), {"E": "weight"}


def _layer_norm(module: Any) -> tuple[tn.Graph, Names]:
    shape = tuple(module.normalized_shape)
    names: Names = {"gain": "weight", "bias": "bias"}
    if len(shape) == 1 and module.weight is not None:
        return norm(shape[0], module.eps, bias=module.bias is not None), names
    axes = [f"c{n}" for n in range(len(shape))]
    read = ",".join(axes)
    value = f"normalize[{read}](x[...,{read}], eps={module.eps!r})"
    value = f"gain[{read}] * {value}" if module.weight is not None else value
    value += f" + bias[{read}]" if module.bias is not None else ""
    text = f"y[...,{read}] = {value}"
    return tn.layer(text, inputs=f"x[...,{read}]", **dict(zip(axes, shape, strict=True))), names


def _rms_norm(module: Any) -> tuple[tn.Graph, Names]:
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


def _batch_norm(module: Any) -> tuple[tn.Graph, Names]:
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


def _convolution(module: Any) -> tuple[tn.Graph, Names]:
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

    def made(module: Any) -> tuple[tn.Graph, Names]:
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
    "Identity": _pointwise("x[...]"),
    "Dropout": _pointwise("dropout(x[...], {module.p!r})"),
    "ReLU": _pointwise("relu(x[...])"),
    "ReLU6": _pointwise("minimum(relu(x[...]), 6)"),
    "GELU": _gelu,
    "SiLU": _pointwise("silu(x[...])"),
    "Mish": _pointwise("mish(x[...])"),
    "Tanh": _pointwise("tanh(x[...])"),
    "Sigmoid": _pointwise("sigmoid(x[...])"),
    "LogSigmoid": _pointwise("log_sigmoid(x[...])"),
    "Softsign": _pointwise("softsign(x[...])"),
    "SELU": _pointwise("selu(x[...])"),
    "ELU": _pointwise("elu(x[...], alpha={module.alpha!r})"),
    "LeakyReLU": _pointwise("leaky_relu(x[...], slope={module.negative_slope!r})"),
    "Hardsigmoid": _pointwise("hardsigmoid(x[...])"),
    "Hardswish": _pointwise("hardswish(x[...])"),
    "Softplus": _pointwise("softplus({module.beta!r} * x[...]) / {module.beta!r}"),
}
"""By the class of torch, a function that returns the graph of a layer and its names of parameters."""

RANKED: dict[str, Callable[[Any, int], tn.Graph]] = {
    "Flatten": _flatten,
    "Softmax": _along("softmax"),
    "LogSoftmax": _along("log_softmax"),
}
"""By the class of torch, layers whose graphs depend on the number of dimensions of the input."""
