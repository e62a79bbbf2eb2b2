"""Plans chosen by the clock: what won is what runs, is kept, and computes the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tensornet as tn
from tensornet.codegen import tuning
from tensornet.device.timing import Clock, Timing, timings
from tensornet.planning.plans import Plan
from tensornet.runtime import executable

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
    x, params = np.random.default_rng(0).standard_normal((64, 6, 5, 4)), tn.init(TCL, seed=0, dtype="float64")
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
    x = torch.randn(3000, 6, 5, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(module(x), tn.module(graph, seed=0)(x))
    assert 1 < len(clock) <= tuning.MOST  # of the one block that is called twice
    assert {leaf.name for plan in clock for leaf in plan.graph.parameters} == set("UVWsuv")
    assert all(plan.graph.calls == () for plan in clock)
