"""Blocks stay blocks: a graph that calls others means what it would with every call written out; what depends on no call is computed once."""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import sympy
import torch
from hypothesis import given
from hypothesis import strategies as st

import tensornet as tn
from tensornet.codegen import function as functions
from tensornet.errors import EquationError, ShapeError
from tensornet.planning import constant_folding
from tensornet.planning.plans import Plan
from tensornet.runtime import executable

from .conftest import examples, normal, stacked
from .differential import by_numpy
from .programs import titled

# ---------------------------------------------------------------------------- Blocks stay blocks


CALLS = titled("calls.txt")

ATTENTION = """
    q[b,i,h,d] = x[b,i,c] * Q[(h,d),c]
    k[b,j,h,d] = x[b,j,c] * K[(h,d),c]
    s[b,h,i,j] = q * k / sqrt(d)
    a[b,h,i,j] = softmax[j](s)
    y[b,i,c]   = sum[h](a * x[b,j,c])
"""
LAYERS: dict[str, Callable[[], tn.Graph]] = {
    "attention": lambda: tn.layer(ATTENTION, inputs="x", h=2, d=5),
    "dense": lambda: tn.layer("y[...,o] = tanh(x[...,c] * W[o,c] + u[o])", inputs="x", o=6),
    "wide": lambda: tn.layer("h[b,i,f] = gelu(x[b,i,c] * W1[f,c])\ny[b,i,c] = h * W2[c,f]", inputs="x", f="2*c"),
    "same": lambda: tn.layer("y[b,i,c] = x[b,i,c]", inputs="x"),
}  # fmt: skip


def tower(names: tuple[str, ...], **sizes: int) -> tn.Graph:
    """A block of some layers, one after another, with a residual around each."""
    add = tn.layer("z[...] = x[...] + y[...]", inputs="x y")

    def forward(x: Any) -> Any:
        for number, name in enumerate(names):
            x = add(x, LAYERS[name]()(x, scope=f"{name}{number}"))
        return x

    return tn.model(forward, inputs="x[b,i,c]", **sizes)


def arrays_of(graph: tn.Graph, seed: int) -> tuple[dict[str, Any], Any]:
    rng = np.random.default_rng(seed)
    parameters = {name: 0.3 * a for name, a in tn.init(graph, seed=seed, dtype="float64").items()}
    known = {"b": 2, "i": 8, "c": 6, **graph.bound}
    return parameters, rng.standard_normal([known.get(str(size), 5) for size in graph.inputs[0].shape])


def agrees(graph: tn.Graph, seed: int) -> None:
    """A graph of one result computes what its equations do when every call is written out."""
    parameters, x = arrays_of(graph, seed)
    (expected,) = by_numpy(graph.flat, {**parameters, "x": x}).values()
    np.testing.assert_allclose(tn.compile(graph)(parameters, x), expected, atol=1e-12)


def test_equal_calls_are_planned_and_written_once() -> None:
    layer = tower(("attention", "wide"), i=8)
    graph = stacked(*((layer, f"layers.{n}") for n in range(12)), inputs="x[b,i,c]", c=6)
    assert len({call.graph for call in graph.calls}) == 1
    plan = tn.plan(graph, b=2, i=8)
    assert plan.code.count("def ") == 2
    assert sum(line.startswith("    layers_") for line in plan.code.splitlines()) == 12
    assert "layers, called 12 times:" in str(plan)
    (block,) = plan.functions
    assert plan.flops == 12 * block.flops
    assert sympy.expand(plan.flop_formula - 12 * block.flop_formula) == 0
    short = tn.plan(
        tn.model(lambda x: layer(layer(x, scope="a"), scope="b"), inputs="x[b,i,c]", c=6), b=2, i=8
    )
    assert plan.peak_memory > short.peak_memory
    more = plan.code.count("\n") - short.code.count("\n")
    assert more == 10 * 3  # for each further call a line in the docstring, the call, and what it frees


def test_blocks_of_equal_sizes_under_other_names_are_one_function() -> None:
    """The first reads an input of the model, whose sizes have names of their own."""
    layer = tower(("attention", "wide"), c=6)
    graph = tn.model(
        lambda x: layer(layer(x, scope="first"), scope="second"), inputs="x[b,i,width]", width=6, i=8
    )
    assert tn.plan(graph, b=2).code.count("def ") == 2
    agrees(graph, 2)


def test_peak_memory_is_that_of_the_worst_moment_inside_a_block() -> None:
    graph = tower(("attention", "wide"), c=6, i=8)
    deep = tn.model(lambda x: graph(graph(x, scope="a"), scope="b"), inputs="x[b,i,c]")
    plan = tn.plan(deep, b=4, dtype="float64")
    (block,) = plan.functions
    given, others = 8 * tn.parameter_count(graph), 8 * 4 * 8 * 6
    assert plan.peak_memory == block.peak_memory + given + others  # what the other call has, and the first x


def test_a_block_with_dropout_drops_in_training_only() -> None:
    layer = tower(("wide", "wide", "wide"), c=6)
    drop = tn.layer("y[...] = dropout(x[...], 0.5)", inputs="x")
    noisy = tn.model(lambda x: drop(layer(x, scope="layer")), inputs="x[b,i,c]")
    graph = tn.model(lambda x: noisy(noisy(x, scope="a"), scope="b"), inputs="x[b,i,c]", i=8)
    parameters, x = arrays_of(graph, 0)
    f = tn.compile(graph)
    np.testing.assert_array_equal(f(parameters, x), f(parameters, x))
    assert (f(parameters, x, training=True) == 0).mean() > 0.3


def test_one_name_of_two_axes_gets_a_number_only_where_they_meet() -> None:
    layers = {heads: tn.layer(ATTENTION, inputs="x", h=heads, d=3) for heads in (2, 4)}
    graph = tn.model(lambda x: layers[4](layers[2](x, scope="a"), scope="b"), inputs="x[b,i,c]", c=6)
    assert [dict(call.graph.sizes).get("h") for call in graph.calls] == [2, sympy.Symbol("h_1")]
    assert "h_1" not in str(graph.calls[0].graph)
    agrees(graph, 3)


def test_results_of_a_call_that_nothing_needs_go() -> None:
    parts = tn.layer("y[b] = 2 * x[b]\nz[b] = 3 * x[b] * W[b]", inputs="x", outputs="y z")
    graph = tn.model(lambda x: parts(x, scope="a")[0], inputs="x[b]", b=3)
    assert [call.results for call in graph.calls] == [("a.y",)]
    assert [leaf.name for leaf in graph.parameters] == ["a.W"]  # signatures do not change with what is read
    for each in (graph, graph.flat):
        assert tn.layer(str(each)) == each
    np.testing.assert_array_equal(tn.compile(graph)({"a.W": np.ones(3)}, np.ones(3)), [2, 2, 2])


def test_blocks_whose_sizes_have_values_outside_alone_are_one_function() -> None:
    graph = CALLS["open inside"].graph()
    assert graph.open_sizes == ("b",)
    assert len(tn.plan(graph, b=2).functions) == 1


def test_a_size_of_a_block_is_not_that_of_the_same_name_outside() -> None:
    """Sizes seen at a call are looked at in the names of each block: here `n` is 9 inside, and 2 outside."""
    text = "p[n] = index(n)\nq[n] = pad(p[n], n=(0,-5))\ny[b] = sum[n](x[b,n]) + sum[n](q[n])"
    block = tn.layer(text, inputs="x[b,n]")
    graph = tn.model(lambda x, last: (block(x, scope="cut"), last), inputs="x[b,m] last[n]")
    found, _ = tn.compile(graph)({}, np.ones((1, 9)), np.zeros(2))
    np.testing.assert_array_equal(found, [9 + 0 + 1 + 2 + 3])
    with pytest.raises(ShapeError, match="-1"):
        tn.compile(graph)({}, np.ones((1, 4)), np.zeros(9))


HOLDING = tn.layer(
    "y[b,i] = tanh(x[b,i] * c[i] * w[i])",
    inputs="x",
    constants={"c": [1.0, 2.0, 3.0]},
    init={"w": np.ones(3)},
)


def twice_holding() -> tn.Graph:
    return tn.model(lambda x: HOLDING(HOLDING(x, scope="a"), scope="b"), inputs="x[b,i]")


def other_way_round(graph: tn.Graph) -> tn.Graph:
    """The graph with the leaves of its blocks in another order, so that its text declares them at the top."""
    own = tuple(leaf for leaf in graph.leaves if leaf.kind != "input")
    return replace(graph, leaves=(*graph.inputs, *reversed(own)))


@pytest.mark.parametrize(
    "graph",
    [
        twice_holding(),
        other_way_round(twice_holding()),
        tn.gradient(twice_holding(), wrt="x"),
        tn.gradient(twice_holding(), wrt="x a.w"),
    ],
    ids=["blocks", "declared", "gradient", "gradients"],
)
def test_what_blocks_hold_reads_back(graph: tn.Graph) -> None:
    held = {leaf.name: leaf.value.array() for leaf in graph.constants if leaf.value is not None}
    starts = {leaf.name: np.ones(3) for leaf in graph.parameters}
    assert len(held) == len(starts) == 2
    assert tn.layer(str(graph), constants=held, init=starts) == graph
    with pytest.raises(EquationError, match=r"'b\.c' has no value\nfix: pass constants={\"b\.c\": array}"):
        tn.layer(str(graph), constants={"a.c": held["a.c"]}, init=starts)
    with pytest.raises(EquationError, match=r"the constant 'a\.d' is never used"):
        tn.layer(str(graph), constants={**held, "a.d": np.ones(3)}, init=starts)


def test_a_block_reads_tensors_whose_axes_are_called_otherwise() -> None:
    """Its axes are as long as what it is given; sizes that only a keyword tells go by their names."""
    text = CALLS["axes called otherwise"].text
    graph = tn.layer(text, t=14, u=3, h=2, o=4)
    later = tn.layer(text, t=14, u=3, h=2).bind(o=4)
    assert tn.parameter_count(later) == tn.parameter_count(graph) == 2 + 15 + 20 + 20 + 20
    with pytest.raises(ShapeError, match=r"'x' has 1 dimension\(s\)\n  line 9: "):
        tn.layer(text.replace("x[b,t]: input", "x[t]: input"))


@examples(20)
@given(st.integers(1, 3), st.sampled_from(["numpy", "torch", "jax"]))
def test_positions_go_into_blocks_and_out_of_them_exactly(depth: int, backend: str) -> None:
    step = "a[i] = n[i] + 1\nb[i] = a[i] * 1\nc[i] = b[i] + 0\nd[i] = c[i] + 0\ny[i] = d[i] + 16777216"
    add = tn.layer(step, inputs="n")
    start = tn.layer("n[i] = index(i) + 0 * round_[i]", inputs="round_[i]")

    def forward(zero: Any) -> Any:
        n = start(zero)
        for number in range(depth + 1):
            n = add(n, scope=f"s{number}")
        return n

    graph = tn.model(forward, inputs="zero[i]", i=5)
    chosen = tn.to_backend({"zero": np.zeros(5, "int64")}, backend)
    found = tn.to_backend({"y": tn.compile(graph, backend=backend)({}, chosen["zero"])}, "numpy")["y"]
    np.testing.assert_array_equal(found, np.arange(5) + (depth + 1) * (16777216 + 1))


def test_complex_numbers_go_through_blocks() -> None:
    twice = tower(("same", "same"))
    graph = tn.model(lambda x: twice(twice(x, scope="a"), scope="b"), inputs="x[b,i,c]", c=2)
    x = np.ones((1, 2, 2)) * 1j
    np.testing.assert_allclose(tn.compile(graph)({}, x), x * 16)


def test_of_a_call_without_a_scope_only_what_is_needed_stays() -> None:
    both = tn.layer("h[b,f] = gelu(x[b,c] * W[f,c])\ny[b,c] = h * V[f,c]", inputs="x", f=3, outputs="y h")
    graph = tn.model(lambda x: both(both(x)[1], scope="b")[1], inputs="x[b,c]", c=3)
    assert [equation.name for equation in graph.own] == ["h"]
    assert tn.layer(str(graph)) == graph


def test_the_lines_of_a_block_say_the_order_of_its_leaves() -> None:
    """Its inputs may come behind its parameters, as where factors of weights are shared."""
    text = "def f(x, w):\n    x[b,i]: input\n    W[i]: parameter\n    w[i]: input\n    y[b] = x[b,i] * W[i] * w[i]\n"
    graph = tn.layer(text + "z = f(a, c, scope='s')", inputs="a[b,i] c[i]")
    (block,) = (call.graph for call in graph.calls)
    assert [leaf.name for leaf in block.leaves] == ["x", "W", "w"]
    assert tn.layer(str(graph)) == graph


def test_a_block_that_hands_a_tensor_through() -> None:
    both = tn.model(lambda x, y: (y, x, y), inputs="x[b] y[b]")
    graph = tn.model(lambda x, y: both(x, y, scope="swap")[:2], inputs="x[b] y[b]")
    one, two = np.ones(3), np.zeros(3)
    found = tn.compile(graph)({}, one, two)
    np.testing.assert_array_equal(found, [two, one])


def test_a_block_calls_blocks_that_are_defined_before_it() -> None:
    graph = CALLS["nested"].graph()
    assert [leaf.name for leaf in graph.parameters] == ["one.in.a.W", "one.in.b.W", "two.W"]
    x = normal(2, 5, seed=3)
    weights = {leaf.name: normal(5, seed=4) for leaf in graph.parameters}
    state, wanted = np.zeros(2), []
    for now in (4 * x * weights["one.in.a.W"] * weights["one.in.b.W"]).T:
        state = now + 0.5 * state
        wanted.append(state)
    wanted_there = 2 * weights["two.W"] * np.array(wanted).T
    np.testing.assert_allclose(tn.compile(graph)(weights, x), wanted_there)
    assert tn.layer(str(graph)) == graph == tn.Graph.from_json(graph.to_json())


def test_a_size_that_a_block_mentions_is_apart_from_a_tensor_of_its_name() -> None:
    block = tn.layer("y[b,i,d] = x[b,i,d] / sqrt(d)", inputs="x")
    graph = tn.model(lambda d: block(block(d, scope="a"), scope="c"), inputs="d[b,n,c]")
    x = normal(2, 5, 3)
    np.testing.assert_allclose(tn.compile(graph)({}, x), x / 3)
    assert tn.layer(str(graph.flat)) == graph.flat


def test_names_of_blocks_never_meet_those_of_tensors_or_functions() -> None:
    dense = tn.layer("y[b,i] = x[b,i] * 2", inputs="x")
    for scopes in itertools.permutations(["x", "exp", "tanh.0"]):

        def forward(x: Any, scopes: tuple[str, ...] = scopes) -> Any:
            for scope in scopes:
                x = dense(x, scope=scope)
            return x

        graph = tn.model(forward, inputs="x[b,i]")
        assert tn.layer(str(graph)) == graph


@pytest.mark.parametrize(
    "text",
    [
        "k[b,h,d] = x[b,c] * K[(h,d),c]\ny[b,c] = x * index(b) / h + k * K[(h,d),c]",
        "k[b,h,d] = x[b,c] * K[(h,d),c]\ny[b,c] = k * K[(h,d),c] + h * onehot[h](x[b,c]) * index(h)",
    ],
)
def test_sizes_that_equations_speak_of_are_the_caller_s_where_an_axis_gives_way(text: str) -> None:
    layer = tn.layer(text, inputs="x", h=2, d=3)
    graph = tn.model(lambda x: layer(layer(x, scope="a"), scope="b"), inputs="x[h,d]", d=4)
    assert tn.layer(str(graph)) == graph
    agrees(graph, 0)


def test_a_window_of_a_block_is_as_long_as_fits_where_its_caller_has_a_size_of_that_name() -> None:
    window = tn.layer("p: 2\ny[p] = sum[u](h[2*p+u])", inputs="h")
    inner = tn.model(lambda x: window(x, scope="in"), inputs="x[n]")
    read = tn.layer("q[p] = z[p] * sum[u](w[u])", inputs="z w")
    x = normal(9)
    for block in (window, inner):
        graph = tn.model(lambda x, w, block=block: read(block(x, scope="s"), w), inputs="x[n] w[u]", n=9, u=3)
        for each in (graph, graph.flat):
            assert tn.layer(str(each)) == each
            assert tn.Graph.from_json(each.to_json()) == each
            found = tn.compile(tn.layer(str(each)))({}, x, np.ones(3))
            np.testing.assert_allclose(found, [3 * x[:7].sum(), 3 * x[2:].sum()])


def test_a_window_that_descends_has_no_size_of_its_own_in_a_block() -> None:
    made = tn.layer("y[j,u] = sum[c](x[j,c]) * index(u) + u", inputs="x", u=2)
    turned = tn.layer("x[k,p]: input\ny[k,i] = x[k,p-1-i]")

    def forward(x: Any) -> Any:
        return turned(made(turned(turned(made(x, scope="a"), scope="b"), scope="c"), scope="d"), scope="e")

    graph, x = tn.model(forward, inputs="x[p,j]"), normal(3, 4)
    expected = tn.compile(graph.flat)({}, x)
    for each in (graph, graph.bind(j=4), graph.bind(p=3)):
        assert tn.layer(str(each)) == each
        np.testing.assert_allclose(tn.compile(tn.layer(str(each)))({}, x), expected)


def test_the_lines_of_a_graph_say_what_its_calls_compute() -> None:
    graph = CALLS["nested"].graph()
    assert graph.lines()[:2] == ["def one(x):", "    def block(x):"]
    assert "\n".join(graph.lines()) == str(graph).replace("x[b,i]: input\nv = one", "v = one")
    assert graph.body_lines() == ["v = one(x, scope='one')", "w = two(v, scope='two')"]


# ---------------------------------------------------------------------------- What depends on nothing that a call gives is computed once, wherever it is asked


AT, F = np.array([0, 2, 1, 1]), np.linspace(-1.0, 1.0, 20, dtype=np.float32).reshape(5, 4)

TABLES = tn.layer(
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


def close(found: torch.Tensor, module: torch.nn.Module, tolerance: float = 1e-5) -> None:
    """Holds what a module of `ATTENTION` gave against NumPy in float64."""
    wanted = by_numpy(TABLES, {"x": X, "v": V, "B": module.B.detach().double()})["y"]
    np.testing.assert_allclose(found.detach().double().numpy(), wanted, rtol=tolerance, atol=tolerance)


WRITTEN_TO = titled("overwritten.txt")


@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize("name", WRITTEN_TO)
def test_results_may_be_written_to(name: str, backend: str) -> None:
    """Later calls, and those of functions that are compiled later, do not see it."""
    lines = WRITTEN_TO[name].text
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
    plan = tn.plan(TABLES, backend=backend, b=3)
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
        np.testing.assert_allclose(f({}, x, w), by_numpy(OPEN, {"x": x, "w": w})["y"])
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


def under(context: Any) -> Any:
    def call(module: Any) -> Any:
        with context():
            return module(X, V)

    return call


def differentiated(module: Any) -> Any:
    parameters = dict(module.named_parameters())
    torch.func.grad(lambda p: torch.func.functional_call(module, p, (X, V)).sum())(parameters)
    return module(X, V)


def of_batched_state(module: Any) -> Any:
    parameters, buffers = torch.func.stack_module_state([module, copy.deepcopy(module)])
    run = torch.func.vmap(lambda p, b: torch.func.functional_call(module, (p, b), (X, V)))
    return run(parameters, buffers)[1]


FIRST = {
    "inference": under(torch.inference_mode),
    "autocast": under(lambda: torch.autocast("cpu", torch.bfloat16)),
    "gradient": differentiated,
    "vmap": lambda module: torch.func.vmap(lambda x, v: module(x[None], v[None])[0])(X, V),
    "batched state": of_batched_state,
    "compiled": lambda module: torch.compile(module, fullgraph=True, backend="eager", dynamic=True)(X, V),
}


@pytest.mark.parametrize("first", FIRST)
def test_tables_serve_wherever_they_were_asked_for_first(first: str) -> None:
    torch._dynamo.reset()
    executable._made.cache_clear()
    module = tn.module(TABLES, seed=0)
    close(FIRST[first](module), module, 3e-2 if first == "autocast" else 1e-5)
    found = module(X, V)
    close(found, module)
    found.sum().backward()
    assert module.B.grad.abs().sum() > 0


def test_tables_follow_the_module_and_are_no_state() -> None:
    module = tn.module(TABLES, seed=0)
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
    module = tn.module(TABLES, seed=0)
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
        np.testing.assert_allclose(call(x, w).numpy(), by_numpy(OPEN, {"x": x, "w": w})["y"], rtol=1e-6)


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
