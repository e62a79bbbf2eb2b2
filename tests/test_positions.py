"""Positions: read, written, chosen by; products with ones at told positions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensornet as tn
from tensornet.frontend.elaborate_ir import of_tensors
from tensornet.graph.element_types import of_leaves
from tensornet.ops.table import Element

from .conftest import normal
from .differential import BACKENDS
from .programs import titled

# ---------------------------------------------------------------------------- Brackets that tell positions


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_parts_of_a_composite_are_read_at_positions(backend: str) -> None:
    x, graph = normal(2, 8), "y[b,n] = x[b,(i[n]//2,1+i[n]%2)]"
    function = tn.compile(tn.layer(graph, inputs="x[b,(h,f)] i[n]", h=2, f=4), backend=backend)
    given = tn.to_backend({"x": x, "i": np.arange(4)}, backend)
    np.testing.assert_allclose(np.asarray(function({}, *given.values())), x[:, [1, 2, 5, 6]], rtol=1e-5)


PRINTED = titled("printed.txt")


@pytest.mark.parametrize("title", PRINTED)
def test_what_is_printed_reads_back(title: str) -> None:
    written, _, printed = PRINTED[title].text.partition("\n=\n")
    said, sizes = PRINTED[title].said, PRINTED[title].numbers()
    graph = tn.layer(written, inputs=said["inputs"], **sizes)
    assert printed in str(graph)
    assert tn.layer(str(graph)) == graph
    if "same" in said:
        assert graph == tn.layer(printed, inputs=said["inputs"], **sizes)
        declared = (tn.layer(f"{said['inputs']}: input\n{each}", **sizes) for each in (written, printed))
        assert set(declared) == {graph}


def test_a_window_is_as_long_as_fits() -> None:
    graph = tn.layer("y[b,o,p] = x[b,c,2*p+3*u+1] * K[o,c,u]", inputs="x[b,c,n]")
    assert str(graph.named["y"][2][0].size) == "floor(n/2 - 3*u/2 + 1/2) + 1"


@pytest.mark.parametrize(
    ("text", "reach", "reference"),
    [
        ("y[b,t] = x[b,t+u] * k[u]", 3, lambda x, k: np.lib.stride_tricks.sliding_window_view(x, 3, 1) @ k),
        (
            "y[b] = sum[t](x[b,2*t+u] * k[u])",
            3,
            lambda x, k: (np.lib.stride_tricks.sliding_window_view(x, 3, 1)[:, ::2] @ k).sum(1),
        ),
    ],
)
def test_windows_at_several_lengths_in_turn(text: str, reach: int, reference: Any) -> None:
    function = tn.compile(tn.layer(text, inputs="x", u=3))
    rng = np.random.default_rng(0)
    k = rng.standard_normal(3)
    for length in (8, 2, 5, 1, 3):
        x = rng.standard_normal((2, length))
        if length < reach:
            told = f"a window of 'x' reaches over {reach} positions, and there are {length}"
            with pytest.raises(tn.ShapeError, match=told):
                function({"k": k}, x)
        else:
            np.testing.assert_allclose(function({"k": k}, x), reference(x, k), rtol=1e-12)


# ---------------------------------------------------------------------------- Positions of the largest, of the smallest, and of all in order


TEXT = "a[b] = argmax[i](x[b,i])\nz[b] = argmin[i](x[b,i])\no[b,i] = argsort[i](x[b,i])\nt[b,k] = top[i,k](x[b,i])"


@pytest.mark.parametrize("kind", ["float32", "int32", "uint8", "bool"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_of_equal_ones_the_first(backend: str, kind: str) -> None:
    x = np.random.default_rng(0).integers(0, 2 if kind == "bool" else 4, (5, 40)).astype(kind)
    library, graph = BACKENDS[backend](), tn.layer(TEXT, inputs="x", outputs="a z o t", k=7)
    found = [library.numpy(each) for each in tn.compile(graph, backend=library)({}, library.asarray(x))]
    wide = x.astype(int)
    orders = [sorted(range(40), key=lambda i: (sign * row[i], i)) for sign in (1, -1) for row in wide]
    rising, falling = np.array(orders[:5]), np.array(orders[5:])
    for one, other in zip(found, (falling[:, 0], rising[:, 0], rising, falling[:, :7]), strict=True):
        assert one.dtype.kind == "i"
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("backend", ["numpy", "torch", "array-api-strict"])
def test_integers_of_any_size_are_told_apart(backend: str) -> None:
    """2⁵³ + 1 and 2⁵³ are one number in float64; the least integer has no negative."""
    x = np.array([[2**53, 2**53 + 1, -(2**63), 2**53]])
    library, graph = BACKENDS[backend](), tn.layer(TEXT, inputs="x", outputs="a z o t", k=4)
    found = [library.numpy(each) for each in tn.compile(graph, backend=library)({}, library.asarray(x))]
    for one, other in zip(found, ([1], [2], [[2, 0, 3, 1]], [[1, 0, 3, 2]]), strict=True):
        np.testing.assert_array_equal(one, other)


def test_what_is_read_at_positions_is_no_position() -> None:
    graph = tn.layer("p[b,k] = top[i,k](x[b,c] * W[i,c])\ny[b,k,c] = V[p[b,k],c] * u[c]", inputs="x", k=2)
    assert set(of_leaves(graph).values()) == {Element.NUMBER}
    assert of_tensors(graph)["p"] is Element.WHOLE


# ---------------------------------------------------------------------------- Lines that add to a tensor, against numpy's own addition at positions, and their


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


def test_what_is_reckoned_outside_adds_to_nothing() -> None:
    graph = tn.layer("y[v,c] = 0\ny[2 * t - 1,c] += x[t,c]", inputs="x", v=5)
    assert str(graph.equations[0]) == "y[v,c] = onehot[v](2 * index(t) - 1) * x[t,c]"
    x, expected = normal(6, 2), np.zeros((5, 2))
    expected[[1, 3]] = x[[1, 2]]
    np.testing.assert_allclose(tn.compile(graph)({}, x), expected)
    for start in ("0", "0.0"):
        assert str(tn.layer(f"y[i] = {start}\ny[i] += x[i]", inputs="x").equations[0]) == "y[i] = x[i]"
