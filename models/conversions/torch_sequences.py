"""Converters of single layers from torch, and of a Sequential of several as one model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import tensornet.api as tn
from tensornet.errors import ShapeError

from .names import Converter, Names, known_class, resolved
from .torch_attention import TORCH_TRANSFORMERS
from .torch_layers import LAYERS, RANKED, Layer

__all__ = ["TORCH_LAYERS"]

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
        for theirs, scope, layer in _layers(module):
            graph, found = _layer(layer, theirs, len(x.dims))
            for ours, made in resolved(graph, found, type(layer).__name__, {}).items():
                names[f"{scope}.{ours}"] = replace(made, keys=tuple(f"{theirs}.{key}" for key in made.keys))
            x = graph(x, scope=scope)
        return x

    return tn.model(forward, inputs=declared), names


def _layers(module: Any, theirs: str = "", scope: str = "") -> Iterator[tuple[str, str, Any]]:
    """All layers of a sequence and of nested ones: the path of each in the module, its scope, and the layer."""
    for name, layer in module._modules.items():  # a layer that is contained twice runs twice
        path = f"{theirs}{name}"
        own = f"{scope}{name}" if name.isidentifier() else f"{scope}layers.{name}"
        if known_class(layer, KNOWN, path) == "Sequential":
            yield from _layers(layer, f"{path}.", f"{own}.")
        else:
            yield path, own, layer


def _layer(module: Any, path: str, rank: int) -> tuple[tn.Graph, Names]:
    """The graph of one layer of a sequence, and its names of parameters."""
    kind = known_class(module, KNOWN, path)
    if kind in RANKED:
        return RANKED[kind](module, rank), {}
    return TORCH_TRANSFORMERS[kind](module, {}) if kind in ENCODERS else LAYERS[kind](module)


def _input(module: Any) -> str:
    """The declaration of the input of a sequence, from the first layer that determines it."""
    for path, _, layer in _layers(module):
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


TORCH_LAYERS: dict[str, Converter] = {
    **{kind: _one(layer) for kind, layer in LAYERS.items()},
    "Sequential": _sequential,
}
"""Converters by the class of torch: single layers and Sequential."""
