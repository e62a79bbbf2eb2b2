"""Devices: their constants as they are told, and kernels that are chosen by the clock."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tensornet as tn
from tensornet.codegen import program as tuning
from tensornet.device import calibration
from tensornet.device.calibration import load_profile, save_profile
from tensornet.device.cost_model import DeviceProfile, default_profile
from tensornet.device.timing import Clock, Timing, timings
from tensornet.files import Store
from tensornet.planning.plans import Plan
from tensornet.protocol import load_backend
from tensornet.runtime import executable

from .conftest import normal

# ---------------------------------------------------------------------------- A device is measured once, also while it is busy, and whoever sits before it is


KEY = "a device"
STEADY = replace(default_profile("cpu"), key=KEY)
BUSY = replace(STEADY, unrest=0.8)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[Any]]:
    """What measuring gives, in turn: constants, or seconds to wait before those that are next."""
    left: list[Any] = []
    clock = [0.0]

    def measure(backend: Any, device: str, dtype: str) -> DeviceProfile:
        clock[0] += left.pop(0)
        return left.pop(0)  # type: ignore[no-any-return]

    monkeypatch.setenv("TENSORNET_CALIBRATE", "1")
    monkeypatch.setenv("TENSORNET_CACHE", str(tmp_path))
    monkeypatch.setattr(calibration, "_key", lambda backend, device, dtype: KEY)
    monkeypatch.setattr(calibration, "measure", measure)
    monkeypatch.setattr(calibration.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(calibration, "is_busy", lambda: False)
    yield left
    calibration._profile_of.cache_clear()


def process() -> DeviceProfile:
    """What the first call of a new process finds."""
    calibration._profile_of.cache_clear()
    return calibration.profile_of(load_backend("numpy"), "cpu", "float32")


def a_day_later(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time() + calibration.DAY + 1.0
    monkeypatch.setattr(calibration.time, "time", lambda: now)


@pytest.mark.parametrize("is_terminal", [True, False])
@pytest.mark.parametrize(
    ("seconds", "found", "words"),
    [
        (3.2, STEADY, "tensornet: measured cpu for float32 in 3.2 s (TENSORNET_CALIBRATE=0: no); kept\n"),
        (1.2, BUSY, "the device had other work: built-in constants are used, see `tensornet calibrate`\n"),
        (0.9, STEADY, ""),
    ],
)
def test_a_terminal_is_told_that_the_device_was_measured(
    is_terminal: bool,
    seconds: float,
    found: DeviceProfile,
    words: str,
    measured: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal, raising=False)
    measured += [seconds, found]
    for expected in (words if is_terminal else "", ""):
        assert process() == found
        told = capsys.readouterr()
        assert told.out == ""
        assert told.err.endswith(expected)
        assert told.err.count("\n") == bool(expected)


def test_what_is_measured_while_busy_is_kept_provisionally(measured: list[Any], tmp_path: Path) -> None:
    before = time.time()
    measured += [0.0, BUSY]
    assert [process(), process()] == [BUSY, BUSY]
    assert before <= Store(tmp_path, "device").read(KEY)["provisional"] <= time.time()
    save_profile(STEADY)
    assert "provisional" not in Store(tmp_path, "device").read(KEY)


def test_a_quiet_machine_replaces_them_once_a_day(
    measured: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    worse, better = (replace(BUSY, unrest=unrest) for unrest in (0.9, 0.5))
    save_profile(BUSY)
    for found, kept in ((worse, BUSY), (better, better), (STEADY, STEADY)):
        a_day_later(monkeypatch)
        monkeypatch.setattr(calibration, "is_busy", lambda: True)
        before = load_profile(KEY)
        assert process() == before
        monkeypatch.setattr(calibration, "is_busy", lambda: False)
        measured += [0.0, found]
        assert [process(), process()] == [kept, kept]
        assert measured == []
    a_day_later(monkeypatch)
    assert process() == STEADY


def test_a_busy_machine_is_one_whose_programs_have_most_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from tensornet import threads

    monkeypatch.setattr(threads.os, "cpu_count", lambda: 4)
    found = []
    for load in (0.2, 2.9, 3.1):
        monkeypatch.setattr(threads.os, "getloadavg", lambda load=load: (load, 0.0, 0.0), raising=False)
        found.append(threads.is_busy())
    assert found == [False, False, True]


# ---------------------------------------------------------------------------- Plans chosen by the clock


TCL = tn.layer("y[b,p,q,r] = x[b,i,j,k] * U[p,i] * V[q,j] * W[r,k]", inputs="x", i=6, j=5, k=4, p=3, q=2, r=7)
SIZES = {"b": 3000}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """A clock by which each candidate is faster than the one before; returns the candidates it saw."""
    seen: list[Plan] = []

    def call_of(plan: Plan, backend: Any) -> Any:
        seen.append(plan)
        return len(seen)

    monkeypatch.setattr(tuning, "_call_of", call_of)
    monkeypatch.setattr(tuning, "timings", timed)
    return seen


def timed(calls: dict[str, int], *_: Any, **__: Any) -> dict[str, Timing]:
    seconds = {name: 1.0 / (10 + call) for name, call in calls.items()}
    return {name: Timing(each, each, each) for name, each in seconds.items()}


def test_the_fastest_by_the_clock_is_taken(clock: list[Plan]) -> None:
    found = tn.plan(TCL, tune="measure", compare=False, **SIZES)
    assert 1 < len(clock) <= tuning.MOST
    assert len({plan.code for plan in clock}) == len(clock)
    assert found == clock[-1]
    assert clock[0] == tn.plan(TCL, compare=False, **SIZES)


def test_a_slow_first_turn_leaves_no_candidate_out(
    clock: list[Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a device that wakes up: what is looked at first takes long, and all are fast later."""
    turns: list[int] = []

    def sample(_: Clock, call: int, repeats: int) -> float:
        turns.append(call)
        return 100.0 if len(turns) <= len(set(turns)) else 1.0 / (10 + call)

    monkeypatch.setattr(tuning, "timings", timings)
    monkeypatch.setattr(Clock, "sample", sample)
    assert tn.plan(TCL, tune="measure", compare=False, **SIZES) == clock[-1]


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_every_candidate_computes_the_same(backend: str, clock: list[Plan]) -> None:
    x, params = normal(64, 6, 5, 4), tn.init(TCL, seed=0, dtype="float64")
    expected = tn.compile(TCL)(params, x)
    f = tn.compile(TCL, backend=backend, tune="measure")
    given = tn.to_backend({"x": x}, backend)["x"]
    np.testing.assert_allclose(f(tn.to_backend(params, backend), given), expected, rtol=1e-10)
    assert f.plan.code == clock[-1].code


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_candidates_are_timed_on_the_device(backend: str) -> None:
    graph = tn.layer(
        "e[b,n,c] = E[t[b,n],c] * m[c]\ny[b,n,o] = where(see[b,n] & (index(n) > 0), e * A[c,r] * B[r,o], 0)",
        inputs="t see", constants={"m": np.arange(1.0, 9.0)}, c=8, r=3, o=9, E0=4,
    )  # fmt: skip
    t, see = np.array([[0, 3, 1], [2, 2, 0]]), np.array([[True, True, False]] * 2)
    params = tn.init(graph, seed=0)
    f = tn.compile(graph, backend=backend, tune="measure")
    arrays = tn.to_backend({"t": t, "see": see}, backend).values()
    np.testing.assert_allclose(
        f(tn.to_backend(params, backend), *arrays), tn.compile(graph)(params, t, see), rtol=1e-5, atol=1e-6
    )


def test_what_won_is_kept(clock: list[Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORNET_CACHE", str(tmp_path))
    x, params = np.ones((64, 6, 5, 4), np.float32), tn.init(TCL, seed=0)
    executable._made.cache_clear()
    f = tn.compile(TCL, tune="measure")
    f(params, x)
    timed = len(clock)
    executable._made.cache_clear()
    again = tn.compile(TCL, tune="measure")
    again(params, x)
    assert len(clock) == timed
    assert again.plan == f.plan
    plain = tn.compile(TCL)
    plain(params, x)
    assert plain.plan.code == clock[0].code


def test_blocks_of_a_module_are_tuned_each_by_itself(clock: list[Plan]) -> None:
    executable._made.cache_clear()
    layer = tn.layer(
        "h[b,p,q,r] = tanh(x[b,i,j,k] * U[p,i] * V[q,j] * W[r,k])\ng[b,p,q,r] = gelu(h * s[p])\n"
        "f[b,p,q,r] = tanh(g * u[q])\ne[b,p,q,r] = gelu(f * v[r])\ny[b,p,q,r] = e + x[b,p,q,r]",
        inputs="x", i=6, j=5, k=4,
    )  # fmt: skip
    graph = tn.model(lambda x: layer(layer(x, scope="a"), scope="b"), inputs="x[b,i,j,k]")
    module = tn.module(graph, seed=0, tune="measure")
    x = torch.randn(3000, 6, 5, 4)
    torch.testing.assert_close(module(x), tn.module(graph, seed=0)(x))
    assert 1 < len(clock) <= tuning.MOST  # of the one block that is called twice
    assert {leaf.name for plan in clock for leaf in plan.graph.parameters} == set("UVWsuv")
    assert all(plan.graph.calls == () for plan in clock)
