"""One table of equations × every backend, against an independent reference in float64."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

import tensornet as tn
from tensornet.ops.record import Function
from tensornet.ops.table import FUNCTIONS
from tensornet.protocol import load_backend

from .differential import by_numpy
from .programs import SUMMED_ALONE

pytestmark = pytest.mark.filterwarnings(SUMMED_ALONE)


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
    expected = by_numpy(graph, {inputs[0]: first, "x": x})["y"]
    np.testing.assert_allclose(library.numpy(found), expected, rtol=1e-6)


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
    for backend, module, fix in (
        ("cupy", "array_api_compat.cupy", "pip install cupy-cuda12x"),
        ("jax", "jax", "pip install 'jax"),
    ):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(tn.BackendError, match=fix):
            tn.compile(tn.layer("y[b] = x[b,i]", inputs="x"), backend=backend)


def test_cupy_code_is_planned_without_a_gpu() -> None:
    graph = tn.layer("y[b,p] = gelu(x[b,i] * W[p,i])", inputs="x", i=4, p=3)
    lines = [line.partition("#")[0].strip() for line in tn.plan(graph, backend="cupy", b=8).code.splitlines()]
    assert lines[-3:] == ["t1 = linear(x, W)", "y = gelu(t1)", "return y"]


MADE_OF_OTHERS = [row for row in FUNCTIONS.values() if row.expansion]


@pytest.mark.parametrize("row", MADE_OF_OTHERS, ids=lambda row: row.name)
def test_a_backend_may_lack_what_others_make_up(row: Function) -> None:
    """The expansion stands in its place, forward and backward."""
    own = load_backend("numpy")
    kept = {each: text for each, text in own.templates.items() if each.split("_")[0] != row.name}
    without = type("Without", (type(own),), {"templates": kept})()
    over, given = "" if row.axes == "none" else "[j]", ", ".join(["z", *["2.0"] * (row.arity[0] - 1)])
    graph = tn.layer(f"z[b,j] = exp(x[b,j])\ny[b,j] = w[j] * {row.name}{over}({given})", inputs="x")
    x, w = np.random.default_rng(0).standard_normal((3, 4)), np.arange(4.0)
    for each in (graph, tn.gradient(graph, wrt="x w")):
        given = [x, np.ones((3, 4))][: len(each.inputs)]
        found, expected = (tn.compile(each, backend=one)({"w": w}, *given) for one in (without, own))
        np.testing.assert_allclose(np.hstack([*map(np.ravel, found)]), np.hstack([*map(np.ravel, expected)]))
