"""Parameters that are constants: equal results, fewer steps at a call, and the same value everywhere."""

from __future__ import annotations

import copy
import itertools
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import tensornet as tn
from tensornet.contraction.order_search import fastest
from tensornet.contraction.pairs import Problem
from tensornet.device.cost_model import default_profile
from tensornet.language.expression import axes_of_index
from tensornet.protocol import load_backend

from .conftest import covered
from .differential import by_numpy

CPU = default_profile("cpu")
MODES = (4, 6, 4)
ADAPTER = tn.layer("y[b,o] = x[b,i] * W[o,i] + 0.5 * x[b,i] * A[r,i] * B[o,r]", inputs="x", i=6, o=5, r=2)


def drawn(graph: tn.Graph, seed: int = 0) -> dict[str, Any]:
    return tn.init(graph, seed=seed, dtype="float64")


def expected(graph: tn.Graph, params: Any, x: Any, **sizes: int) -> Any:
    named = {
        **{name: np.asarray(array, np.float64) for name, array in params.items()},
        "x": np.asarray(x, np.float64),
    }
    return by_numpy(graph, named)[graph.outputs[0]]


# ---------------------------------------------------------------------------- what runs


@pytest.mark.parametrize(
    ("kind", "backend"), covered(["tucker", "cp", "tt", "blocktt", "kronecker"], ["numpy", "torch", "jax"])
)
def test_a_frozen_factorized_layer_computes_the_same(kind: str, backend: str) -> None:
    graph = tn.models.linear(MODES, MODES, factorization=kind, rank=0.3)
    params = drawn(graph)
    frozen = tn.freeze(graph, params)
    assert not frozen.parameters
    for batch in (1, 7, 500):
        x = np.random.default_rng(batch).standard_normal((batch, 96))
        found = tn.compile(frozen, backend=backend)({}, load_backend(backend).asarray(x))
        np.testing.assert_allclose(found, tn.compile(graph)(params, x), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", ["cp", "blocktt", "kronecker"])
def test_a_frozen_factorized_layer_runs_as_the_dense_one_where_that_is_fastest(kind: str) -> None:
    graph = tn.models.linear((8, 16, 8), (8, 16, 8), factorization=kind, rank=0.2)
    plan = tn.plan(tn.freeze(graph, drawn(graph)), backend="torch", profile=CPU, lead=64)
    (step,) = plan.steps
    assert step.arrangement.kind == "linear"
    assert plan.once
    dense = tn.plan(tn.models.linear((8, 16, 8), (8, 16, 8)), backend="torch", profile=CPU, lead=64)
    assert plan.seconds <= 1.01 * dense.seconds
    assert "done once:" in str(plan)


@pytest.mark.parametrize(("packing", "swapped"), [(0.0, False), (20.0, True)])
def test_a_weight_is_made_to_lie_as_its_product_reads_it(packing: float, swapped: bool) -> None:
    """A second matrix that is dear to lay out is rather the first one, and its rows lie together then, too."""
    graph = tn.models.linear((8, 8, 16), (8, 8, 16), factorization="kronecker", rank=0.2)
    profile = replace(CPU, packing=packing)
    plan = tn.plan(tn.freeze(graph, drawn(graph)), backend="torch", profile=profile, lead=64)
    way = plan.steps[0].arrangement
    assert way.swapped == swapped
    made = [axes_of_index(step.equation.left) for step in plan.once]
    *_, weight = (axes for axes in made if len(axes) == 6)
    assert weight == (*way.columns, *way.summed)


def test_a_frozen_layer_of_low_rank_keeps_going_through_its_factors() -> None:
    graph = tn.layer(
        "y[b,o] = x[b,i] * A[i,r] * B[r,s] * C[s,t] * D[t,o]", inputs="x", i=1024, r=8, s=8, t=8, o=1024
    )
    params = tn.init(graph)
    plan = tn.plan(tn.freeze(graph, params), profile=CPU, b=64)
    assert len(plan.steps) == 2
    assert plan.flops == 2 * 2 * 64 * 1024 * 8


def test_no_order_is_faster_at_a_call() -> None:
    """Every way to multiply some of the factors beforehand, each priced as a layer of what they make."""
    sizes = {"i": 60, "r": 9, "s": 50, "t": 7, "o": 80}
    factors = [("i", "r"), ("r", "s"), ("s", "t"), ("t", "o")]
    text = "y[b,o] = x[b,i] * " + " * ".join(f"F{n}[{','.join(axes)}]" for n, axes in enumerate(factors))
    graph = tn.layer(text, inputs="x", **sizes)
    params = tn.init(graph)
    found = tn.plan(tn.freeze(graph, params), profile=CPU, b=40).seconds
    others = []
    for cuts in itertools.chain.from_iterable(itertools.combinations("rst", n) for n in range(4)):
        ends = ["i", *cuts, "o"]
        merged = " * ".join(f"M{n}[{b},{a}]" for n, (a, b) in enumerate(itertools.pairwise(ends)))
        layer = tn.layer(f"y[b,o] = x[b,i] * {merged}", inputs="x", **{a: sizes[a] for a in ends})
        others.append(tn.plan(layer, profile=CPU, b=40).seconds)
    assert found <= 1.05 * min(others)


def test_a_weight_too_large_to_keep_is_not_made() -> None:
    sizes = {"b": 10**6, "i": 200_000, "r": 1000, "o": 200_000}
    layouts = (("b", "i"), ("i", "r"), ("r", "o"))
    problem = Problem(layouts, frozenset("bo"), None, sizes, CPU, 4, frozenset({1, 2}))
    order = fastest(problem)
    assert [{pair.first, pair.second} for pair in order] == [{0, 1}, {2, 3}]


def test_an_adapter_keeps_its_parameters() -> None:
    params = drawn(ADAPTER)
    frozen = tn.freeze(ADAPTER, params, "W")
    assert [leaf.name for leaf in frozen.parameters] == ["A", "B"]
    module = tn.module(frozen, params={name: params[name] for name in "AB"}, dtype="float64")
    x = torch.randn(3, 6, dtype=torch.float64)
    np.testing.assert_allclose(module(x).detach(), expected(ADAPTER, params, x, b=3, i=6, o=5, r=2))
    module(x).sum().backward()
    assert {name for name, each in module.named_parameters() if each.grad is not None} == {"A", "B"}
    assert set(tn.init(frozen)) == {"A", "B"}


def test_blocks_are_frozen_where_they_are_called() -> None:
    model = stack(4)
    params = drawn(model)
    frozen = tn.freeze(model, params, ["layers.*"])
    assert [leaf.name for leaf in frozen.parameters] == ["head"]
    assert len(tn.plan(frozen, b=2).functions) == 1  # values make no other code
    x = np.random.default_rng(0).standard_normal((2, 5))
    rest = {"head": params["head"]}
    np.testing.assert_allclose(tn.compile(frozen)(rest, x), tn.compile(model)(params, x), rtol=1e-9)
    some = tn.freeze(model, params, "layers.1.* head")
    assert not any(leaf.name.startswith("layers.1") for leaf in some.parameters)
    left = {leaf.name: params[leaf.name] for leaf in some.parameters}
    np.testing.assert_allclose(tn.compile(some)(left, x), tn.compile(model)(params, x), rtol=1e-9)
    module = tn.module(frozen, params=rest, dtype="float64")
    np.testing.assert_allclose(module(torch.from_numpy(x)).detach(), tn.compile(model)(params, x), rtol=1e-9)


def stack(depth: int) -> tn.Graph:
    """Equal layers, called, and a head."""
    layer = tn.layer(
        "h[b,f] = gelu(x[b,i] * A[i,r] * B[r,f])\ng[b,f] = h * s[f]\nk[b,f] = tanh(g)\n"
        "z[b,i] = k[b,f] * C[f,i]\ny[b,i] = z + x[b,i]",
        inputs="x", i=5, r=2, f=7,
    )  # fmt: skip
    head = tn.layer("y[b] = x[b,i] * head[i]", inputs="x", i=5)

    def model(x: Any) -> Any:
        for number in range(depth):
            x = layer(x, scope=f"layers.{number}")
        return head(x)

    return tn.model(model, inputs="x[b,i]", i=5)


# ---------------------------------------------------------------------------- as a value


def test_a_frozen_graph_travels() -> None:
    frozen = tn.freeze(ADAPTER, drawn(ADAPTER), "W A")
    assert tn.Graph.from_json(frozen.to_json()) == frozen
    assert pickle.loads(pickle.dumps(frozen)) == frozen
    assert "W[o,i]: constant" in str(frozen)
    assert frozen != tn.freeze(ADAPTER, drawn(ADAPTER, seed=1), "W A")
    assert tn.freeze(tn.freeze(ADAPTER, drawn(ADAPTER), "W"), drawn(ADAPTER), "A") == frozen


def test_arrays_of_any_library_and_type_freeze() -> None:
    w = torch.tensor([[1.0, 2.0]], dtype=torch.bfloat16, requires_grad=True)
    frozen = tn.freeze(tn.layer("y[b,o] = x[b,i] * W[o,i]", inputs="x"), {"W": w})
    assert frozen.bound == {"i": 2, "o": 1}
    assert tn.compile(frozen)({}, np.ones((1, 2))).tolist() == [[3.0]]


# ---------------------------------------------------------------------------- modules without parameters


def test_what_a_number_chooses_is_not_the_constant_itself() -> None:
    graph = tn.layer("c = sum[j](x[j])\ny[i] = where(c > 0, V[i], 0)", inputs="x", i=4, j=3)
    call = tn.compile(tn.freeze(graph, {"V": torch.arange(4.0)}), backend="torch")
    call({}, torch.ones(3)).add_(1)
    torch.testing.assert_close(call({}, torch.ones(3)), torch.arange(4.0))


def test_a_module_without_parameters() -> None:
    graph = tn.models.linear(MODES, MODES, factorization="blocktt", rank=0.3)
    params = drawn(graph)
    module = tn.module(tn.freeze(graph, params))
    assert not list(module.parameters())
    assert not module.state_dict()
    x = torch.randn(5, 96, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    wanted = torch.from_numpy(tn.compile(graph)(params, x.numpy()))
    for dtype, tolerance in ((torch.float64, 1e-6), (torch.float32, 1e-5), (torch.bfloat16, 5e-2)):
        torch.testing.assert_close(module(x.to(dtype)), wanted.to(dtype), rtol=tolerance, atol=tolerance)
        torch._dynamo.reset()
        run = torch.compile(copy.deepcopy(module), fullgraph=True, backend="eager")
        torch.testing.assert_close(run(x.to(dtype)), wanted.to(dtype), rtol=tolerance, atol=tolerance)
        program = torch.export.export(copy.deepcopy(module), (x.to(dtype),))
        found = program.module()(x.to(dtype))
        torch.testing.assert_close(found, wanted.to(dtype), rtol=tolerance, atol=tolerance)
    again = pickle.loads(pickle.dumps(module))
    torch.testing.assert_close(again(x), module(x))
    assert x.requires_grad_().grad is None
    module(x).sum().backward()
    assert x.grad is not None


def test_a_kernel_takes_no_operand_whose_sizes_others_tell() -> None:
    """Keys by a frozen train could go to the attention kernel as two parts, of which one has half of a dimension."""
    vit = tn.models.vit(image=32, patch=16, channels=3, dim=384, depth=1, heads=6, classes=10)
    graph = tn.substitute(vit, {"*.Wk": ("tt", (1, 68, 4))})
    params = tn.init(graph, seed=0)
    x = np.random.default_rng(0).standard_normal((1, 3, 32, 32)).astype("float32")
    found = tn.compile(tn.freeze(graph, params), backend="torch")({}, torch.tensor(x))
    np.testing.assert_allclose(found, tn.compile(graph)(params, x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_frozen_parameters_keep_their_floating_type_where_all_inputs_are_integers(dtype: str) -> None:
    layer = tn.layer("k[b]: input\nE[v,c]: parameter\ny[b,c] = E[k[b],c]")
    frozen = tn.freeze(layer, {"E": np.ones((4, 3), dtype)})
    assert tn.compile(frozen)({}, np.array([0, 1])).dtype == dtype
    assert tn.compile(frozen, dtype="float32")({}, np.array([0, 1])).dtype == "float32"
