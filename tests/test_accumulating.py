"""Lines that add to a tensor, against numpy's own addition at positions, and their derivatives."""

from __future__ import annotations

from typing import Any

import array_api_strict
import numpy as np
import pytest

import tensornet as tn
from tensornet.backends.array_api import of
from tensornet.graph.element_types import holding
from tensornet.ops.table import Element
from tensornet.protocol import load_backend

from .test_gradients import agrees_with_differences
from .test_gradients import check as agrees_with_autograd

ROUTED = "y[b,v,c] = 0\ny[b,e[b,t],c] += x[b,t,c] * w[b,t]"
BACKENDS = {name: lambda name=name: load_backend(name) for name in ("numpy", "torch", "jax")} | {
    "array-api-strict": lambda: of(array_api_strict)
}


def drawn() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    e = rng.integers(0, 5, (3, 7))
    return {"e": e, "x": rng.standard_normal((3, 7, 4)), "w": rng.standard_normal((3, 7))}


def added(arrays: dict[str, Any], start: Any = 0.0) -> Any:
    """By numpy, one position after another."""
    y = np.zeros((3, 5, 4)) + start
    for b, t in np.ndindex(3, 7):
        y[b, arrays["e"][b, t]] += arrays["x"][b, t] * arrays["w"][b, t]
    return y


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_are_added_at_positions(backend: str) -> None:
    library, arrays = BACKENDS[backend](), drawn()
    graph = tn.layer(ROUTED, inputs="e x w", v=5)
    assert str(graph.equations[0]) == "y[b,v,c] = onehot[v](e[b,t], inside=1) * x[b,t,c] * w[b,t]"
    found = tn.compile(graph, backend=library)({}, *map(library.asarray, arrays.values()))
    np.testing.assert_allclose(library.numpy(found), added(arrays), rtol=1e-5, atol=1e-5)


WITH_HOLES = {
    "rows": ("y[v,c] = 0\ny[t[n],c] += x[n,c]", "t x"),
    "numbers": ("y[v] = 0\ny[t[n]] += x[n,0]", "t x"),
    "a batch": ("y[a,v] = 0\ny[a,e[a,n]] += x[n,a]", "e x"),
    "no sum": ("y[n,v,c] = 0\ny[n,t[n],c] += x[n,c]", "t x"),
    "two brackets": ("y[v,u] = 0\ny[t[n],r[n]] += x[n,0]", "t r x"),
    "a factor": ("y[v,c] = 0\ny[t[n],c] += z[n] * p[c]", "t z p"),
    "a sum": ("y[v] = 0\ny[t[n]] += x[n,c] * p[c]", "t x p"),
    "outer": ("y[v,a,c] = 0\ny[t[n],a,c] += x[n,a] * w[n,c]", "t x w"),
    "a start": ("y[v,c] = s[v] + 0 * p[c]\ny[t[n],c] += x[n,c]", "s t x p"),
    "one position": ("a[v,c] = 0\na[t[n],c] += x[n,c]\ny[c] = a[1,c]", "t x"),
    "reckoned": ("y[v,c] = 0\ny[t[n] // 2,c] += x[n,c]", "t x"),
    "gathered back": ("a[v,c] = 0\na[t[n],c] += x[n,c]\ny[n,c] = a[t[n],c] * 2", "t x"),
}
"""Additions of what is not finite, the equations and their inputs: `x`, `w` and `p` are so in part."""


def with_holes() -> dict[str, Any]:
    rng = np.random.default_rng(3)
    x, w = rng.standard_normal((6, 3)), rng.standard_normal((6, 3))
    x[1, 0], x[4, 2], w[2] = np.nan, -np.inf, np.inf
    whole = {
        "t": np.array([3, 0, 3, 5, 2, 3]),
        "r": np.array([0, 1, 2, 0, 1, 1]),
        "e": rng.integers(0, 5, (3, 6)),
    }
    return whole | {
        "x": x,
        "w": w,
        "p": np.array([1.0, np.nan, 2.0]),
        "z": np.arange(6.0),
        "s": np.arange(7.0),
    }


def added_one_by_one(case: str, given: dict[str, Any]) -> Any:
    """What is added to, in a loop over rows."""
    t, r, e, x, w, p, z, s = (given[name] for name in "trexwpzs")
    shapes = {"numbers": (7,), "a batch": (3, 7), "no sum": (6, 7, 3), "two brackets": (7, 3), "a sum": (7,)}
    y = np.zeros(shapes.get(case, (7, 3, 3) if case == "outer" else (7, 3)))
    if case == "a start":
        y += s[:, None] + 0 * p
    for n in range(6):
        match case:
            case "numbers":
                y[t[n]] += x[n, 0]
            case "a batch":
                for a in range(3):
                    y[a, e[a, n]] += x[n, a]
            case "no sum":
                y[n, t[n]] += x[n]
            case "two brackets":
                y[t[n], r[n]] += x[n, 0]
            case "a factor":
                y[t[n]] += z[n] * p
            case "a sum":
                y[t[n]] += np.sum(x[n] * p)
            case "outer":
                y[t[n]] += np.outer(x[n], w[n])
            case "reckoned":
                y[t[n] // 2] += x[n]
            case _:
                y[t[n]] += x[n]
    if case == "one position":
        return y[1]
    return 2 * y[t] if case == "gathered back" else y


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", WITH_HOLES)
def test_what_is_not_finite_stays_where_it_is_added(case: str, backend: str) -> None:
    text, inputs = WITH_HOLES[case]
    library, given = BACKENDS[backend](), with_holes()
    sizes = {axis: size for axis, size in {"v": 7, "u": 3}.items() if f"{axis}" in text.split("\n")[0]}
    run = tn.compile(tn.layer(text, inputs=inputs, **sizes), backend=library)
    with np.errstate(invalid="ignore"):
        found = run({}, *(library.asarray(given[name]) for name in inputs.split()))
        expected = added_one_by_one(case, given)
    np.testing.assert_allclose(library.numpy(found), expected, rtol=1e-5)


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("y[v,c] = 0\ny[t[n],c] += x[n,c]\nl = y[v,c] * q[v,c]", {2}),  # rows that read position 5 of q
        ("y[n,c] = x[t[n],c]\nl = y[n,c] * q[n,c]", {3}),  # the row that is read at t[5]
        ("y[n,f] = tanh(x[t[n],c] * W[f,c])\nl = y[n,f] * q[n,f]", {3}),
    ],
    ids=["added", "read", "read and multiplied"],
)
def test_gradients_that_are_not_finite_stay_where_they_go(text: str, rows: set[int], backend: str) -> None:
    """One row of what comes in is infinite: the gradient is so in the rows that it goes to, and there alone."""
    x, q, t = np.ones((6, 3)), np.ones((6, 3)), np.array([1, 0, 5, 4, 2, 3])
    q[5] = np.inf
    given = {"t": t, "x": x, "q": q} | ({"W": np.ones((3, 3))} if "W" in text else {})
    graph = tn.layer(text, inputs=" ".join(given), **({"v": 6} if "v" in text else {}))
    step = tn.value_and_grad(graph, wrt="x", backend=backend)
    with np.errstate(invalid="ignore"):
        made = step({}, *tn.to_backend(given, backend).values())[1]
    found = tn.to_backend(made, "numpy")["x"]
    assert {int(row) for row in np.flatnonzero(~np.isfinite(found).all(axis=1))} == rows


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("wrong", [-1, 4, 100])
@pytest.mark.parametrize(
    "text",
    [
        "y[v] = 0\ny[t[n]] += x[n]",
        "y[v] = 0\ny[t[n]] += 1",
        "y[n,v] = 0\ny[n,t[n]] += x[n]",
        "y[u,v] = 0\ny[s[n],t[n]] += x[n]\nu: 2",
        "y[b,v] = 0\ny[b,t[n]] += x[n] * repeat[b](1)\nb: 2",
    ],
)
def test_positions_outside_are_refused_as_where_they_are_read(text: str, wrong: int, backend: str) -> None:
    library = BACKENDS[backend]()
    given = {"t": np.array([0, wrong, 2]), "s": np.array([1, 0, 1]), "x": np.ones(3)}
    inputs = [name for name in given if f"{name}[n]" in text]
    graph = tn.layer(text, inputs=inputs, v=4)
    with pytest.raises(tn.ShapeError, match=f"'t' holds the position {wrong}, where there are 4"):
        tn.compile(graph, backend=library)({}, *(library.asarray(given[name]) for name in inputs))


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
