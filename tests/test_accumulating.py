"""Lines that add to a tensor, against numpy's own addition at positions, and their derivatives."""

from __future__ import annotations

from typing import Any

import array_api_strict
import numpy as np
import pytest

import tensornet as tn
from tensornet.backends.array_api import of
from tensornet.graph.elements import holding
from tensornet.operations.functions import Element
from tensornet.protocol import load_backend

from .test_gradients import agrees_with_differences
from .test_gradients import check as agrees_with_autograd

ROUTED = "y[b,v,c] = 0\ny[b,e[b,t],c] += x[b,t,c] * w[b,t]"
BACKENDS = {name: lambda name=name: load_backend(name) for name in ("numpy", "torch", "jax")} | {
    "array-api-strict": lambda: of(array_api_strict)
}


def drawn(outside: bool = False) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    e = rng.integers(-1 if outside else 0, 6 if outside else 5, (3, 7))
    return {"e": e, "x": rng.standard_normal((3, 7, 4)), "w": rng.standard_normal((3, 7))}


def added(arrays: dict[str, Any], start: Any = 0.0) -> Any:
    """By numpy, one position after another; what lies outside goes nowhere."""
    y = np.zeros((3, 5, 4)) + start
    for b, t in np.ndindex(3, 7):
        if 0 <= arrays["e"][b, t] < 5:
            y[b, arrays["e"][b, t]] += arrays["x"][b, t] * arrays["w"][b, t]
    return y


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_are_added_at_positions(backend: str) -> None:
    library, arrays = BACKENDS[backend](), drawn(outside=True)
    graph = tn.layer(ROUTED, inputs="e x w", v=5)
    assert str(graph.equations[0]) == "y[b,v,c] = onehot[v](e[b,t]) * x[b,t,c] * w[b,t]"
    found = tn.compile(graph, backend=library)({}, *map(library.asarray, arrays.values()))
    np.testing.assert_allclose(library.numpy(found), added(arrays), rtol=1e-5, atol=1e-5)


def test_large_ones_are_scattered() -> None:
    graph = holding(tn.layer(ROUTED, inputs="e x w", v=1000, c=64), {"e": Element.WHOLE})
    assert "scatter_add" in tn.plan(graph, backend="torch", b=4, t=512).code


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("sizes", [(2, 7, 5), (3, 3000, 400)], ids=["as a product", "scattered"])
def test_what_is_added_may_be_the_same_everywhere(backend: str, sizes: tuple[int, int, int]) -> None:
    b, t, v = sizes
    rng = np.random.default_rng(0)
    e, f, w = rng.integers(0, v, (b, t)), rng.integers(0, 3, t), rng.standard_normal(3)
    for text, given, places, what, shape in (
        ("[b,v]; [b,e[b,t]] += 1", {"e": e}, (np.arange(b)[:, None], e), 1.0, (b, v)),
        ("[v]; [f[t]] += 0.5", {"f": f}, (f,), 0.5, (v,)),
        ("[v,c]; [f[t],c] += w[c]", {"f": f, "w": w}, (f,), w, (v, 3)),
        ("[v,u]; [e[b,t],f[t]] += 2", {"e": e, "f": f}, (e, f), 2.0, (v, 3)),
    ):
        start, line = text.split("; ")
        graph = tn.layer(
            f"y{start} = 0\ny{line}", inputs=" ".join(given), v=v, **({"u": 3} if "u" in start else {})
        )
        expected = np.zeros(shape)
        np.add.at(expected, places, what)
        made = BACKENDS[backend]()
        found = tn.compile(graph, backend=made, dtype="float64")({}, *tn.to_backend(given, made).values())
        np.testing.assert_allclose(np.asarray(tn.to_backend({"y": found}, "numpy")["y"]), expected, rtol=1e-6)


def test_what_is_added_at_is_taken_for_positions_before_it_is_seen() -> None:
    plan = tn.plan(tn.layer("y[v] = 0\ny[e[t]] += x[t]", inputs="e x", v=10_000), t=100_000)
    assert plan.peak_memory < 1e7  # and no comparison of each with each


def test_gradients_are_gathered() -> None:
    arrays, graph = drawn(), tn.layer(ROUTED, inputs="e x w", v=5)
    agrees_with_autograd(graph, arrays, ["x", "w"])
    agrees_with_differences(graph, arrays, ["x", "w"])


def test_a_start_and_several_lines_are_added_up() -> None:
    text = "y[b,v,c] = z[b,c] * g[v]\ny[b,e[b,t],c] += x[b,t,c] * w[b,t]\ny[b,n,c] += u[b,n,c]"
    graph = tn.layer(text, inputs="e x w z u", v=5)
    rng, arrays = np.random.default_rng(1), drawn()
    z, u, g = rng.standard_normal((3, 4)), rng.standard_normal((3, 5, 4)), rng.standard_normal(5)
    found = tn.compile(graph)({"g": g}, *arrays.values(), z, u)
    expected = added(arrays, z[:, None] * g[:, None]) + u
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    assert tn.layer(str(graph)) == graph


def test_positions_in_several_brackets() -> None:
    graph = tn.layer("y[v,u] = 0\ny[e[n],f[n]] += x[n]", inputs="e f x", v=3, u=4)
    rng = np.random.default_rng(0)
    e, f, x = rng.integers(0, 3, 20), rng.integers(0, 4, 20), rng.standard_normal(20)
    expected = np.zeros((3, 4))
    np.add.at(expected, (e, f), x)
    np.testing.assert_allclose(tn.compile(graph)({}, e, f, x), expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("entry", "places"),
    [
        ("t // 2", [0, 0, 1, 1, 2, 2]),
        ("2 * t - 1", [-1, 1, 3, 5, 7, 9]),
        ("e[t] % 3", [0, 2, 2, 1, 0, 0]),
        ("3", [3] * 6),
    ],
)
def test_positions_are_reckoned(entry: str, places: list[int]) -> None:
    graph = tn.layer(f"y[v,c] = 0\ny[{entry},c] += x[t,c]", inputs="x e" if "e[" in entry else "x", v=5)
    x, e = np.random.default_rng(0).standard_normal((6, 2)), np.array([3, 5, 2, 4, 0, 6])
    expected = np.zeros((5, 2))
    for row, place in zip(x, places, strict=True):
        if 0 <= place < 5:
            expected[place] += row
    assert tn.layer(str(graph)) == graph
    np.testing.assert_allclose(tn.compile(graph)({}, x, *([e] if "e[" in entry else [])), expected)


@pytest.mark.parametrize(
    ("right", "rows"),
    [
        ("x[t,c] * (w[t] * w[t] / (1.5 + abs(A)))", lambda x, w, z: x * (w**2 / 2)[:, None]),
        ("x[t,c] * w[t] + w[t] * w[t]", lambda x, w, z: x * w[:, None] + (w**2)[:, None]),
        ("x[t,c] * exp(w[t] * w[t])", lambda x, w, z: x * np.exp(w**2)[:, None]),
        ("max[t](x[t,c]) * w[t]", lambda x, w, z: x.max(0) * w[:, None]),
        ("z", lambda x, w, z: np.stack([z] * len(x))),
    ],
)
def test_what_is_added_at_a_position_is_all_that_stands_there(right: str, rows: Any) -> None:
    text = f"z[c] = 2 * v[c]\ny[r,c] = 0\ny[e[t],c] += {right}\nl[c] = z"
    graph = tn.layer(
        text, inputs=["e[t:5]", "x[t:5,c:2]", "w[t:5]", "v[c:2]", "A[()]"], outputs=["y", "l"], r=4
    )
    assert tn.layer(str(graph)) == graph
    rng = np.random.default_rng(0)
    e, x, w, v = np.array([1, 0, 1, 3, 1]), rng.normal(size=(5, 2)), rng.normal(size=5), rng.normal(size=2)
    expected = np.zeros((4, 2))
    np.add.at(expected, e, rows(x, w, 2 * v))
    given = {"e": e, "x": x, "w": w, "v": v, "A": np.array(0.5)}
    found, _ = tn.compile(graph)({}, *(given[leaf.name] for leaf in graph.inputs))
    np.testing.assert_allclose(found, expected)


def test_blocks_may_add() -> None:
    text = "def counted(e):\n    n[v] = 0\n    n[e[b]] += repeat[b](1)\n    v: 4\ny = counted(e)"
    found = tn.compile(tn.layer(text, inputs="e[b]"))({}, np.array([0, 3, 3]))
    np.testing.assert_array_equal(found, [1, 0, 0, 2])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("y[b,e[b,t],c] += x[b,t,c]", r"nothing starts it(?s:.*)as y\[b,v,c\] = 0"),
        ("y[b,v] = 0\ny[b,e[b,v]] += x[b,v]", "positions are told along 'v', which is the name of another"),
        ("y[b,(v,u)] = 0\ny[b,e[b,t]] += x[b,t]", r"positions are told along '\(v,u\)'"),
        ("y[b,v] = 0\ny[b,-1] += x[b]", "what stands in brackets after 'y' is no axis, nor a position"),
        ("y[b,v] = 0\ny[b,1:2] += x[b]", "what stands in brackets after 'y' is no axis, nor a position"),
        ("y[b] = 0\ny[b,c] += x[b,c]", r"'y' has 1 dimension\(s\), and is added to with 2"),
        ("y[b] = 0\nz[b] = y\ny[b] += x[b]", "'y' is used before it is defined"),
        ("y[b] = 0\ny[b] -= x[b]", "this line is not an equation"),
        ("y[b,v] = x[b,0]\ny[b,v] += x[b,v]", r"axis 'v' is on the left but nowhere(?s:.*)repeat\[v\]"),
    ],
)
def test_what_cannot_be_added(text: str, message: str) -> None:
    inputs = [name for name in ("e", "x") if f"{name}[" in text]
    with pytest.raises(tn.EquationError, match=message):
        tn.layer(text, inputs=inputs)
