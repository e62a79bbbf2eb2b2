"""Brackets that tell positions: sums of axes, whole divisions, integer tensors, slices, parts of composites."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensornet as tn


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_parts_of_a_composite_are_read_at_positions(backend: str) -> None:
    x, graph = np.random.default_rng(0).normal(size=(2, 8)), "y[b,n] = x[b,(i[n]//2,1+i[n]%2)]"
    function = tn.compile(tn.layer(graph, inputs="x[b,(h,f)] i[n]", h=2, f=4), backend=backend)
    given = tn.to_backend({"x": x, "i": np.arange(4)}, backend)
    np.testing.assert_allclose(np.asarray(function({}, *given.values())), x[:, [1, 2, 5, 6]], rtol=1e-5)


@pytest.mark.parametrize("axis", ["t", "inside", "value"])
@pytest.mark.parametrize(
    "span", [slice(None, -1), slice(1, None), slice(None, 3), slice(1, None, 2), slice(-3, -1)]
)
def test_an_axis_may_be_called_as_an_option(axis: str, span: slice) -> None:
    x = np.arange(5.0)
    text = ":".join(
        "" if each is None else str(each)
        for each in (span.start, span.stop, span.step)[: 2 + bool(span.step)]
    )
    graph = tn.layer(f"y[{axis}] = x[{text}]", inputs=f"x[{axis}]")
    np.testing.assert_array_equal(tn.compile(graph)({}, x), x[span])
    again = tn.Graph.from_json(graph.to_json())
    np.testing.assert_array_equal(tn.compile(again)({}, x), x[span])


def test_names_of_slices_are_no_other_tensors() -> None:
    for lines in ("y[t] = x[::2] * x_every[t]", "z[t] = x[::2]\ny[t] = z[t] * x_every[t]"):
        graph = tn.layer(lines, inputs="x[t]")
        assert [leaf.name for leaf in graph.parameters] == ["x_every"]
        found = tn.compile(graph)({"x_every": np.array([2.0, 3.0, 4.0])}, np.arange(5.0))
        np.testing.assert_array_equal(found, [0, 6, 16])


def test_a_window_is_as_long_as_fits() -> None:
    graph = tn.layer("y[b,o,p] = x[b,c,2*p+3*u+1] * K[o,c,u]", inputs="x[b,c,n]")
    assert str(graph.named["y"][2][0].size) == "floor(n/2 - 3*u/2 + 1/2) + 1"
    assert str(graph.own[0]) == "y[b,o,p] = x[b,c,2*p+3*u+1] * K[o,c,u]"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("y[p] = x[u+p] * K[u]", "y[p] = x[p+u] * K[u]"),
        ("y[p] = x[1+2*u+p] * K[u]", "y[p] = x[p+2*u+1] * K[u]"),
        ("y[p] = max[u](x[u+2*p])", "y[p] = max[u](x[2*p+u])"),
        ("y[p] = x[p+u] * K[u]", "y[p] = x[p+u] * K[u]"),
    ],
)
def test_what_fits_comes_first(text: str, shown: str) -> None:
    assert str(tn.layer(text, inputs="x").own[0]) == shown


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


@pytest.mark.parametrize("way", ["called", "compiled", "exported"])
def test_slices_longer_than_the_axis_are_refused_however_a_module_runs(way: str) -> None:
    import torch

    module, x = tn.module(tn.layer("y[b,t] = 2 * x[b,:3]", inputs="x[b,t]")), torch.ones(2, 2)
    runs = {
        "called": lambda: module(x),
        "compiled": lambda: torch.compile(module, backend="eager", dynamic=False)(x),
        "exported": lambda: torch.export.export(module, (x,)),
    }
    with pytest.raises(Exception, match="a slice reaches over 3 positions along 't' of 'x', and there are 2"):
        runs[way]()


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_amounts_whose_sign_depends_on_an_open_size(backend: str) -> None:
    text = "y[b,t] = pad(x[b,t], t=(t-4, 6-t), value=2)"
    function = tn.compile(tn.layer(text, inputs="x[b,t]"), backend=backend)
    rng = np.random.default_rng(0)
    for length in (4, 2, 7, 5, 6, 3):
        x = rng.standard_normal((2, length)).astype(np.float32)
        wide = np.full((2, length + 20), 2, np.float32)
        wide[:, 10 : 10 + length] = x
        first, last = 10 - (length - 4), 10 + length + (6 - length)
        found = function({}, *tn.to_backend({"x": x}, backend).values())
        np.testing.assert_array_equal(np.asarray(found), wide[:, first:last])


@pytest.mark.parametrize(
    "text",
    [
        "y[k,c] = x[n[k],c]",
        "m[t] = top[k,t](n[k])\ny[t,c] = x[m[t],c]",
        "y[v,c] = 0\ny[n[k],c] += x[k,c]",
    ],
)
def test_positions_of_each_example_under_vmap(text: str) -> None:
    """Their values cannot be read, as under a compiler."""
    import torch

    graph = tn.layer(text, inputs="x[k,c] n[k]", **{size: 4 for size in "tv" if f"[{size}" in text})
    run = tn.compile(graph, backend="torch")
    x, n = torch.randn(3, 5, 2), torch.randint(0, 4, (3, 5))
    found = torch.func.vmap(lambda x, n: run({}, x, n))(x, n)
    torch.testing.assert_close(found, torch.stack([run({}, *each) for each in zip(x, n, strict=True)]))


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_a_table_by_distance_is_multiplied_before_it_is_read(backend: str) -> None:
    b, h, n, d = 2, 3, 32, 64
    draw = np.random.default_rng(0)
    q, k, R = (
        draw.normal(size=(b, n, h, d)),
        draw.normal(size=(b, n, h, d)),
        draw.normal(size=(2 * n - 1, h, d)),
    )
    text = "s[b,h,i,j] = q[b,i,h,d] * k[b,j,h,d] + q[b,i,h,d] * R[i-j+n-1,h,d]"
    graph = tn.layer(text, inputs="q[b,i,h,d] k[b,j,h,d] R[m,h,d]", n=n, i=n, j=n)
    at = np.arange(n)[:, None] - np.arange(n) + n - 1
    expected = np.einsum("bihd,bjhd->bhij", q, k) + np.einsum("bihd,ijhd->bhij", q, R[at])
    found = tn.compile(graph, backend=backend)({}, *tn.to_backend({"q": q, "k": k, "R": R}, backend).values())
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-5, atol=1e-5)
    plan = tn.plan(graph, backend=backend, b=b, h=h, d=d)
    assert plan.peak_memory < n * n * h * d * 4  # no matrix of all pairs and features


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
@pytest.mark.parametrize(("row", "called"), [(16, "take("), (2, "gather(")])
def test_rows_are_gathered_whole(row: int, called: str, backend: str) -> None:
    graph = tn.layer("y[b,t,d] = E[t,k[b,t],d]", inputs="k E[t,v,d]", d=row)
    draw = np.random.default_rng(0)
    table, k = draw.normal(size=(3, 7, row)), draw.integers(0, 7, (5, 3))
    given = tn.to_backend({"k": k, "E": table}, backend)
    found = np.asarray(tn.compile(graph, backend=backend)({}, given["k"], given["E"]))
    np.testing.assert_allclose(found, table[np.arange(3), k], rtol=1e-6)
    assert called in tn.plan(graph, backend="torch", b=5, t=3, v=7).code
    gradient = tn.gradient(
        tn.layer("y[b,t,d] = E[t,k[b,t],d]\nl = y * y", inputs="k E[t,v,d]"), of="l", wrt="E"
    )
    expected = np.zeros_like(table)
    np.add.at(expected, (np.arange(3), k), 2 * table[np.arange(3), k])
    np.testing.assert_allclose(
        np.asarray(tn.compile(gradient, backend=backend)({}, given["k"], given["E"])), expected, rtol=1e-5
    )
