"""The records of functions: derivatives, costs, sizes; backends that lack some."""

from __future__ import annotations

import ast
import math
import sys

import numpy as np
import pytest
import sympy
import torch

import tensornet as tn
from tensornet.device.cost_model import default_profile
from tensornet.ops import rnn as cells
from tensornet.ops.along_axes import FOLLOWING, PREVIOUS
from tensornet.ops.collectives import COLLECTIVES
from tensornet.ops.convolution import CONVOLUTION
from tensornet.ops.record import Function
from tensornet.ops.structure import REPEAT
from tensornet.ops.table import CONVERSIONS, FUNCTIONS, RESERVED, SIGNS, Element
from tensornet.protocol import load_backend

from .conftest import ROOT, normal, sampled
from .differential import BACKENDS, by_numpy
from .programs import SUMMED_ALONE

READ_ALONE = pytest.mark.filterwarnings(SUMMED_ALONE)

# ---------------------------------------------------------------------------- The records of functions


POINTWISE = [row for row in FUNCTIONS.values() if row.kind == "pointwise" and not row.implementations]
WITHOUT = {"dropout"}  # which keeps the mask of the forward pass, and no text says that


# ---------------------------------------------------------------------------- derivatives


def test_every_pointwise_function_has_a_derivative() -> None:
    assert {row.name for row in POINTWISE if not row.derivative} == WITHOUT
    for row in POINTWISE:
        assert len(row.derivative) in (0, 1, row.arity[0])


# ---------------------------------------------------------------------------- what rows say


def test_rows_say_what_fits_their_axes() -> None:
    for row in FUNCTIONS.values():
        assert bool(row.amounts) == (row.axes == "moved")
        assert row.resized is None or row.axes == "moved"
        assert row.axes == "none" or row.scalar is None
        assert bool(row.number) <= (row.scalar is not None)
        assert row.twin == "" or FUNCTIONS[row.twin].kind == "pointwise"
        assert min(row.passes) >= 1.0
    assert set(CONVERSIONS) == set(Element) - {Element.SHORT}
    assert len(SIGNS) == sum(bool(row.infix) for row in FUNCTIONS.values())


@pytest.mark.parametrize("row", [row for row in POINTWISE if row.number], ids=lambda row: row.name)
def test_numbers_as_source_are_those_of_the_function(row: Function) -> None:
    values = (1.25, 0.75, 2.0)[: row.arity[0]]
    supported = eval(row.number.format(*values), {"math": math})
    assert supported == pytest.approx(row.scalar(*values))


@pytest.mark.parametrize("row", [row for row in POINTWISE if row.in_sizes], ids=lambda row: row.name)
def test_sizes_are_made_as_numbers_are(row: Function) -> None:
    made = getattr(sympy, row.in_sizes)(*[sympy.Rational(7, 2), sympy.Integer(3)][: row.arity[0]])
    assert float(made) == row.scalar(*[3.5, 3][: row.arity[0]])


# ---------------------------------------------------------------------------- costs


def test_the_cost_of_a_step_is_that_of_its_passes() -> None:
    device = default_profile("cpu")
    row = FUNCTIONS["normalize"]
    inner, outer = (row.seconds(device, 8e6, 4e6, each) - device.launch for each in (True, False))
    assert inner - device.stream(8e6) == pytest.approx((row.passes[0] - 1.0) * 8e6 / device.pass_bandwidth)
    assert outer - device.stream(8e6) == pytest.approx((row.passes[1] - 1.0) * 8e6 / device.pass_bandwidth)
    assert FUNCTIONS["relu"].seconds(device, 8e6, 4e6, True) == device.pointwise(8e6, 4e6)


# ---------------------------------------------------------------------------- steps and source


@pytest.mark.parametrize("backend", sampled(BACKENDS, BACKENDS.keys() - {"jax"}))
def test_tensors_may_be_called_as_the_helpers_of_a_backend_are(backend: str) -> None:
    library = BACKENDS[backend]()
    words = sorted(set(library.namespace()) - set(FUNCTIONS) - RESERVED | {"dtype", "training", "leading"})
    x = np.linspace(-2.0, 2.0, 12).reshape(3, 4)
    results = []
    for name in ["plain", *words]:
        graph = tn.layer(
            f"{name}[b,i] = where(x[b,i] > 0, maximum(softplus(x[b,i]), 0.5), -1e30)\n"
            f"y[b,i] = hardmax[i]({name}[b,i]) * index(i) + normalize[i](x[b,i]) + {name}[b,t[i]]",
            inputs="x t",
            outputs=["y", name],
        )
        arrays = library.asarray(x), library.asarray(np.array([3, 0, 1, 1]))
        results.append([library.numpy(each) for each in tn.compile(graph, backend=library)({}, *arrays)])
    for found in results[1:]:
        np.testing.assert_array_equal(found, results[0])


def test_no_room_knows_a_function_by_name() -> None:
    """But the arithmetic that the language is made of; and words that are types, arguments, read a size, or start."""
    arithmetic = {"add", "reciprocal", "power"}
    words = {"int64", "floor", "shard", "std"}
    own = {name for name, row in FUNCTIONS.items() if not row.implementations}
    rooms = (
        "language graph frontend scan autodiff initialization contraction lowering planning codegen runtime"
    )
    for path in (
        path for room in rooms.split() for path in sorted((ROOT / "tensornet" / room).rglob("*.py"))
    ):
        tree = ast.parse(path.read_text("utf-8"))
        found = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
        assert not found & (own - arithmetic - words), path


def test_backends_spell_every_function() -> None:
    for name in ("numpy", "torch", "cupy", "jax"):
        templates = load_backend(name).templates
        assert (name in ("torch", "jax")) == (COLLECTIVES.keys() <= templates.keys())
        for row in FUNCTIONS.values():
            if row.name in COLLECTIVES:  # they run where there is a mesh
                continue
            known = row.computes or row.implementations or row.infix or row.expansion or row.name in templates
            spread = (REPEAT, PREVIOUS, FOLLOWING)  # the one is broadcast, the others are loops or crops
            kernels = (CONVOLUTION, *cells.ROWS)  # a library may do without
            assert known or row in (*spread, *kernels), (name, row.name)


@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize(
    "text",
    [
        "y[i] = dropout(x[i], 0.5) * w[i]",
        "y[i] = exp(dropout(x[i], 0.5)) * w[i]",
        "d[i] = dropout(x[i], 0.5)\ny[i] = d[i] * w[i]",
        "y[i] = dropout(2, 0.5) * w[i] * x[i]",
    ],
)
def test_the_backward_pass_reads_what_the_forward_pass_dropped(text: str, backend: str) -> None:
    """Of what gets no gradient as well: the loss is linear in w, whatever is dropped."""
    loss = tn.layer("loss = sum[i](y[i])", inputs="y[i]")
    step = tn.value_and_grad(tn.layer(text, inputs="x", i=5), loss=loss, wrt=["w"], backend=backend)
    arrays = tn.to_backend({"w": np.ones(5), "x": np.ones(5)}, backend)
    for _ in range(10):
        value, gradients = step({"w": arrays["w"]}, arrays["x"])
        assert np.allclose(float(value), float(gradients["w"].sum()))


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_a_number_may_be_dropped(backend: str) -> None:
    graph = tn.layer("y[i] = dropout(0.5, 0.2) * dropout(a, 0.2) * x[i]\na[()]: parameter", inputs="x")
    a, x = tn.to_backend({"a": np.ones(()), "x": np.ones(3)}, backend).values()
    assert np.allclose(tn.compile(graph, backend=backend)({"a": a}, x), 0.5)
    loss = tn.layer("loss = sum[i](y[i])", inputs="y[i]")
    value, gradients = tn.value_and_grad(graph, loss=loss, backend=backend)({"a": a}, x)
    assert np.allclose(float(value), float(gradients["a"]))  # linear in it, whatever is dropped


@pytest.mark.parametrize("axes", ["a", "b", "c", "a,b", "a,c"])
def test_norms_and_orders_along_any_axis_are_those_of_torch(axes: str) -> None:
    """In single precision too, where torch is asked for long norms in another way; their gradient at 0 is 0."""
    left, over = [each for each in "abc" if each not in axes], tuple(map("abc".index, axes.split(",")))
    x = torch.randn(20, 20, 30)
    x.movedim(tuple(map("abc".index, left)), tuple(range(len(left))))[0] = 0
    x.requires_grad_()
    found = tn.compile(
        tn.layer(f"y[{','.join(left)}] = norm[{axes}](x[a,b,c])", inputs="x"), backend="torch"
    )({}, x)
    expected = torch.linalg.vector_norm(x, dim=over)
    torch.testing.assert_close(found, expected)
    for made in (found, expected):
        (first,) = torch.autograd.grad(made.square().sum() + made.sum(), x, create_graph=True)
        (second,) = torch.autograd.grad((first * first).sum(), x)
        if made is found:
            kept = first, second
    torch.testing.assert_close(kept, (first, second), equal_nan=True)
    if len(over) == 1:
        order = tn.compile(tn.layer(f"y[a,b,c] = argsort[{axes}](x[a,b,c])", inputs="x"), backend="torch")
        torch.testing.assert_close(order({}, x.detach()), torch.argsort(x, dim=over[0], stable=True))


# ---------------------------------------------------------------------------- One table of equations × every backend, against an independent reference in floa


@READ_ALONE
def test_leading_axes_of_any_number() -> None:
    graph = tn.layer("y[...,p] = x[...,i] * W[p,i]", inputs="x", i=4, p=3)
    parameters = tn.init(graph, dtype="float64")
    f = tn.compile(graph)
    for shape in [(4,), (2, 4), (2, 3, 4), (2, 1, 3, 4), (0, 4)]:
        x = normal(*shape)
        np.testing.assert_allclose(f(parameters, x), x @ parameters["W"].T, rtol=1e-12)


@READ_ALONE
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


@READ_ALONE
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


@READ_ALONE
def test_complex_is_not_conjugated() -> None:
    generator = np.random.default_rng(0)
    a, b = (generator.standard_normal((3, 4)) + 1j * generator.standard_normal((3, 4)) for _ in range(2))
    for convert in (np.asarray, torch.tensor, load_backend("jax").asarray):
        found = np.asarray(tn.einsum("b i, b i -> b", convert(a), convert(b)))
        np.testing.assert_allclose(found, np.einsum("bi,bi->b", a, b), rtol=1e-12)


@READ_ALONE
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


@READ_ALONE
def test_missing_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for backend, module, fix in (
        ("cupy", "array_api_compat.cupy", "pip install cupy-cuda12x"),
        ("jax", "jax", "pip install 'jax"),
    ):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(tn.BackendError, match=fix):
            tn.compile(tn.layer("y[b] = x[b,i]", inputs="x"), backend=backend)


MADE_OF_OTHERS = [row for row in FUNCTIONS.values() if row.expansion]


@READ_ALONE
@pytest.mark.parametrize("row", MADE_OF_OTHERS, ids=lambda row: row.name)
def test_a_backend_may_lack_what_others_make_up(row: Function) -> None:
    """The expansion stands in its place, forward and backward."""
    own = load_backend("numpy")
    kept = {each: text for each, text in own.templates.items() if each.split("_")[0] != row.name}
    without = type("Without", (type(own),), {"templates": kept})()
    over, given = "" if row.axes == "none" else "[j]", ", ".join(["z", *["2.0"] * (row.arity[0] - 1)])
    graph = tn.layer(f"z[b,j] = exp(x[b,j])\ny[b,j] = w[j] * {row.name}{over}({given})", inputs="x")
    x, w = normal(3, 4), np.arange(4.0)
    for each in (graph, tn.gradient(graph, wrt="x w")):
        given = [x, np.ones((3, 4))][: len(each.inputs)]
        found, expected = (tn.compile(each, backend=one)({"w": w}, *given) for one in (without, own))
        np.testing.assert_allclose(np.hstack([*map(np.ravel, found)]), np.hstack([*map(np.ravel, expected)]))
