"""Recurrences: read as papers print them, computed and differentiated as a plain loop does, planned as one block."""

from __future__ import annotations

import functools
import itertools
import time

import numpy as np
import pytest
import torch
from scipy.interpolate import BSpline

import tensornet as tn
from tensornet.planning.plans import CallStep
from tensornet.scan.associative_scan import select_associative_scan
from tensornet.scan.lowering import lower_recurrences
from tensornet.sizes import evaluate

from . import oracle
from .differential import BACKENDS, by_numpy
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
    rng, known = np.random.default_rng(0), {**graph.bound, "b": 2, "t": 5}
    shapes = {leaf.name: [int(evaluate(s, known)) for s in leaf.shape] for leaf in graph.leaves}
    return graph, {name: rng.standard_normal(shape) * 0.7 for name, shape in shapes.items()}


def agree(graph: tn.Graph, arrays: dict[str, np.ndarray], expected: np.ndarray) -> None:
    """NumPy and torch compute what is expected."""
    for chosen in (BACKENDS["numpy"](), BACKENDS["torch"]()):
        given = {name: chosen.asarray(array, "float64") for name, array in arrays.items()}
        inputs = [given.pop(leaf.name) for leaf in graph.inputs]
        found = chosen.numpy(tn.compile(graph, backend=chosen)(given, *inputs))
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(("back", "start"), [(-1, ""), (-1, "h[-1] = 5\n"), (1, "h[+1] = 5\n")])
@pytest.mark.parametrize(
    ("axes", "line"),
    [
        ("q", "y = {} * {}"),
        ("q", "y = 2 * sin({}) * {}"),
        ("u,q", "y[u] = {} * {}"),
        ("u,q", "y[u] = {1} * {0}"),
    ],
)
def test_a_bare_name_brings_axes_that_steps_are_under(axes: str, line: str, back: int, start: str) -> None:
    x = np.arange(1.0, 5.0) if axes == "q" else np.arange(8.0).reshape(2, 4)
    found = []
    for given, text, inputs in (
        (f"x[{axes}]", f"x[{axes}]: input\n", "x"),
        ("x", f"x[{axes}]: input\n", "x"),
        ("x", "", f"x[{axes}]"),
    ):
        text += f"{start}h[t] = 0.5 * h[t{back:+d}] + 1\n" + line.format(f"h[q{back:+d}]", given)
        found.append(np.asarray(tn.compile(tn.layer(text, inputs=inputs, t=4))({}, x)).tolist())
    assert found[0] == found[1] == found[2]
    state = [5.0 if start else 0.0]
    for _ in range(3):
        state.append(0.5 * state[-1] + 1)
    if "sin" not in line:
        np.testing.assert_allclose(found[0], x @ np.array(state)[::-back])


def test_second_derivatives_are_those_of_finite_differences() -> None:
    text = "h[b,t,o] = tanh(x[b,t,o] + h[b,t-1,p] * U[o,p])\nl = sum[b,t,o](h[b,t,o] ** 2)"
    graph = tn.layer(text, inputs="x", outputs="l", o=3)
    outer = tn.layer("m = sum[o,p](sin(d[o,p]))", inputs="d[o,p]")
    rng = np.random.default_rng(0)
    weight, x, direction = (rng.standard_normal(shape) for shape in ((3, 3), (2, 4, 3), (3, 3)))
    first = tn.value_and_grad(graph)
    _, found = tn.value_and_grad(tn.gradient(graph, wrt="U"), loss=outer)({"U": weight}, x)
    around = [np.sin(first({"U": weight + s * 1e-5 * direction}, x)[1]["U"]).sum() for s in (1, -1)]
    slope = (around[0] - around[1]) / 2e-5
    assert float((found["U"] * direction).sum()) == pytest.approx(slope, rel=1e-7)


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


def test_products_of_a_state_are_one() -> None:
    gates = (f"{g}[b,t,o] = sigmoid(x[b,t,o] + h[b,t-1,p] * U{g}[o,p])" for g in "fgirsuvw")
    text = "\n".join([*gates, "h[b,t,o] = f * g + i[b,t,o] * r + s * u + v * w"])
    plan = tn.plan(tn.layer(text, inputs="x", o=64), b=16, t=64, backend="torch", compare=False)
    (call,) = (step for step in plan.steps if isinstance(step, CallStep))
    assert sum(step.flops > 10**5 for step in call.plan.steps) == 1
    assert any("concat" in str(step.equation) for step in plan.steps if not isinstance(step, CallStep))


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
    made: dict[tuple[int, int], np.ndarray] = {}
    for i, j in itertools.product(range(4), range(4, -1, -1) if ahead else range(5)):
        above = made[i - 1, j] if i else arrays["s"][:, j]
        beside = made.get((i, j + 1 if ahead else j - 1), np.tile(arrays["r"][i], (2, 1)))
        made[i, j] = np.tanh(arrays["x"][:, i, j] + above @ arrays["U"].T + beside @ arrays["V"].T)
    expected = np.array([[made[i, j] for j in range(5)] for i in range(4)]).transpose(0, 2, 1, 3)
    agree(graph, arrays, expected)
    check(graph, arrays, list(arrays), tolerance=1e-11)


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
    agree(graph, {leaf.name: arrays[leaf.name] for leaf in graph.leaves}, D[1:, 1:])


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


@pytest.mark.parametrize("line", ["k[t] = tanh(k[t-1] + c[j,t-1] * w[j])", "k[t] = tanh(c[j,t-1] * w[j])"])
def test_gradients_go_to_what_stands_below_its_readers(line: str) -> None:
    """Of as many positions as channels, so that no size tells one from the other."""
    graph = tn.layer(f"{line}\nc[j,t] = sin(x[t,j])\nl = sum[t](k[t] * r[t])", inputs="x r w")
    rng = np.random.default_rng(0)
    arrays = {name: rng.uniform(-1, 1, shape) for name, shape in (("x", (3, 3)), ("r", 3), ("w", 3))}
    state, total = 0.0, 0.0
    for t in range(3):
        before = np.sin(arrays["x"][t - 1]) @ arrays["w"] if t else 0
        state = np.tanh((state if "k[t-1]" in line else 0) + before)
        total += state * arrays["r"][t]
    assert by_numpy(graph, arrays)["l"] == pytest.approx(total, rel=1e-12)
    check(graph, arrays, ["x"])


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
    rng, sizes = np.random.default_rng(0), {"b": 2, "t": 9, "n": 3}
    arrays = {
        leaf.name: rng.standard_normal([sizes[str(size)] for size in leaf.shape]) for leaf in graph.leaves
    }
    expected, found = oracle.meaning(graph, arrays, sizes), by_numpy(without, arrays)
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


LINES = "h[b,-1,d] = {}\nh[b,t,d] = 0.5 * h[b,t-1,d] + x[b,t,d]"


@pytest.mark.parametrize(
    ("text", "inputs", "printed"),
    [
        ("h[b,-1] = s[b]\nh[b,-2] = 0.5\nh[b,t] = x[b,t] + 0.5 * h[b,t-1] - w * h[b,t-2]", "x s", None),
        ("h[b,t] = x[b,t] + previous[t](h[b,t], s[b]) * previous[t](h[b,t])", "x s", None),
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


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_no_positions(backend: str) -> None:
    graph = tn.layer("h[b,t,o] = tanh(x[b,t,o] + h[b,t-1,p] * U[o,p])", inputs="x", o=4)
    arrays = tn.to_backend({"x": np.zeros((2, 0, 4)), "U": np.zeros((4, 4))}, backend)
    assert tuple(tn.compile(graph, backend=backend)({"U": arrays["U"]}, arrays["x"]).shape) == (2, 0, 4)
