"""Initial values: by role, by name, of any network; what cannot keep its scale is told."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensornet as tn
from tensornet import models
from tensornet.initialization.initial_values import derived
from tensornet.runtime import initial_values
from tensornet.runtime.initial_values import starts
from tensornet.sizes import evaluate

from .conftest import examples, normal, rows, sampled
from .programs import SUMMED_ALONE
from .starting import Layers

READ_ALONE = pytest.mark.filterwarnings(SUMMED_ALONE)

# ---------------------------------------------------------------------------- Starts that are said by name, long chains, norms that are written out, and rando


DENSE = "y[b,o] = x[b,i] * W[o,i] + u[o]"
STARTED = [(text.replace("\\n", "\n"), of) for text, of in rows("starts.txt")]
NAMED = ("zeros", "ones", "identity", "near_identity", "orthogonal", "kaiming", "xavier")


def dense(**options: Any) -> tn.Graph:
    return tn.layer(DENSE, inputs="x", i=300, o=200, **options)


def deviations(graph: tn.Graph, inputs: tuple[int, ...], seeds: range, rows: int = 64) -> np.ndarray:
    """The root of the mean square of what comes out of standard normal numbers, of each start."""
    compiled, found = tn.compile(graph), []
    for seed in seeds:
        x = normal(rows, *inputs, seed=seed)
        found.append(np.mean(compiled(tn.init(graph, seed=seed, dtype="float64"), x) ** 2) ** 0.5)
    return np.array(found)


def deviation(graph: tn.Graph, *shape: int) -> float:
    """That of four starts."""
    return float(np.sqrt(np.mean(deviations(graph, shape, range(4)) ** 2)))


# ---------------------------------------------------------------------------- by name


@pytest.mark.parametrize(
    ("name", "std"), [("kaiming", np.sqrt(2 / 300)), ("xavier", np.sqrt(2 / 500)), (0.3, 0.3)]
)
def test_deviations_are_those_of_torch(name: str | float, std: float) -> None:
    """Glorot and Bengio (2010), He et al. (2015)."""
    array = tn.init(dense(init={"W": name}), dtype="float64")["W"]
    assert np.sqrt((array**2).mean()) == pytest.approx(std, rel=1e-12)
    assert abs(array.mean()) < 4 * std / np.sqrt(array.size)


def test_orthogonal_weights_are_orthonormal_where_there_are_fewer() -> None:
    wide = tn.init(dense(), init="orthogonal", dtype="float64")["W"]
    np.testing.assert_allclose(wide @ wide.T, np.eye(200), atol=1e-12)
    graph = tn.layer("y[b,h,d] = x[b,c] * W[c,h,d]", inputs="x", c=6, h=4, d=5, init={"W": "orthogonal"})
    tall = tn.init(graph, dtype="float64")["W"].reshape(6, 20)
    np.testing.assert_allclose(tall @ tall.T, np.eye(6), atol=1e-12)


def test_the_identity_lets_through_what_comes_in() -> None:
    graph = tn.layer("y[b,o] = x[b,i] * W[o,i]", inputs="x", i=5, o=5, init={"W": "identity"})
    x = normal(3, 5)
    assert np.array_equal(tn.compile(graph)(tn.init(graph, dtype="float64"), x), x)
    train = tn.layer("y[b,s] = x[b,i] * A[i,r] * B[r,j,s] * z[b,j]", inputs="x z", i=4, r=4, s=4, j=3)
    cores = tn.init(train, init={"*": "identity"}, dtype="float64")
    assert all(np.array_equal(cores["B"][:, j], np.eye(4)) for j in range(3))


@pytest.mark.parametrize("name", ["orthogonal", "xavier", "kaiming"])
def test_a_weight_beside_a_batch_axis_is_a_matrix_for_each_position(name: str) -> None:
    """As in Monarch (Dao et al. 2022) and block tensor trains, `t` is that of input, weight and output."""
    graph = tn.layer("y[b,t,o] = x[b,t,i] * W[t,i,o]", inputs="x", t=16, i=24, o=24, init={"W": name})
    expected = np.sqrt(2) if name == "kaiming" else 1.0
    assert deviation(graph, 16, 24) == pytest.approx(expected, rel=0.05)
    weights = tn.init(graph, dtype="float64")["W"]
    for weight in weights if name == "orthogonal" else ():
        np.testing.assert_allclose(weight @ weight.T, np.eye(24), atol=1e-12)


def test_the_identity_pairs_what_a_recurrence_goes_on_with_and_what_comes_out() -> None:
    text = "h[b,t,r] = h[b,t-1,l] * A[t,l,r,s] * f[b,t,s]"
    graph = tn.layer(text, inputs="f", t=3, l=4, r=4, s=2, init={"A": "identity"})
    core = tn.init(graph)["A"]
    assert all(np.array_equal(core[t, :, :, s], np.eye(4)) for t in range(3) for s in range(2))
    last = tn.layer("y[b,t,o] = x[b,t,i] * W[i,o,t]", inputs="x", t=3, i=4, o=4, init={"W": "identity"})
    assert all(np.array_equal(tn.init(last)["W"][:, :, t], np.eye(4)) for t in range(3))


MPS = """f[b,t,s] = where(index(s) == 0, cos(pi/2*x[b,t]), sin(pi/2*x[b,t]))
v[b,-1,r] = a[r]
v[b,t,r] = v[b,t-1,l] * A[t,l,r,s] * f
y[b,o] = v[b,-1,r] * O[o,r]"""


def test_a_long_recurrence_of_random_matrices_is_told() -> None:
    """A matrix product state, site by site (Stoudenmire and Schwab 2016): its numbers vanish, as they really do."""
    sizes: dict[str, Any] = {"s": 2, "l": 4, "r": 4, "o": 10}
    graph = tn.layer(MPS, inputs="x", t=784, **sizes)
    with pytest.warns(tn.TensornetWarning, match="multiplied 784 times over: it may end at") as told:
        params = tn.init(graph, dtype="float64")
    x = np.random.default_rng(0).random((8, 784))
    found = float(np.log(np.abs(tn.compile(graph)(params, x)).mean()))
    foretold = float(re.findall(r"exp\((-\d+)\)", str(told[0].message))[0])
    assert 0.7 < found / foretold < 1.4
    for short in (
        tn.layer(MPS, inputs="x", t=4, **sizes),
        tn.layer(MPS, inputs="x", t=784, init={"A": 0.5}, **sizes),
    ):
        tn.init(short)  # which is no warning


@pytest.mark.parametrize("name", NAMED)
def test_a_named_start_is_part_of_the_value_and_the_same_everywhere(name: str) -> None:
    graph = dense(init={"W": name})
    assert tn.layer(str(graph)) == graph == tn.Graph.from_json(graph.to_json())
    arrays = tn.init(graph, seed=3)
    assert np.array_equal(arrays["W"], tn.init(dense(), seed=3, init={"W": name})["W"])
    assert np.array_equal(arrays["W"], tn.init(graph, seed=3, backend="torch")["W"].numpy())
    inner = tn.model(lambda x: graph(x, scope="a"), inputs="x[b,i]")
    assert inner.parameters[0].start == graph.parameters[0].start


def test_one_start_for_all_weights_leaves_biases_and_gains_alone() -> None:
    graph = tn.layer(
        "h[b,c] = g[c] * normalize[c](x[b,c]) + u[c]\ny[b,o] = h[b,c] * W[o,c] + v[o]", inputs="x", c=64, o=32
    )
    arrays = tn.init(graph, init="xavier")
    assert (arrays["g"] == 1).all()
    assert not arrays["u"].any() | arrays["v"].any()
    assert np.sqrt((arrays["W"] ** 2).mean()) == pytest.approx(np.sqrt(2 / 96), rel=1e-5)


# ---------------------------------------------------------------------------- long chains


@pytest.mark.parametrize(("length", "rank"), [(200, 2), (784, 10), (64, 2), (64, 8), (256, 4), (512, 8)])
def test_a_long_chain_starts_near_the_identity(length: int, rank: int) -> None:
    """Partial products of random matrices would fall behind their mean square by a factor for each."""
    links = ["i", *(f"r{n}" for n in range(length - 1)), "o"]
    factors = " * ".join(f"A{n}[{links[n]},{links[n + 1]}]" for n in range(length))
    sizes = dict.fromkeys(links, rank) | {"i": 32, "o": 8}
    graph = tn.layer(f"y[b,o] = x[b,i] * {factors}", inputs="x", **sizes)
    for seed in range(3):
        arrays = tn.init(graph, seed=seed)
        y = normal(64, 32, seed=seed).astype("float32")
        for n in range(length):
            y = y @ arrays[f"A{n}"]
            assert 1e-15 < np.abs(y).max() < 1e15
        assert 0.5 < y.std() < 2


@pytest.mark.parametrize("sites", sampled([784, 196], [196]))
def test_a_matrix_product_state_of_many_sites_starts_alive(sites: int) -> None:
    """Stoudenmire and Schwab (2016): each pixel is read as (x, 1 - x)."""
    rank = 8
    factors = ["phi[b,0,i0] * A0[i0,r0]"]
    factors += [f"phi[b,{n},i{n}] * A{n}[r{n - 1},i{n},r{n}]" for n in range(1, sites)]
    text = f"phi[b,n,i] = where(index(i) == 0, x[b,n], 1 - x[b,n])\ny[b,o] = {' * '.join(factors)} * W[r{sites - 1},o]"
    sizes = {f"i{n}": 2 for n in range(sites)} | {f"r{n}": rank for n in range(sites)}
    arrays = tn.init(tn.layer(text, inputs="x", n=sites, o=10, **sizes), dtype="float64")
    x = np.random.default_rng(0).random((64, sites))
    phi = np.stack([x, 1 - x], -1)
    y = phi[:, 0] @ arrays["A0"]
    for n in range(1, sites):
        y = np.einsum("bl,bi,lir->br", y, phi[:, n], arrays[f"A{n}"])
    assert 0.5 < (y @ arrays["W"]).std() < 2


# ---------------------------------------------------------------------------- norms that are written out

NORMS = [text for text, of in STARTED if of == "a norm"]


@pytest.mark.parametrize("scale", [0.1, 30])
@pytest.mark.parametrize("norm", NORMS)
def test_a_norm_is_on_its_scale_and_so_is_what_follows(norm: str, scale: float) -> None:
    """Of few numbers, of a tensor on any scale."""
    text = f"z[b,c] = {scale} * t[b,c]\n{norm.replace('x[', 'z[').replace('y[', 'h[')}\n"
    graph = tn.layer(f"{text}y[b,o] = gelu(h[b,c] * W[f,c]) * V[o,f]", inputs="t", c=4, f=64, o=64)
    assert 0.8 < deviation(graph, 4) < 1.25


@pytest.mark.parametrize("size", [2, 3, 8])
def test_normalized_weights_are_on_their_scale(size: int) -> None:
    """Salimans and Kingma (2016)."""
    text = "V[o,i] = g[o] * W[o,i] / sqrt(sum[i](W[o,i] * W[o,i]))\ny[b,o] = x[b,i] * V[o,i]"
    graph = tn.layer(text, inputs="x", i=size, o=64)
    assert starts(graph)["g"] == ("value", 1.0)
    assert 0.9 < deviation(graph, size) < 1.1


# ---------------------------------------------------------------------------- at random


@settings(max_examples=3000 if os.environ.get("HYPOTHESIS_PROFILE") == "thorough" else 30)
@given(st.integers(0, 10**9))
def test_random_layers_start_alive_or_a_warning_says_that_they_do_not(seed: int) -> None:
    """Products, sums, norms, functions and gates: between 0.5 and 2 of what goes in, exactly where nothing is said."""
    layers = Layers(seed)
    graph = tn.layer(layers.text, inputs="x", **layers.known())
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        starts(graph)
        shape = tuple(layers.sizes[axis] for axis in layers.inputs)
        found = deviations(graph, shape, range(1000, 1012))
        if told or not 0.75 < np.median(found) < 1.4:
            found = deviations(graph, shape, range(1000, 1100))
    if told:
        assert "line" in str(told[0].message)
        is_near = 0.56 < np.median(found) < 1.8 and np.mean((found > 0.5) & (found < 2)) > 0.7
        assert not is_near or "of one sign" in str(told[0].message), layers.text
    else:
        assert 0.5 < np.median(found) < 2, layers.text


def test_what_a_residual_sum_passes_on_is_told_off_where_it_is_off() -> None:
    """The sum is held against it, and does not make it right."""
    text = """
        h[b,o,p] = sum[i](x[b,i] * (P[i,o,p] / sqrt(sum[p](P[i,o,p] * P[i,o,p]))))
        y[b,o,p] = h[b,o,p] + sum[o_,p_](h[b,o_,p_] * W[o_,p_,o,p])
    """
    with pytest.warns(tn.TensornetWarning, match="'h'.* starts at 2 times"):
        starts(tn.layer(text, inputs="x", i=32, o=32, p=8))


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(
            f"h{n + 1}[b,i] = h{n}[b,i] + tanh(h{n}[b,j]*W{n}[f,j])*V{n}[i,f]" for n in range(6)
        ).replace("h0[", "x["),
        "y = sum[b,o](tanh(x[b,i]*W[o,i]))",
        "y[b,i,j] = x[b,i] * softmax[j](P[i,j])",
    ],
)
def test_what_has_no_scale_to_keep_is_not_told_off(text: str) -> None:
    """Residual blocks add up, a score is as large as it is, and so is a share."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        graph = tn.layer(text, inputs="x")
        starts(graph.bind(**dict.fromkeys(graph.open_sizes, 8)))


def test_starts_are_found_once_where_functions_of_the_users_own_are_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted: list[tn.Graph] = []
    monkeypatch.setattr(
        initial_values, "derived", lambda graph, seen: counted.append(graph) or derived(graph, seen)
    )
    graph = tn.layer("y[b,o] = tanh(x[b,i]*W[o,i])*(x[b,k]*V[o,k])", inputs="x", i=7, o=5)
    tn.register("twice_as_much", numpy=lambda x: 2 * x)
    for seed in range(3):
        tn.init(graph, seed=seed)
    assert len(counted) == 1
    tn.register("thrice_as_much", numpy=lambda x: 3 * x)
    tn.init(graph)
    assert len(counted) == 2


def test_gates_that_multiply_what_they_read_are_measured() -> None:
    """What is read twice is large, or small, in both: deviations multiplied as if they were independent tell less."""
    gates = [
        f"h{n}[b,f] = relu(sum[i](h{n - 1}[b,i] * W{n}[f,i])) * sum[i](h{n - 1}[b,i] * V{n}[f,i])"
        for n in (1, 2)
    ]
    text = "h0[b,i] = 2 * x[b,i]\n" + "\n".join(gates) + "\ny[b,o] = h2[b,f] * O[o,f]"
    graph = tn.layer(text, inputs="x", i=32, f=32, o=16)
    assert 0.8 < np.median(deviations(graph, (32,), range(50))) < 1.25


def test_a_warning_speaks_of_what_comes_out_alone() -> None:
    """The first line is 4 times too large, and the weight after it makes up for that."""
    lines = "h[b,f] = x[b,i] * softplus(V[f,i])\ny[b,o] = h * W[o,f]"
    graph = tn.layer(lines, inputs="x", i=32, f=32, o=16)
    starts(graph)  # no warning, which would be an error
    assert 0.7 < np.median(deviations(graph, (32,), range(50))) < 1.4


def test_starts_are_the_same_however_often_they_are_measured() -> None:
    text = "y[b,f] = silu(sum[i](x[b,i] * W[f,i])) * sum[i](x[b,i] * V[f,i])"
    one, other = (tn.layer(text, inputs="x", i=4, f=n) for n in (8, 9))
    first = starts(one)
    starts(other)
    initial_values._derived.cache_clear()
    assert starts(one) == first


# ---------------------------------------------------------------------------- what recurs, convolves and routes

GATE = "{0}[b,t,o] = sigmoid(x[b,t,i] * W{0}[o,i] + h[b,t-1,p] * U{0}[o,p] + b{0}[o])\n"
LSTM = "".join(map(GATE.format, "fkr")) + GATE.format("g").replace("sigmoid", "tanh")
LSTM += "c[b,t,o] = f * c[b,t-1,o] + k * g\nh[b,t,o] = r * tanh(c)\n"
RECURS = "h[b,t-1,p] * U[o,p] + x[b,t,i] * W[o,i]"
ROOM = {"i": 16, "o": 24, "p": 24}

ALIVE: dict[str, tuple[Callable[[], tn.Graph], tuple[int, ...]]] = {
    "linear recurrence": (lambda: tn.layer(f"h[b,t,o] = {RECURS}", inputs="x", **ROOM), (30, 16)),
    "recurrence": (lambda: tn.layer(f"h[b,t,o] = tanh({RECURS})", inputs="x", **ROOM), (30, 16)),
    "what reads an LSTM": (
        lambda: tn.layer(f"{LSTM}y[b,t,e] = h[b,t,o] * V[e,o]", inputs="x", e=16, **ROOM),
        (30, 16),
    ),
    "strided": (lambda: models.convolution(16, 24, stride=2), (16, 12, 12)),
    "grouped": (lambda: models.convolution(16, 24, groups=4), (16, 12, 12)),
    "Tucker-2": (lambda: models.convolution(16, 24, factorization="tucker", rank=0.3), (16, 12, 12)),
    "CP": (lambda: models.convolution(16, 24, factorization="cp", rank=0.3), (16, 12, 12)),
    "TT": (lambda: models.convolution(16, 24, factorization="tt", rank=0.3), (16, 12, 12)),
    "routed": (lambda: models.mixture_of_experts(32, 64, 8), (20, 32)),
}


@pytest.mark.parametrize("what", ALIVE)
def test_what_recurs_convolves_or_routes_keeps_the_deviation(what: str) -> None:
    make, shape = ALIVE[what]
    assert 0.5 < deviation(make(), *shape) < 2


def test_the_state_of_an_lstm_is_as_large_as_gates_let_it_be() -> None:
    """Bounded by two curves, it stays below 1/2 even where all gates are shut or open; torch's start is no larger."""
    torch = pytest.importorskip("torch")
    graph, x = models.lstm(64, 64), normal(32, 40, 64)
    arrays, compiled = tn.init(graph, dtype="float64"), tn.compile(graph)
    with torch.no_grad():
        theirs = torch.nn.LSTM(64, 64, batch_first=True)(torch.tensor(x, dtype=torch.float32))[0].std()
    assert float(theirs) < compiled(arrays, x).std() < 0.5
    assert compiled({name: 64 * array for name, array in arrays.items()}, x).std() < 0.5


def test_what_is_stacked_on_recurrences_knows_how_large_they_are() -> None:
    """The state of an LSTM is a seventh of what comes in: the weights behind it make up for that, not those in it."""
    one, other = (models.lstm(16, 24), models.lstm(24, 24))
    head = tn.layer("y[b,t,e] = h[b,t,o] * V[e,o]", inputs="h", e=16)
    graph = tn.model(
        lambda x: head(other(one(x, scope="one"), scope="other"), scope="head"), inputs="x[b,t,i]", i=16
    )
    assert 0.6 < deviation(graph, 30, 16) < 1.7
    sum_so_far = tn.layer("h[b,t,i] = h[b,t-1,i] + x[b,t,i]\ny[b,t,o] = h * W[o,i]", inputs="x", i=16, o=16)
    assert np.isfinite(tn.init(sum_so_far)["W"]).all()


# ---------------------------------------------------------------------------- Initial values


@st.composite
def products(draw: Any) -> tuple[str, dict[str, int]]:
    """`y[b,…] = x[b,…] * P0[…] * …`, every parameter sharing an axis with what stands before it."""
    axes = "ijklmn"
    sizes = {axis: draw(st.sampled_from([4, 6, 8])) for axis in axes}
    data = draw(st.lists(st.sampled_from(axes), min_size=1, max_size=3, unique=True))
    seen, terms = list(data), [f"x[b,{','.join(data)}]"]
    for number in range(draw(st.integers(1, 3))):
        shared = draw(st.sampled_from(seen))
        fresh = draw(
            st.lists(st.sampled_from([a for a in axes if a not in seen] or [shared]), max_size=2, unique=True)
        )
        own = list(dict.fromkeys([shared, *fresh]))
        terms.append(f"P{number}[{','.join(own)}]")
        seen += [axis for axis in own if axis not in seen]
    kept = [axis for axis in seen if draw(st.booleans())]
    left = ",".join(["b", *kept])
    return f"y[{left}] = {' * '.join(terms)}", {axis: sizes[axis] for axis in seen}


def mean_square(graph: tn.Graph, shape: Sequence[int], draws: int, rows: int) -> float:
    """Of the results of standard normal numbers, over some starts."""
    return float(np.mean(deviations(graph, tuple(shape), range(draws), rows) ** 2))


@READ_ALONE
@given(products())
def test_summed_size_and_variances_balance(case: tuple[str, dict[str, int]]) -> None:
    """S · ∏ variances = 1, with S the product of the summed axes."""
    text, sizes = case
    graph = tn.layer(text, inputs="x", **sizes)
    found = starts(graph)
    if any(kind == "value" for kind, _ in found.values()):
        return
    summed = np.prod([sizes[axis] for axis in sizes if f",{axis}" not in text.split("]")[0]])
    assert summed * np.prod([std**2 for _, std in found.values()]) == pytest.approx(1.0)


LAYERS = [
    tn.models.tcl((6, 7, 8), (5, 6, 7)),
    *[tn.models.trl((6, 7, 8), 20, rank=0.2, factorization=kind) for kind in ("tucker", "cp", "tt")],
    *[
        tn.models.linear((8, 8), (8, 8), factorization=kind, rank=0.3)
        for kind in ("dense", "tucker", "cp", "tt", "blocktt", "kronecker")
    ],
]


@READ_ALONE
@pytest.mark.parametrize("graph", LAYERS, ids=lambda graph: str(graph.equations[0])[:60])
def test_layers_keep_the_standard_deviation(graph: tn.Graph) -> None:
    shape = [evaluate(dim[0].size, graph.bound) if len(dim) == 1 else 64 for dim in graph.inputs[0].dims[1:]]
    assert 0.6 < np.sqrt(mean_square(graph, shape, 8, 256)) < 1.6


@READ_ALONE
def test_every_role_has_its_start() -> None:
    graph = tn.layer(
        """
        e[b,n,c] = E[t[b,n],c]
        z[b,n,c] = concat[n](cls[1,c], e[b,n,c]) + pos[n,c]
        h[b,n,c] = gain[c] * normalize[c](z) + shift[c]
        y[b,n,f] = gelu(h[b,n,c] * W[f,c] + u[f]) * alpha
        """,
        inputs="t", E0=50, n=7, c=16, f=400,
    )  # fmt: skip
    found = starts(graph)
    assert found["E"] == ("std", 1.0)
    assert found["cls"] == ("std", 1.0)
    assert found["W"] == ("std", 0.25)
    assert {name: found[name] for name in ("pos", "gain", "shift", "u", "alpha")} == {
        "pos": ("value", 0.0), "gain": ("value", 1.0), "shift": ("value", 0.0), "u": ("value", 0.0),
        "alpha": ("value", 1.0),
    }  # fmt: skip


@READ_ALONE
def test_a_function_between_is_made_up_for() -> None:
    graph = tn.layer("y[b,o] = relu(x[b,i] * W[h,i]) * Z[o,h]", inputs="x", i=64, h=512, o=64)
    assert starts(graph)["Z"][1] == pytest.approx(np.sqrt(2 / 512), rel=0.05)  # He et al. (2015)


@READ_ALONE
def test_starts_can_be_said() -> None:
    graph = tn.layer(
        "y[b,o] = x[b,i] * W[o,i] + u[o]", inputs="x", i=500, o=40, init={"W": 0.02, "u": "ones"}
    )
    arrays = tn.init(graph)
    assert arrays["W"].std() == pytest.approx(0.02, rel=0.02)
    assert (arrays["u"] == 1).all()
    assert tn.layer(str(graph)) == graph
    with pytest.raises(
        tn.EquationError, match="init names 'V', which is no parameter\nfix: the parameters are W"
    ):
        tn.layer("y[b,o] = x[b,i] * W[o,i]", inputs="x", init={"V": 1.0})


@READ_ALONE
def test_one_seed_one_start_whatever_else_is_in_the_graph() -> None:
    one = tn.init(tn.layer("y[b,o] = x[b,i] * W[o,i]", inputs="x", i=4, o=2), seed=5)
    two = tn.init(tn.layer("y[b,o] = x[b,i] * W[o,i] + u[o]", inputs="x", i=4, o=2), seed=5, backend="torch")
    assert np.array_equal(one["W"], two["W"].numpy())
    assert not np.array_equal(
        one["W"], tn.init(tn.layer("y[b,o] = x[b,i] * W[o,i]", inputs="x", i=4, o=2), seed=6)["W"]
    )


# ---------------------------------------------------------------------------- weights made of weights


FROZEN = normal(16, 32) / np.sqrt(32)
SIZES = {"i": 32, "o": 16}


@READ_ALONE
@pytest.mark.parametrize(("text", "ones"), [(text, of[7:]) for text, of in STARTED if of[:6] == "learns"])
def test_every_parameter_learns_and_the_deviation_holds(text: str, ones: str) -> None:
    """Also where a gain of a normalized weight starts at 1, as Salimans and Kingma (2016) have it."""
    torch = pytest.importorskip("torch")
    graph = tn.layer(
        text,
        inputs="x",
        **{k: n for k, n in {**SIZES, "r": 4, "s": 2}.items() if f"{k}]" in text or f"{k}," in text},
    )
    assert all(starts(graph)[name] == ("value", 1.0) for name in ones)
    module, x = tn.module(graph, seed=0), torch.randn(512, 32)
    y = module(x)
    (y * torch.randn(y.shape)).sum().backward()
    assert all(float(each.grad.abs().max()) > 0 for each in module.parameters())
    assert 0.5 < float(y.detach().std()) < 2


@READ_ALONE
@pytest.mark.parametrize(
    ("settings", "dead"),
    [
        ({"constants": {"W": FROZEN}}, "B"),
        ({"init": {"W": FROZEN}}, "B"),
        ({"init": {"W": FROZEN, "A": "zeros"}}, "A"),
        ({"init": {"W": FROZEN, "B": "zeros"}}, "B"),
    ],
)
def test_a_sum_with_a_frozen_weight_starts_at_it_and_learns(settings: dict[str, Any], dead: str) -> None:
    """Hu et al. (2021), LoRA."""
    text = "V[o,i] = W[o,i] + A[o,r] * B[r,i]\ny[b,o] = x[b,i] * V[o,i]"
    graph = tn.layer(text, inputs="x", r=4, **settings)
    arrays = tn.init(graph, dtype="float64")
    assert {name for name in ("A", "B") if not arrays[name].any()} == {dead}
    x = normal(5, 32, seed=1)
    np.testing.assert_allclose(tn.compile(graph)(arrays, x), x @ FROZEN.T, rtol=1e-12)


@READ_ALONE
def test_lines_of_weights_may_be_many() -> None:
    lines = ["V1[i,r1] = A0[i,r0] * A1[r0,r1]"]
    lines += [f"V{n}[i,r{n}] = V{n - 1}[i,r{n - 1}] * A{n}[r{n - 1},r{n}]" for n in range(2, 64)]
    graph = tn.layer(
        "\n".join([*lines, "y[b,r63] = x[b,i] * V63[i,r63]"]),
        inputs="x",
        i=8,
        **{f"r{n}": 16 for n in range(64)},
    )
    y = normal(64, 8)
    for array in tn.init(graph, dtype="float64").values():
        y = y @ array
    assert 0.03 < y.std() < 30


@READ_ALONE
def test_what_no_start_can_do_is_said_with_the_line() -> None:
    graph = tn.layer("y[b,o] = x[b,i] * softplus(V[o,i])", inputs="x", i=64, o=4)
    with pytest.warns(
        tn.TensornetWarning, match=r"in 'y', .*softplus.* starts at [56]\.\d times (.|\n)*line 1: y\[b,o\]"
    ):
        tn.init(graph)


# ---------------------------------------------------------------------------- starts given as arrays


@READ_ALONE
@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int8, bool])
def test_a_parameter_starts_at_an_array(kind: type[Any]) -> None:
    value = (np.arange(6).reshape(2, 3) % 2).astype(kind)
    graph = tn.layer("y[b,o] = x[b,i] * W[o,i] + u[o]", inputs="x", init={"W": value})
    assert graph.bound == {"i": 3, "o": 2}
    for each in (graph, tn.Graph.from_json(graph.to_json()), tn.layer(str(graph), init={"W": value})):
        assert each == graph
        assert np.array_equal(tn.init(each)["W"], value.astype("float32"))
    inner = tn.model(lambda x: graph(x, scope="a"), inputs="x[b,i]")
    assert np.array_equal(tn.init(inner)["a.W"], value)
    x = np.ones((1, 3))
    np.testing.assert_allclose(tn.compile(graph)(tn.init(graph, dtype="float64"), x)[0], value.sum(1))


@READ_ALONE
def test_a_parameter_starts_at_a_tensor_of_torch() -> None:
    torch = pytest.importorskip("torch")
    weight = torch.nn.Linear(3, 2).weight
    for value in (weight, weight.detach().bfloat16()):
        module = tn.module(tn.layer("y[b,o] = x[b,i] * W[o,i]", inputs="x", init={"W": value}))
        assert torch.equal(module.W.detach(), value.detach().float())


@READ_ALONE
def test_complex_starts_stay_complex() -> None:
    graph = tn.layer("y[i] = x[i] * W[i]", inputs="x", init={"W": np.array([1 + 2j, 3j])})
    assert tn.init(graph, dtype="complex64")["W"].tolist() == [1 + 2j, 3j]
    with pytest.raises(tn.DtypeError, match=r"'W' starts at complex numbers(?s:.*)complex64"):
        tn.init(graph)


@READ_ALONE
@given(products())
@examples(34)  # 20 by day
def test_variance_is_kept_by_random_products(case: tuple[str, dict[str, int]]) -> None:
    text, sizes = case
    graph = tn.layer(text, inputs="x", **sizes)
    shape = [graph.bound[dim[0].name] for dim in graph.inputs[0].dims[1:]]
    assert 0.3 < mean_square(graph, shape, 12, 400) < 3.0
