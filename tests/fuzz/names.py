"""Names that mean something to Python, to a library, or to a terminal, wherever a name may enter."""

from __future__ import annotations

import builtins
import keyword
from pathlib import Path
from typing import Any

import numpy as np
import sympy

import tensornet as tn
from tensornet.ops.table import FUNCTIONS

from . import SilentChangeError, Trial

CANARY = "tensornet_canary"
"""A name in `builtins` that code hidden in a name would raise."""

_CODE = f"__import__('builtins').{CANARY}.append(1)"
_LINES = (Path(__file__).parents[1] / "data" / "hostile.txt").read_text().splitlines()
_HOSTILE = ("", *(line.encode().decode("unicode_escape").replace("CODE", _CODE) for line in _LINES))
_OURS = """
torch math np numpy xp functions forward self training observed shape int lead index sum softmax pi
inf input parameter dtype device backend graph compare memory_limit scope name t1 y W x __class__
__init__ _ __ parameters
"""
_TAKEN = (*keyword.kwlist, *keyword.softkwlist, *_OURS.split())


def attempt(trial: Trial) -> None:
    """A dense layer with one of its names chosen badly: refused, or the same numbers as ever."""
    place = trial.random.choice(
        ("axis", "tensor", "parameter", "scope", "symbol", "size", "register", "constant")
    )
    name = trial.random.choice(_HOSTILE + _TAKEN)
    trial.note(f"{place}: {name!r}")
    caught: list[int] = []
    known = FUNCTIONS.get(name)
    setattr(builtins, CANARY, caught)
    try:
        _build(place, name)
    finally:
        delattr(builtins, CANARY)
        if FUNCTIONS.get(name) not in (None, known):
            del FUNCTIONS[name]  # what follows is about another language otherwise
        if caught:
            raise SilentChangeError("code in a name was run")


def _build(place: str, name: str) -> None:
    x, w = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(4, 3)
    names = {"axis": "i", "tensor": "y", "parameter": "W"} | {place: name}
    axis, tensor, parameter = names["axis"], names["tensor"], names["parameter"]
    sizes: dict[str, Any] = {}
    text = f"{tensor}[b,o] = x[b,{axis}] * {parameter}[o,{axis}]"
    match place:
        case "symbol":
            sizes = {"o": sympy.Symbol(name)}
        case "size":
            sizes = {name: 3}
        case "constant":
            graph = tn.layer(f"y[b,o] = x[b,i] * {name}[o,i]", inputs="x", constants={name: w})
            return _same(graph, {}, x, w)
        case "register":
            tn.register(name, numpy=lambda a: a * 1.0)
            text = f"y[b,o] = {name}(x[b,i]) * W[o,i]"
        case "scope":
            layer = tn.layer(text, inputs="x", o=4)
            graph = tn.model(lambda t: layer(t, scope=name), inputs="x[b,i]", i=3)
            return _same(graph, {leaf.name: w for leaf in graph.parameters}, x, w)
    graph = tn.layer(text, inputs="x", **sizes)
    return _same(graph, {leaf.name: w for leaf in graph.parameters}, x, w)


def _same(graph: tn.Graph, parameters: dict[str, Any], x: Any, w: Any) -> None:
    """The graph runs and gives x·Wᵀ, and reads back from its JSON."""
    if len(graph.leaves) == 2:
        np.testing.assert_array_equal(tn.compile(graph)(parameters, x), x @ w.T)
    if tn.Graph.from_json(graph.to_json()) != graph:
        raise SilentChangeError("it is another graph after JSON")
    tn.parameter_formula(graph)
    str(tn.plan(graph, **dict.fromkeys(graph.open_sizes, 2)))
