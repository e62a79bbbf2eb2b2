"""Memory that a plan foretells, beside what torch's allocator counts; and plans within a limit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import tensornet as tn
from tensornet.graph.elements import of_leaves
from tensornet.operations.functions import Element
from tensornet.sizes import evaluate

from . import reference
from .test_freeze import stack

DRAW = torch.Generator().manual_seed(0)


def given(graph: tn.Graph, sizes: dict[str, int]) -> list[torch.Tensor]:
    """Arrays for the inputs, positions all 0."""
    elements, arrays = of_leaves(graph), []
    for leaf in graph.inputs:
        shape = [int(evaluate(size, {**graph.bound, **sizes})) for size in leaf.shape]
        drawn = elements[leaf.name] is Element.NUMBER
        arrays.append(torch.randn(shape, generator=DRAW) if drawn else torch.zeros(shape, dtype=torch.int64))
    return arrays


def measured(function: Any, arrays: list[torch.Tensor], params: dict[str, torch.Tensor]) -> int:
    """Bytes alive at the worst moment of a call, with what it is given and holds."""
    with torch.no_grad():
        function(params, *arrays)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
            result = function(params, *arrays)
    assert result is not None
    ready = function.ready([*arrays, *params.values()])
    tables = function.tables(ready.program, ready.place).arrays
    held = [each.untyped_storage() for each in (*arrays, *params.values(), *ready.constants, *tables)]
    alive = sum({each.data_ptr(): each.nbytes() for each in held}.values())
    events = [event for event in watched.profiler.kineto_results.events() if event.name() == "[memory]"]
    changes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    return alive + int(np.cumsum([0, *changes]).max())


CASES: dict[str, tuple[tn.Graph, dict[str, int]]] = {
    "a layer": (
        tn.layer("h[b,f] = gelu(x[b,i] * W[f,i] + u[f])\ny[b,o] = h * V[o,f] + w[o]", inputs="x", i=256, f=512, o=256),
        {"b": 512},
    ),
    "a product that copies both operands": (
        tn.layer("y[b,h,i,j] = x[b,i,h,d] * z[b,j,h,d]", inputs="x z", h=8, d=16), {"b": 16, "i": 64, "j": 64},
    ),
    "a product of elements, summed": (
        tn.layer("y[b] = x[b,i,j] * z[j,b,i]", inputs="x z", i=64, j=64), {"b": 128},
    ),
    "parts of an expression": (
        tn.layer("y[b,i] = exp(x[b,i]) * z[b,i] + x[b,i] * z[b,i] - x[b,i] * w[b,i]", inputs="x z w", i=512), {"b": 512},
    ),
    "a norm along an outer axis": (
        tn.layer("y[b,i,c] = normalize[i](x[b,i,c]) * 2", inputs="x", i=64, c=64), {"b": 128},
    ),
    "a permuted result": (tn.layer("y[c,b] = softmax[b](x[b,c])", inputs="x", c=512), {"b": 512}),
    "a gather": (tn.layer("y[b,c] = x[t[b],c] * x[u[b],c]", inputs="x t[b] u[b]", c=256), {"b": 2048, "x0": 64}),
    "a mask": (
        tn.layer("y[b,i,j] = where(index(i) >= index(j), x[b,i] * x[b,j], 0)", inputs="x"), {"b": 32, "i": 128, "j": 128},
    ),
    "factors": (tn.models.linear((8, 8, 8), (8, 8, 8), factorization="cp", rank=0.2), {"lead": 512}),
    "a train": (tn.models.linear((8, 8, 8), (8, 8, 8), factorization="tt", rank=0.2), {"lead": 2048}),
    "signed attention": (
        tn.layer("s[b,h,i,j] = q[b,i,h,d] * k[b,j,h,d]\na[b,h,i,j] = sign(s) * softmax[j](abs(s))\n"
                 "y[b,i,h,d] = a * v[b,j,h,d]", inputs="q k v", h=6, d=32), {"b": 4, "i": 100, "j": 100},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_peak_is_the_allocators(name: str) -> None:
    graph, sizes = CASES[name]
    sizes = {each: sizes.get(each, 32) for each in graph.open_sizes}
    f = tn.compile(graph, backend="torch")
    found = measured(f, given(graph, sizes), tn.init(graph, seed=0, backend="torch"))
    assert f.plan.peak_memory == pytest.approx(found, rel=0.05)


PRESETS = {
    "vit_ti_16": {"b": 4},
    "swin_t": {"b": 1},
    "tensor_swin_28": {"b": 8},
    "transformer_base": {"b": 4, "m": 64, "n": 48},
}


@pytest.mark.parametrize("name", PRESETS)
def test_the_peak_of_a_preset_is_the_allocators(name: str) -> None:
    graph = tn.models.create(name)
    f = tn.compile(graph, backend="torch")
    found = measured(f, given(graph, PRESETS[name]), tn.init(graph, seed=0, backend="torch"))
    assert f.plan.peak_memory == pytest.approx(found, rel=0.1)


# ---------------------------------------------------------------------------- within a limit

ATTENTION = tn.layer(
    "q[b,i,h,d] = x[b,i,c] * Q[h,d,c]\nk[b,j,h,d] = x[b,j,c] * K[h,d,c]\nv[b,j,h,d] = x[b,j,c] * V[h,d,c]\n"
    "s[b,h,i,j] = q * k\na[b,h,i,j] = hardmax[j](s) + s\ny[b,i,o] = a * v * O[o,h,d]",
    inputs="x[b,i,c]", c=16, h=4, d=4, o=16,
)  # fmt: skip

WIDE = tn.layer(
    "h[b,f] = gelu(x[b,i] * W[f,i] + u[f])\ny[b,o] = h * V[o,f] + w[o]", inputs="x", i=32, f=512, o=32
)

LIMITED: dict[str, tuple[tn.Graph, dict[str, int], str]] = {
    "rows of a layer": (WIDE, {"b": 512}, "along b"),
    "leading axes": (
        tn.layer("y[...,o] = gelu(x[...,i] * W[f,i]) * V[o,f]", inputs="x", i=16, f=512, o=16), {"lead": 512}, "along lead",
    ),
    "a batch of attention": (ATTENTION, {"b": 8, "i": 64}, "along b"),
    "queries of attention": (ATTENTION, {"b": 1, "i": 256}, "along"),
    "several results": (
        tn.layer("s[b,i,j] = exp(x[b,i] * z[b,j])\nt[b] = sum[i,j](s)\ny[b,i] = s * w[j] / t[b]",
                 inputs="x z w", outputs="y t"), {"b": 64, "i": 64, "j": 64}, "along",
    ),
    "a given size": (
        tn.layer("h[b,f] = gelu(x[b,i] * W[f,i])\ny[b,o] = h * V[o,f]", inputs="x", b=300, i=16, f=512, o=16), {}, "along b",
    ),
    "looked up": (
        tn.layer("e[b,n,c] = E[t[b,n],c]\nh[b,n,f] = gelu(e * W[f,c])\ny[b,c] = h * V[c,f] / n", inputs="t", c=16, f=256,
                 E0=8), {"b": 32, "n": 16}, "along",
    ),
    "blocks that are called": (stack(4), {"b": 512}, "along b"),
}  # fmt: skip


@pytest.mark.parametrize("name", LIMITED)
@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_half_the_memory_is_enough(name: str, backend: str) -> None:
    graph, sizes, along = LIMITED[name]
    sizes = {each: sizes.get(each, 16) for each in graph.open_sizes}
    params, arrays = tn.init(graph, seed=0, backend=backend), given(graph, sizes)
    shown = [each.numpy() for each in arrays] if backend == "numpy" else arrays
    free = tn.compile(graph, backend=backend)
    free(params, *shown)
    named = dict(zip((leaf.name for leaf in graph.inputs), arrays, strict=True)) | params
    expected = reference.run(graph, {name: np.asarray(each) for name, each in named.items()}, sizes)
    limit = free.plan.peak_memory // 2
    f = tn.compile(graph, backend=backend, memory_limit=limit)
    found = f(params, *shown)
    assert f.plan.peak_memory <= limit
    assert along in str(f.plan)
    assert f.plan.seconds >= free.plan.seconds * 0.9
    assert f.plan.flops >= free.plan.flops
    assert type(f.plan).from_json(f.plan.to_json()) == f.plan
    for name, one in zip(graph.outputs, found if isinstance(found, tuple) else (found,), strict=True):
        np.testing.assert_allclose(np.asarray(one), expected[name], rtol=1e-4, atol=1e-5)
    if backend == "torch":
        assert measured(f, arrays, params) <= 1.1 * limit


def test_pieces_of_any_length_and_of_none() -> None:
    graph = WIDE
    params = tn.init(graph, seed=0)
    limit = tn.plan(graph, b=512).peak_memory // 2
    for batch in (512, 511, 400, 700, 1, 0):
        x = np.random.default_rng(batch).standard_normal((batch, 32)).astype(np.float32)
        expected = tn.compile(graph)(params, x)
        np.testing.assert_allclose(
            tn.compile(graph, memory_limit=limit)(params, x), expected, rtol=1e-4, atol=1e-5
        )


def test_gradients_flow_through_pieces() -> None:
    graph = WIDE
    free = tn.module(graph, seed=0)
    x = torch.randn(512, 32, generator=DRAW, requires_grad=True)
    free(x).square().sum().backward()
    expected = [x.grad, *(each.grad for each in free.parameters())]
    module = tn.module(graph, seed=0, memory_limit=free.plan.peak_memory // 2)
    again = x.detach().requires_grad_()
    module(again).square().sum().backward()
    assert "pieces" in str(module.plan)
    for one, other in zip([again.grad, *(each.grad for each in module.parameters())], expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


def test_a_module_of_blocks_keeps_to_its_limit() -> None:
    free = tn.module(stack(4), seed=0)
    x = torch.randn(512, 5, generator=DRAW)
    with torch.no_grad():
        expected = free(x)
        limit = tn.plan(stack(4), backend="torch", b=512).peak_memory // 2
        module = tn.module(stack(4), seed=0, memory_limit=limit)
        torch.testing.assert_close(module(x), expected, rtol=1e-4, atol=1e-4)
    assert module.plan.peak_memory <= limit


def test_too_little_memory_is_told() -> None:
    graph = tn.layer("y[b,i,j] = x[b,i] * z[b,j]", inputs="x z")
    with pytest.raises(tn.BackendError, match=r"the plan needs 1,\d+,\d+ bytes at once(?s:.*)fix: allow 1,"):
        tn.plan(graph, b=64, i=64, j=64, memory_limit=500_000)
