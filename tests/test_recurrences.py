"""Recurrences: read as papers print them, computed and differentiated as a plain loop does, planned as one block."""

from __future__ import annotations

import functools
import itertools
import math
import time
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

import tensornet as tn
from tensornet.backends import loops as shared
from tensornet.models.recurrent import LETTERS
from tensornet.planning.plans import CallStep
from tensornet.protocol import load_backend
from tensornet.scan.kernels import select_associative_scan, select_parallel_form
from tensornet.scan.lowering import lower_recurrences

from . import oracle
from .conftest import normal, parameters_of, sampled
from .differential import by_numpy, drawn
from .programs import titled
from .test_gradients import check

# ---------------------------------------------------------------------------- Recurrences


CELL = """
f[b,t,o] = sigmoid(x[b,t,i] * Wf[o,i] + h[b,t-1,p] * Uf[o,p] + bf[o])
g[b,t,o] = tanh(x[b,t,i] * Wg[o,i] + h[b,t-1,p] * Ug[o,p] + bg[o])
c[b,-1,o] = c0[b,o]
c[b,t,o] = f * c[b,t-1,o] + (1 - f) * g
h[b,t,o] = f * tanh(c)
last[b,o] = h[b,-1,o]
"""


def cell() -> tuple[tn.Graph, dict[str, np.ndarray]]:
    """The cell, and numbers for its leaves."""
    graph = tn.layer(CELL, inputs="x c0", outputs=["h", "last"], i=3, o=4)
    return graph, drawn(graph, 0.7, b=2, t=5)


MULTIPLICATIVE = "h[b,t,o] = tanh(x[b,t,i] * Wf[r,i] * h[b,t-1,p] * U[p,r] * Wg[o,r] + h[b,t-1,p] * V[o,p])"


@pytest.mark.parametrize(
    ("graph", "outside"),
    [(cell()[0], ("x", "Wf", "Wg")), (tn.layer(MULTIPLICATIVE, inputs="x", i=8, r=6, o=7), ("x", "Wf"))],
)
def test_what_does_not_recur_leaves_the_loop(graph: tn.Graph, outside: tuple[str, ...]) -> None:
    plan = tn.plan(graph, b=32, t=1024, compare=False)
    (call,) = (step for step in plan.steps if isinstance(step, CallStep))
    assert call.along.count == 1024
    inside = {name for step in call.plan.steps for name in (*step.equation.operands, *step.reads)}
    assert inside.isdisjoint(outside)
    small = {"b": 2, "t": 4, **({"p": 7} if "V" in graph.named else {})}
    arrays = drawn(graph, **small)
    expected = oracle.meaning(graph, arrays, small)["h"]
    found = by_numpy(lower_recurrences(graph), arrays)["h"]
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_a_thousand_steps_are_planned_as_one() -> None:
    graph, _ = cell()
    tn.plan(graph, b=32, t=10)
    before = time.process_time()
    plan = tn.plan(graph, b=32, t=1024)
    assert time.process_time() - before < 1.0
    assert len(plan.steps) < 12


def test_flops_are_those_of_all_positions() -> None:
    graph, _ = cell()
    per_position = 2 * 2 * (3 * 4 + 4 * 4)  # two gates
    assert tn.flop_count(graph, b=1, t=100) == pytest.approx(100 * (per_position + 3 * 2 * 4), rel=0.3)
    assert tn.flop_count(graph, b=1, t=200) == pytest.approx(2 * tn.flop_count(graph, b=1, t=100), rel=0.02)
    formula = tn.parameter_formula(tn.layer(CELL, inputs="x c0", outputs="h last"))
    assert str(formula) == "2*i*o + 2*o**2 + 2*o"


def test_counts_are_exact() -> None:
    graph = tn.layer("n[b,t] = n[b,t-1] + x[b,t]", inputs="x")
    x = np.arange(12).reshape(2, 6) * 2**40
    found = tn.compile(graph)({}, x)
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, x.cumsum(1))


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


# ---------------------------------------------------------------------------- starts, and states that others read


# ---------------------------------------------------------------------------- running sums and products


@pytest.mark.parametrize("back", [0, 1])
@pytest.mark.parametrize("zeros", [[], [1], [1, 4]])
def test_the_derivative_of_running_products_is_right_with_zeros(zeros: list[int], back: int) -> None:
    graph = tn.layer(f"y[b,i] = cumprod[i](x[b,i], back={back})", inputs="x[b,i]")
    x = normal(3, 6)
    x[:, zeros] = 0
    check(graph, {"x": x}, ["x"], tolerance=1e-12)


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
    graph = tn.layer(text, inputs=[name for name in "aus" if f"{name}[" in text])
    without, loop = (
        lower_recurrences(
            graph,
            kernels=[functools.partial(select_associative_scan, pays=lambda *_, is_quicker=each: is_quicker)],
        )
        for each in (True, False)
    )
    assert graph.recurrences
    assert not without.calls
    assert not without.recurrences
    assert loop.calls
    sizes, output = {"b": 2, "t": 9, "n": 3}, graph.outputs[0]
    arrays = drawn(graph, **sizes)
    expected, found = oracle.meaning(graph, arrays, sizes), by_numpy(without, arrays)
    np.testing.assert_allclose(found[output], expected[output], rtol=1e-12, atol=1e-13)


def test_large_states_are_not_put_together() -> None:
    graph = tn.models.linear_attention(64, 2)
    small, large = (tn.plan(graph, b=4, t=t, compare=False).peak_memory for t in (256, 2048))
    assert large < 12 * small
    state = 4 * 2048 * 64 * 32 * 4
    assert large < state
    parameters, x = tn.init(graph), normal(1, 2048, 64).astype(np.float32)
    found = tn.compile(graph)(parameters, x)
    loops = lower_recurrences(graph, lambda sizes: True)
    (call,) = (each for each in loops.calls if "S" in each.graph.outputs)
    assert call.results == ("o.along",)
    np.testing.assert_allclose(found[:, :9], tn.compile(graph)(parameters, x[:, :9]), rtol=1e-4, atol=1e-5)


def test_a_large_tensor_that_is_read_with_another_state_is_held_whole() -> None:
    text = "h[t,n,k] = sin(h[t-1,n,k]) + x[t,n] * v[k]\ny[t,n] = x[t,n] + h[t,n,k] * y[t-1,k]"
    graph = tn.layer(text, inputs="x", n=3, k=3)
    loops = lower_recurrences(graph, lambda sizes: len(sizes) > 2)
    assert len(loops.calls) == 2
    arrays = {"x": np.arange(12.0).reshape(4, 3) % 5, "v": np.arange(3.0)}
    expected = oracle.meaning(graph, arrays, {"t": 4, "n": 3, "k": 3})["y"]
    np.testing.assert_allclose(by_numpy(loops, arrays)["y"], expected, rtol=1e-12)


@pytest.mark.parametrize(("entry", "part"), [(":3", "k+0"), ("-3:", "k+2"), ("1:4", "k+1"), ("::2", "2*k")])
@pytest.mark.parametrize("start", ["", "S[b,-1,n] = s[b,n]\n"])
def test_a_state_is_read_by_slices(entry: str, part: str, start: str) -> None:
    """As windows of numbers read it, under the name of its own axis."""
    text = "h[b,t,c] = tanh(x[b,t,i] * U[c,i] + S[b,t-1,{0}] * P[c,{1}])\nS[b,t,n] = 0.5 * S[b,t-1,n] + h[b,t,c] * D[n,c]"
    inputs, sizes = "x s" if start else "x", {"c": 4, "i": 3, "n": 5}
    graph = tn.layer(start + text.format(entry, "n"), inputs=inputs, **sizes)
    assert tn.layer(str(graph)) == graph
    numbers = drawn(graph, b=2, t=6)
    other = tn.layer(start + text.format(part, "k"), inputs=inputs, k=3, **sizes)
    np.testing.assert_allclose(by_numpy(graph, numbers)["S"], by_numpy(other, numbers)["S"], rtol=1e-12)


def test_what_is_read_a_position_before_has_sizes_of_its_own() -> None:
    graph = tn.layer("x[-1,c] = 0\nz[-1,c] = 0\ny[t] = x[t-1,n[t]] * z[t-1,m[t]]", inputs="x z n m")
    x, z = np.arange(6.0).reshape(2, 3), np.arange(10.0).reshape(2, 5)
    found = tn.compile(graph)({}, x, z, np.array([0, 2]), np.array([0, 4]))
    np.testing.assert_array_equal(found, [0, x[0, 2] * z[0, 4]])


@pytest.mark.parametrize("back", [0, 1])
@pytest.mark.parametrize("shape", [(2, 2, 6), (1, 1, 700), (2, 0, 4), (2, 3, 1)])
def test_a_linear_recurrence_is_the_loop_position_by_position_and_in_rounds(
    shape: tuple[int, ...], back: int
) -> None:
    draw = np.random.default_rng(0)
    a, x = draw.uniform(-1, 1, shape), draw.normal(size=shape)
    graph = tn.layer(f"y[b,c,t] = recur[t](a[b,c,t], x[b,c,t], start=0.5, back={back})", inputs="a x")
    expected = np.full(shape, 0.5)
    at = [*range(shape[-1])][:: -1 if back else 1]
    for last, now in itertools.pairwise(at):
        expected[..., now] = a[..., last] * expected[..., last] + x[..., last]
    np.testing.assert_allclose(tn.compile(graph)({}, a, x), expected, rtol=1e-12, atol=1e-12)
    run = tn.compile(graph, backend="torch")
    given = [torch.tensor(each, requires_grad=True) for each in (a, x)]
    np.testing.assert_allclose(run({}, *given).detach().numpy(), expected, rtol=1e-12, atol=1e-12)
    if 0 < a.size < 100:
        assert torch.autograd.gradcheck(lambda *tensors: run({}, *tensors), given)
        assert torch.autograd.gradgradcheck(lambda *tensors: run({}, *tensors), given)


@pytest.mark.parametrize("trains", [True, False])
def test_a_linear_recurrence_of_parameters_goes_position_by_position(
    trains: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ways, also where no gradient is recorded."""
    walked = mock.Mock(wraps=shared._walked)
    monkeypatch.setattr(shared, "_walked", walked)
    run = tn.compile(tn.layer("y[b,t] = recur[t](a[b,t], x[b,t])", inputs="a x"), backend="torch")
    a, x = (torch.rand(200, 40, requires_grad=True) for _ in range(2))
    with torch.set_grad_enabled(trains):
        made = run({}, a, x)
    if trains:
        made.sum().backward()
    assert walked.call_count == 1 + trains


# ---------------------------------------------------------------------------- Blocks called along an axis, as papers write cells


RNN = """
def cell(x, h):
    x[b,i]: input
    h[b,p]: input
    z[b,o] = tanh(x[b,i] * W[o,i] + h[b,p] * U[o,p])
"""


def array(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).uniform(-1, 1, shape)


WRITTEN = titled("blocks.txt")
CELLS = [name for name in WRITTEN if not name.endswith(", as lines")]
"""Blocks that are called along an axis, and the same as lines."""


@pytest.mark.parametrize("name", CELLS)
def test_a_block_along_an_axis_is_its_lines(name: str) -> None:
    called, lines = WRITTEN[name].graph(), WRITTEN[f"{name}, as lines"]
    assert tn.layer(str(called)) == called
    used = drawn(lines.graph(), b=3, t=5, o=4, p=4)
    (output,) = called.outputs
    expected = oracle.run(lines.text, used, lines.numbers(), [output])[output]
    np.testing.assert_allclose(by_numpy(called, used)[output], expected, rtol=1e-10)
    used[f"{output}.grad"] = np.sin(np.arange(expected.size)).reshape(expected.shape)
    slopes, others = (by_numpy(tn.gradient(each, wrt="*"), used) for each in (called, lines.graph()))
    assert slopes.keys() == others.keys()
    for leaf, each in others.items():
        np.testing.assert_allclose(slopes[leaf], each, rtol=1e-9, atol=1e-11)


def test_both_ways_of_one_block_have_weights_by_scope() -> None:
    """Equal scopes share, others do not; axes of the caller that the block calls otherwise are its own."""
    text = f"""{RNN}
x[o,t,c]: input
h[o,t,r] = cell(x, h[o,t-1,r], scope='{{first}}')
g[o,t,r] = cell(x, g[o,t+1,r], scope='{{second}}')
y[o,t,b] = h[o,t,r] * V[b,r] + g[o,t,r] * V[b,r]
"""
    x = array(7, 5, 3)
    for scopes in (("to", "back"), ("one", "one")):
        graph = tn.layer(text.format(first=scopes[0], second=scopes[1]), c=3, r=4, b=2)
        assert tn.layer(str(graph)) == graph
        assert tn.parameter_count(graph) == len(set(scopes)) * (4 * 3 + 4 * 4) + 2 * 4
        weights = tn.init(graph, seed=0, dtype="float64")
        expected = 0
        for scope, turn in zip(scopes, (1, -1), strict=True):
            h, states = np.zeros((7, 4)), []
            for at in x.transpose(1, 0, 2)[::turn]:
                h = np.tanh(at @ weights[f"{scope}.W"].T + h @ weights[f"{scope}.U"].T)
                states.append(h)
            expected = expected + np.stack(states[::turn], 1) @ weights["V"].T
        np.testing.assert_allclose(tn.compile(graph)(weights, x), expected, rtol=1e-10, atol=1e-12)


# ---------------------------------------------------------------------------- Recurrent layers beside torch's, forward and gradients; layers along a sequence


KINDS = [torch.nn.RNN, torch.nn.LSTM, torch.nn.GRU]


def layer(kind: Any, **settings: Any) -> Any:
    torch.manual_seed(0)
    return kind(5, 7, num_layers=2, bidirectional=True, batch_first=True, **settings).double()


@pytest.mark.parametrize(
    ("kind", "settings"),
    [*((kind, {}) for kind in KINDS), (KINDS[0], {"bias": False}), (KINDS[0], {"nonlinearity": "relu"})],
)
def test_layers_are_those_of_torch(kind: Any, settings: dict[str, Any]) -> None:
    module = layer(kind, **settings)
    x = torch.randn(3, 6, 5, dtype=torch.float64)
    graph, parameters = tn.models.from_torch(module)
    with torch.no_grad():
        expected = module(x)[0].numpy()
    for backend in map(load_backend, ("numpy", "torch", *(["jax"] if kind is torch.nn.LSTM else []))):
        given = {name: backend.asarray(each.numpy()) for name, each in parameters.items()}
        found = tn.compile(graph, backend=backend)(given, backend.asarray(x.numpy()))
        np.testing.assert_allclose(backend.numpy(found), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("kind", sampled(KINDS, [torch.nn.LSTM]))
def test_gradients_are_those_of_torch(kind: Any) -> None:
    module = layer(kind)
    x = torch.randn(3, 6, 5, dtype=torch.float64, requires_grad=True)
    torch.sin(module(x)[0]).sum().backward()
    graph, parameters = tn.models.from_torch(module)
    own = {name: each.clone().requires_grad_() for name, each in parameters.items()}
    given = x.detach().clone().requires_grad_()
    torch.sin(tn.compile(graph, backend="torch")(own, given)).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(given.grad, x.grad, rtol=1e-12, atol=1e-14)
    stacked = torch.cat([own[f"layers.1.backward.U{gate}"].grad for gate in _letters(kind)])  # type: ignore[misc]
    torch.testing.assert_close(stacked, module.weight_hh_l1_reverse.grad, rtol=1e-12, atol=1e-13)
    arrays = {name: each.detach().numpy() for name, each in (*parameters.items(), ("x", x))}
    check(graph, arrays, [*arrays], backends=("numpy",), tolerance=1e-11)


def _letters(kind: Any) -> tuple[str, ...]:
    return LETTERS[kind.__name__.lower()]


@pytest.mark.parametrize("kind", KINDS)
def test_states_come_in_and_go_out(kind: Any) -> None:
    module = layer(kind)
    x, h = torch.randn(3, 6, 5, dtype=torch.float64), torch.randn(4, 3, 7, dtype=torch.float64)
    first = (h, torch.randn(4, 3, 7, dtype=torch.float64)) if kind is torch.nn.LSTM else (h,)
    graph, parameters = tn.models.from_torch(module, states=True)
    with torch.no_grad():
        y, last = module(x, first if len(first) > 1 else h)
        found = tn.compile(graph, backend="torch")(parameters, x, *first)
    torch.testing.assert_close(found, (y, *(last if len(first) > 1 else (last,))), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("form", ["tt", "blocktt", "cp", "low_rank"])
def test_factorized_weights_are_weights(form: str) -> None:
    """An LSTM of factorized weights is the dense one in the place of whose weights the factors stand."""
    graph, dense = tn.models.lstm((2, 3), (3, 2), factorization=form, rank=2), tn.models.lstm(6, 6)
    low = tn.substitute(dense, {"*.U?": form}, rank=2, modes=((3, 2), (3, 2)))
    low = tn.substitute(low, {"*.W?": form}, rank=2, modes=((3, 2), (2, 3)))
    parameters, x = parameters_of(graph), normal(2, 4, 6)
    held = {name.replace("_", "."): array for name, array in parameters.items()}
    np.testing.assert_allclose(tn.compile(graph)(parameters, x), tn.compile(low)(held, x), rtol=1e-12)
    assert tn.parameter_count(graph) < tn.parameter_count(dense)


# ---------------------------------------------------------------------------- along a sequence


def numbers(graph: tn.Graph, *shape: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    rng = np.random.default_rng(0)
    return tn.init(graph, dtype="float64"), rng.uniform(size=shape)


def test_state_spaces() -> None:
    graph = tn.models.state_space(3, 4)
    p, x = numbers(graph, 2, 9, 3)
    decay, h = np.exp(-np.exp(p["step"][:, None] + p["rate"])), np.zeros((2, 3, 4))
    expected = []
    for t in range(9):
        h = decay * h + (1 - decay) * p["B"] * x[:, t, :, None]
        expected.append((h * p["C"]).sum(-1) + p["D"] * x[:, t])
    np.testing.assert_allclose(tn.compile(graph)(p, x), np.stack(expected, 1), rtol=1e-12)


def test_linear_attention_is_attention_without_a_softmax() -> None:
    graph = tn.models.linear_attention(6, 2)
    p, x = numbers(graph, 2, 7, 6)
    q, k, v = (np.einsum("btc,hdc->bhtd", x, p[f"W{name}"].reshape(2, 3, 6)) for name in "qkv")
    q, k = (np.where(each > 0, each + 1, np.exp(np.minimum(each, 0))) for each in (q, k))
    weights = np.tril(q @ k.swapaxes(-1, -2))
    o = (weights / weights.sum(-1, keepdims=True)) @ v
    expected = np.einsum("bhte,ahe->bta", o, p["Wo"].reshape(6, 2, 3))
    np.testing.assert_allclose(tn.compile(graph)(p, x), expected, rtol=1e-11)


@pytest.mark.parametrize("features", ["cosine", "share"])
def test_matrix_products(features: str) -> None:
    graph = tn.models.matrix_product(11, 3, bond=4, features=features)
    p, x = numbers(graph, 2, 11)
    told = [np.cos(math.pi / 2 * x), np.sin(math.pi / 2 * x)] if features == "cosine" else [1 - x, x]
    v = np.tile(p["start"], (2, 1))
    for t in range(11):
        v = v + np.einsum("br,rps,bp->bs", v, p["A"][t], np.stack(told, -1)[:, t])
    np.testing.assert_allclose(tn.compile(graph)(p, x), v @ p["W"].T, rtol=1e-12)


def test_784_sites_are_planned_at_once() -> None:
    plan = tn.plan(tn.models.matrix_product(784, 10), b=100)
    assert len(plan.steps) < 20


def test_long_chains_start_alive() -> None:
    graph = tn.models.matrix_product(784, 10)
    found = tn.compile(graph)(
        tn.init(graph), np.random.default_rng(0).uniform(size=(50, 784)).astype(np.float32)
    )
    assert 0.3 < found.std() < 3


@pytest.mark.parametrize("maker", [tn.models.rnn, tn.models.lstm, tn.models.gru])
def test_recurrent_layers_start_alive(maker: Any) -> None:
    graph = maker(32, 64)
    x = normal(8, 40, 32).astype(np.float32)
    found = tn.compile(graph)(tn.init(graph), x)
    assert 0.1 < found[:, 0].std() < 1
    assert 0.1 < found[:, -1].std() < 1


@pytest.mark.parametrize("reader", ["y[b,t,d] = q[b,t,m] * S * v", "y[b,m,d] = tanh(S[b,-1,m,d])"])
@pytest.mark.parametrize("step", ["t-1", "t+1"])
@pytest.mark.parametrize("factor", ["", "a[d] *", "a[t] *", "a[b,t,m] *", "-0.5 *"])
def test_a_state_that_products_alone_read_is_a_product_with_a_triangular_matrix(
    factor: str, step: str, reader: str
) -> None:
    text = f"S[b,t,m,d] = {factor} S[b,{step},m,d] + k[b,t,m] * v[t,d]\n{reader}"
    graph = tn.layer(
        text, inputs=["k", *(["q"] if "q[" in reader else []), "v", *(["a"] if "a" in factor else [])]
    )
    times = itertools.count()
    kernel = functools.partial(select_parallel_form, seconds=lambda part: next(times))
    made = lower_recurrences(graph, kernels=[kernel])
    assert not made.calls
    assert not made.recurrences
    sizes = {"b": 2, "t": 5, "m": 3, "d": 4}
    arrays = drawn(graph, **sizes)
    expected = oracle.meaning(graph, arrays, sizes)["y"]
    np.testing.assert_allclose(by_numpy(made, arrays)["y"], expected, rtol=1e-12, atol=1e-13)


def test_a_shift_of_the_state_before_is_no_recurrence_along_its_axis() -> None:
    """Of two axes along which a state is read a position before, the one that all reads step along is the loop's."""
    text = "q[t,j] = previous[j](a[t-1,j])\na[t,j] = tanh(q[t,j] + a[t-1,j]) + x[t,j]"
    graph = tn.layer(text, inputs="x")
    (found,) = graph.recurrences
    assert found.labels == {"q": "t", "a": "t"}
    x, state = normal(5, 4), np.zeros(4)
    expected = [state := np.tanh(np.r_[0, state[:-1]] + state) + row for row in x]
    np.testing.assert_allclose(tn.compile(graph)({}, x), expected, rtol=1e-12)
    assert sum(isinstance(step, CallStep) for step in tn.plan(graph, t=5, j=4).steps) == 1


def test_a_limit_is_kept_where_the_parallel_form_would_not() -> None:
    graph = tn.layer("S[t,m,d] = S[t-1,m,d] + k[t,m] * v[t,d]\ny[t,d] = q[t,m] * S[t,m,d]", inputs="q k v")
    sizes = {"t": 1024, "m": 32, "d": 32, "compare": False}
    free, bound = tn.plan(graph, **sizes), tn.plan(graph, memory_limit=1_000_000, **sizes)
    assert bound.peak_memory <= 1_000_000 < free.peak_memory
