"""Recurrences in segments: their gradients are those of the whole loop, and nothing else is kept."""

from __future__ import annotations

import re
import tracemalloc
from typing import Any

import numpy as np
import pytest

import tensornet as tn
from tensornet.autodiff.vjp import rematerializable
from tensornet.planning.gradients import joint_graph
from tensornet.scan.checkpointing import checkpoint_recurrences

from .conftest import sampled
from .differential import drawn
from .programs import titled

GATED = """
f[b,t,o] = sigmoid(x[b,t,i] * Wf[o,i] + h[b,t-1,p] * Uf[o,p] + bf[o])
g[b,t,o] = tanh(x[b,t,i] * Wg[o,i] + h[b,t-1,p] * Ug[o,p] + bg[o])
c[b,t,o] = f * c[b,t-1,o] + g * (1 - f)
h[b,t,o] = f * tanh(c)
loss = mean[b,o](h[b,-1,o] ** 2)
"""

WRITTEN = titled("segments.txt")
LOOPS = [name for name, each in WRITTEN.items() if not each.numbers()]
OTHERS = [name for name in WRITTEN if name not in LOOPS]
LENGTHS = 1, 2, 5, 8, 9


def differentiated(graph: tn.Graph, wrt: tuple[str, ...]) -> tn.Graph:
    return joint_graph(graph, wrt, recomputed=frozenset(rematerializable(graph, wrt))).joined(graph.outputs)


def given(backend: str, arrays: Any) -> Any:
    return {name: tn.to_backend({name: each}, backend)[name] for name, each in arrays.items()}


def agree(graph: tn.Graph, arrays: Any, backend: str, count: int) -> None:
    """The loss and its gradients in segments are those of the whole loop, which the oracle judges."""
    parted = checkpoint_recurrences(graph, count)
    if graph.bound.get("t") != 1:
        assert parted.calls
        assert not parted.recurrences or "t" not in graph.bound
    shown = given(backend, arrays)
    parameters = {leaf.name: shown[leaf.name] for leaf in graph.parameters}
    inputs = [shown[leaf.name] for leaf in graph.inputs]
    wrt = tuple(name for name, array in arrays.items() if array.dtype.kind == "f")
    loss, gradients = tn.value_and_grad(graph, wrt=wrt, backend=backend)(parameters, *inputs)
    value, *found = tn.compile(differentiated(parted, wrt), backend=backend)(parameters, *inputs)
    np.testing.assert_allclose(np.asarray(value), np.asarray(loss), rtol=1e-9, atol=1e-9)
    for name, each in zip(wrt, found, strict=True):
        np.testing.assert_allclose(np.asarray(each), np.asarray(gradients[name]), rtol=1e-9, atol=1e-9)


WHERE = [(number, backend) for number in range(len(LOOPS)) for backend in ("numpy", "torch", "jax")]


@pytest.mark.parametrize(
    ("number", "backend"), sampled(WHERE, [(n, ("numpy", "torch")[n % 2]) for n in range(len(LOOPS))])
)
def test_gradients_are_those_of_loops(number: int, backend: str) -> None:
    at = (2 * number + (backend == "torch")) % len(LENGTHS)
    sizes = {"b": 2, "t": LENGTHS[at], "i": 2, "o": 3, "p": 3}
    written = WRITTEN[LOOPS[number]]
    used = {axis: size for axis, size in sizes.items() if axis != "p" or "p]" in written.text}
    graph = written.graph(outputs="loss", **used)
    agree(graph, drawn(graph, 0.5, number), backend, 2 + number % 3)


@pytest.mark.parametrize("name", OTHERS)
def test_others_keep_their_gradients(name: str) -> None:
    graph = WRITTEN[name].graph(outputs="loss")
    arrays = drawn(graph, 0.5)
    if "e" in arrays:
        arrays["e"] = np.random.default_rng(0).integers(0, 4, arrays["e"].shape)
    agree(graph, arrays, "numpy", 3)


@pytest.mark.parametrize("backend", sampled(["numpy", "torch"], ["numpy"]))
def test_value_and_grad_keeps_to_a_limit(backend: str) -> None:
    graph = tn.layer(GATED, inputs="x", outputs="loss")
    parameters = drawn(graph, 0.25, b=8, t=64, i=16, o=16, p=16)
    x = 4 * parameters.pop("x")
    held = x.nbytes + sum(each.nbytes for each in parameters.values())
    parameters, x = given(backend, parameters), given(backend, {"x": x})["x"]
    whole = tn.value_and_grad(graph, backend=backend)
    value, gradients = whole(parameters, x)
    limit = whole.plan.peak_memory // 3
    bounded = tn.value_and_grad(graph, backend=backend, memory_limit=limit)
    again, others = bounded(parameters, x)
    assert bounded.plan.peak_memory <= limit
    np.testing.assert_allclose(again, value, rtol=1e-12)
    for name, each in gradients.items():
        np.testing.assert_allclose(others[name], each, rtol=1e-9, atol=1e-12)
    if backend == "numpy":
        tracemalloc.start()
        bounded(parameters, x)
        assert tracemalloc.get_traced_memory()[1] + held <= 1.1 * limit
        tracemalloc.stop()
    with pytest.raises(
        tn.BackendError, match=r"memory_limit is 1,000: .*(?s:.)fix: allow [\d,]+ bytes"
    ) as told:
        tn.value_and_grad(graph, backend=backend, memory_limit=1000)(parameters, x)
    least = int(re.search(r"allow ([\d,]+)", str(told.value))[1].replace(",", ""))  # type: ignore[index]
    assert least < limit
    assert (
        tn.value_and_grad(graph, backend=backend, memory_limit=least)(parameters, x)[1].keys()
        == others.keys()
    )


def test_a_plan_keeps_to_a_limit_at_a_length_that_is_told() -> None:
    graph = tn.layer(GATED, inputs="x", outputs="loss", i=16, o=16)
    whole = tn.plan(graph, training=True, b=8, t=64).backward
    assert whole is not None
    limit = whole.peak_memory // 3
    bounded = tn.plan(graph, training=True, memory_limit=limit, b=8, t=64)
    assert bounded.backward is not None
    assert max(bounded.peak_memory, bounded.backward.peak_memory) <= limit


def test_lengths_that_differ_are_parted_anew() -> None:
    graph = tn.layer(GATED, inputs="x", outputs="loss", i=4, o=4)
    parameters = tn.init(graph, seed=0, dtype="float64")
    function = tn.value_and_grad(graph, memory_limit=20_000)
    for length in (40, 41, 3):
        x = np.random.default_rng(length).standard_normal((2, length, 4))
        value, gradients = function(parameters, x)
        same, others = tn.value_and_grad(graph)(parameters, x)
        assert value == pytest.approx(same, rel=1e-12)
        for name, each in others.items():
            np.testing.assert_allclose(gradients[name], each, rtol=1e-9, atol=1e-12)


def test_what_draws_numbers_is_left_whole() -> None:
    graph = tn.layer("h[b,t,o] = dropout(tanh(x[b,t,o] + h[b,t-1,o] * u[o]), 0.5)", inputs="x", t=6)
    assert not checkpoint_recurrences(graph, 3).calls
