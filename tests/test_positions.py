"""Positions: read, written, chosen by; products with ones at told positions."""

from __future__ import annotations

import itertools
from typing import Any

import array_api_strict
import numpy as np
import pytest
import torch

import tensornet as tn
from tensornet.backends.array_api import of
from tensornet.device.cost_model import default_profile
from tensornet.frontend.elaborate_ir import of_tensors
from tensornet.graph.element_types import holding, of_leaves
from tensornet.ops.table import Element
from tensornet.protocol import load_backend

from . import oracle
from .conftest import covered
from .differential import BACKENDS, drawn
from .test_rewrites import passed

# ---------------------------------------------------------------------------- Brackets that tell positions


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_parts_of_a_composite_are_read_at_positions(backend: str) -> None:
    x, graph = np.random.default_rng(0).normal(size=(2, 8)), "y[b,n] = x[b,(i[n]//2,1+i[n]%2)]"
    function = tn.compile(tn.layer(graph, inputs="x[b,(h,f)] i[n]", h=2, f=4), backend=backend)
    given = tn.to_backend({"x": x, "i": np.arange(4)}, backend)
    np.testing.assert_allclose(np.asarray(function({}, *given.values())), x[:, [1, 2, 5, 6]], rtol=1e-5)


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
    x, expected = np.random.default_rng(0).standard_normal((6, 2)), np.zeros((5, 2))
    expected[[1, 3]] = x[[1, 2]]
    np.testing.assert_allclose(tn.compile(graph)({}, x), expected)


# ---------------------------------------------------------------------------- Products with ones at told positions, summed over what tells these


CPU = default_profile("cpu")
SIZES = {"b": 3, "s": 4, "r": 2, "c": 2, "d": 3}
SCATTERED = passed("one-hot elimination", "scatter_add")
"""Rows added up, whatever that costs."""
ADDED = "y[b,v,c] = onehot[v](t[b,s]) * x[b,s,c]"


def graph(text: str, inputs: str = "t x", **sizes: int) -> tn.Graph:
    """A layer whose `t` holds integers."""
    return holding(tn.layer(text, inputs=inputs, **sizes), {"t": Element.WHOLE})


ROWS = [
    "y[v] = sum[s](onehot[v](t[s]))",
    "y[v,c] = sum[s](onehot[v](t[s]) * x[s,c])",
    "y[b,v,c] = sum[s](onehot[v](t[b,s]) * x[b,s,c])",
    "y[c,v] = sum[b,s](x[s,c] * onehot[v](t[b,s]) * z[b])",
    "y[v,d] = sum[s,c](onehot[v](t[s]) * x[s,c] * z[v,c,d])",
    "y[r,v] = sum[b,s](z[r,s] * onehot[v](t[s,b,r]))",
    "o[s,v] = onehot[v](t[s])\ny[v,c] = sum[s](o[s,v] * x[c,s] * z[s])",
    "y[d,b,v] = sum[s](onehot[v](t[s]) * x[b,d])",
    "y[v] = sum[b,s,c](onehot[v](t[b]) * x[s] * z[b,c])",
    "x[()]: input\ny[v,b] = sum[r](onehot[v](t[b,r]) * x * z[v])",
]
"""Of axes of SIZES, and `v`."""


LENGTHS: list[dict[str, int]] = [{}, {"s": 1, "r": 0}, {"b": 1, "c": 1}, {"b": 0}, {"s": 0}]


@pytest.mark.parametrize(
    ("text", "sizes", "kind"), covered(ROWS, LENGTHS, ["int64", "int32", "uint8", "int8"])
)
def test_rows_are_added_up_at_told_positions(text: str, sizes: dict[str, int], kind: str) -> None:
    """Also where the positions are outside, which add to nothing; where some are told twice, or none are."""
    known = {**SIZES, "v": 5, **sizes}
    written = tn.layer(text, inputs=[name for name in "txz" if f"{name}[" in text], v=5)
    arrays = drawn(written, **known)
    least = 0 if kind == "uint8" else -3
    arrays["t"] = np.random.default_rng(1).integers(least, 8, arrays["t"].shape).astype(kind)
    changed = SCATTERED(holding(written, {"t": Element.WHOLE}))
    assert "onehot" not in str(changed)
    assert of_tensors(changed)["y"] is Element.NUMBER
    expected = oracle.meaning(written, arrays, known)["y"]
    for backend, each in itertools.product(BACKENDS, (written, changed)):
        if each is written or backend != "array-api-strict":
            library = BACKENDS[backend]()
            found = tn.compile(each, backend=library)(
                {}, *(library.asarray(arrays[leaf.name]) for leaf in each.inputs)
            )
            np.testing.assert_allclose(library.numpy(found), expected, rtol=1e-10, atol=1e-10)


# ---------------------------------------------------------------------------- what is planned


def test_a_library_without_it_multiplies_by_ones() -> None:
    written = graph(ADDED, v=1000, c=64)
    assert "scatter_add" not in tn.plan(written, backend=of(array_api_strict), profile=CPU, b=2, s=512).code


# ---------------------------------------------------------------------------- torch


def function(text: str = ADDED) -> Any:
    compiled = tn.compile(graph(text, v=50, c=8), backend="torch")
    return lambda t, x: compiled({}, t, x)


def told(dtype: Any = None) -> tuple[Any, Any]:
    torch.manual_seed(0)
    return torch.randint(-2, 53, (3, 40)), torch.randn(3, 40, 8, dtype=dtype or torch.float64)


def by_ones(t: Any, x: Any) -> Any:
    return torch.einsum("bsv,bsc->bvc", (t[..., None] == torch.arange(50)).to(x.dtype), x)


def test_gradients_flow_through_it() -> None:
    t, x = told()
    run = function()
    x.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: run(t, x).tanh(), (x,), fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda x: run(t, x).tanh(), (x,), fast_mode=True)


@pytest.mark.parametrize("mapped", [(0, 0), (0, None), (None, 0)])
def test_it_can_be_mapped(mapped: tuple[int | None, int | None]) -> None:
    found = told()
    text = "y[v,c] = onehot[v](t[s]) * x[s,c]"
    given = [each if at == 0 else each[1] for each, at in zip(found, mapped, strict=True)]
    whole = [each if at == 0 else each[1].expand_as(each) for each, at in zip(found, mapped, strict=True)]
    torch.testing.assert_close(torch.vmap(function(text), in_dims=mapped)(*given), by_ones(*whole))


@pytest.mark.parametrize("mapped", [(0, 0), (0, None), (None, 0)])
def test_rows_along_another_axis_can_be_mapped(mapped: tuple[int | None, int | None]) -> None:
    t, x = told()
    t = t.clip(0, 49)
    given = [each if at == 0 else each[1] for each, at in zip((t, x.mT), mapped, strict=True)]
    whole = [each if at == 0 else each[1].expand_as(each) for each, at in zip((t, x), mapped, strict=True)]
    layer = tn.layer("y[c,v] = 0\ny[c,t[s]] += x[c,s]", inputs="t x", v=50)
    assert "scatter_add(within(t, 50, 't'), x, 50, 1" in tn.plan(layer, backend="torch", s=40, c=8).code
    compiled = tn.compile(layer, backend="torch")
    found = torch.vmap(lambda t, x: compiled({}, t, x), in_dims=mapped)(*given)
    torch.testing.assert_close(found, by_ones(*whole).mT)


def test_it_is_compiled_as_one() -> None:
    t, x = (each.repeat(1, 10, *[1] * (each.ndim - 2)) for each in told(torch.float32))
    written = graph(ADDED, v=50, c=8)
    assert "scatter_add" in tn.plan(written, backend="torch", b=3, s=400).code
    run = torch.compile(tn.module(written), fullgraph=True, backend="aot_eager")
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(run(t, x).square().sum(), x)
    (expected,) = torch.autograd.grad(by_ones(t, x).square().sum(), x)
    torch.testing.assert_close(run(t, x), by_ones(t, x))
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize(
    ("backend", "dtype"),
    [
        *itertools.product(["numpy", "torch", "jax"], ["float16"]),
        *itertools.product(["torch", "jax"], ["bfloat16"]),
        *itertools.product(["numpy", "torch"], ["complex64"]),
    ],
)
def test_long_sums_do_not_stall_in_short_types(backend: str, dtype: str) -> None:
    """5,000 ones are 5,000, though in 16 bits 2,048 + 1, or 256 + 1, is not."""
    library = load_backend(backend)
    t = library.asarray(np.zeros(5000, dtype=np.int64))
    x = library.asarray(np.ones((5000, 3)), dtype=dtype)
    compiled = tn.compile(graph("y[v,c] = onehot[v](t[s]) * x[s,c]", v=100, c=3), backend=backend)
    counted = tn.compile(graph("y[v,c] = sum[s](onehot[v](t[s])) * x[c]", v=100, c=3), backend=backend)
    for found in (compiled({}, t, x), counted({}, t, x[0])):
        assert library.dtype(found) == dtype
        expected = np.zeros((100, 3))
        expected[0] = 5000
        np.testing.assert_allclose(np.abs(library.numpy(found)), expected, rtol=2e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["torch", "cupy"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_on_a_device(backend: str, dtype: str) -> None:
    if backend == "cupy":
        pytest.importorskip("cupy")
    library, device = load_backend(backend), "cuda" if backend == "torch" else None
    t, x = (each.numpy() for each in told())
    compiled = tn.compile(graph(ADDED, v=50, c=8), backend=backend)
    found = compiled({}, library.asarray(t, device=device), library.asarray(x, dtype=dtype, device=device))
    expected = by_ones(*told()).numpy()
    np.testing.assert_allclose(library.numpy(found), expected, rtol=1e-4, atol=1e-4)
