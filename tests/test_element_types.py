"""What becomes of element types: positions and integers stay exact, numbers are of one working type.

The judge is NumPy in float64, or Python's own integers.
"""

from __future__ import annotations

import functools
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.special
import torch
from hypothesis import given
from hypothesis import strategies as st

import tensornet as tn
from tensornet import models
from tensornet.models.positions import CONVENTIONS, fourier_features, resize_positions, sinusoidal_positions
from tensornet.ops.table import FUNCTIONS

from . import differential, oracle
from .conftest import examples, rows, sampled
from .differential import by_numpy
from .programs import SUMMED_ALONE

pytestmark = pytest.mark.filterwarnings(SUMMED_ALONE)

BACKENDS = {name: library() for name, library in differential.BACKENDS.items()}
EXACT = [each for each in BACKENDS if each != "jax"]
"""Where a quotient is rounded once: XLA multiplies with the reciprocal of a number."""

INTEGERS = ("bool", "uint8", "int8", "int16", "int32", "int64")
REALS = ("float16", "bfloat16", "float32", "float64")
COMPLEX = ("complex64", "complex128")
EPS = {"float16": 2**-10, "bfloat16": 2**-7, "float32": 2**-23, "float64": 2**-52}
EPS |= {"complex64": 2**-23, "complex128": 2**-52}


def typed(dtypes: str, jax: str) -> list[Any]:
    """Each type with each backend; JAX compiles each function for each type, and has those of `jax` by day."""
    cases = [(dtype, backend) for dtype in dtypes.split() for backend in BACKENDS]
    return sampled(cases, [case for case in cases if case[1] != "jax" or case[0] in jax.split()])


def has(backend: str, dtype: str) -> bool:
    """Whether a library has an element type."""
    lacking = {"numpy": ("bfloat16",), "torch": (), "jax": (), "array-api-strict": ("float16", "bfloat16")}
    return dtype not in lacking[backend]


def run(graph: tn.Graph, backend: str, *arrays: Any, dtypes: Any, **parameters: Any) -> Any:
    """The result as the backend gives it, for arrays converted to these types."""
    library = BACKENDS[backend]
    dtypes = [dtypes] * len(arrays) if isinstance(dtypes, str) else dtypes
    given = [library.asarray(array, dtype) for array, dtype in zip(arrays, dtypes, strict=True)]
    return tn.compile(graph, backend=library)(parameters, *given)


def computed(text: str, backend: str, dtypes: Any, **arrays: Any) -> Any:
    """What a line makes of the arrays that it reads, as `wide` gives it."""
    names = [name for name in arrays if f"{name}[" in text]
    return wide(backend, run(tn.layer(text, inputs=names), backend, *map(arrays.get, names), dtypes=dtypes))


def wide(backend: str, array: Any) -> Any:
    """As NumPy's float64, complex128 or integers."""
    if isinstance(array, torch.Tensor) and array.dtype == torch.bfloat16:
        array = array.double()
    return np.asarray(BACKENDS[backend].numpy(array))


# ---------------------------------------------------------------------------- numbers at the edge

WAYS = {"sum", "mean", "var", "std", "norm", "max", "min", "prod", "logsumexp", "argmax", "argmin"}
EDGES = [np.nan, np.inf, -np.inf, 0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -2.5, 30.0, -30.0]
WHOLE_EDGES = [0, 1, -1, 2, -3, 7, 2**31 - 1, -(2**31), 2**62, 2**63 - 1, -(2**63)]
LINES = [
    *([1, 2, 3, -1], [1, np.nan, 3, 0], [1, np.inf, 3, 0], [-np.inf, 1, 0, 2], [np.inf, -np.inf, 0, 1]),
    *([np.inf] * 4, [-np.inf] * 4, [np.nan] * 4, [0.0, -0.0, 0.0, -0.0], [3.0] * 4),
]


@functools.cache
def everything(count: int) -> tn.Graph:
    """Every pointwise function of so many operands."""
    texts = dict[str, str]()
    for row in FUNCTIONS.values():
        if row.axes != "none" or row.is_kernel or row.random or row.implementations or row.conditions:
            continue
        names = [
            f"{each}[i]" if row.takes != "truths" else f"({each}[i] > 0)" for each in "ab"[: row.arity[0]]
        ]
        if row.arity[0] == count:
            called = f"{row.name}({', '.join(names)})" if not row.infix else f" {row.infix} ".join(names)
            texts[f"{row.name}_"] = called if count == 2 or not row.infix else row.infix + names[0]
    lines = "\n".join(f"{name}[i] = {text}" for name, text in texts.items())
    return tn.layer(lines, inputs=list("ab"[:count]), outputs=list(texts))


@functools.cache
def every_way() -> tn.Graph:
    """Every function along an axis."""
    lines = [f"{each}_[r] = {each}[i](a[r,i])" for each in sorted(WAYS)]
    lines += [f"{each}_[r,i] = {each}[i](a[r,i])" for each in sorted((*KEPT, "argsort"))]
    return tn.layer("\n".join(lines), inputs="a", outputs=[line.split("[")[0] for line in lines])


def agrees_with_numpy(graph: tn.Graph, backend: str, dtype: str, *arrays: Any) -> None:
    """A backend gives what NumPy does, in value and element type."""
    with np.errstate(all="ignore"):
        expected = tn.compile(graph)({}, *arrays)
        found = run(graph, backend, *arrays, dtypes=dtype)
        for name, one, other in zip(graph.outputs, expected, found, strict=True):
            assert str(one.dtype) == BACKENDS[backend].dtype(other), name
            rtol, values = 40 * EPS.get(dtype, EPS["float32"]), wide(backend, other).astype(float)
            if (backend, name) == ("torch", "gelu_") and dtype != "float64":  # torch makes NaN of inf
                values = np.where(arrays[0] == np.inf, np.inf, values)
            np.testing.assert_allclose(values, one.astype(float), rtol=rtol, atol=rtol, err_msg=name)


@pytest.mark.parametrize(("dtype", "backend"), typed("float64 float32 float16 int64 bool", "float32 int64"))
def test_functions_agree_on_numbers_at_the_edge(dtype: str, backend: str) -> None:
    """NaN, infinities, zeros of both signs, the greatest and the least integers."""
    if not has(backend, dtype):
        pytest.skip(f"{backend} has no {dtype}")
    given = {"int64": WHOLE_EDGES, "bool": [True, False]}.get(dtype, EDGES)
    values = np.asarray(given, dtype)
    agrees_with_numpy(everything(1), backend, dtype, values)
    agrees_with_numpy(everything(2), backend, dtype, *(each.ravel() for each in np.meshgrid(values, values)))
    lines = np.asarray(LINES) if "float" in dtype else np.array([[1, 2, 3, -1], [0] * 4, [5, 5, 1, 1]])
    agrees_with_numpy(every_way(), backend, dtype, lines.astype(dtype))
    agrees_with_numpy(every_way(), backend, dtype, lines[:, :1].astype(dtype))  # of one position


@pytest.mark.parametrize("backend", BACKENDS)
def test_integers_divided_by_0_are_0(backend: str) -> None:
    a, b = np.array([7, -7, 0, -(2**63), -7, 7]), np.array([0, 0, 0, -1, 2, -2])
    quotients = [0, 0, 0, -(2**63), -4, -4]  # the one before the last ones is beyond all integers, and wraps
    for text, expected in (
        ("a[i] // b[i]", quotients),
        ("a[i] % b[i]", [0, 0, 0, 0, 1, -1]),
        ("a[i] // 0", [0] * 6),
        ("a[i] % 0", [0] * 6),
        ("a[i] // -1", [-7, 7, 0, -(2**63), 7, -7]),
        ("6 // (b[i] + 1)", [6, 6, 6, 0, 2, -6]),
    ):
        assert computed(f"y[i] = {text}", backend, "int64", a=a, b=b).tolist() == expected, text


# ---------------------------------------------------------------------------- division


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int16"])
def test_a_division_is_a_division(backend: str, dtype: str) -> None:
    """t · (1 / 49) is below 1 at t = 49."""
    if backend not in EXACT and dtype.startswith("float"):
        pytest.skip("XLA multiplies with the reciprocal of a number")
    whole = np.arange(0, 1300)
    for divisor in range(2, 130):
        if (backend, dtype) != ("numpy", "float32") and divisor % 9 != 4:
            continue
        found = computed(f"y[n] = floor(t[n] / {divisor})", backend, dtype, t=whole)
        np.testing.assert_array_equal(found, whole // divisor, err_msg=str(divisor))


QUOTIENTS = """
t[n] / u[n]; 2 * t[n] / u[n]; t[n] / u[n] * 3; t[n] * u[n] / 7 / u[n]; -t[n] / 3; 2 / t[n]; 1 + t[n] / u[n]
t[n] / 7 * u[n] / 3; t[n] / (2 * u[n]); t[n] / 49 * 49; 1 / t[n] / 3
"""


@given(st.data(), st.sampled_from(EXACT), st.sampled_from(["float32", "float64", "int64"]))
def test_quotients_are_those_of_numpy(data: Any, backend: str, dtype: str) -> None:
    """Read from left to right, as Python reads them, in the type of the arrays."""
    numbers = st.lists(st.integers(1, 1000), min_size=3, max_size=3)
    t, u = (np.array(data.draw(numbers)) for _ in range(2))
    text = data.draw(st.sampled_from(re.split("[;\n] ?", QUOTIENTS.strip())))
    kind = np.float32 if dtype == "int64" else np.dtype(dtype).type
    names = {"t": t.astype(kind), "u": u.astype(kind)}
    expected = np.floor(eval(text.replace("[n]", ""), {}, names))
    found = computed(f"y[n] = floor({text})", backend, dtype, t=t, u=u)
    np.testing.assert_array_equal(found, expected, err_msg=text)


@given(st.integers(-(2**60), 2**60), st.integers(1, 10**6))
def test_the_floor_of_a_quotient_of_integers_is_exact(t: int, divisor: int) -> None:
    for backend in ("numpy", "torch", "jax"):
        found = computed(f"y[n] = floor(t[n] / {divisor})", backend, "int64", t=[t])
        assert found.tolist() == [t // divisor]


# ---------------------------------------------------------------------------- positions


def position_texts() -> st.SearchStrategy[str]:
    """Expressions of positions along i and j: whole numbers, and reals made of them.

    Sums and comparisons are of whole numbers alone, so that the value hangs on no rounding.
    """
    places = st.sampled_from(["index(i)", "index(j)"])
    whole = st.recursive(
        st.one_of(places, places, st.integers(0, 300).map(str)), _larger_positions, max_leaves=5
    )
    divisors = st.integers(1, 129)
    reals = [
        st.tuples(whole, divisors).map(lambda each: f"({each[0]}) / {each[1]}"),
        st.tuples(places, divisors).map(lambda each: f"sin({each[0]} / {each[1]})"),
        st.tuples(places, divisors).map(lambda each: f"exp(-{each[0]} / {each[1]}) * {each[0]}"),
        st.tuples(whole, whole, places).map(
            lambda each: f"where({each[0]} < {each[1]}, 0.5, sqrt({each[2]}))"
        ),
    ]
    return st.one_of(whole, whole, *reals)


def _larger_positions(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pairs = st.tuples(inner, st.sampled_from("+-*"), inner).map(
        lambda each: f"({each[0]} {each[1]} {each[2]})"
    )
    calls = ["abs({} - {})", "maximum({}, {})", "minimum({}, {})"]
    calls += ["where({} < {}, index(i), 2)", "roll({} - {} + index(j), j=1)"]
    called = st.tuples(st.sampled_from(calls), inner, inner).map(lambda each: each[0].format(*each[1:]))
    floors = st.tuples(inner, st.integers(1, 129)).map(lambda each: f"floor({each[0]} / {each[1]})")
    truths = st.tuples(inner, inner).map(lambda each: f"(({each[0]} >= {each[1]}) + index(j))")
    return st.one_of(pairs, called, floors, truths)


@examples(20)
@given(position_texts(), st.sampled_from(["float16", "bfloat16"]))
def test_positions_are_exact_until_they_meet_numbers(text: str, dtype: str) -> None:
    """An expression of positions, by name or not, in half precision is the one in float64, rounded."""
    named = f"r[i,j] = {text} + 0 * index(i) * index(j)\ny[i,j] = x[i,j] + r[i,j]"
    plain = f"y[i,j] = x[i,j] + ({text})"
    zeros = torch.zeros(7, 300)
    for layer in (named, plain):
        graph = tn.layer(layer, inputs="x", i=7, j=300)
        exact = by_numpy(graph, {"x": zeros.double().numpy()})["y"]
        found = run(graph, "torch", zeros, dtypes=dtype).double().numpy()
        rounded = torch.tensor(exact).to(getattr(torch, dtype)).double().numpy()
        np.testing.assert_allclose(found, rounded, rtol=EPS[dtype], atol=1e-6, err_msg=layer)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_mask_of_shifted_windows_is_exact(dtype: str) -> None:
    """Swin's bands of rows: beyond 256 bfloat16 does not tell positions apart."""
    graph = models.window_attention(4, 1, 7, grid=(280, 7), shift=3)
    parameters = tn.init(graph, seed=0, backend="torch")
    x = torch.randn(1, 280, 7, 4)
    changed = x.clone()
    changed[:, 276] += 8

    def seen(kind: torch.dtype) -> list[int]:
        f = tn.compile(graph, backend="torch")
        moved = {name: value.to(kind) for name, value in parameters.items()}
        differs = f(moved, x.to(kind)) != f(moved, changed.to(kind))
        return torch.nonzero(differs[0].flatten(1).any(-1)).ravel().tolist()

    assert seen(getattr(torch, dtype)) == seen(torch.float32) == [273, 274, 275, 276]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_models_of_positions_are_within_rounding(dtype: str) -> None:
    """Fourier features, sinusoids, interpolation: computed wide, whatever the type of the input."""
    cloud = fourier_features(None, 3, bands=64, resolution=(224, 224))
    cases: list[tuple[tn.Graph, list[torch.Tensor]]] = [
        (fourier_features((16, 16), 3, bands=64, resolution=(223.7, 224)), [torch.zeros(1, 3, 16, 16)]),
        (cloud, [torch.zeros(1, 9, 3), 2 * torch.rand(1, 9, 2) - 1]),
        (sinusoidal_positions(8), [torch.zeros(1, 3000, 8)]),
    ]
    cases += [(resize_positions(14, 24, convention=c), [torch.randn(197, 8)]) for c in CONVENTIONS]
    for graph, inputs in cases:
        given_ = [each.to(getattr(torch, dtype)) for each in inputs]
        f = tn.compile(graph, backend="torch")
        found, exact = f({}, *given_), f({}, *[each.double() for each in given_])
        assert found.dtype == given_[0].dtype
        bound = 0.5 * EPS[dtype] * exact.abs().clamp(min=1.0) + 1e-4
        assert bool(((found.double() - exact).abs() <= bound).all()), graph


def test_constants_of_a_module_keep_their_precision() -> None:
    graph = fourier_features((16, 16), 3, bands=64, resolution=(223.7, 223.7))
    x = torch.zeros(1, 3, 16, 16, dtype=torch.bfloat16)
    module = tn.module(graph)
    exact = module.double()(x.double())
    found = module.to(torch.bfloat16)(x)
    assert found.dtype == torch.bfloat16
    assert float((found.double() - exact).abs().max()) < 2**-8


@pytest.mark.parametrize(("dtype", "backend"), typed("uint8 int8 int16 int32 int64", "int8"))
def test_positions_of_any_integer_type_are_gathered_with(dtype: str, backend: str) -> None:
    """What is read is found by row-major arithmetic, which an int8 cannot hold."""
    e = np.arange(3000.0).reshape(300, 5, 2)
    t = np.array([[60, 100, 127, 3, 0], [7, 9, 126, 51, 52]])
    k = np.arange(5)
    for text, expected in [
        ("y[n,k,c] = e[t[n,k],k,c]", e[t, k]),
        ("y[k,n,c] = e[t[n,k],k,c]", e[t, k].swapaxes(0, 1)),
        ("y[n,k,c] = e[t[n,k],u[n,k],c]", e[t, t % 5]),
    ]:
        dtypes = ["float64", *[dtype] * (1 + ("u" in text))]
        np.testing.assert_array_equal(computed(text, backend, dtypes, e=e, t=t, u=t % 5), expected)


# ---------------------------------------------------------------------------- functions by type

POSITIVE = ("log", "log1p", "sqrt", "rsqrt")
"""Functions that are tried on positive numbers."""
POINTWISE = [name for name in oracle.POINTWISE if name not in ("reciprocal", "int64", "add")]
POINTWISE = [name for name in POINTWISE if FUNCTIONS[name].arity == (1, 1)]
KEPT = ("softmax", "log_softmax", "hardmax", "normalize", "cumsum", "cumprod")
KEPT += ("average_hardmax", "average_hardmin")
OVER = ("sum", "mean", "var", "std", "norm", "max", "min", "prod", "logsumexp")


def numbers_of(dtype: str, positive: bool = False) -> np.ndarray[Any, Any]:
    """Values that the type holds exactly, up to the ends of what small integers hold."""
    if dtype == "bool":
        return np.ones((2, 5)) if positive else np.array([[0, 1, 1, 0, 1], [1, 1, 1, 0, 0]])
    if "int" in dtype:
        values = np.array([[3, 1, 120, 2, 100], [5, 7, 1, 101, 90]])
        return values if positive or dtype == "uint8" else values * np.array([1, -1, 1, 1, -1])
    values = np.array([[0.5, 1.5, -3.0, 2.25, 0.25], [1.75, -2.5, 4.0, -0.125, 3.5]])
    return np.abs(values) if positive else values


CASES = [f"y[b,i] = {name}({'p' if name in POSITIVE else 'x'}[b,i])" for name in POINTWISE]
CASES += [f"y[{'b,i' if name in KEPT else 'b'}] = {name}[i](x[b,i])" for name in (*OVER, *KEPT)]
CASES += (Path(__file__).parent / "data" / "typed.txt").read_text().splitlines()[2:]
"""What is computed of x, or of p, which is positive, and behind an arrow what that is, if the oracle does not know."""


@pytest.mark.parametrize(("dtype", "backend"), typed(" ".join((*INTEGERS, *REALS)), "float32"))
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # e¹²⁰ is rightly infinite
def test_every_function_of_every_type(dtype: str, backend: str) -> None:
    if not has(backend, dtype):
        pytest.skip(f"{backend} has no {dtype}")
    cases = {f"y{n}": case.removeprefix("y").split(" → y") for n, case in enumerate(CASES)}
    lines, told = ("\n".join(f"{name}{parts[at]}" for name, parts in cases.items()) for at in (0, -1))
    graph = tn.layer(lines, inputs="x p", outputs=[*cases], k=2)
    x, p = numbers_of(dtype), numbers_of(dtype, positive=True)
    expected = oracle.run(told, {"x": x.astype(float), "p": p.astype(float)}, {"k": 2}, [*cases])
    for found, (name, (text, *_)) in zip(run(graph, backend, x, p, dtypes=dtype), cases.items(), strict=True):
        assert dtype not in REALS or BACKENDS[backend].dtype(found) in (dtype, "int64"), text
        agree(wide(backend, found), expected[name], dtype, text)


def agree(found: Any, expected: Any, dtype: str, text: str) -> None:
    """Equal up to rounding in the type; what the type does not hold is infinite."""
    largest = {"float16": 65504.0, "float64": math.inf}.get(dtype, 3.4e38)
    expected = np.where(np.abs(expected) > largest, np.copysign(math.inf, expected), expected)
    eps = EPS.get(dtype, EPS["float32"])
    scale = float(np.max(np.abs(expected), where=np.isfinite(expected), initial=1.0))
    np.testing.assert_allclose(
        found.astype(float), expected, rtol=16 * eps, atol=2 * eps * scale, err_msg=text
    )


def test_every_function_of_the_language_is_tried() -> None:
    texts = " ".join(CASES)
    elsewhere = {"concat", "onehot", "repeat", "int64", "reciprocal", "power"}  # below, and as signs
    signs = {row.name for row in FUNCTIONS.values() if row.infix and (row.infix in texts or row.infix == "~")}
    own = {row.name for row in FUNCTIONS.values() if row.implementations or row.is_kernel}
    tried = {name for name in FUNCTIONS if f"{name}(" in texts or f"{name}[" in texts}
    tried |= {*POINTWISE, *OVER, *KEPT}
    signs |= {"not_equal", "less_equal", "greater_equal"}
    found = set(FUNCTIONS) - own
    assert found == (tried | signs | elsewhere) - {"sum"}, "a line in tests/data/typed.txt tries one"


@pytest.mark.parametrize(("dtype", "backend"), typed(" ".join(COMPLEX), "complex64"))
def test_complex_numbers(dtype: str, backend: str) -> None:
    generator = np.random.default_rng(0)
    x = generator.standard_normal((2, 3)) + 1j * generator.standard_normal((2, 3))
    real = generator.standard_normal(3)
    half = "float32" if dtype == "complex64" else "float64"
    for text, expected in [
        ("y[b] = x[b,i] * g[i]", x @ real),
        ("y[b,i] = x[b,i] * g[i] / 2 + index(i)", x * real / 2 + np.arange(3)),
        ("y[b,i] = where(index(i) < 1.5, x[b,i], g[i])", np.where(np.arange(3) < 1.5, x, real)),
        ("y[b,i] = where(g[i] > 0, exp(x[b,i]), x[b,i] ** 2)", np.where(real > 0, np.exp(x), x**2)),
        ("y[b,i] = sigmoid(x[b,i]) * g[i]", real / (1 + np.exp(-x))),
        ("y[b,i] = silu(x[b,i]) * g[i]", x * real / (1 + np.exp(-x))),
    ]:
        found = run(tn.layer(text, inputs="x g"), backend, x, real, dtypes=[dtype, half])
        assert BACKENDS[backend].dtype(found) == dtype
        np.testing.assert_allclose(wide(backend, found), expected, rtol=16 * EPS[dtype], atol=4 * EPS[dtype])


@pytest.mark.parametrize(("dtype", "backend"), typed(" ".join(INTEGERS), "int8"))
def test_integers_alone_are_counted_in_int64(dtype: str, backend: str) -> None:
    ones = np.ones(300)
    for text, expected in [
        ("y = x[i] * z[i]", 300),
        ("y = x[i]", 300),
        ("y = sum[i](x[i] + z[i])", 600),
        ("y[i] = 100 * x[i] + 100 * z[i]", [200] * 300),
        ("y = sum[i]((x[i] > 0) * (z[i] > 0))", 300),
        ("y[i] = x[i] * z[i]", [1] * 300),
    ]:
        graph = tn.layer(text, inputs="x z" if "z" in text else "x")
        found = run(graph, backend, *[ones] * (1 + ("z" in text)), dtypes=dtype)
        assert BACKENDS[backend].dtype(found) == "int64"
        assert wide(backend, found).tolist() == expected


@pytest.mark.parametrize(("dtype", "backend"), typed(" ".join((*INTEGERS, "float32")), "float32"))
def test_masks_of_any_type(dtype: str, backend: str) -> None:
    """`keep != 0` of truth values, integers and numbers; the standard mixes none of them."""
    generator = np.random.default_rng(0)
    q, k, v = (generator.standard_normal((1, 1, 3, 4)) for _ in range(3))
    keep = np.array([[1, 0, 1]])
    scores = np.where(keep[:, None, None] != 0, q @ k.swapaxes(2, 3) / 2, -np.inf)
    expected = scipy.special.softmax(scores, -1) @ v
    graph = models.dot_product_attention(mask="padding")
    found = run(graph, backend, q, k, v, keep, dtypes=["float32"] * 3 + [dtype])
    np.testing.assert_allclose(wide(backend, found), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_results_have_the_type_that_follows(backend: str) -> None:
    library = BACKENDS[backend]
    for line, dtype in rows("types.txt"):
        text = line.replace("\\n", "\n")
        graph = tn.layer(text, inputs="x[i]", **({"v": 3} if "v" in text else {}))
        found = tn.compile(graph, backend=library)({}, library.asarray(np.array([1.5, -1.0, 2.0]), "float32"))
        assert library.dtype(found) == dtype, text


# ---------------------------------------------------------------------------- one floating type


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_floating_types_are_refused(backend: str) -> None:
    library = BACKENDS[backend]
    x, w = library.asarray(np.ones((2, 3)), "float64"), library.asarray(np.ones((4, 3)), "float32")
    for text in ("y[b,o] = x[b,i] * W[o,i]", "y[b,o,i] = x[b,i] + W[o,i]"):
        f = tn.compile(tn.layer(text, inputs="x"), backend=library)
        says = r"'x' is float64 and 'W' is float32: numbers are all of one floating type\n"
        with pytest.raises(
            tn.DtypeError,
            match=says + rf"fix: tensornet\.to_backend\(params, '{library.name}', dtype='float64'",
        ):
            f({"W": w}, x)
        assert library.dtype(f({"W": library.asarray(np.ones((4, 3)), "float64")}, x)) == "float64"
        with pytest.raises(tn.DtypeError, match=says):
            f({"W": w}, x)


def test_under_autocast_torch_decides() -> None:
    module = tn.module(
        tn.layer("h[b,o] = x[b,i] * W[o,i]\ny[b,o] = h * index(o)", inputs="x", i=3, o=4), seed=0
    )
    x = torch.ones(2, 3, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        assert module(x).shape == (2, 4)
    with pytest.raises(tn.DtypeError, match="'x' is bfloat16 and 'W' is float32"):
        module(x)


# ---------------------------------------------------------------------------- sizes of 0, and nan


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
@pytest.mark.filterwarnings("ignore:invalid value encountered in divide:RuntimeWarning")  # 0 / 0
def test_nothing_at_all(backend: str, shape: tuple[int, int]) -> None:
    x = np.ones(shape)
    found = computed("y[b] = logsumexp[i](x[b,i])", backend, "float32", x=x)
    np.testing.assert_array_equal(found, np.full(shape[0], math.log(3) if shape[1] else -np.inf))
    lines = [f"y[b,i] = {name}[i](x[b,i])" for name in ("softmax", "log_softmax", "normalize")]
    lines += ["y[b,i] = x[b,i] / sqrt(i)", "y[b] = x[b,i] / i", "y[b] = x[b,i] * x[b,i] / sqrt(i)"]
    for text in lines:
        found = computed(text, backend, "float32", x=x)
        assert found.shape == (shape if "y[b,i]" in text else shape[:1])
        assert np.isnan(found).all() or shape[1] or not text.endswith("/ i")


@pytest.mark.parametrize("backend", BACKENDS)
def test_numbers_that_are_none(backend: str) -> None:
    inf, nan = math.inf, math.nan
    x = np.array(
        [[nan, 1.0], [inf, 1000.0], [-inf, 2.0], [-inf, -inf], [inf, nan], [inf, -inf], [800.0, 801.0]]
    )
    expected = torch.logsumexp(torch.tensor(x), 1).numpy()
    found = computed("y[b] = logsumexp[i](x[b,i])", backend, "float64", x=x)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_autograd_through_logsumexp() -> None:
    function = tn.compile(tn.layer("y[b] = logsumexp[i,j](x[b,i,j])", inputs="x"), backend="torch")
    x = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: function({}, x), (x,))
    assert torch.autograd.gradgradcheck(lambda x: function({}, x), (x,))
    nothing = torch.full((1, 3, 4), -math.inf, requires_grad=True)
    (found,) = torch.autograd.grad(function({}, nothing).sum(), nothing)
    assert not found.any()


HALF = [*((backend, "float16") for backend in ("numpy", "torch", "jax")), ("torch", "bfloat16")]


@pytest.mark.parametrize(("backend", "dtype"), HALF)
def test_half_precision_does_not_overflow_on_the_way(backend: str, dtype: str) -> None:
    """Squares of numbers beyond 255 are beyond float16."""
    x = np.array([[2000.0, -2000.0, 1000.0, 0.0] * 8])
    normal, exact = (x - x.mean()) / x.std(), {"float16": (2e-3, 1e-3), "bfloat16": (0.01, 0.01)}[dtype]
    for text, expected in [
        ("y[b,i] = normalize[i](x[b,i])", normal),
        ("y[b,i] = gelu_tanh(x[b,i])", np.maximum(x, 0)),
        ("y[b] = var[i](x[b,i] / 16)", (x / 16).var(1)),
        ("y[c,b] = normalize[c](z[c,b])", normal.T),
        ("y[b] = std[c](z[c,b] / 16)" if backend == "jax" else "y[b] = std[c](z[c,b])", x.std(1)),
    ]:
        expected = expected / 16 if "std[c](z[c,b] / 16)" in text else expected  # jnp.std squares as it is
        found = computed(text, backend, dtype, x=x, z=x.T).astype(float)
        np.testing.assert_allclose(found, expected, rtol=exact[0], atol=exact[1], err_msg=text)


@given(st.floats(-50, 50), st.sampled_from([n for n in POINTWISE if n not in (*POSITIVE, "cast", "widen")]))
def test_a_function_of_a_number_is_that_of_an_array(value: float, name: str) -> None:
    """`gelu_tanh(1.0)` was the exact gelu."""
    graph = tn.layer(f"y[i] = x[i] * {name}({value!r})", inputs="x")
    expected = oracle.POINTWISE[name](value)
    np.testing.assert_allclose(tn.compile(graph)({}, np.ones(1)), [expected], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax", "array-api-strict"])
@pytest.mark.parametrize(
    "text",
    ["y[b,i] = floor(x[b,i])", "y[b,i] = where(x[b,i] > 0, 1, 0)", "y[b] = max[i](x[b,i] * x[b,i])",
     "y[b,i] = softmax[i](x[b,i] * 2)", "y[b,i] = maximum(x[b,i], 0)", "h[b,i] = exp(x[b,i])\ny[b,i] = gelu(h)"],
)  # fmt: skip
def test_functions_of_real_numbers_refuse_complex_ones(text: str, backend: str) -> None:
    x = np.ones((2, 3), "complex64")
    f = tn.compile(tn.layer(text, inputs="x"), backend=BACKENDS[backend])
    with pytest.raises(tn.DtypeError, match=r"takes real numbers only, and '\w+' is complex\nfix: take abs"):
        f({}, BACKENDS[backend].asarray(x))
    g = tn.compile(tn.layer(text.replace("x[b,i]", "abs(x[b,i])"), inputs="x"), backend=BACKENDS[backend])
    assert np.isfinite(wide(backend, g({}, BACKENDS[backend].asarray(x)))).all()


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax", "array-api-strict"])
@pytest.mark.parametrize(
    "text", ["y[b] = max[i](x[b,i])", "y[b] = min[i](x[b,i] * x[b,i])", "y[b,i] = hardmax[i](x[b,i])"]
)
def test_the_largest_of_nothing_is_refused(text: str, backend: str) -> None:
    f = tn.compile(tn.layer(text, inputs="x"), backend=BACKENDS[backend])
    with pytest.raises(
        tn.ShapeError, match=r"axis 'i' has no positions(?s:.*)\^(?s:.*)at least one position"
    ):
        f({}, BACKENDS[backend].asarray(np.ones((2, 0), "float32")))
    found = f({}, BACKENDS[backend].asarray(np.ones((0, 3), "float32")))
    assert 0 in tuple(found.shape)


def test_an_integer_and_a_real_number_are_two_numbers() -> None:
    """floor(t / 2) is exact and floor(t / 2.0) is real: neither may stand for the other."""
    one, other = (tn.layer(f"y[n] = t[n] / {two} * 0 + {two}", inputs="t") for two in ("2", "2.0"))
    assert one != other
    assert tn.layer(str(other)) == other
    for text in ("y[n] = 2 ** t[n] - (-0.0) ** t[n]", "y[n] = (-0.0) * t[n]", "y[n] = t[n] - (-0.0)"):
        assert tn.layer(str(tn.layer(text, inputs="t"))) == tn.layer(text, inputs="t")
    both = tn.layer("a[n] = floor(t[n] / 2)\nb[n] = floor(t[n] / 2.0)", inputs="t", outputs="a b")
    exact, real = tn.compile(both)({}, np.arange(5))
    assert (exact.dtype.kind, real.dtype.kind) == ("i", "f")
    for text, kind in (("y[n] = t[n] * 1", "i"), ("y[n] = 1.0 * t[n]", "f"), ("y[n] = -1.0 * t[n]", "f")):
        assert tn.compile(tn.layer(text, inputs="t"))({}, np.arange(5)).dtype.kind == kind


def test_complex_numbers_are_trained_and_dropped_on_torch() -> None:
    x = torch.tensor([0.3 + 0.2j, -1.0 + 0.5j, 1.2 - 0.4j], dtype=torch.complex128, requires_grad=True)
    for backward in ("planned", "autograd"):
        f = tn.compile(tn.layer("y[i] = silu(x[i])", inputs="x"), backend="torch", backward=backward)
        assert torch.autograd.gradcheck(lambda x, f=f: f({}, x), x)
    many = torch.full((1000,), 1 + 2j, dtype=torch.complex128)
    dropped = tn.module(tn.layer("y[i] = dropout(x[i], 0.25)", inputs="x"))(many)
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], many[kept] / 0.75)
    assert 600 < int(kept.sum()) < 900
