"""Recurrences that are LSTMs, GRUs and plain layers, however written, are computed by the library that has these."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd

import tensornet as tn

from .differential import by_numpy, computed, drawn

LSTM = """
e[b,t,o] = sigmoid(x[b,t,i] * We[o,i] + h[b,t-1,p] * Ue[o,p] + be[o])
f[b,t,o] = sigmoid(x[b,t,i] * Wf[o,i] + h[b,t-1,p] * Uf[o,p] + bf[o])
g[b,t,o] = tanh(x[b,t,i] * Wg[o,i] + h[b,t-1,p] * Ug[o,p] + bg[o])
r[b,t,o] = sigmoid(x[b,t,i] * Wr[o,i] + h[b,t-1,p] * Ur[o,p] + br[o])
c[b,t,o] = f * c[b,t-1,o] + e * g
h[b,t,o] = r * tanh(c)
"""

STACKED = """
z[b,t,g,o] = x[b,t,i] * W[g,o,i] + v[g,o] + h[b,t-1,p] * U[p,g,o]
c[b,t,o] = tanh(z[b,t,3,o]) * sigmoid(z[b,t,0,o]) + c[b,t-1,o] * sigmoid(z[b,t,1,o])
h[b,t,o] = tanh(c) * sigmoid(z[b,t,2,o])
"""

GRU = """
r[b,t,o] = sigmoid(x[b,t,i] * Wr[o,i] + h[b,t-1,p] * Ur[o,p] + br[o])
z[b,t,o] = sigmoid(x[b,t,i] * Wz[o,i] + h[b,t-1,p] * Uz[o,p] + bz[o])
n[b,t,o] = tanh(x[b,t,i] * Wn[o,i] + bn[o] + r * (h[b,t-1,p] * Un[o,p] + un[o]))
h[b,t,o] = (1 - z) * n + z * h[b,t-1,o]
"""

TWO = "h[b,t,o,m] = tanh(x[b,t,i] * W[o,m,i] + h[b,t-1,p,q] * U[o,m,p,q] + v[o,m])"
PLAIN = "h[b,t,o] = tanh(x[b,t,i] * W[o,i] + h[b,t-1,p] * U[o,p] + v[o])"

OPEN = {"a": 2, "b": 3, "t": 5}
SIZES = {"i": 3, "o": 4}

GIVEN = f"{LSTM}h[b,-1,o] = h0[b,o]\nc[b,-1,o] = c0[b,o]"
BACKWARDS = f"{LSTM}c[b,+1,o] = c0[o]".replace("t-1", "t+1")
IN_ONE_LINE = """
c[b,t,o] = sigmoid(h[b,t-1,p]*Uf[o,p] + x[b,t,i]*Wf[o,i]) * c[b,t-1,o] + tanh(x[b,t,j]*Wg[o,j] + h[b,t-1,q]*Ug[o,q]) * sigmoid(h[b,t-1,p]*Ui[o,p] + x[b,t,i]*Wi[o,i] + 1)
h[b,t,o] = tanh(c) * sigmoid(x[b,t,i]*Wo[o,i] + h[b,t-1,p]*Uo[o,p])
"""
COMPOSITE = """
z[b,t,(g,o)] = x[b,t,i] * W[(g,o),i] + v[(g,o)] + h[b,t-1,p] * U[(g,o),p]
c[b,t,o] = tanh(z[b,t,(3,o)]) * sigmoid(z[b,t,(0,o)]) + c[b,t-1,o] * sigmoid(z[b,t,(1,o)])
h[b,t,o] = tanh(c) * sigmoid(z[b,t,(2,o)])
"""
FACTORED = "a[b,t,g,o] = x[b,t,i] * A[g,r,i] * B[g,o,r]\n" + STACKED.replace(
    "x[b,t,i] * W[g,o,i]", "a[b,t,g,o]"
)
TWO_AXES = (
    LSTM.replace("b,t", "a,b,t").replace("o]", "(o,m)]").replace("[o,", "[(o,m),").replace("p]", "(p,q)]")
)
GATES = "s[b,t,g,o] = sigmoid(x[b,t,i] * W[g,o,i] + h[b,t-1,p] * U[g,o,p] + v[g,o])\n"
INNER = GRU.replace(" + br[o]", "").replace(" + bz[o]", "").replace(" + bn[o]", "")

CELLS: dict[str, tuple[str, str, str, dict[str, int]]] = {
    "an LSTM": ("lstm_along", LSTM, "x", SIZES),
    "from given states": ("lstm_along", GIVEN, "x h0[b,o] c0[b,o]", SIZES),
    "from the end": ("lstm_along", BACKWARDS, "x", SIZES),
    "in one line": ("lstm_along", IN_ONE_LINE, "x", SIZES),
    "gates of one tensor": ("lstm_along", STACKED, "x", {"g": 4, **SIZES}),
    "gates of a composite": ("lstm_along", COMPOSITE, "x", {"g": 4, **SIZES}),
    "products before": ("lstm_along", FACTORED, "x", {"g": 4, "r": 2, **SIZES}),
    "channels of two axes, two batches": ("lstm_along", TWO_AXES, "x[a,b,t,i]", {"m": 2, **SIZES}),
    "a GRU": ("gru_along", GRU, "x", SIZES),
    "a GRU whose gate takes": ("gru_along", GRU.replace("(1 - z) * n + z * h[b,t-1,o]", "z * n + h[b,t-1,o] * (1 - z)"), "x", SIZES),
    "a GRU between two values": ("gru_along", GRU.replace("(1 - z) * n + z * h[b,t-1,o]", "n + z * (h[b,t-1,o] - n)"), "x", SIZES),
    "a GRU of its gate's products": ("gru_along", GRU.replace("(1 - z) * n + z * h[b,t-1,o]", "h[b,t-1,o] - z * h[b,t-1,o] + n * z"), "x", SIZES),
    "a GRU of gates in one tensor": ("gru_along", GATES + GRU.split("\n", 3)[3].replace("r *", "s[b,t,0,o] *").replace("z", "s[b,t,1,o]"), "x", {"g": 2, **SIZES}),
    "a GRU without biases": ("gru_along", INNER.replace(" + un[o]", ""), "x", SIZES),
    "a GRU of inner biases": ("gru_along", INNER, "x", SIZES),
    "a plain layer": ("tanh_along", PLAIN, "x", SIZES),
    "a plain layer of a sum": ("tanh_along", "h[b,t,o] = tanh(W[o,p] * (x[b,t,p] + h[b,t-1,p] + v[p]))", "x", {"o": 4}),
    "a plain layer of two inputs": ("tanh_along", PLAIN.replace("+ v[o]", "+ y[b,t,i] * V[o,i]"), "x y", SIZES),
    "a plain layer through a narrow product": ("tanh_along", "a[b,t,m] = h[b,t-1,p] * V[m,p]\n" + PLAIN.replace("h[b,t-1,p] * U[o,p]", "a[b,t,m] * U[o,m]"), "x", {"m": 2, **SIZES}),
    "a plain layer of relu": ("relu_along", PLAIN.replace("tanh", "relu"), "x", SIZES),
    "a plain layer of what is looked up": ("tanh_along", "E[u,i]: parameter\n" + PLAIN.replace("x[b,t,i]", "E[x[b,t],i]"), "x", {"u": 5, **SIZES}),
    "a plain layer of what another computes": ("tanh_along", "g[s,o] = tanh(z[s,i] * V[o,i] + g[s-1,p] * Q[o,p])\nW[o,i] = g[-1,o] * w[i]\n" + PLAIN, "x z", {"s": 6, **SIZES}),
}  # fmt: skip

OTHERS = {
    "one gate for two": LSTM.replace("+ e * g", "+ (1 - f) * g + 0 * e"),
    "a cell that is read": LSTM + "y[b,t,o] = c * h",
    "a gate that is read": LSTM + "y[b,t,o] = f * h",
    "another curve": LSTM.replace("r * tanh(c)", "r * silu(c)"),
    "a reset before the product": GRU.replace("r * (h[b,t-1,p]", "(r[b,t,p] * h[b,t-1,p]"),
    "a reset before the product alone": GRU.replace(
        "r * (h[b,t-1,p] * Un[o,p] + un[o])", "r[b,t,p] * h[b,t-1,p] * Un[o,p]"
    ),
    "a reset without input, of a value with one": GRU.replace("x[b,t,i] * Wr[o,i] + ", "").replace(
        "un[o])", "x[b,t,i] * Wr[o,i])"
    ),
    "a gate of its own input": LSTM.replace("x[b,t,i] * Wf", "s[b,t,i] * Wf"),
    "an update of something else": GRU.replace("(1 - z)", "(1 - r)"),
    "an update of twice as much": GRU.replace("(1 - z)", "(2 - z)"),
    "each channel by itself": PLAIN.replace("h[b,t-1,p] * U[o,p]", "h[b,t-1,o] * U[o]"),
    "weights of their own at each position": PLAIN.replace("U[o,p]", "U[t,o,p]"),
    "no input": PLAIN.replace("x[b,t,i] * W[o,i]", "x[b,t,o]"),
    "the state from its end": "p: 3\n" + PLAIN.replace("h[b,t-1,p]", "h[b,t-1,2-p]"),
    "the state rolled": "p: 3\n" + PLAIN.replace("h[b,t-1,p]", "h[b,t-1,(p + 1) % 3]"),
    "a part of the state": "p: 2\n" + PLAIN.replace("h[b,t-1,p]", "h[b,t-1,p+1]"),
    "windows of the state": "p: 2\nu: 2\n" + PLAIN.replace("h[b,t-1,p] * U[o,p]", "h[b,t-1,p+u] * U[o,p,u]"),
    "two axes of the state, one from its end": f"m: 2\nq: 2\n{TWO}".replace("h[b,t-1,p,q]", "h[b,t-1,p,1-q]"),
    "a diagonal of the state": f"m: 3\n{TWO}".replace("h[b,t-1,p,q] * U[o,m,p,q]", "h[b,t-1,p,p] * U[o,m,p]"),
    "a sum of the state": f"m: 2\n{TWO}".replace("h[b,t-1,p,q] * U[o,m,p,q]", "sum[q](h[b,t-1,p,q]) * U[o,m,p]"),
}  # fmt: skip


def case(name: str) -> tuple[str, tn.Graph, dict[str, np.ndarray]]:
    """The kernel that is expected, the graph, and numbers for its leaves."""
    kernel, text, inputs, sizes = CELLS[name]
    graph = tn.layer(text, inputs=inputs, outputs="h", **sizes)
    arrays = drawn(graph, 0.7, **OPEN)
    if "E[x" in text:
        arrays["x"] = np.random.default_rng(0).integers(0, 5, arrays["x"].shape)
    return kernel, graph, arrays


def tensors(arrays: dict[str, np.ndarray], grad: bool = False) -> dict[str, torch.Tensor]:
    made = {name: torch.tensor(array) for name, array in arrays.items()}
    return {name: each.requires_grad_(grad and each.is_floating_point()) for name, each in made.items()}


def called(graph: tn.Graph, given: dict[str, torch.Tensor], **options: Any) -> torch.Tensor:
    held = {leaf.name: given[leaf.name] for leaf in graph.parameters}
    function = tn.compile(graph, backend="torch", **options)
    found: torch.Tensor = function(held, *(given[leaf.name] for leaf in graph.inputs))
    return found


READS = {
    "the last position": "y[b,o] = h[b,-1,o]",
    "another position": "y[b,o] = h[b,2,o]",
    "a channel": "y[b,t] = h[b,t,1]",
    "one of a batch": "y[t,o] = h[0,t,o]",
    "a number": "y = h[0,-1,2]",
    "told positions": "y[n,o] = h[n,at[n],o]",
}
"""What reads less than a kernel computes."""


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("cell", [LSTM, GRU, PLAIN], ids=["LSTM", "GRU", "plain"])
def test_what_is_read_in_part_is_computed_whole(cell: str, read: str) -> None:
    graph = tn.layer(
        f"{cell.strip()}\n{READS[read]}", inputs="x at[n]" if "at[n]" in READS[read] else "x", **SIZES
    )
    parameters = tn.init(graph, seed=0, dtype="float64")
    values = np.random.default_rng(1)
    given = [values.standard_normal((3, 5, 3)), *([np.array([4, 0, 2])] if "at[n]" in READS[read] else [])]
    layer = tn.compile(graph, backend="torch")
    found = layer(tn.to_backend(parameters, "torch"), *map(torch.as_tensor, given))
    np.testing.assert_allclose(found, tn.compile(graph)(parameters, *given), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", CELLS)
def test_cells_are_recognised_and_right(name: str) -> None:
    kernel, graph, arrays = case(name)
    sizes = {axis: size for axis, size in OPEN.items() if axis in graph.open_sizes}
    code = tn.plan(graph, backend="torch", compare=False, **sizes).code
    assert f" {kernel}(" in code
    expected = by_numpy(graph, arrays)["h"]
    given = tensors(arrays)
    np.testing.assert_allclose(called(graph, given).numpy(), expected, rtol=1e-12, atol=1e-13)
    single = tensors(
        {each: a.astype(np.float32) if a.dtype == np.float64 else a for each, a in arrays.items()}
    )
    np.testing.assert_allclose(called(graph, single).numpy(), expected, rtol=2e-5, atol=2e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("name", CELLS)
def test_cells_on_a_gpu(name: str, dtype: str) -> None:
    """Values and gradients by cuDNN."""
    kernel, graph, arrays = case(name)
    sizes = {axis: size for axis, size in OPEN.items() if axis in graph.open_sizes}
    plan = tn.plan(graph, backend="torch", device="cuda:0", dtype=dtype, compare=False, **sizes)
    assert f" {kernel}(" in plan.code
    there = {
        key: each.cuda().to(getattr(torch, dtype)) if each.is_floating_point() else each.cuda()
        for key, each in tensors(arrays).items()
    }
    here = tensors(arrays, grad=True)
    for each in there.values():
        each.requires_grad_(each.is_floating_point())
    asked = [key for key, each in here.items() if each.is_floating_point()]
    found, expected = called(graph, there), called(graph, here)
    close = {"float64": 1e-11, "float32": 2e-3, "bfloat16": 0.1}[
        dtype
    ]  # cuDNN may take TF32, as nn.LSTM does
    np.testing.assert_allclose(found.detach().double().cpu(), expected.detach(), rtol=close, atol=close)
    pairs = zip(
        *(
            torch.autograd.grad(y.sum(), [given[key] for key in asked])
            for y, given in ((found, there), (expected, here))
        ),
        strict=True,
    )
    for one, other in pairs:
        scale = 1.0 + float(other.abs().max())
        np.testing.assert_allclose(one.double().cpu(), other, atol=close * scale)


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_cell_is_a_loop(name: str) -> None:
    text = OTHERS[name]
    inputs = [each for each in ("x", "s") if f"{each}[b" in text]
    graph = tn.layer(text, inputs=inputs, outputs=["h", "y"] if "y[" in text else "h", o=3, t=4)
    code = tn.plan(graph, backend="torch", compare=False).code
    assert not any(f"{kernel}_along(" in code for kernel in ("lstm", "gru", "tanh", "relu"))
    arrays = drawn(graph, b=2, i=3)
    found, expected = computed(graph, arrays, "torch"), by_numpy(graph, arrays)
    for output in graph.outputs:
        np.testing.assert_allclose(found[output], expected[output], rtol=1e-12, atol=1e-13)


def test_other_libraries_and_devices_take_the_loop() -> None:
    _, graph, _ = case("an LSTM")
    for options in ({"backend": "numpy"}, {"backend": "torch", "dtype": "bfloat16"}):
        plan = tn.plan(graph, b=3, t=5, compare=False, **options)
        assert "step(" in str(plan)
        assert "lstm_along" not in str(plan)


@pytest.mark.parametrize(
    "name", ["an LSTM", "from the end", "a GRU whose gate takes", "a plain layer of relu"]
)
def test_gradients_are_those_of_the_equations(name: str) -> None:
    """Of the backward pass that the equations themselves have, in NumPy."""
    _, graph, arrays = case(name)
    loss = tn.layer("l = sum[b,t,o](sin(h[b,t,o]))", inputs="h[b,t,o]")
    step = tn.value_and_grad(graph, loss=loss, wrt=list(arrays))
    held = {leaf.name: arrays[leaf.name] for leaf in graph.parameters}
    _, expected = step(held, *(arrays[leaf.name] for leaf in graph.inputs))
    given = tensors(arrays, grad=True)
    total = torch.sin(called(graph, given)).sum()
    total.backward(retain_graph=True)
    total.backward()
    for each, tensor in given.items():
        assert tensor.grad is not None
        np.testing.assert_allclose(tensor.grad.numpy() / 2, expected[each], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["an LSTM", "a GRU", "a plain layer"])
def test_derivatives_of_gradients(name: str) -> None:
    _, graph, arrays = case(name)
    given = tensors(arrays, grad=True)
    assert torch.autograd.gradgradcheck(
        lambda x: torch.sin(called(graph, {**given, "x": x})).sum(), given["x"], atol=1e-6
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own scripts
@pytest.mark.parametrize(
    "name", ["an LSTM", "from the end", "a GRU", "a plain layer", "a plain layer of relu"]
)
def test_compilers_see_one_operation(name: str) -> None:
    _, graph, arrays = case(name)
    module = tn.module(graph, seed=0).double()
    given = [tensors(arrays)[leaf.name].requires_grad_() for leaf in graph.inputs]
    seen: list[str] = []

    def listed(module: Any, inputs: Any) -> Any:
        seen.extend(str(node.target) for node in module.graph.nodes)
        return make_boxed_func(module.forward)

    expected = module(*given)
    backend = aot_autograd(fw_compiler=listed, bw_compiler=lambda way, _: make_boxed_func(way.forward))
    compiled = torch.compile(module, fullgraph=True, backend=backend)(*given)
    assert [each for each in seen if "by_library" in each] == ["tensornet.by_library.default"]
    torch.testing.assert_close(compiled, expected, rtol=1e-12, atol=1e-13)
    leaves = [*module.parameters(), *given]
    found, told = (torch.autograd.grad(y.sin().sum(), leaves) for y in (compiled, expected))
    torch.testing.assert_close(found, told, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["an LSTM", "a GRU", "a plain layer", "a plain layer of relu"])
def test_transforms_see_a_loop(name: str) -> None:
    _, graph, arrays = case(name)
    function = tn.compile(graph, backend="torch")
    given = tensors(arrays)
    parameters, x = {leaf.name: given[leaf.name] for leaf in graph.parameters}, given["x"]
    expected = function(parameters, x)
    many = torch.func.vmap(lambda x: function(parameters, x))
    for both in (many, torch.compile(many, fullgraph=True, backend="eager")):
        found = both(torch.stack([x, 2 * x]))
        torch.testing.assert_close(found[0], expected, rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(found[1], function(parameters, 2 * x), rtol=1e-12, atol=1e-13)
    program = torch.export.export(tn.module(graph).double(), (x,))
    assert not any("by_library" in str(node.target) for node in program.graph.nodes)


@pytest.mark.parametrize("name", ["an LSTM", "a GRU", "a plain layer"])
def test_no_positions_and_no_batch(name: str) -> None:
    _, graph, arrays = case(name)
    for shape in ((3, 0, 3), (0, 5, 3)):
        given = tensors({**arrays, "x": np.zeros(shape)})
        assert called(graph, given).shape == (*shape[:2], 4)


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_a_layer_of_torch_is_itself_again(kind: Any) -> None:
    """With its own weights, taken apart and put together, it computes the same to the bit."""
    module = kind(5, 7, batch_first=True)
    graph, parameters = tn.models.from_torch(module)
    x = torch.randn(3, 6, 5)
    with torch.no_grad():
        torch.testing.assert_close(
            tn.compile(graph, backend="torch")(parameters, x), module(x)[0], rtol=2e-6, atol=1e-6
        )
