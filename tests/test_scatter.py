"""Products with ones at told positions, summed over what tells these: added up there, and the same as by the ones."""

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
from tensornet.graph.element_types import holding
from tensornet.ops.table import Element
from tensornet.protocol import load_backend

from . import oracle
from .conftest import covered
from .differential import BACKENDS, drawn
from .test_rewrites import passed

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


@pytest.mark.parametrize("text", ["y[b,t[s],c] += x[b,s,c]", "y[b,c,t[s]] += x[b,c,s]"])
def test_rows_stay_where_they_lie(text: str) -> None:
    """A library that adds along any axis needs no copy in another order."""
    left = text.replace("t[s]", "v").split(" +=")[0]
    layer = tn.layer(f"{left} = 0\n{text}", inputs="t x", v=4)
    assert ".contiguous()" not in tn.plan(layer, backend="torch", b=8, s=32, c=16).code
    x, t = np.random.default_rng(0).standard_normal((8, 32, 32)), np.arange(32) % 3
    expected = np.zeros((8, 4, 32))
    along = x if text.startswith("y[b,t") else x.swapaxes(1, 2)
    np.add.at(expected, (slice(None), t), along)
    expected = expected if along is x else expected.swapaxes(1, 2)
    for backend in ("numpy", "torch", "jax"):
        library = BACKENDS[backend]()
        found = tn.compile(layer, backend=library)({}, library.asarray(t), library.asarray(x))
        np.testing.assert_allclose(library.numpy(found), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
@pytest.mark.parametrize(
    ("text", "inputs"),
    [
        ("y[v,c] = onehot[v](t[s]) * x[s,c]", "t x"),
        (ADDED, "t x"),
        ("n[v] = sum[s](onehot[v](t[s]))", "t"),
        ("o[s,v] = onehot[v](t[s])\ny[v,d] = o[s,v] * x[s,c] * W[c,d]", "t x W"),
        ("y[v,c] = onehot[v](t[s]) * x[s,c] / s", "t x"),
    ],
)
def test_no_ones_are_made(text: str, inputs: str, backend: str) -> None:
    axes = {axis: 64 for axis in "cd" if axis in text}
    written = graph(text, inputs, v=10_000, **axes)
    plan = tn.plan(written, backend=backend, profile=CPU, **dict.fromkeys(written.open_sizes, 512))
    assert not any("onehot" in str(step.equation) for step in plan.steps)
    assert "scatter_" in plan.code
    assert plan.peak_memory < 4 * 512 * 10_000 * (512 if "b" in written.open_sizes else 1)
    assert tn.Plan.from_json(plan.to_json()) == plan


def test_few_positions_are_multiplied_by_ones_where_that_is_faster() -> None:
    written = graph("y[v,c] = onehot[v](t[s]) * x[s,c]", v=2, c=4)
    assert "scatter_add" not in tn.plan(written, profile=CPU, s=3).code
    assert "scatter_add" in tn.plan(written, profile=CPU, s=100_000).code


def test_a_projection_is_taken_of_what_is_shorter() -> None:
    """Before the rows are added up, or after."""
    for v, s in ((100, 20_000), (20_000, 100)):
        written = graph("y[v,d] = onehot[v](t[s]) * x[s,c] * W[c,d]", "t x W", c=64, d=64, v=v)
        assert tn.plan(written, profile=CPU, s=s).flops == 2 * 100 * 64 * 64


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
