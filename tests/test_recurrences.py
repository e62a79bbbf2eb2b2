"""Recurrences: read as papers print them, computed and differentiated as a plain loop does, planned as one block."""

from __future__ import annotations

import itertools
import time
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from scipy.interpolate import BSpline

import tensornet as tn
from tensornet.planning.steps import CallStep
from tensornet.protocol import load_backend
from tensornet.scan.associative_scan import doubled
from tensornet.scan.lowering import looped
from tensornet.sizes import evaluate

from . import reference
from .recurring import Recurrences, recurrences
from .test_backends import BACKENDS

CELL = """
f[b,t,o] = sigmoid(x[b,t,i] * Wf[o,i] + h[b,t-1,p] * Uf[o,p] + bf[o])
g[b,t,o] = tanh(x[b,t,i] * Wg[o,i] + h[b,t-1,p] * Ug[o,p] + bg[o])
c[b,-1,o] = c0[b,o]
c[b,t,o] = f * c[b,t-1,o] + (1 - f) * g
h[b,t,o] = f * tanh(c)
last[b,o] = h[b,-1,o]
"""

BACK = CELL.replace("t-1", "t+1").replace("c[b,-1,o]", "c[b,+1,o]").replace("h[b,-1,o]", "h[b,0,o]")

TEXTS = {
    "cell": (CELL, "x c0", {"i": 3, "o": 4}, {"b": 2, "t": 5}),
    "from the end": (BACK, "x c0", {"i": 3, "o": 4}, {"b": 2, "t": 5}),
    "elementwise": ("h[b,t,n] = a[b,t,n] * h[b,t-1,n] + u[b,t,n]", "a u", {}, {"b": 2, "t": 6, "n": 3}),
    "two positions away": (
        "h[b,-1] = s[b]\nh[b,-2] = 0.5\nh[b,t] = x[b,t] + 0.5 * h[b,t-1] - w * h[b,t-2]",
        "x s",
        {},
        {"b": 2, "t": 6},
    ),
    "a start that is computed": (
        "h[b,-1,o] = tanh(z[b,k] * V[o,k])\nh[b,t,o] = tanh(x[b,t,o] + h[b,t-1,p] * U[o,p])",
        "x z",
        {"o": 3, "k": 2},
        {"b": 2, "t": 4},
    ),
    "a start of fewer axes": (
        "h[b,-1,o] = s[o]\nh[b,t,o] = tanh(x[b,t,o] + h[b,t-1,p] * U[o,p])",
        "x",
        {"o": 3},
        {"b": 2, "t": 4},
    ),
    "weights of their own at each position": (
        "v[b,-1,r] = e[r]\nv[b,t,s] = v[b,t-1,r] * (A[t,r,p,s] * x[b,t,p])\ny[b] = v[b,-1,s] * w[s]",
        "x",
        {"t": 5, "r": 3, "p": 2},
        {"b": 2},
    ),
    "several readers, the axis called otherwise": (
        "z[b,s,o] = x[b,s,o] + h[b,s-1,p] * U[o,p]\nh[b,t,o] = tanh(z[b,t,o])\ny[b,u] = h[b,u-1,o] * z[b,u,o]",
        "x",
        {"o": 3},
        {"b": 2, "t": 4},
    ),
    "heads": (
        "s[b,t,h,d,e] = s[b,t-1,h,d,e] * w[h] + k[b,t,(h,d)] * v[b,t,(h,e)]\ny[b,t,(h,e)] = q[b,t,(h,d)] * s[b,t,h,d,e]",
        "q k v",
        {"h": 2, "d": 3, "e": 2},
        {"b": 2, "t": 4},
    ),
    "composites": (
        "s[b,t,(h,d)] = tanh(s[b,t-1,(h,e)] * U[h,d,e] + x[b,t,(h,d)])",
        "x",
        {"h": 2, "d": 3},
        {"b": 2, "t": 4},
    ),
    "what is made before the loop, in another order than it is made in": (
        "K[o1,o2,p1,p2] = C[p1,o1,r] * D[r,p2,o2]\nz[b,t,(o1,o2)] = h[b,t-1,(p1,p2)] * K[o1,o2,p1,p2]\n"
        "h[b,t,n] = tanh(x[b,t,n] + z[b,t,n])",
        "x",
        {"o1": 2, "o2": 3, "p1": 3, "p2": 2, "r": 2},
        {"b": 2, "t": 4},
    ),
    "what runs along the axis": (
        "h[b,t,o] = tanh(softmax[t](x[b,t,o]) + cumsum[t](x[b,t,o]) / (index(t) + 1) + w * h[b,t-1,o] / t)",
        "x",
        {},
        {"b": 2, "t": 4, "o": 3},
    ),
    "two after one another": (
        "h[b,t,o] = tanh(x[b,t,i] * W[o,i] + h[b,t-1,p] * U[o,p])\n"
        "k[b,t,o] = tanh(h[b,t,q] * V[o,q] + k[b,t+1,p] * Q[o,p])",
        "x",
        {"i": 2, "o": 3},
        {"b": 2, "t": 4},
    ),
    "shifts of what does not recur": (
        "y[b,t] = previous[t](x[b,t], s[b]) - following[t](x[b,t]) + previous[t](x[b,t], 2)",
        "x s",
        {},
        {"b": 2, "t": 4},
    ),
    "in parts, from a start": (
        "h[b,t,o] = tanh(x[b,t,i] * W[o,i] + h[b,t-1,(p,q)] * A[o,p,r] * B[r,q])\nh[b,-1,o] = s[b,o]",
        "x s",
        {"o": 6, "p": 2, "q": 3, "r": 2, "i": 3},
        {"b": 2, "t": 4},
    ),
    "from the end, in parts, from a start in others": (
        "h[b,t,(o,c)] = tanh(x[b,t,o,c] + h[b,t+2,(p,q)] * A[o,c,p,q] + h[b,t+1,0])\n"
        "h[b,+1,n] = s[b,n]\nh[b,+2,n] = 2 * s[b,n]",
        "x s",
        {"o": 2, "c": 3, "p": 3, "q": 2},
        {"b": 2, "t": 4, "n": 6},
    ),
}


EVERYWHERE = ("cell", "from the end", "two positions away", "what runs along the axis")
"""What is tried on all backends."""


def case(name: str) -> tuple[tn.Graph, dict[str, np.ndarray]]:
    """A graph, and numbers for its leaves."""
    text, inputs, sizes, open_sizes = TEXTS[name]
    outputs = ["h", "last"] if "last" in text else ()
    graph = tn.layer(text, inputs=inputs, outputs=outputs, **sizes)
    rng, known = np.random.default_rng(0), {**graph.bound, **open_sizes}
    shapes = {leaf.name: [int(evaluate(s, known)) for s in leaf.shape] for leaf in graph.leaves}
    return graph, {name: rng.standard_normal(shape) * 0.7 for name, shape in shapes.items()}


def compiled(graph: tn.Graph, backend: Any, arrays: dict[str, np.ndarray]) -> list[np.ndarray]:
    chosen = backend()
    given = {name: chosen.asarray(array, "float64") for name, array in arrays.items()}
    inputs = [given.pop(leaf.name) for leaf in graph.inputs]
    found = tn.compile(graph, backend=chosen)(given, *inputs)
    return [chosen.numpy(each) for each in (found if isinstance(found, tuple) else (found,))]


@pytest.mark.parametrize("name", TEXTS)
def test_what_is_computed(name: str) -> None:
    graph, arrays = case(name)
    expected = reference.run(graph, arrays, TEXTS[name][3])
    few = ("numpy", "torch") if name not in EVERYWHERE else BACKENDS
    for backend in map(BACKENDS.__getitem__, few):
        for found, output in zip(compiled(graph, backend, arrays), graph.outputs, strict=True):
            np.testing.assert_allclose(found, expected[output], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("left", ["h[b,t,o]", "h[b,t,(o,c)]"])
@pytest.mark.parametrize("start", ["n", "(n,m)", "(n,m,k)"])
@pytest.mark.parametrize("read", ["p", "(p,q)", "(p,q,v)"])
def test_a_state_is_read_in_any_parts(left: str, start: str, read: str) -> None:
    axes, parts = left[6:-1].strip("()"), read.strip("()")
    text = f"{left} = tanh({left.replace('h', 'x', 1)} + h[b,t-1,{read}] * U[{axes},{parts}])"
    apart = start.count(",") != read.count(",")  # or else its axes are those that the state is read with
    sizes = {"o": 12} if axes == "o" else {"o": 3, "c": 4}
    for first, *rest in (parts.split(","), *([start.strip("()").split(",")] if apart else [])):
        sizes |= {first: 12 // 2 ** len(rest), **dict.fromkeys(rest, 2)}
    graph = tn.layer(f"{text}\nh[b,-1,{start}] = s[b,{start}]", inputs="x s", **sizes)
    assert tn.layer(str(graph)) == graph
    rng = np.random.default_rng(0)
    x, s, U = rng.standard_normal((2, 5, 12)), rng.standard_normal((2, 12)), rng.standard_normal((12, 12))
    state, expected = s, []
    for t in range(5):
        state = np.tanh(x[:, t] + state @ U.T)
        expected.append(state)
    shape = next([int(evaluate(size, graph.bound)) for size in leaf.shape] for leaf in graph.parameters)
    found = tn.compile(graph)({"U": U.reshape(shape)}, x, s)
    np.testing.assert_allclose(found, np.stack(expected, 1), rtol=1e-12)


@settings(max_examples=15, deadline=None)
@given(recurrences(), st.sampled_from(["numpy", "torch"]))
def test_random_recurrences_are_loops(program: Recurrences, backend: str) -> None:
    graph = program.graph()
    assert tn.layer(str(graph)) == graph
    expected = program.expected()
    for found, output in zip(compiled(graph, BACKENDS[backend], program.arrays), graph.outputs, strict=True):
        np.testing.assert_allclose(found, expected[output], rtol=1e-10, atol=1e-11)


@settings(max_examples=5, deadline=None, phases=[Phase.generate])
@given(recurrences())
def test_gradients_of_random_recurrences_are_those_of_autograd(program: Recurrences) -> None:
    graph = program.graph().select("u")
    axes = ",".join(program.orders["u"])
    loss = tn.layer(f"l = sum[{axes}](sin(u[{axes}]))", inputs=f"u[{axes}]")
    arrays = {leaf.name: program.arrays[leaf.name] for leaf in graph.leaves}
    given = {name: torch.tensor(array, requires_grad=True) for name, array in arrays.items()}
    parameters, inputs = ([leaf.name for leaf in each] for each in (graph.parameters, graph.inputs))
    found = tn.compile(graph, backend="torch")({p: given[p] for p in parameters}, *(given[i] for i in inputs))
    torch.sin(found).sum().backward()
    step = tn.value_and_grad(graph, loss=loss, wrt=list(arrays))
    _, gradients = step({p: arrays[p] for p in parameters}, *(arrays[i] for i in inputs))
    for name, gradient in gradients.items():
        expected = torch.zeros_like(given[name]) if given[name].grad is None else given[name].grad
        np.testing.assert_allclose(gradient, expected.numpy(), rtol=1e-9, atol=1e-10)  # type: ignore[union-attr]


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_reads_again(name: str) -> None:
    graph, _ = case(name)
    assert tn.layer(str(graph)) == graph
    assert tn.Graph.from_json(graph.to_json()) == graph
    plan = tn.plan(graph, compare=False)
    assert tn.Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize("name", TEXTS)
def test_steps_are_printed_as_they_are_written(name: str) -> None:
    graph, _ = case(name)
    steps = ("previous", "following")
    assert any(step in str(graph) for step in steps) == (name == "shifts of what does not recur")
    back = tn.gradient(graph.select(graph.outputs[0]), wrt=[leaf.name for leaf in graph.leaves])
    assert tn.layer(str(back)).body == back.body


def test_starts_are_printed_where_all_readers_tell_the_same() -> None:
    graph, _ = case("two positions away")
    assert graph.lines()[:2] == ["h[b,-1] = s[b]", "h[b,-2] = 0.5"]
    assert graph.lines()[2] == "h[b,t] = x[b,t] + 0.5 * h[b,t-1] - w * h[b,t-2]"
    text = "h[b,t] = x[b,t] + previous[t](h[b,t], s[b]) * previous[t](h[b,t])"
    graph = tn.layer(text, inputs="x s")
    assert graph.lines() == [text]
    assert tn.layer(str(graph)) == graph


@pytest.mark.parametrize("name", TEXTS)
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    graph, arrays = case(name)
    output = graph.outputs[0]
    axes = ",".join(dim[0].name if len(dim) == 1 else f"d{n}" for n, dim in enumerate(graph.named[output]))
    loss = tn.layer(f"loss = sum[{axes}](sin({output}[{axes}]))", inputs=f"{output}[{axes}]")
    step = tn.value_and_grad(graph.select(output), loss=loss, wrt=list(arrays))

    def value(at: dict[str, np.ndarray]) -> float:
        return float(np.sin(reference.run(graph, at, TEXTS[name][3])[output]).sum())

    parameters = {leaf.name: arrays[leaf.name] for leaf in graph.parameters}
    found, gradients = step(parameters, *(arrays[leaf.name] for leaf in graph.inputs))
    assert float(found) == pytest.approx(value(arrays), rel=1e-12)
    rng = np.random.default_rng(1)
    for leaf, gradient in gradients.items():
        direction = rng.standard_normal(arrays[leaf].shape)
        around = [value({**arrays, leaf: arrays[leaf] + sign * 1e-5 * direction}) for sign in (1, -1)]
        slope = (around[0] - around[1]) / 2e-5
        assert float((gradient * direction).sum()) == pytest.approx(slope, rel=1e-6, abs=1e-7), leaf


@pytest.mark.parametrize("name", ["cell", "two positions away"])
def test_gradients_are_those_of_autograd(name: str) -> None:
    graph, arrays = case(name)
    output = graph.outputs[0]
    axes = ",".join(axis for dim in graph.named[output] for axis in (dim[0].name,))
    loss = tn.layer(f"loss = sum[{axes}](sin({output}[{axes}]))", inputs=f"{output}[{axes}]")
    given = {each: torch.tensor(array, requires_grad=True) for each, array in arrays.items()}
    inputs = [given[leaf.name] for leaf in graph.inputs]
    outcome = tn.compile(graph.select(output), backend="torch")(
        {p.name: given[p.name] for p in graph.parameters}, *inputs
    )
    torch.sin(outcome).sum().backward()
    for backend in ("numpy", "jax"):
        chosen = load_backend(backend)
        step = tn.value_and_grad(graph.select(output), loss=loss, wrt=list(arrays), backend=backend)
        parameters = {p.name: chosen.asarray(arrays[p.name]) for p in graph.parameters}
        _, gradients = step(parameters, *(chosen.asarray(arrays[leaf.name]) for leaf in graph.inputs))
        for leaf, gradient in gradients.items():
            expected = given[leaf].grad
            assert expected is not None
            np.testing.assert_allclose(chosen.numpy(gradient), expected.numpy(), rtol=1e-10, atol=1e-12)


def test_second_derivatives_are_those_of_finite_differences() -> None:
    text = "h[b,t,o] = tanh(x[b,t,o] + h[b,t-1,p] * U[o,p])\nl = sum[b,t,o](h[b,t,o] ** 2)"
    graph = tn.layer(text, inputs="x", outputs="l", o=3)
    outer = tn.layer("m = sum[o,p](sin(d[o,p]))", inputs="d[o,p]")
    rng = np.random.default_rng(0)
    weight, x, direction = (
        rng.standard_normal((3, 3)),
        rng.standard_normal((2, 4, 3)),
        rng.standard_normal((3, 3)),
    )
    first = tn.value_and_grad(graph)
    _, found = tn.value_and_grad(tn.gradient(graph, wrt="U"), loss=outer)({"U": weight}, x)
    around = [np.sin(first({"U": weight + s * 1e-5 * direction}, x)[1]["U"]).sum() for s in (1, -1)]
    slope = (around[0] - around[1]) / 2e-5
    assert float((found["U"] * direction).sum()) == pytest.approx(slope, rel=1e-7)


def test_weights_in_recurrences_are_substituted() -> None:
    graph = tn.layer("h[b,t,o] = tanh(x[b,t,o] + h[b,t-1,p] * U[o,p])", inputs="x", o=4)
    made = tn.substitute(graph, {"U": "U[o,p] = A[o,r] * B[r,p]"}, r=2)
    assert tn.parameter_count(made) == 16
    parameters, x = tn.init(made, dtype="float64"), np.random.default_rng(0).standard_normal((2, 5, 4))
    dense = {"U": parameters["U.A"] @ parameters["U.B"]}
    np.testing.assert_allclose(tn.compile(made)(parameters, x), tn.compile(graph)(dense, x), rtol=1e-12)


def test_what_does_not_recur_leaves_the_loop() -> None:
    graph, _ = case("cell")
    plan = tn.plan(graph, b=32, t=1024, compare=False)
    (call,) = (step for step in plan.steps if isinstance(step, CallStep))
    assert call.along is not None
    assert call.along.count == 1024
    inside = "\n".join(str(step.equation) for step in call.plan.steps)  # type: ignore[union-attr]
    assert "Wf" not in inside
    assert "Wg" not in inside
    assert "x" not in {name for step in call.plan.steps for name in step.reads}


def test_products_of_a_state_are_one() -> None:
    gates = (f"{g}[b,t,o] = sigmoid(x[b,t,o] + h[b,t-1,p] * U{g}[o,p])" for g in "fgirsuvw")
    text = "\n".join([*gates, "h[b,t,o] = f * g + i[b,t,o] * r + s * u + v * w"])
    plan = tn.plan(tn.layer(text, inputs="x", o=64), b=16, t=64, backend="torch", compare=False)
    (call,) = (step for step in plan.steps if isinstance(step, CallStep))
    assert sum(step.flops > 10**5 for step in call.plan.steps) == 1
    assert any("concat" in str(step.equation) for step in plan.steps if not isinstance(step, CallStep))


def test_a_thousand_steps_are_planned_as_one() -> None:
    graph, _ = case("cell")
    tn.plan(graph, b=32, t=10)
    before = time.process_time()
    plan = tn.plan(graph, b=32, t=1024)
    assert time.process_time() - before < 1.0
    assert len(plan.steps) < 12


def test_flops_are_those_of_all_positions() -> None:
    graph, _ = case("cell")
    per_position = 2 * 2 * (3 * 4 + 4 * 4)  # two gates
    assert tn.flop_count(graph, b=1, t=100) == pytest.approx(100 * (per_position + 3 * 2 * 4), rel=0.3)
    assert tn.flop_count(graph, b=1, t=200) == pytest.approx(2 * tn.flop_count(graph, b=1, t=100), rel=0.02)
    formula = tn.parameter_formula(tn.layer(CELL, inputs="x c0", outputs="h last"))
    assert str(formula) == "2*i*o + 2*o**2 + 2*o"


def test_no_positions() -> None:
    graph = tn.layer("h[b,t,o] = tanh(x[b,t,o] + h[b,t-1,p] * U[o,p])", inputs="x", o=4)
    arrays = {"x": np.zeros((2, 0, 4)), "U": np.zeros((4, 4))}
    for backend in BACKENDS.values():
        (found,) = compiled(graph, backend, arrays)
        assert found.shape == (2, 0, 4)


def test_counts_are_exact() -> None:
    graph = tn.layer("n[b,t] = n[b,t-1] + x[b,t]", inputs="x")
    x = np.arange(12).reshape(2, 6) * 2**40
    found = tn.compile(graph)({}, x)
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, x.cumsum(1))


def test_what_is_looped_is_a_graph() -> None:
    graph, _ = case("cell")
    (call,) = looped(graph).calls
    assert call.along is not None
    assert [leaf.kind for leaf in call.graph.leaves].count("constant") == 2


def test_compilers_take_the_loop() -> None:
    graph, arrays = case("cell")
    module = tn.module(graph.select("h"))
    x, c0 = (torch.tensor(arrays[each], dtype=torch.float32) for each in ("x", "c0"))
    compiled_module = torch.compile(module, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled_module(x, c0), module(x, c0))


@pytest.mark.parametrize("ahead", [False, True])
def test_recurrences_along_two_axes(ahead: bool) -> None:
    """Each position is made of the one above and the one to the left, or to the right."""
    step = "+1" if ahead else "-1"
    text = f"h[i,b,j,o] = tanh(x[b,i,j,o] + h[i-1,b,j,p] * U[o,p] + h[i,b,j{step},p] * V[o,p])"
    starts = f"h[-1,b,j,o] = s[b,j,o]\nh[i,b,{step},o] = r[i,o]"
    graph = tn.layer(f"{starts}\n{text}", inputs="x s r", o=3)
    assert tn.layer(str(graph)) == graph
    assert text in str(graph)
    shapes = {"x": (2, 4, 5, 3), "s": (2, 5, 3), "r": (4, 3), "U": (3, 3), "V": (3, 3)}
    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal(shape) * 0.5 for name, shape in shapes.items()}
    t = {name: torch.tensor(array, requires_grad=True) for name, array in arrays.items()}
    made: dict[tuple[int, int], torch.Tensor] = {}
    for i in range(4):
        for j in range(4, -1, -1) if ahead else range(5):
            above = made[i - 1, j] if i else t["s"][:, j]
            beside = made.get((i, j + 1 if ahead else j - 1), t["r"][i].expand(2, 3))
            made[i, j] = torch.tanh(t["x"][:, i, j] + above @ t["U"].T + beside @ t["V"].T)
    expected = torch.stack([torch.stack([made[i, j] for j in range(5)], 1) for i in range(4)])
    for backend in ("numpy", "torch"):
        (found,) = compiled(graph, BACKENDS[backend], arrays)
        np.testing.assert_allclose(found, expected.detach().numpy(), rtol=1e-12, atol=1e-13)
    torch.sin(expected).sum().backward()
    loss = tn.layer("l = sum[i,b,j,o](sin(h[i,b,j,o]))", inputs="h[i,b,j,o]")
    given = [arrays[leaf.name] for leaf in graph.inputs]
    step_back = tn.value_and_grad(graph, loss=loss, wrt=list(arrays))
    _, gradients = step_back({name: arrays[name] for name in "UV"}, *given)
    for name, gradient in gradients.items():
        grad = t[name].grad
        assert grad is not None
        np.testing.assert_allclose(gradient, grad.numpy(), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("starts", [(), ("D[-1,j] = s[j]",), ("D[-1,j] = s[j]", "D[i,-1] = 2*r[i]")])
def test_a_recurrence_reads_along_the_diagonal(starts: tuple[str, ...]) -> None:
    """Dynamic time warping (Sakoe and Chiba 1978): outside of what is told it is 0."""
    line = "D[i,j] = c[i,j] + minimum(minimum(D[i-1,j], D[i,j-1]), D[i-1,j-1])"
    inputs = "c" + " s[j]" * (len(starts) > 0) + " r[i]" * (len(starts) > 1)
    graph = tn.layer("\n".join([*starts, line]), inputs=inputs)
    assert tn.layer(str(graph)) == graph
    rng = np.random.default_rng(0)
    arrays = {name: rng.uniform(-1, 1, shape) for name, shape in (("c", (4, 5)), ("s", 5), ("r", 4))}
    D = np.zeros((5, 6))
    D[0, 1:] = arrays["s"] if starts else 0
    D[1:, 0] = 2 * arrays["r"] if starts[1:] else 0
    for i, j in itertools.product(range(4), range(5)):
        D[i + 1, j + 1] = arrays["c"][i, j] + min(D[i, j + 1], D[i + 1, j], D[i, j])
    for backend in ("numpy", "torch"):
        (found,) = compiled(graph, BACKENDS[backend], {leaf.name: arrays[leaf.name] for leaf in graph.leaves})
        np.testing.assert_allclose(found, D[1:, 1:], rtol=1e-12)


def test_b_splines_are_a_recurrence_over_orders() -> None:
    """De Boor (1972): each order is made of two neighbours of the one below, and reads knots that fit."""
    graph = tn.layer(
        """
        B[-1,i,e] = (t[i+0] <= x[e]) * (x[e] < t[i+1])
        B[k,i,e] = (x[e] - t[i+0]) / (t[i+k+1] - t[i+0]) * B[k-1,i,e]
                 + (t[i+k+2] - x[e]) / (t[i+k+2] - t[i+1]) * B[k-1,i+1,e]
        """.replace("\n                 +", " +"),
        inputs="t[s] x[e]",
        k=3,
        i=7,
        s=12,
        e=6,
    )
    knots, x = np.array([0, 1, 2.5, 3, 4, 5, 7, 8]), np.linspace(3.1, 4.9, 6)
    found = tn.compile(graph)({}, np.concatenate([knots, 9 + np.arange(4)]), x)
    for k in (1, 2, 3):
        for i in range(7 - k):  # those of the knots, of which the others are made up
            basis = BSpline.basis_element(knots[i : i + k + 2], extrapolate=False)(x)
            np.testing.assert_allclose(found[k - 1, i], np.nan_to_num(basis), atol=1e-12)


# ---------------------------------------------------------------------------- starts, and states that others read

READERS = {
    "ahead": ("k[t] = 0.3*k[t+1]*w + tanh(h[a,t+1]*U[a]*v[a])", 1, lambda h, k, t: h(t + 1)),
    "here": ("k[t] = 0.3*k[t+1]*w + tanh(h[a,t]*U[a]*v[a])", 1, lambda h, k, t: h(t)),
    "two ahead": ("k[t] = 0.3*k[t+1]*w + tanh(h[a,t+2]*U[a]*v[a])", 2, lambda h, k, t: h(t + 2)),
}


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("name", READERS)
def test_a_recurrence_reads_the_state_of_another(name: str, back: bool) -> None:
    """Under another axis than the state starts in: a start is that of the state, whoever reads it."""
    reader, far, read = READERS[name]
    lines = ["z[e:8,f:1]: input", "h[j,t] = sin(tanh(sigmoid(h[c,t+1]) * z[c + j + 2,0]) + U[j])"]
    lines += [f"h[j,+{n}] = {n}*z[j + 3 + {n},-1]" for n in range(1, far + 1)] + [reader]
    text = "\n".join(lines)
    text = text.replace("t+", "t-").replace("+1]", "-1]").replace("+2]", "-2]") if back else text
    graph = tn.layer(text, outputs=["h", "k"], j=2, c=2, a=2, t=3)
    rng = np.random.default_rng(0)
    z, U, v, w = rng.uniform(-1, 1, (8, 1)), *rng.uniform(-1, 1, (2, 2)), rng.uniform(-1, 1, ())
    h = {2 + n: n * z[3 + n : 5 + n, -1] for n in range(1, far + 1)}
    k = {3: 0.0}
    for t in (2, 1, 0):
        gate = 1 / (1 + np.exp(-h[t + 1]))
        h[t] = np.sin(np.tanh([sum(gate[c] * z[c + j + 2, 0] for c in range(2)) for j in range(2)]) + U)
        k[t] = 0.3 * k[t + 1] * w + np.tanh((read(h.__getitem__, k, t) * U * v).sum())
    order = [*range(3)][:: -1 if back else 1]
    expected = np.stack([h[t] for t in order], 1), np.stack([k[t] for t in order])
    for backend in ("numpy", "torch"):
        found = compiled(graph, BACKENDS[backend], {"z": z, "U": U, "v": v, "w": w})
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-12)


@pytest.mark.parametrize(
    ("start", "value"),
    [
        ("z[b,o+3]", lambda z, s: z[:, 3:6]),
        ("z[b,2*o+1]", lambda z, s: z[:, 1:6:2]),
        ("0.5*s", lambda z, s: 0.5 * s),
        ("1/o", lambda z, s: np.full((2, 3), 1 / 3)),
        ("index(o) + 0.5*index(b)", lambda z, s: np.arange(3) + 0.5 * np.arange(2)[:, None]),
        ("sum[q](s[b,q])*v[o]", lambda z, s: s.sum(1)[:, None] * np.arange(3)),
        ("sum[p](s[b,p])*v[o]", lambda z, s: s.sum(1)[:, None] * np.arange(3)),
        ("previous[o](s[b,o], 2)", lambda z, s: np.stack([np.full(2, 2), s[:, 0], s[:, 1]], 1)),
        ("following[o](s[b,o])", lambda z, s: np.stack([s[:, 1], s[:, 2], np.zeros(2)], 1)),
        ("s[b,(o+1)%3]", lambda z, s: s[:, [1, 2, 0]]),
    ],
)
def test_what_a_start_may_say(start: str, value: Any) -> None:
    text = f"h[b,-1,o] = {start}\nh[b,t,o] = tanh(x[b,t,o] + h[b,t-1,p] * U[o,p])"
    inputs = ["x[b,t,o]", *(f"{each}[b,{'e' if each == 'z' else 'o'}]" for each in "zs" if each in start)]
    graph = tn.layer(text, inputs=inputs, b=2, o=3, p=3, t=4, **({"e": 8} if "z" in start else {}))
    assert tn.layer(str(graph)) == graph
    rng = np.random.default_rng(0)
    shapes = {"x": (2, 4, 3), "z": (2, 8), "s": (2, 3), "U": (3, 3)}
    arrays = {name: rng.uniform(-1, 1, shape) for name, shape in shapes.items()} | {"v": np.arange(3.0)}
    state, expected = value(arrays["z"], arrays["s"]), []
    for t in range(4):
        state = np.tanh(arrays["x"][:, t] + state @ arrays["U"].T)
        expected.append(state)
    for backend in ("numpy", "torch"):
        (found,) = compiled(graph, BACKENDS[backend], {leaf.name: arrays[leaf.name] for leaf in graph.leaves})
        np.testing.assert_allclose(found, np.stack(expected, 1), rtol=1e-12)


def test_what_a_start_sums_is_no_axis_of_its_readers() -> None:
    graph = tn.layer("h[b,-1] = s[b,q] * v[q]\nh[b,t] = h[b,t-1] * x[b,t,q] * w[q]", inputs="x s")
    rng = np.random.default_rng(0)
    x, s, v, w = (rng.uniform(-1, 1, shape) for shape in ((2, 3, 4), (2, 4), 4, 4))
    (found,) = compiled(graph, BACKENDS["numpy"], {"x": x, "s": s, "v": v, "w": w})
    np.testing.assert_allclose(found, (s @ v)[:, None] * (x @ w).cumprod(1), rtol=1e-12)


@pytest.mark.parametrize("new", [False, True])
def test_a_given_size_holds_for_the_window_of_a_start(new: bool) -> None:
    """Beside a parameter that the line is the first to read, too."""
    factor = " * w[j]" if new else ""
    graph = tn.layer(f"h[j,-1] = z[j+4]{factor}\nh[j,t] = 0.5 * h[j,t-1] + V[j,t]", inputs="z[e:8]", j=2, t=2)
    z, V, w = np.arange(8.0), np.arange(4.0).reshape(2, 2), np.array([2.0, 3.0])
    first = 0.5 * z[4:6] * (w if new else 1) + V[:, 0]
    found = tn.compile(graph)({"V": V, **({"w": w} if new else {})}, z)
    np.testing.assert_allclose(found, np.stack([first, 0.5 * first + V[:, 1]], 1), rtol=1e-12)


@pytest.mark.parametrize(
    ("read", "inputs", "sizes", "value"),
    [
        ("h[f,t-1] * W[f,g[k]]", "x[k,t] g[k]", {}, lambda h, W, g, t: h @ W[:, g]),
        ("h[g[k],t-1]", "x[k,t] g[k]", {}, lambda h, W, g, t: h[g]),
        ("h[(k+1)%3,t-1]", "x[k,t]", {}, lambda h, W, g, t: h[[1, 2, 0]]),
        ("h[k,t-1] * W[t,g[k]]", "x[k,t] g[k]", {}, lambda h, W, g, t: h * W[t, g]),
        ("h[k,t-1] * W[k,g[t]]", "x[k,t] g[t]", {}, lambda h, W, g, t: h * W[:, g[t]]),
        ("h[j+d,t-1] * V[k,j]", "x[k,t]", {"j": 2, "d": 1}, lambda h, W, g, t: W[:, :2] @ h[1:]),
    ],
)
def test_what_goes_round_looks_up_and_is_looked_up(
    read: str, inputs: str, sizes: dict[str, int], value: Any
) -> None:
    declared = "W[m:3,n:3]: parameter\n" if "W[" in read else ""
    text = f"{declared}h[k,t] = tanh({read} + x[k,t])"
    graph = tn.layer(text, inputs=inputs, k=3, t=3, **sizes)
    rng, g, h, expected = np.random.default_rng(0), np.array([2, 0, 1]), np.zeros(3), []
    x, W = rng.uniform(-1, 1, (2, 3, 3))
    for t in range(3):
        h = np.tanh(value(h, W, g, t) + x[:, t])
        expected.append(h)
    given = {leaf.name: {"x": x, "g": g, "W": W, "V": W[:, :2]}[leaf.name] for leaf in graph.leaves}
    for backend in ("numpy", "torch"):
        chosen = BACKENDS[backend]()
        arrays = {
            name: chosen.asarray(each, None if name == "g" else "float64") for name, each in given.items()
        }
        found = tn.compile(graph, backend=chosen)(arrays, *(arrays.pop(leaf.name) for leaf in graph.inputs))
        np.testing.assert_allclose(chosen.numpy(found), np.stack(expected, 1), rtol=1e-12)


DIAGONALS = {
    "h[t,t-1]": lambda h, g, t: h[t],
    "h[(t+1)%3,t-1]": lambda h, g, t: h[(t + 1) % 3],
    "h[g[t],t-1]": lambda h, g, t: h[g[t]],
    "h[j+0,t-1] * W[k,j]": lambda h, g, t: WEIGHT @ h[:2],
    "h[3*m+0,t-1]": lambda h, g, t: h[0],
    "h[j//2,t-1] * h[j//2,t-1]": lambda h, g, t: h[0] ** 2 + h[0] ** 2,
}
WEIGHT = np.array([[0.5, -1.0], [1.0, 0.3], [0.2, 0.7]])


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("read", DIAGONALS)
def test_a_step_moves_the_state_and_not_what_tells_its_other_positions(
    read: str, inside: bool, started: bool
) -> None:
    if "k" in read and not inside:
        read = read.replace("W[k,j]", "W[0,j]")
    lines = ["W[w:3,e:2]: input"] if "W" in read else []
    summed = f"sum[{'j' if 'j' in read else 'm'}]({read})" if "j" in read or "m" in read else read
    own = summed if inside else "h[k,t-1]"
    lines += ["h[k,-1] = s[k]"] if started else []
    lines += [f"h[k,t] = tanh({own} + x[k,t])", f"y[t] = {summed.replace('W[k', 'W[0')}"]
    sizes = {name: size for name, size in {"j": 2, "m": 1}.items() if name in read}
    inputs = ["x[k,t]", *(["s[k]"] if started else []), *(["g[t]"] if "g[" in read else [])]
    graph = tn.layer("\n".join(lines), inputs=inputs, outputs=["h", "y"], k=3, t=3, **sizes)
    assert tn.layer(str(graph)) == graph
    rng, g = np.random.default_rng(0), np.array([2, 0, 1])
    arrays: dict[str, Any] = {"x": rng.uniform(-1, 1, (3, 3)), "s": rng.uniform(-1, 1, 3)}

    def expected(x: np.ndarray, s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        state, states, found = s if started else np.zeros(3), [], []
        for t in range(3):
            value = DIAGONALS[read.replace("W[0", "W[k")](state, g, t)
            found.append(value[0] if np.ndim(value) else value)
            state = np.tanh((value if inside else state) + x[:, t])
            states.append(state)
        return np.stack(states, 1), np.array(found)

    given = [{**arrays, "g": g, "W": WEIGHT}[leaf.name] for leaf in graph.inputs]
    for ours, theirs in zip(tn.compile(graph)({}, *given), expected(**arrays), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)
    loss = tn.layer("l = sum[k,t](sin(h[k,t])) + sum[t](y[t] ** 2)", inputs="h[k,t] y[t]")
    _, gradients = tn.value_and_grad(graph, loss=loss, wrt="x")({}, *given)
    direction = rng.uniform(-1, 1, (3, 3))
    around = [expected(arrays["x"] + far * direction, arrays["s"]) for far in (1e-6, -1e-6)]
    up, down = (np.sin(h).sum() + (y**2).sum() for h, y in around)
    assert float((gradients["x"] * direction).sum()) == pytest.approx((up - down) / 2e-6, rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("line", ["k[t] = tanh(k[t-1] + c[j,t-1] * w[j])", "k[t] = tanh(c[j,t-1] * w[j])"])
def test_gradients_go_to_what_stands_below_its_readers(line: str) -> None:
    """Of as many positions as channels, so that no size tells one from the other."""
    graph = tn.layer(f"{line}\nc[j,t] = sin(x[t,j])\nl = sum[t](k[t] * r[t])", inputs="x r w")
    rng = np.random.default_rng(0)
    x, r, w = rng.uniform(-1, 1, (3, 3)), rng.uniform(-1, 1, 3), rng.uniform(-1, 1, 3)
    given = torch.tensor(x, requires_grad=True)
    state, total = torch.zeros((2,), dtype=torch.float64)
    for t in range(3):
        before = torch.sin(given[t - 1]) if t else torch.zeros(3, dtype=torch.float64)
        state = torch.tanh((state if "k[t-1]" in line else 0) + before @ torch.tensor(w))
        total = total + state * r[t]
    total.backward()
    assert given.grad is not None
    arrays = {"x": x, "r": r, "w": w}
    _, found = tn.value_and_grad(graph, wrt="x")({}, *(arrays[leaf.name] for leaf in graph.inputs))
    np.testing.assert_allclose(found["x"], given.grad.numpy(), rtol=1e-9, atol=1e-12)


def test_a_recurrence_of_nothing_that_comes_in_is_done_once() -> None:
    graph = tn.layer("F[-1] = 1\nF[n] = F[n-1] + F[n-2]\ny[n] = F[n] * x[n]", inputs="x", n=6)
    np.testing.assert_allclose(tn.compile(graph)({}, np.ones(6)), [1, 2, 3, 5, 8, 13])


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_positions_in_a_recurrence_are_looked_at(backend: str) -> None:
    chosen = BACKENDS[backend]()
    graph = tn.layer("h[k,t] = tanh(h[2*k//1,t-1] + x[k,t])", inputs="x", k=3, t=3)
    with pytest.raises(tn.ShapeError, match="holds the position 4, where there are 3"):
        tn.compile(graph, backend=chosen)({}, chosen.asarray(np.ones((3, 3)), "float64"))


@pytest.mark.parametrize("scope", ["", "cell"])
def test_a_size_that_nothing_but_its_name_tells_is_kept_in_models(scope: str) -> None:
    text = "h[b,-1,o] = s[b,o]\nh[b,t,o] = tanh(h[b,t-1,p] * U[o,p])\ny[b,o] = h[b,-1,o]"
    short, long = (tn.layer(text, inputs="s", t=t) for t in (2, 3))
    s, U = np.array([[0.3, -0.2]]), np.array([[0.5, 1.0], [-1.0, 0.2]])
    twice = tn.model(lambda s: short(long(s, scope=scope), scope=scope), inputs="s[t,u]")
    expected = s
    for _ in range(5):
        expected = np.tanh(expected @ U.T)
    parameters = {leaf.name: U for leaf in twice.parameters}
    np.testing.assert_allclose(tn.compile(twice)(parameters, s), expected, rtol=1e-12)
    loss = tn.layer("l = sum[b,o](y[b,o] ** 2)", inputs="y[b,o]")
    value, _ = tn.value_and_grad(long, loss=loss)({"U": U}, s)
    three = np.tanh(np.tanh(np.tanh(s @ U.T) @ U.T) @ U.T)
    assert float(value) == pytest.approx((three**2).sum(), rel=1e-12)


# ---------------------------------------------------------------------------- running sums and products


@pytest.mark.parametrize(("zeros", "back"), [*itertools.product((0, 1, 2), (0, 1))])
def test_the_derivative_of_running_products_is_right_with_zeros(zeros: int, back: int) -> None:
    graph = tn.layer(f"y[b,i] = cumprod[i](x[b,i], back={back})", inputs="x[b,i]")
    loss = tn.layer("l = sum[b,i](w[b,i] * y[b,i])", inputs="y[b,i] w[b,i]")
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((3, 6)), rng.standard_normal((3, 6))
    x[:, [1, 4][:zeros]] = 0
    _, found = tn.value_and_grad(graph, loss=loss, wrt="x")({}, x, w)
    given = torch.tensor(x, requires_grad=True)
    made = given.flip(1).cumprod(1).flip(1) if back else given.cumprod(1)
    (made * torch.tensor(w)).sum().backward()
    assert given.grad is not None
    np.testing.assert_allclose(found["x"], given.grad.numpy(), rtol=1e-12, atol=1e-13)


def test_a_linear_recurrence_of_nothing_along_the_axis_is_as_long_as_it() -> None:
    text = "h[b,-1,o] = s[b,o]\nh[b,t,o] = 0.5 * h[b,t-1,o] * g[o]\ny[b,t,o] = h[b,t,o] + x[b,t,o]"
    for each in (text, text.replace("h[b,-1,o] = s[b,o]\n", "").replace("* g[o]", "+ g[o]")):
        graph = tn.layer(each, inputs="x s" if "s[b" in each else "x", o=3)
        arrays = {"x": np.zeros((2, 5, 3)), "s": np.ones((2, 3)), "g": np.arange(1.0, 4.0)}
        (found,) = compiled(graph, BACKENDS["numpy"], {leaf.name: arrays[leaf.name] for leaf in graph.leaves})
        h, expected = arrays["s"] if "s[b" in each else np.zeros((2, 3)), []
        for _ in range(5):
            h = 0.5 * h * arrays["g"] if "s[b" in each else 0.5 * h + arrays["g"]
            expected.append(h)
        np.testing.assert_allclose(found, np.stack(expected, 1), rtol=1e-12)


# ---------------------------------------------------------------------------- without a loop, and with less memory

LINEAR = {
    "from zero": "h[b,t,n] = a[b,t,n] * h[b,t-1,n] + u[b,t,n]",
    "from a start": "h[b,-1,n] = s[b,n]\nh[b,t,n] = a[b,t,n] * h[b,t-1,n] + u[b,t,n]",
    "a sum": "h[b,-1,n] = s[b,n]\nh[b,t,n] = h[b,t-1,n] + u[b,t,n] * a[b,t,n]",
    "from the end": "h[b,+1,n] = s[b,n]\nh[b,t,n] = u[b,t,n] - a[b,t,n] * h[b,t+1,n]",
    "a product": "h[b,+1,n] = s[b,n]\nh[b,t,n] = a[b,t,n] * h[b,t+1,n]",
    "in several lines": "k[b,t,n] = a[b,t,n] * h[b,t-1,n]\nh[b,t,n] = (k[b,t,n] + u[b,t,n]) * 0.5\ny[b,t] = h[b,t,n]*h[b,t,n]",
}


@pytest.mark.parametrize("name", LINEAR)
def test_linear_recurrences_need_no_loop(name: str) -> None:
    text = LINEAR[name]
    inputs = [
        each
        for each in ("a[b,t,n]", "u[b,t,n]", "s[b,n]")
        if each[:2] in text.replace("s[b,n]\n", "s[b,n] s[")
    ]
    graph = tn.layer(text, inputs=inputs)
    without = doubled(graph, lambda positions, others: True)
    assert graph.recurrences
    assert not without.recurrences
    assert doubled(graph, lambda positions, others: False) is graph
    rng, sizes = np.random.default_rng(0), {"b": 2, "t": 9, "n": 3}
    arrays = {
        leaf.name: rng.standard_normal([sizes[str(size)] for size in leaf.shape]) for leaf in graph.leaves
    }
    expected, found = (reference.run(each, arrays, sizes) for each in (graph, without))
    output = graph.outputs[0]
    np.testing.assert_allclose(found[output], expected[output], rtol=1e-12, atol=1e-13)


def test_many_short_positions_are_doubled_and_few_long_ones_looped() -> None:
    graph = tn.layer("h[b,t,n] = a[b,t,n] * h[b,t-1,n] + u[b,t,n]", inputs="a u")
    for sizes, loops in (({"b": 1, "t": 4096, "n": 4}, 0), ({"b": 64, "t": 64, "n": 4096}, 1)):
        plan = tn.plan(graph, compare=False, **sizes)
        assert sum(isinstance(step, CallStep) for step in plan.steps) == loops


def test_large_states_are_not_put_together() -> None:
    graph = tn.models.linear_attention(64, 2)
    small, large = (tn.plan(graph, b=4, t=t, compare=False).peak_memory for t in (256, 2048))
    assert large < 12 * small
    state = 4 * 2048 * 64 * 32 * 4
    assert large < state
    parameters, x = tn.init(graph), np.random.default_rng(0).standard_normal((1, 2048, 64)).astype(np.float32)
    found = tn.compile(graph)(parameters, x)
    loops = looped(graph, lambda sizes: True)
    (call,) = (each for each in loops.calls if "S" in each.graph.outputs)
    assert call.results == ("o.along",)
    np.testing.assert_allclose(found[:, :9], tn.compile(graph)(parameters, x[:, :9]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("factor", ["", "2 * "])
def test_a_tensor_a_position_before_loses_axes_alone(factor: str) -> None:
    text = f"""
        h[a,t] = 0.5 * h[a,t-1] + x[a,t]
        h[a,-1] = s[a]
        g[t] = 0.3 * g[t+1] + {factor}h[a,t-1]
    """
    rng = np.random.default_rng(0)
    x, s = rng.random((2, 3)), rng.random(2)
    h, g = np.zeros((2, 4)), np.zeros(4)
    h[:, 0] = s
    for t in range(3):
        h[:, t + 1] = 0.5 * h[:, t] + x[:, t]
    for t in reversed(range(3)):
        g[t] = 0.3 * g[t + 1] + (2 if factor else 1) * h[:, t].sum()
    graph = tn.layer(text, inputs="x, s")
    np.testing.assert_allclose(tn.compile(graph)({}, x, s), g[:3])
    assert tn.layer(str(graph)) == graph
    with pytest.raises(tn.EquationError, match="axis 'a' is not on the left"):
        tn.layer("y[t] = previous[t](x[a,t])", inputs="x")


@pytest.mark.parametrize("start", ["", "h[-1,k] = s[k]", "h[-1,k] = tanh(s[k])"])
@pytest.mark.parametrize("sizes", [{}, {"t": 4, "k": 3, "j": 2}])
def test_a_state_is_read_in_windows_under_other_axes_and_a_step_away_under_its_own(
    start: str, sizes: dict[str, int]
) -> None:
    text = f"""
        {start}
        h[t,k] = h[t-1,j+1] * W[k,j] + x[t,k]
        y[t] = h[t,j+1] * V[t,j] + 0.1 * h[t-1,j+1] * V[t,j]
        z[t,k] = y[t] * h[t,k+1]
    """
    rng = np.random.default_rng(0)
    x, s, w, v = (rng.random(shape) for shape in ((4, 3), 3, (3, 2), (4, 2)))
    h, z = np.zeros((5, 4)), np.zeros((4, 3))
    h[0, :3] = 0 if not start else np.tanh(s) if "tanh" in start else s
    for t in range(4):
        for k in range(3):
            h[t + 1, k] = sum(h[t, j + 1] * w[k, j] for j in range(2)) + x[t, k]
        y = sum((h[t + 1, j + 1] + 0.1 * h[t, j + 1]) * v[t, j] for j in range(2))
        z[t] = [y * h[t + 1, k + 1] for k in range(3)]
    graph = tn.layer(text, inputs="x, s" if start else "x", **sizes)
    given = (x, s) if start else (x,)
    np.testing.assert_allclose(tn.compile(graph)({"W": w, "V": v}, *given), z)
    assert tn.layer(str(graph)) == graph


def test_a_state_is_read_at_a_position_that_a_size_tells() -> None:
    text = """
        h[a,-1] = 1
        h[a,t] = 0.5 * h[d+1,t-1] + h[d-1,t-1] * x[a,t]
    """
    graph = tn.layer(text, inputs="x", a=6, d=3)
    x, h = np.random.default_rng(0).random((6, 4)), np.ones((6, 5))
    for t in range(4):
        h[:, t + 1] = 0.5 * h[4, t] + h[2, t] * x[:, t]
    np.testing.assert_allclose(tn.compile(graph)({}, x), h[:, 1:])
    assert tn.layer(str(graph)) == graph


@pytest.mark.parametrize("inputs", ["x", "x[e:5,f:1]", "x[e:6,f:1]"])
def test_a_window_that_a_state_starts_from_may_end_before_what_it_reads(inputs: str) -> None:
    text = """
        h[j,t] = sin(tanh(sigmoid(h[c,t+1]) * x[c + j + 2,0]) + U[j])
        h[j,+1] = x[j + 3,-1]
        g[t] = 0.3 * g[t+1] * tanh(U[-1]) + tanh(h[a,t+1] * V[a])
    """
    rng = np.random.default_rng(0)
    x, u, v = rng.random((6 if "6" in inputs else 5, 1)), rng.random(2), rng.random(2)
    h, g = np.zeros((2, 3)), np.zeros(3)
    h[:, 2] = x[3:5, -1]
    for t in (1, 0):
        for j in range(2):
            h[j, t] = np.sin(
                np.tanh(sum(x[c + j + 2, 0] / (1 + np.exp(-h[c, t + 1])) for c in range(2))) + u[j]
            )
        g[t] = 0.3 * g[t + 1] * np.tanh(u[-1]) + np.tanh(h[:, t + 1] @ v)
    graph = tn.layer(text, inputs=inputs, j=2, c=2, a=2, t=2)
    np.testing.assert_allclose(tn.compile(graph)({"U": u, "V": v}, x), g[:2])


def test_a_declared_size_keeps_its_name_where_a_diagonal_is_read() -> None:
    graph = tn.layer("h[i,t] = 0.5 * h[i,t-1] + x[i,t]\ny[i] = h[i,i+1]", inputs="x")
    assert "x[i,t:i]: input" in str(graph)
    assert tn.layer(str(graph)) == graph
