"""Lines that add to a tensor, against numpy's own addition at positions, and their derivatives."""

from __future__ import annotations

import numpy as np
import pytest

import tensornet as tn
from tensornet.graph.element_types import holding
from tensornet.ops.table import Element

from .differential import BACKENDS

ROUTED = "y[b,v,c] = 0\ny[b,e[b,t],c] += x[b,t,c] * w[b,t]"


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("y[v,c] = 0\ny[t[n],c] += x[n,c]\nl = y[v,c] * q[v,c]", {2}),  # rows that read position 5 of q
        ("y[n,c] = x[t[n],c]\nl = y[n,c] * q[n,c]", {3}),  # the row that is read at t[5]
        ("y[n,f] = tanh(x[t[n],c] * W[f,c])\nl = y[n,f] * q[n,f]", {3}),
    ],
    ids=["added", "read", "read and multiplied"],
)
def test_gradients_that_are_not_finite_stay_where_they_go(text: str, rows: set[int], backend: str) -> None:
    """One row of what comes in is infinite: the gradient is so in the rows that it goes to, and there alone."""
    x, q, t = np.ones((6, 3)), np.ones((6, 3)), np.array([1, 0, 5, 4, 2, 3])
    q[5] = np.inf
    given = {"t": t, "x": x, "q": q} | ({"W": np.ones((3, 3))} if "W" in text else {})
    graph = tn.layer(text, inputs=" ".join(given), **({"v": 6} if "v" in text else {}))
    step = tn.value_and_grad(graph, wrt="x", backend=backend)
    with np.errstate(invalid="ignore"):
        made = step({}, *tn.to_backend(given, backend).values())[1]
    found = tn.to_backend(made, "numpy")["x"]
    assert {int(row) for row in np.flatnonzero(~np.isfinite(found).all(axis=1))} == rows


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("wrong", [-1, 4, 100])
@pytest.mark.parametrize(
    "text",
    [
        "y[v] = 0\ny[t[n]] += x[n]",
        "y[v] = 0\ny[t[n]] += 1",
        "y[n,v] = 0\ny[n,t[n]] += x[n]",
        "y[u,v] = 0\ny[s[n],t[n]] += x[n]\nu: 2",
        "y[b,v] = 0\ny[b,t[n]] += x[n] * repeat[b](1)\nb: 2",
    ],
)
def test_positions_outside_are_refused_as_where_they_are_read(text: str, wrong: int, backend: str) -> None:
    library = BACKENDS[backend]()
    given = {"t": np.array([0, wrong, 2]), "s": np.array([1, 0, 1]), "x": np.ones(3)}
    inputs = [name for name in given if f"{name}[n]" in text]
    graph = tn.layer(text, inputs=inputs, v=4)
    with pytest.raises(tn.ShapeError, match=f"'t' holds the position {wrong}, where there are 4"):
        tn.compile(graph, backend=library)({}, *(library.asarray(given[name]) for name in inputs))


def test_large_ones_are_scattered() -> None:
    graph = holding(tn.layer(ROUTED, inputs="e x w", v=1000, c=64), {"e": Element.WHOLE})
    assert "scatter_add" in tn.plan(graph, backend="torch", b=4, t=512).code


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_ones_are_counted_by_integers_which_take_any_number_of_them(backend: str) -> None:
    graph = tn.layer("y[v] = 0\ny[t[n]] += 1", inputs="t", v=2)
    assert "scatter_count(" in tn.plan(graph, backend=backend, n=100_000).code


def test_what_is_added_at_is_taken_for_positions_before_it_is_seen() -> None:
    plan = tn.plan(tn.layer("y[v] = 0\ny[e[t]] += x[t]", inputs="e x", v=10_000), t=100_000)
    assert plan.peak_memory < 1e7  # and no comparison of each with each


def test_what_is_reckoned_outside_adds_to_nothing() -> None:
    graph = tn.layer("y[v,c] = 0\ny[2 * t - 1,c] += x[t,c]", inputs="x", v=5)
    assert str(graph.equations[0]) == "y[v,c] = onehot[v](2 * index(t) - 1) * x[t,c]"
    x, expected = np.random.default_rng(0).standard_normal((6, 2)), np.zeros((5, 2))
    expected[[1, 3]] = x[[1, 2]]
    np.testing.assert_allclose(tn.compile(graph)({}, x), expected)
