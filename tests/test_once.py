"""What depends on nothing that a call gives is computed once, wherever it is asked for first."""

from __future__ import annotations

import copy
import itertools
import pickle
from typing import Any

import numpy as np
import pytest
import torch

import tensornet as tn
from tensornet.codegen import function as functions
from tensornet.planning import constant_folding
from tensornet.planning.plans import Plan
from tensornet.runtime import executable

from .differential import by_numpy

AT, F = np.array([0, 2, 1, 1]), np.linspace(-1.0, 1.0, 20, dtype=np.float32).reshape(5, 4)

ATTENTION = tn.layer(
    "s[b,i,j] = x[b,i] * x[b,j]\n"
    "q[b,i,j] = where(index(i) >= index(j), s, -1e9)\n"
    "y[b,i,c] = softmax[j](q) * v[b,j,k] * F[k,c] * B[at[i],c]",
    inputs="x v", constants={"F": F, "at": AT}, init={"B": np.arange(12.0).reshape(3, 4) / 12}, i=4,
)  # fmt: skip
"""A mask, a table that is looked up by constant positions, and a product with a constant."""

OPEN = tn.layer("y[b,n] = sum[m](where(index(m) <= index(n), x[b,m], 0)) * w[n]", inputs="x w")
"""A mask as long as what is given."""

DRAW = torch.Generator().manual_seed(0)
X, V = torch.randn(3, 4, generator=DRAW), torch.randn(3, 4, 5, generator=DRAW)


def forward(plan: Plan) -> str:
    """The function that runs at each call."""
    return plan.code[plan.code.index("def forward") :]


def expected(graph: tn.Graph, **arrays: Any) -> Any:
    named = {name: np.asarray(array, np.float64) for name, array in arrays.items()}
    return by_numpy(graph, named)["y"]


def close(found: torch.Tensor, module: torch.nn.Module, tolerance: float = 1e-5) -> None:
    """Holds what a module of `ATTENTION` gave against NumPy in float64."""
    wanted = expected(ATTENTION, x=X, v=V, F=F, B=module.B.detach().double())
    np.testing.assert_allclose(found.detach().double().numpy(), wanted, rtol=tolerance, atol=tolerance)


WRITTEN_TO = {
    "positions": "P[i,d] = sin(index(i) / 10 ** index(d))\nq[b,i,d] = x[b,i,d] + P[i,d]\nr[b,i] = sum[d](q[b,i,d])",
    "moved": "P[i,d] = index(i) + index(d) / 4\nq[d,i] = P[i,d]\nr[b,d] = x[b,i,d] * P[i,d]\ns[d] = P[0,d]",
    "a constant": "P[i,d] = C[i,d]\nq[b,i] = x[b,i,d] * C[i,d]\nr[i] = C[i,1]\ns[i,d] = pad(C[i,d], i=(0, 0))",
    "a block": """
def f(z):
    z[i,d]: input
    P: output
    q: output
    P[i,d] = index(i) * 2.0 + index(d)
    q[d,i] = z[i,d]
T[i,d] = index(i) / 3 + index(d)
P, q = f(T, scope='f')
r[b,i] = x[b,i,d] * T[i,d]
""",
}


@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize("name", WRITTEN_TO)
def test_results_may_be_written_to(name: str, backend: str) -> None:
    """Later calls, and those of functions that are compiled later, do not see it."""
    lines = WRITTEN_TO[name]
    outputs = [name for name in "Pqrs" if f"\n{name}[" in f"\n{lines}" or name in "Pq"]
    constants = {"C": np.arange(4.0).reshape(2, 2)} if "C[" in lines else {}
    graph = tn.layer(lines, inputs="x[b,i,d]", outputs=outputs, d=2, **constants and {"constants": constants})
    x = np.arange(8.0).reshape(2, 2, 2)
    given = torch.from_numpy(x) if backend == "torch" else x
    first = tn.compile(graph, backend=backend, params={})
    expected = [np.asarray(each).copy() for each in first(given)]
    for each in first(given):
        each *= 0
        each += 7
    for again in (first, tn.compile(graph, backend=backend, params={})):
        for found, wanted in zip(again(given), expected, strict=True):
            np.testing.assert_array_equal(np.asarray(found), wanted)


# ---------------------------------------------------------------------------- what is done once


@pytest.mark.parametrize("backend", ["numpy", "torch", "cupy", "jax"])
def test_masks_and_positions_are_made_once(backend: str) -> None:
    plan = tn.plan(ATTENTION, backend=backend, b=3)
    assert "arange" in plan.code
    assert "arange" not in forward(plan)
    assert "within" not in forward(plan)
    assert [table.below for table in plan.tables].count(3) == 1
    assert "done once:" in str(plan)
    assert plan.flops == sum(step.flops for step in plan.steps)


def test_blocks_that_are_called_have_their_tables_made_once_for_all() -> None:
    plan = tn.plan(tn.models.create("swin_t"), backend="torch", compare=False, b=1)
    assert "arange" not in forward(plan)
    assert plan.code.count("within(") == 1
    assert len({str(step.equation) for step in plan.once}) == len(plan.once)
    for block in plan.functions:
        assert all(
            not step.equation.name.endswith(".at") for step in block.steps if hasattr(step, "equation")
        )


@pytest.mark.usefixtures("registering")
def test_what_is_drawn_or_the_users_own_is_done_at_each_call() -> None:
    tn.register("counted_once", numpy=lambda a: a * next(calls))
    calls = iter((2, 3))
    f = tn.compile(tn.layer("y[i] = x[i] * counted_once(index(i))", inputs="x"))
    np.testing.assert_array_equal(f({}, np.ones(2)), [0, 2])
    np.testing.assert_array_equal(f({}, np.ones(2)), [0, 3])
    drop = tn.plan(tn.layer("y[b,i] = x[b,i] * dropout(index(i) / 1, 0.5)", inputs="x", i=4))
    assert "dropout" in forward(drop)


@pytest.mark.parametrize(
    ("size", "made_of", "kept"),
    [(2**26, 0, True), (2**26 + 1, 0, False), (2**30, 2**26, True), (2**30, 2**24, False)],
)
def test_a_table_much_larger_than_what_it_is_made_of_is_none(size: int, made_of: int, kept: bool) -> None:
    assert constant_folding.is_worth_keeping(size, made_of) is kept


def test_a_large_mask_is_made_at_each_call() -> None:
    small, large = (tn.plan(OPEN, b=2, m=n, n=n, compare=False) for n in (2_000, 50_000))
    assert {len(table.leaf.dims) for table in small.tables} == {2}
    assert {len(table.leaf.dims) for table in large.tables} == {1}
    assert "<=" in forward(large)


@pytest.mark.parametrize("positions", [[0, 3], [-1, 0]])
@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_constant_positions_are_looked_at(positions: list[int], backend: str) -> None:
    graph = tn.layer("y[b,i] = E[t[i],b]", inputs="E", constants={"t": np.array(positions)})
    f = tn.compile(graph, backend=backend)
    wrong = next(at for at in positions if not 0 <= at < 3)
    array = {"numpy": np.ones((3, 2)), "torch": torch.ones(3, 2)}[backend]
    for _ in range(2):
        with pytest.raises(tn.ShapeError, match=f"'t'(?s:.*){wrong}|{wrong}(?s:.*)'t'"):
            f({}, array)


# ---------------------------------------------------------------------------- lengths


def test_tables_of_open_lengths_are_kept_for_the_last_few(monkeypatch: pytest.MonkeyPatch) -> None:
    made, loaded = list[Any](), functions.LoadedProgram
    make = loaded._made
    monkeypatch.setattr(
        loaded, "_made", lambda self, at, source: made.append(at.sizes) or make(self, at, source)
    )
    f = tn.compile(OPEN)
    for n in (5, 6, 5, 6, 7, 5, *range(20, 20 + executable.LENGTHS), 5):
        x, w = np.ones((2, n)), np.arange(1.0, n + 1)
        np.testing.assert_allclose(f({}, x, w), expected(OPEN, x=x, w=w))
    assert made[:3] == [(5, 5), (6, 6), (7, 7)]
    assert made[3] == (20, 20)
    assert made[-1] == (5, 5)
    assert len(f._tables) == executable.LENGTHS


def test_a_size_that_no_array_tells_makes_no_table() -> None:
    graph = tn.layer("y[b,i] = x[b,i] + index(i) * index(i)", inputs="x")
    assert tn.plan(graph, b=2).sizes_once == ("i",)
    assert tn.compile(graph)({}, np.zeros((1, 3))).tolist() == [[0, 1, 4]]


def test_element_types_have_tables_of_their_own() -> None:
    f = tn.compile(tn.layer("y[b,i] = x[b,i] * exp(c[i])", inputs="x", constants={"c": np.arange(1, 4) / 7}))
    for dtype, tolerance in ((np.float32, 1e-6), (np.float64, 1e-15), (np.float16, 1e-3), (np.float32, 1e-6)):
        found = f({}, np.ones((2, 3), dtype))
        assert found.dtype == dtype
        np.testing.assert_allclose(found[0], np.exp(np.arange(1, 4) / 7), rtol=tolerance)


# ---------------------------------------------------------------------------- torch


def under_inference(module: Any) -> Any:
    with torch.inference_mode():
        return module(X, V)


def under_autocast(module: Any) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return module(X, V)


def under_gradient(module: Any) -> Any:
    parameters = dict(module.named_parameters())
    torch.func.grad(lambda p: torch.func.functional_call(module, p, (X, V)).sum())(parameters)
    return module(X, V)


def under_vmap(module: Any) -> Any:
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    run = torch.func.vmap(lambda x, v: torch.func.functional_call(module, state, (x[None], v[None]))[0])
    return run(X, V)


def of_batched_state(module: Any) -> Any:
    parameters, buffers = torch.func.stack_module_state([module, copy.deepcopy(module)])
    run = torch.func.vmap(lambda p, b: torch.func.functional_call(module, (p, b), (X, V)))
    return run(parameters, buffers)[1]


def compiled(module: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(module, fullgraph=True, backend="eager", dynamic=True)(X, V)


@pytest.mark.parametrize(
    "first", [under_inference, under_autocast, under_gradient, under_vmap, of_batched_state, compiled]
)
def test_tables_serve_wherever_they_were_asked_for_first(first: Any) -> None:
    executable._made.cache_clear()
    module = tn.module(ATTENTION, seed=0)
    close(first(module), module, 3e-2 if first is under_autocast else 1e-5)
    found = module(X, V)
    close(found, module)
    found.sum().backward()
    assert module.B.grad.abs().sum() > 0


def test_tables_follow_the_module_and_are_no_state() -> None:
    module = tn.module(ATTENTION, seed=0)
    close(module(X, V), module)
    assert list(module.state_dict()) == ["B"]
    for again in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        close(again(X, V), module)
    wide = module.double()
    found = wide(X.double(), V.double())
    assert found.dtype == torch.float64
    close(found, module, 1e-7)
    assert module.half()(X.half(), V.half()).dtype == torch.float16
    assert module.float().to("meta")(X.to("meta"), V.to("meta")).device.type == "meta"


@pytest.mark.parametrize("strict", [True, False])
def test_an_exported_program_holds_its_tables(strict: bool) -> None:
    module = tn.module(ATTENTION, seed=0)
    batch = torch.export.Dim("b", min=2)
    shapes = {"x": {0: batch}, "v": {0: batch}}
    program = torch.export.export(module, (X, V), dynamic_shapes=shapes, strict=strict)
    assert not [node for node in program.graph.nodes if "arange" in str(node.target)]
    close(program.module()(X, V), module)
    assert program.module()(torch.cat([X, X]), torch.cat([V, V])).shape == (6, 4, 4)


def test_open_lengths_are_compiled_whole() -> None:
    module = tn.module(OPEN)
    torch._dynamo.reset()
    run = torch.compile(module, fullgraph=True, backend="eager", dynamic=True)
    for n, call in itertools.product((5, 6, 9), (run, module)):
        x, w = torch.ones(2, n), torch.arange(1.0, n + 1)
        np.testing.assert_allclose(call(x, w).numpy(), expected(OPEN, x=x, w=w), rtol=1e-6)


def test_blocks_that_run_by_themselves_share_tables() -> None:
    module = tn.module(tn.models.create("swin_t"), seed=0).eval()
    x = torch.randn(1, 3, 224, 224, generator=DRAW)
    whole = tn.compile(
        module.graph, backend="torch", params={n: p.detach() for n, p in module.named_parameters()}
    )
    torch.testing.assert_close(module(x), whole(x), rtol=1e-4, atol=1e-4)
    made = {
        id(tables)
        for block in module.modules()
        for arranged in getattr(block, "_arranged", {}).values()
        for tables in arranged._tables.values()
        if tables
    }
    assert 0 < len(made) <= 4
