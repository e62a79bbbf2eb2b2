"""Files that were changed behind the library's back: graphs, plans' constants, and a study's folder."""

from __future__ import annotations

import atexit
import contextlib
import functools
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensornet as tn
from tensornet import models
from tensornet.device.cost_model import DeviceProfile, default_profile
from tensornet.device.profiles import load_profile, save_profile
from tensornet.study import configuration as subject
from tensornet.study import report

from ..damage import BYTES, DOCUMENTS, damaged
from ..test_study_files import TINY, study
from . import SilentChangeError, Trial

__all__ = ["constants", "graphs", "studies"]


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


@contextlib.contextmanager
def _tiny() -> Iterator[None]:
    """A study small enough to be run hundreds of times, without pictures."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(subject.TASKS, "tiny", lambda data: TINY)
        pictures = {name: b"<svg></svg>" for name in report.OUTPUTS if name.endswith(("png", "svg", "pdf"))}
        patched.setattr(report, "draw", lambda *given: pictures)
        yield


@functools.cache
def _finished() -> tuple[Path, Any]:
    """A finished study's folder, and its results."""
    folder = Path(tempfile.mkdtemp(prefix="tensornet-fuzz-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with _tiny():
        return folder, study(folder)[0]


def studies(trial: Trial) -> None:
    """A study's folder with one or two files damaged: the same numbers when it is run again."""
    finished, expected = _finished()
    with tempfile.TemporaryDirectory() as name, _tiny():
        folder = Path(name) / "study"
        shutil.copytree(finished, folder)
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        for path in trial.random.sample(files, trial.random.choice((1, 1, 2))):
            trial.note(f"{path.relative_to(folder)}: {damaged(path, trial.random)}")
        found = study(folder)[0]
    if found != expected:
        raise SilentChangeError(f"the results are {found}, not {expected}")
