"""One table of equations × every backend, against an independent reference in float64."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import array_api_strict
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tensornet as tn
from tensornet.backends.array_api import of
from tensornet.protocol import load_backend
from tensornet.runtime.executable import Executable

from . import reference
from .strategies import SUMMED_ALONE, Block, blocks

pytestmark = pytest.mark.filterwarnings(SUMMED_ALONE)


@dataclass(frozen=True)
class Row:
    """An equation of the table: text, inputs, sizes, and which inputs hold whole numbers below what."""

    name: str
    text: str
    inputs: str = "x"
    sizes: dict[str, int] = field(default_factory=dict)
    whole: dict[str, int] = field(default_factory=dict)
    outputs: str = ""


S = {"b": 3, "i": 4, "j": 5, "k": 2, "p": 3, "q": 2, "h": 2, "d": 3}
ROWS = [
    Row("matrix product", "y[b,p] = x[b,i] * W[p,i]", sizes=S),
    Row("three factors", "y[b,p,q] = x[b,i,j] * U[p,i] * V[q,j]", sizes=S),
    Row("dense with bias", "y[b,p] = gelu(x[b,i] * W[p,i] + u[p]) * Z[p]", sizes=S),
    Row("two sums", "y[b,q] = tanh(x[b,i]*W[p,i] + u[p]) * Z[q,p]", sizes=S),
    Row("elementwise", "y[b,i] = x[b,i] * z[b,i]", "x z", S),
    Row("broadcast", "y[b,i,j] = x[b,i] * z[j] - 2 * w[i,j]", "x z w", S),
    Row("outer", "y[i,j] = x[i] * z[j]", "x z", S),
    Row("dot", "y = x[i] * z[i]", "x z", S),
    Row("batched dot", "y[b,j] = x[b,i,j] * z[b,i,j]", "x z", S),
    Row("lone sum", "y[b] = x[b,i]", sizes=S),
    Row("transpose", "y[i,b] = x[b,i]", sizes=S),
    Row("diagonal", "y[i] = x[i,i]", sizes=S),
    Row("trace", "y = x[i,i]", sizes=S),
    Row("diagonal in a product", "y[i,j] = x[i,i,j] * W[j]", sizes=S),
    Row("split", "y[b,h,d] = x[b,(h,d)] * g[h]", sizes=S),
    Row("join", "y[b,(h,d)] = x[b,d,h] * g[h]", sizes=S),
    Row("split and join", "y[b,(d,h)] = x[b,(h,d)]", sizes=S),
    Row("join then read", "z[b,(d,h)] = x[b,h,d]\ny[b,p] = z[b,c] * W[p,c]", sizes=S),
    Row("integer index", "y[b,j] = x[b,0,j] + x[b,-1,j]", sizes=S | {"i": 4}, inputs="x[b,i,j]"),
    Row("embedding", "y[b,i,d] = E[t[b,i],d] + P[i,d]", "t", S | {"E0": 7}, {"t": 7}),
    Row("gather in a product", "y[b,p] = E[t[b],d] * W[p,d]", "t", S | {"E0": 7}, {"t": 7}),
    Row("relative positions", "y[h,i,j] = B[h,r[i,j]]", "r", S | {"B1": 9}, {"r": 9}),
    Row("two gathers", "y[b] = x[s[b],t[b]]", "x[i,j] s t", S, {"s": 4, "t": 5}),
    Row("gather along the batch", "y[b,j] = x[b,t[b],j]", "x[b,i,j] t", S, {"t": 4}),
    Row("scalars", "y[b,i] = x[b,i] / sqrt(i * j) + pi * 2 ** -1 - z[j] * z[j]", "x z", S),
    Row("division", "y[b,i] = x[b,i] / (z[b] * z[b] + 1)", "x z", S),
    Row("power", "y[b,i] = (x[b,i] ** 2 + 1) ** 0.5", sizes=S),
    Row("powers of a negative number", "y[i] = (-2) ** floor(x[i]) + (-0.5) ** floor(x[i])", sizes=S),
    Row(
        "names of helpers", "y[softmax] = softplus(device[softmax,where]) * W[where]", "device", {"where": 3}
    ),
    Row("repeat", "y[k,b,i] = x[b,i] * repeat[k](w[b]) + repeat[b](v[i])", sizes=S),
    Row("repeat alone", "y[i,k] = repeat[k](x[i])\nz[b,j] = repeat[b](repeat[j](2))", sizes=S, outputs="y z"),
    Row("negation", "y[b,i] = -(x[b,i] - z[b])", "x z", S),
    Row("two-sided", "y[b,i] = maximum(x[b,i], z[b]) + minimum(x[b,i], 0.5)", "x z", S),
    Row("between bounds", "y[b,i] = clip(x[b,i], -0.5, z[b]) + clip(t[b], 1, 2)", "x z t", S, {"t": 4}),
    Row("a slope of one's own", "y[b,i] = leaky_relu(x[b,i], slope=1 / i) + elu(x[b,i], alpha=0.5)", sizes=S),
    Row("integers are whole", "y[b] = round(t[b]) + ceil(t[b])", "t", S, {"t": 4}),
    Row("truths are counted", "y[b,c] = (x[b,i] > 0) * (x[c,i] > 0)", sizes=S),
    Row("truths are summed", "y[b] = sum[i]((x[b,i] > 0) * (x[b,i] < 1))", sizes=S),
    Row("truths are added", "y[b,i] = (x[b,i] > 0) + (x[b,i] > 1) - (x[b,i] < 0)", sizes=S),
    Row("a truth by name", "g[b,i] = x[b,i] > 0\ny[b,i] = where(g, g * x, -g)", sizes=S),
    Row("two numbers", "y[b,i] = where(x[b,i] > 0, 1, 0) * x[b,i]", sizes=S),
    Row("whole and half", "y[i] = maximum(t[i], 0.5) + minimum(t[i], 2.5)", "t", S, {"t": 4}),
    Row(
        "a new parameter on a grown axis",
        "y[b,n,c] = concat[n](cls[1,c], p[b,n,c]) + pos[n,c]",
        "p",
        S | {"n": 4},
    ),
    Row("concat with itself", "y[b,i] = concat[i](x[b,i], 0, x[b,i])", sizes=S),
    Row("logsumexp of nothing", "y[b] = logsumexp[i](where(x[b,i] > 100, x[b,i], -inf))", sizes=S),
    Row("logic", "y[b,i] = where((x > 0) & ~(x > 1) | (x == 2), x, -1)", "x[b,i]", S),
    Row("causal mask", "a[b,i,j] = softmax[j](where(index(i) >= index(j), s[b,i,j], -inf))", "s", S),
    Row("positions", "y[i,d] = sin(index(i) / 10 ** (index(d) / d)) * g[d]", "g", S),
    Row("softmax over two", "y[b,i,j] = softmax[b,j](x[b,i,j])", sizes=S),
    Row("log softmax", "y[b,i] = log_softmax[b](x[b,i])", sizes=S),
    Row("layer norm", "y[b,i] = g[i] * normalize[i](x[b,i], eps=1e-6) + u[i]", sizes=S),
    Row("norm over the first", "y[b,i] = normalize[b](x[b,i])", sizes=S),
    Row("reduction inside", "y[b,i] = x[b,i] - mean[i](x[b,i]) * max[i](x[b,i])", sizes=S),
    Row("positions of the largest", "y[b,j] = argmax[i](x[b,i,j]) - argmin[i](x[b,i,j])", sizes=S),
    Row("the smallest first", "p[b,i,j] = argsort[i](x[b,i,j])\ny[b,i,j] = x[b,p[b,i,j],j]", sizes=S),
    Row("the largest two", "p[b,k,j] = top[i,k](x[b,i,j])\ny[b,k,j] = x[b,p[b,k,j],j] * g[k]", sizes=S),
    Row("the first of equal ones", "y[b,k] = top[i,k](t[b,i]) + 10 * argmax[i](t[b,i])", "t", S, {"t": 2}),
    Row("order of equal ones", "y[b,i] = argsort[i](t[b,i]) - argsort[i](t[b,i] > 0)", "t", S, {"t": 3}),
    Row("stack", "y[b,l,i] = stack[l](x[b,i], v[i], 1, x[b,i]) * g[l]", sizes=S),
    Row("roll", "y[b,i,j] = roll(x, i=-1, j=k)", "x[b,i,j]", S | {"k": 2}),
    Row("concat", "z[b,n,d] = concat[n](cls[1,d], x[b,n,d], x[b,0,d])", "x[b,n,d]", S | {"n": 4}),
    Row("pad", "y[b,n] = pad(x[b,i], i=(1, 2), value=3)".replace("[b,n]", "[b,i]"), sizes={"b": 3}),
    Row("crop", "y[b,i] = pad(x[b,i], i=(-1, -1)) * g[i]", sizes={"b": 3}, inputs="x[b,i:6]"),
    Row("onehot", "y[b,p] = onehot[j](t[b]) * W[p,j]", "t", S, {"t": 5}),
    Row("leading axes", "y[...,p] = x[...,i] * W[p,i]", "x", S),
    Row("sum of products", "y[b,p] = x[b,i]*U[p,i] + z[b,j]*V[p,j] + u[p]", "x z", S),
    Row("distribution", "h[b,p] = x[b,i]*U[p,i] + u[p]\ny[b,q] = h*V[q,p]", sizes=S),
    Row(
        "a convolution", "y[b,o,p] = x[b,c,2*p+u] * K[o,c,u]", sizes={"b": 2, "c": 3, "o": 2, "x2": 7, "u": 2}
    ),
    Row("the largest of windows", "y[b,p] = max[u](x[b,2*p+u])", sizes={"b": 2, "x1": 7, "u": 3}),
    Row("whole quotients", "y[b,t] = x[b,t] * (index(t) // 3) + index(t) % 3", sizes={"b": 2, "t": 7}),
    Row("read at quotients", "y[b,t,c] = x[b,t] * E[t//2,c]", sizes={"b": 2, "t": 7, "c": 2, "E0": 4}),
    Row(
        "quotients of what is told",
        "y[n,c] = E[t[n]//2,c] * E[t[n]%3,c]",
        inputs="t",
        whole={"t": 7},
        sizes={"n": 5, "c": 2, "E0": 4},
    ),
    Row("shared", "y[b,i] = exp(x[b,i]) / sum[i](exp(x[b,i]))", sizes=S),
    Row("two results", "h[b,p] = x[b,i]*U[p,i]\ny[b] = h*h", sizes=S, outputs="y h"),
    Row("an input as a result", "y[b] = x[b,i]", sizes=S, outputs="y x"),
    *[
        Row(name, f"y[b,i] = {name}(x[b,i])", sizes=S)
        for name in reference.UNARY
        if name not in reference.OWN + reference.POSITIVE
    ],
    *[Row(f"{n} of a positive", f"y[b,i] = {n}(x[b,i]*x[b,i] + 1)", sizes=S) for n in reference.POSITIVE],
    *[Row(f"{n} over one", f"y[b,j] = {n}[i](x[b,i,j])", sizes=S) for n in reference.OVER],
    *[Row(f"{n} over two", f"y[i] = {n}[b,j](x[b,i,j])", sizes=S) for n in reference.OVER],
    *[Row(f"{n} along one", f"y[b,i,j] = {n}[i](x[b,i,j])", sizes=S) for n in reference.ALONG],
]


def strict() -> Any:
    return of(array_api_strict)


BACKENDS: dict[str, Callable[[], Any]] = {
    "numpy": lambda: load_backend("numpy"),
    "torch": lambda: load_backend("torch"),
    "jax": lambda: load_backend("jax"),
    "array-api-strict": strict,
}
GPU = {"torch-cuda": ("torch", "cuda"), "cupy": ("cupy", None)}


def graph_of(row: Row) -> tn.Graph:
    """The row's graph, with the sizes that concern it."""
    known: dict[str, Any] = dict(row.sizes)
    while True:
        try:
            return tn.layer(row.text, inputs=row.inputs, outputs=row.outputs, **known)
        except tn.ShapeError as error:
            unused = re.match("a size is given for '(.*)', which is no axis here", str(error))
            if unused is None:
                raise
            del known[unused.group(1)]


def arrays_of(graph: tn.Graph, whole: dict[str, int], seed: int = 0) -> dict[str, np.ndarray]:
    """Random inputs and parameters; open sizes become 4, and `...` two axes of 2."""
    generator = np.random.default_rng(seed)
    found = {}
    for leaf in (*graph.inputs, *graph.parameters):
        shape = tuple(_size(size, graph) for size in leaf.shape)
        if leaf.name in whole:
            found[leaf.name] = generator.integers(0, whole[leaf.name], shape)
        else:
            found[leaf.name] = generator.standard_normal(shape)
    return found


def _size(size: Any, graph: tn.Graph) -> int:
    if isinstance(size, int):
        return size
    return int(size.subs({name: graph.bound.get(str(name), 4) for name in size.free_symbols}))


def check(graph: tn.Graph, arrays: dict[str, np.ndarray], backend: Any, device: str | None = None) -> None:
    """The graph on a backend equals the reference."""
    sizes = dict.fromkeys(graph.open_sizes, 4)
    expected = reference.run(graph, arrays, sizes)
    executable = Executable(graph, backend, dtype="float64")
    given = {name: backend.asarray(array, device=device) for name, array in arrays.items()}
    parameters = {leaf.name: given[leaf.name] for leaf in graph.parameters}
    results = executable(parameters, *[given[leaf.name] for leaf in graph.inputs])
    results = results if isinstance(results, tuple) else (results,)
    for name, result in zip(graph.outputs, results, strict=True):
        found = backend.numpy(result)
        assert found.shape == expected[name].shape
        np.testing.assert_allclose(found.astype(float), expected[name].astype(float), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_table(row: Row, backend: str) -> None:
    graph = graph_of(row)
    check(graph, arrays_of(graph, row.whole), BACKENDS[backend]())


@pytest.mark.gpu
@pytest.mark.parametrize("backend", GPU)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_table_on_gpu(row: Row, backend: str) -> None:
    name, device = GPU[backend]
    if name == "cupy":
        pytest.importorskip("cupy")
    graph = graph_of(row)
    check(graph, arrays_of(graph, row.whole), load_backend(name), device)


@given(blocks(), st.sampled_from(sorted(BACKENDS)), st.integers(0, 100))
def test_random_graphs(case: Block, backend: str, seed: int) -> None:
    graph = case.graph()
    inputs = dict(zip((leaf.name for leaf in graph.inputs), case.arrays(seed), strict=True))
    check(graph, {**case.parameters(seed), **inputs}, BACKENDS[backend]())


def test_leading_axes_of_any_number() -> None:
    graph = tn.layer("y[...,p] = x[...,i] * W[p,i]", inputs="x", i=4, p=3)
    parameters = tn.init(graph, dtype="float64")
    f = tn.compile(graph)
    for shape in [(4,), (2, 4), (2, 3, 4), (2, 1, 3, 4), (0, 4)]:
        x = np.random.default_rng(0).standard_normal(shape)
        np.testing.assert_allclose(f(parameters, x), x @ parameters["W"].T, rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64", "complex128"])
def test_dtype_is_kept(dtype: str) -> None:
    graph = tn.layer("y[b,p,q] = x[b,i,j] * U[p,i] * V[q,j]", inputs="x", i=4, j=4, p=3, q=2)
    backends = ["torch", "jax"] if dtype == "bfloat16" else ["numpy", "torch", "jax"]
    for backend in backends:
        parameters = tn.init(graph, backend=backend, dtype=dtype)
        library = load_backend(backend)
        assert {library.dtype(array) for array in parameters.values()} == {dtype}
        x = library.asarray(np.ones((5, 4, 4)), dtype=dtype)
        assert library.dtype(tn.compile(graph, backend=backend)(parameters, x)) == dtype


DTYPES = [
    ("m x", "y[b,i] = where(m[b,i], x[b,i] * exp(-index(i) / 2), 0)"),
    ("t x", "s = 0.5\ny[b,i] = t[b,i] * x[b,i] * s"),
    ("m x", "s = 0.5\ny[b,i] = where(m[b,i], x[b,i] * s, 0)"),
    ("m x", "y[b,i] = where(m[b,i], 1, 0.5) * x[b,i]"),
]


@pytest.mark.parametrize(("inputs", "text"), DTYPES, ids=[text for _, text in DTYPES])
@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_numbers_take_the_working_type_whatever_comes_first(inputs: str, text: str, backend: str) -> None:
    graph = tn.layer(text, inputs=inputs)
    x = np.linspace(1, 2, 6, dtype=np.float32).reshape(2, 3)
    first = np.array([[1, 0, 1], [0, 1, 1]])
    first = first.astype(bool) if inputs.startswith("m") else first
    library = load_backend(backend)
    found = tn.compile(graph, backend=backend)({}, library.asarray(first), library.asarray(x))
    assert library.dtype(found) == "float32"
    expected = reference.run(graph, {inputs[0]: first, "x": x}, {"b": 2, "i": 3})["y"]
    np.testing.assert_allclose(library.numpy(found), expected, rtol=1e-6)


def test_constants_take_the_type_of_each_call() -> None:
    c = np.arange(1, 6) / 7
    f = tn.compile(tn.layer("y[b,i] = x[b,i] * c[i]", inputs="x", constants={"c": c}))
    x = np.ones((2, 5))
    assert f({}, x.astype(np.float32)).dtype == np.float32
    np.testing.assert_array_equal(f({}, x), x * c)
    assert f({}, x.astype(np.float32)).dtype == np.float32


def test_unknown_element_types_and_seeds_are_refused() -> None:
    graph = tn.layer("y[b,p] = x[b,i] * W[p,i]", inputs="x", i=4, p=3)
    for call in (tn.init, tn.plan, tn.module):
        with pytest.raises(
            tn.BackendError, match="there is no element type 'float7'\nfix: choose one of float16"
        ):
            call(graph, dtype="float7")
    assert tn.init(graph, backend="torch", dtype=torch.float64)["W"].dtype == torch.float64
    with pytest.raises(tn.ShapeError, match="the seed is -1"):
        tn.init(graph, seed=-1)
    with pytest.raises(
        tn.ShapeError, match=r"the size of j cannot be told from the shapes(?s:.*)bind it first"
    ):
        tn.plan(tn.layer("y[i] = mean[j](index(i) * index(j))", inputs="x[i]"))


def test_complex_is_not_conjugated() -> None:
    generator = np.random.default_rng(0)
    a, b = (generator.standard_normal((3, 4)) + 1j * generator.standard_normal((3, 4)) for _ in range(2))
    for convert in (np.asarray, torch.tensor, load_backend("jax").asarray):
        found = np.asarray(tn.einsum("b i, b i -> b", convert(a), convert(b)))
        np.testing.assert_allclose(found, np.einsum("bi,bi->b", a, b), rtol=1e-12)


def test_registered_functions() -> None:
    tn.register("cube", numpy=lambda a: a**3, torch=lambda a: a**3)
    tn.register("reverse", over_axis=True, numpy=np.flip, torch=lambda a, axis: torch.flip(a, (axis,)))
    graph = tn.layer("y[b,i] = cube(x[b,i]) + reverse[b](x[b,i])", inputs="x")
    x = np.arange(6.0).reshape(3, 2)
    expected = x**3 + x[::-1]
    np.testing.assert_allclose(tn.compile(graph)({}, x), expected)
    np.testing.assert_allclose(tn.compile(graph, backend="torch")({}, torch.tensor(x)).numpy(), expected)
    with pytest.raises(tn.BackendError, match="'cube' is registered for numpy, torch, not for cupy"):
        tn.plan(graph, backend="cupy")
    with pytest.raises(tn.EquationError, match="'exp' belongs to the language"):
        tn.register("exp", numpy=np.exp)


def test_missing_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(tn.BackendError, match="there is no backend 'mxnet'"):
        tn.compile(tn.layer("y[b] = x[b,i]", inputs="x"), backend="mxnet")
    monkeypatch.setitem(__import__("sys").modules, "array_api_compat.cupy", None)
    with pytest.raises(tn.BackendError, match="pip install cupy-cuda12x"):
        tn.compile(tn.layer("y[b] = x[b,i]", inputs="x"), backend="cupy")
    monkeypatch.setitem(__import__("sys").modules, "jax", None)
    with pytest.raises(tn.BackendError, match="pip install 'jax"):
        tn.compile(tn.layer("y[b] = x[b,i]", inputs="x"), backend="jax")


def test_cupy_code_is_planned_without_a_gpu() -> None:
    graph = tn.layer("y[b,p] = gelu(x[b,i] * W[p,i])", inputs="x", i=4, p=3)
    assert "gelu(linear(x, W))" in tn.plan(graph, backend="cupy", b=8).code


def test_arrays_of_another_library_are_refused() -> None:
    graph = tn.layer("y[b,p] = x[b,i] * W[p,i]", inputs="x", i=4, p=3)
    f = tn.compile(graph, backend="torch")
    with pytest.raises(
        tn.BackendError, match="'W' is an array of numpy, and the graph is compiled for torch"
    ):
        f(tn.init(graph), torch.ones(2, 4))
    moved = tn.to_backend(tn.init(graph), "torch")
    assert f(moved, torch.ones(2, 4)).shape == (2, 3)
