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
