"""Files that were changed behind the library's back: graphs in JSON, and the constants of a device."""

from __future__ import annotations

import functools
import json
import math
from dataclasses import asdict
from typing import Any

import numpy as np

import tensornet as tn
from tensornet import models
from tensornet.device import DeviceProfile, default_profile, load_profile, save_profile

from . import SilentChangeError, Trial

__all__ = ["changed_document", "graphs"]

_VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 1, 2**70, 1e308, 5e-324, math.nan, math.inf, "", "x", "y[b] = x[b]", "b: 3"),
    *([], {}, [[]], ["x"], {"a": 1}, [None], "W[o,i]: parameter", "AAAA", "float64", "<f8", "|O", "é"),
)


@functools.cache
def _graphs() -> tuple[tn.Graph, ...]:
    return (
        models.tcl((4, 3), (2, 5)),
        models.window_attention(4, 1, 2, grid=(4, 4), shift=1),
        tn.layer("y[b,d] = E[t[b],d] * m[d]", inputs="t", constants={"m": np.arange(3.0)}),
        tn.model(lambda x: tn.layer("y[...] = gelu(x[...])", inputs="x")(x), inputs="x[b,i]"),
    )


def graphs(trial: Trial) -> None:
    """A graph's JSON with something changed: refused, or a graph that is whole."""
    text = changed_document(trial.random.choice(_graphs()).to_json(), trial)
    trial.note(text[:2000])
    graph = tn.Graph.from_json(text)
    if tn.Graph.from_json(graph.to_json()) != graph:
        raise SilentChangeError("it is another graph after JSON")


def changed_document(text: str, trial: Trial) -> str:
    """A JSON text with a value changed, a key gone, a character flipped, or its end cut off."""
    random = trial.random
    kind = random.randrange(4)
    if kind == 0:
        return text[: random.randrange(len(text))]
    if kind == 1:
        at = random.randrange(len(text))
        return text[:at] + random.choice('{}[]",:0x\\ \0é') + text[at + 1 :]
    document = json.loads(text)
    holder, key = random.choice(list(_places(document)))
    if kind == 2 and isinstance(holder, dict):
        del holder[key]
    else:
        holder[key] = random.choice(_VALUES)
    return json.dumps(document)


def _places(document: Any) -> Any:
    """Every (container, key) in a document."""
    pairs = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in list(pairs):
        yield document, key
        if isinstance(value, dict | list):
            yield from _places(value)


def constants(trial: Trial) -> None:
    """A damaged cache of a device's constants is believed only where it is plausible."""
    profile = DeviceProfile(**{**asdict(default_profile("cpu")), "key": "fuzzed"})
    path = save_profile(profile)
    assert path is not None
    path.write_text(changed_document(path.read_text(), trial))
    trial.note(path.read_text())
    found = load_profile("fuzzed")
    if found is None:
        return
    for name, usual in asdict(profile).items():
        if name != "key" and not usual / 1e4 <= getattr(found, name) <= usual * 1e4:
            raise SilentChangeError(f"{name} = {getattr(found, name)} is believed, where {usual} is usual")
