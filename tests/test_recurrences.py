"""Recurrences: read as papers print them, computed and differentiated as a plain loop does, planned as one block."""

from __future__ import annotations

import functools
import itertools
import time
from unittest import mock

import numpy as np
import pytest
import torch

import tensornet as tn
from tensornet.backends import loops as shared
from tensornet.planning.plans import CallStep
from tensornet.scan.kernels import select_associative_scan
from tensornet.scan.lowering import lower_recurrences

from . import oracle
from .differential import by_numpy, computed, drawn
from .test_gradients import check

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


@pytest.mark.parametrize(
    "line", ["y = {} * {}", "y = 2 * sin({}) * {}", "y[u] = {} * {}", "y[u] = {1} * {0}"]
)
@pytest.mark.parametrize(("back", "start"), [("-1", ""), ("-1", "h[-1] = 5\n"), ("+1", "h[+1] = 5\n")])
def test_a_bare_name_brings_axes_that_steps_are_under(line: str, back: str, start: str) -> None:
    x = "x[u,q]" if "u" in line else "x[q]"
    text = f"{start}h[t] = 0.5 * h[t{back}] + 1\n{line.format('{}', f'h[q{back}]')}"
    bare, whole = text.format("x"), text.format(x)
    graph = tn.layer(f"{x}: input\n{whole}", t=4)
    assert graph == tn.layer(f"{x}: input\n{bare}", t=4) == tn.layer(bare, inputs=x, t=4)


def test_what_does_not_recur_leaves_the_loop() -> None:
    graph, _ = cell()
    plan = tn.plan(graph, b=32, t=1024, compare=False)
    (call,) = (step for step in plan.steps if isinstance(step, CallStep))
    assert call.along is not None
    assert call.along.count == 1024
    inside = "\n".join(str(step.equation) for step in call.plan.steps)  # type: ignore[union-attr]
    assert "Wf" not in inside
    assert "Wg" not in inside
    assert "x" not in {name for step in call.plan.steps for name in step.reads}


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


def test_compilers_take_the_loop() -> None:
    graph, arrays = cell()
    module = tn.module(graph.select("h"))
    x, c0 = (torch.tensor(arrays[each], dtype=torch.float32) for each in ("x", "c0"))
    compiled_module = torch.compile(module, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled_module(x, c0), module(x, c0))


# ---------------------------------------------------------------------------- starts, and states that others read


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


@pytest.mark.parametrize("back", [0, 1])
@pytest.mark.parametrize("zeros", [[], [1], [1, 4]])
def test_the_derivative_of_running_products_is_right_with_zeros(zeros: list[int], back: int) -> None:
    graph = tn.layer(f"y[b,i] = cumprod[i](x[b,i], back={back})", inputs="x[b,i]")
    x = np.random.default_rng(0).standard_normal((3, 6))
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


LINES = "h[b,-1,d] = {}\nh[b,t,d] = 0.5 * h[b,t-1,d] + x[b,t,d]"


@pytest.mark.parametrize(
    ("text", "inputs", "printed"),
    [
        ("h[b,-1] = s[b]\nh[b,-2] = 0.5\nh[b,t] = x[b,t] + 0.5 * h[b,t-1] - w * h[b,t-2]", "x s", None),
        ("h[b,t] = x[b,t] + previous[t](h[b,t], s[b]) * previous[t](h[b,t])", "x s", None),
        (
            "h[-1,b,j] = s[b,j]\nh[i,b,+1] = r[i]\nh[i,b,j] = x[b,i,j] + u * h[i-1,b,j] + h[i,b,j+1]",
            "x s r",
            None,
        ),
        ("h[t,k] = h[t-1,j+1] * W[k,j] + x[t,k]\ny[t,k] = h[t,j+1] * V[t,j] + h[t,k+1]", "x", None),
        ("D[-1,j] = s[j]\nD[i,j] = c[i,j] + minimum(D[i-1,j], D[i,j-1])", "s c", None),
        ("h[i,t] = 0.5 * h[i,t-1] + x[i,t]\ny[i] = h[i,i+1]", "x", "x[i,t:i]: input"),
        # a bare start is read under the axes that it has from elsewhere, else those of the state
        (LINES.format("h0"), "x[b,t,d]", LINES.format("h0[b,d]")),
        (LINES.format("h0"), "h0[d,b] x[b,t,d]", LINES.format("h0[d,b]")),
        (LINES.format("h0"), "h0[b,d] x[b,t,d]", LINES.format("h0[b,d]")),
        (LINES.format("h0"), "h0[d] x[b,t,d]", LINES.format("h0[d]")),
        (f"h0[d,b]: input\n{LINES.format('h0')}", "x[b,t,d]", LINES.format("h0[d,b]")),
        (f"h0[()]: input\n{LINES.format('h0')}", "x[b,t,d]", "previous[t](h[b,t,d], h0) + x[b,t,d]"),
        (f"z[d,b] = x[b,0,d]\n{LINES.format('z')}", "x[b,t,d]", LINES.format("z[d,b]")),
    ],
)
def test_what_is_printed_reads_back(text: str, inputs: str, printed: str | None) -> None:
    graph = tn.layer(text, inputs=inputs)
    assert (printed or text) in str(graph)
    assert tn.layer(str(graph)) == graph


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


@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")  # of torch, in forward mode
def test_a_linear_recurrence_under_vmap_and_forward_derivatives() -> None:
    """Where results cannot be written in place, it is computed in rounds; else in the order of its operands."""
    run = tn.compile(tn.layer("y[b,t] = recur[t](a[b,t], x[b,t], start=0.5)", inputs="a x"), backend="torch")
    a, x, da, dx = (torch.rand(3, 200, 40, dtype=torch.float64) for _ in range(4))
    plain = torch.stack([run({}, *each) for each in zip(a, x, strict=True)])
    torch.testing.assert_close(torch.func.vmap(lambda a, x: run({}, a, x))(a, x), plain)
    turned = run({}, a[0].T.contiguous().T, x[0].T.contiguous().T)  # positions are apart in memory
    torch.testing.assert_close(turned, plain[0])
    assert (turned.stride(), plain[0].stride()) == ((1, 200), (40, 1))
    torch.testing.assert_close(torch.func.vmap(lambda a: run({}, a, x[0]))(a)[0], plain[0])
    value, tangent = torch.func.jvp(lambda a, x: run({}, a, x), (a[0], x[0]), (da[0], dx[0]))
    torch.testing.assert_close(value, plain[0])
    ahead, behind = (run({}, a[0] + h * da[0], x[0] + h * dx[0]) for h in (1e-6, -1e-6))
    torch.testing.assert_close(tangent, (ahead - behind) / 2e-6, rtol=1e-6, atol=1e-6)


def test_a_recurrence_under_vmap_whose_first_position_is_constant() -> None:
    """If only later results have an example of their own, all are joined, and none is written into the first."""
    text = "a[b,t] = 0.5 * y[b,t-1] + x[b,t]\nc[b,t] = tanh(a[b,t-1])\ny[b,t] = c[b,t] - 0.3 * a[b,t-2]"
    run, x = tn.compile(tn.layer(text, inputs="x"), backend="torch"), torch.randn(3, 2, 5)
    found = torch.func.vmap(lambda x: run({}, x))(x)
    torch.testing.assert_close(found, torch.stack([run({}, each) for each in x]))


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


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_of_a_state_that_is_read_at_its_end_alone_the_end_alone_is_kept(backend: str, back: bool) -> None:
    near, far = ("t+1", "0") if back else ("t-1", "-1")
    graph = tn.layer(f"y[t,d] = tanh(x[t,d] * y[{near},d] + x[t,d])\nz[d] = y[{far},d]", inputs="x")
    x = np.random.default_rng(0).normal(size=(5, 3))
    state = np.zeros(3)
    for each in x[::-1] if back else x:
        state = np.tanh(each * state + each)
    run = tn.compile(graph, backend=backend, dtype="float64")
    given = tn.to_backend({"x": x}, backend)["x"]
    assert np.allclose(np.asarray(run({}, given)), state)
    assert f"{back}, (0,))" in tn.plan(graph, t=5, d=3, backend=backend).code
    if backend == "torch":
        assert torch.autograd.gradcheck(lambda x: run({}, x), given.requires_grad_())


def test_the_length_of_what_is_joined_is_read_as_a_whole() -> None:
    """A step is given the tensor as one: its open length is a sum of two lengths, each unknown there."""
    graph = tn.layer(
        """
        x[b,i]: input
        z[b,j]: input
        t[k]: input
        W[c,d]: input
        v[r,n] = concat[n](z[r,n], x[r,n])
        g[r,k,n] = v[r,n] * t[k]
        y[r,k,n] = tanh(g[r,k,n] + W[k,l] * y[r-1,l,n])
        """
    )
    given = drawn(graph, b=3, i=2, j=4, k=2, c=2, d=2)
    x, z, t, weights = given.values()
    joined, state = np.concatenate([z, x], 1), np.zeros((2, 6))
    expected = [state := np.tanh(row * t[:, None] + weights @ state) for row in joined]
    for backend in ("numpy", "torch"):
        np.testing.assert_allclose(computed(graph, given, backend)["y"], expected, rtol=1e-9)
