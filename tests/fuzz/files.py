"""Files that were changed behind the library's back: graphs, and constants of devices."""

from __future__ import annotations

import contextlib
import functools
import tempfile
from dataclasses import asdict

import numpy as np
import pytest

import tensornet as tn
from tensornet import models
from tensornet.device.cost_model import DeviceProfile, default_profile
from tensornet.device.profiles import load_profile, save_profile

from ..damage import BYTES, DOCUMENTS, damaged
from . import SilentChangeError, Trial


@functools.cache
def _documents() -> tuple[str, ...]:
    found = (
        models.tcl((4, 3), (2, 5)),
        models.window_attention(4, 1, 2, grid=(4, 4), shift=1),
        tn.layer("y[b,d] = E[t[b],d] * m[d]", inputs="t", constants={"m": np.arange(3.0)}),
        tn.model(lambda x: tn.layer("y[...] = gelu(x[...])", inputs="x")(x), inputs="x[b,i]"),
    )
    return tuple(graph.to_json() for graph in found)


def graphs(trial: Trial) -> None:
    """A graph's JSON, damaged: refused, or a graph that is whole."""
    content = trial.random.choice(_documents()).encode()
    for _ in range(trial.random.choice((0, 1, 1, 2))):
        ways = {**BYTES, **DOCUMENTS}
        with contextlib.suppress(ValueError):  # no document is left in it to be changed
            content = ways[trial.random.choice(list(ways))](content, trial.random)
    text = content.decode(errors="replace")
    trial.note(text)
    graph = tn.Graph.from_json(text)
    if tn.Graph.from_json(graph.to_json()) != graph:
        raise SilentChangeError("it is another graph after JSON")


def constants(trial: Trial) -> None:
    """A damaged cache of a device's constants is believed only where it is plausible."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        patched.setenv("TENSORNET_CACHE", folder)  # and not the user's, which other processes have too
        profile = DeviceProfile(**{**asdict(default_profile("cpu")), "key": "fuzzed"})
        path = save_profile(profile)
        assert path is not None
        trial.note(damaged(path, trial.random))
        if path.is_file():
            trial.note(path.read_bytes())
        found = load_profile("fuzzed")
    for name, usual in asdict(profile).items() if found else ():
        value = getattr(found, name)
        likely = usual / 1e4 <= value <= usual * 1e4 if isinstance(usual, float) else value == usual
        if not likely:
            raise SilentChangeError(f"{name} = {value} is believed, where {usual} is usual")
