"""Layers: those of tensor algebra against tensorly, ranks, mixtures of experts."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import numpy as np
import pytest
import sympy
import tensorly
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensorly.tenalg import multi_mode_dot as tensorly_multi_mode_dot

import tensornet as tn
from tensornet import models
from tensornet.graph.element_types import holding
from tensornet.models.blocks import ACTIVATIONS, feed_forward
from tensornet.ops.table import Element
from tensornet.protocol import load_backend
from tensornet.weights.factorizations import choose_ranks

from .conftest import examples, normal, sampled
from .differential import BACKENDS, by_numpy, computed
from .test_rewrites import REWRITES

# ---------------------------------------------------------------------------- Layers


@pytest.fixture(autouse=True, scope="module")
def _tensorly_on_numpy() -> Iterator[None]:
    """Whatever another module's imports chose for tensorly, the reference here is NumPy."""
    with tensorly.backend_context("numpy"):
        yield


sizes_of = st.lists(st.integers(1, 4), min_size=1, max_size=5).map(tuple)


@st.composite
def pairs(draw: Any, most: int = 5) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two lists of sizes of one length."""
    both = draw(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), min_size=1, max_size=most))
    return tuple(a for a, _ in both), tuple(b for _, b in both)


def run(graph: tn.Graph, *inputs: np.ndarray, seed: int = 0) -> tuple[dict[str, np.ndarray], np.ndarray]:
    parameters = tn.init(graph, seed=seed, dtype="float64")
    for name, array in parameters.items():
        if "bias" in name:
            array += normal(*array.shape, seed=seed)
    return parameters, tn.compile(graph)(parameters, *inputs)


def counted(graph: tn.Graph) -> int:
    """Formula and number agree with the arrays themselves."""
    number = sum(array.size for array in tn.init(graph).values())
    assert tn.parameter_formula(graph).subs(dict(graph.bound)) == number
    assert tn.parameter_count(graph) == number
    return number


@examples(12)
@given(pairs(), st.booleans(), st.lists(st.integers(1, 3), max_size=3))
def test_tcl(case: tuple[tuple[int, ...], tuple[int, ...]], bias: bool, batch: list[int]) -> None:
    sizes, ranks = case
    graph = models.tcl(sizes, ranks, bias=bias)
    assert counted(graph) == sum(i * r for i, r in zip(sizes, ranks, strict=True)) + bias * prod(ranks)
    x = normal(*batch, *sizes)
    parameters, found = run(graph, x)
    factors = [parameters[f"U{n}"] for n in range(1, len(sizes) + 1)]
    modes = list(range(len(batch), len(batch) + len(sizes)))
    expected = tensorly_multi_mode_dot(x, factors, modes=modes) + (parameters["bias"] if bias else 0)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)


def whole(kind: str, named: dict[str, np.ndarray]) -> np.ndarray:
    """The tensor that factors make: by tensorly."""
    factors = [each for name, each in named.items() if kind != "tucker" or name != "G"]
    if kind == "tucker":
        return np.asarray(tensorly.tucker_to_tensor((named["G"], factors)))
    if kind == "cp":
        return np.asarray(tensorly.cp_to_tensor((None, factors)))
    if kind == "tt":
        return np.asarray(tensorly.tt_to_tensor([factors[0][None], *factors[1:-1], factors[-1][:, :, None]]))
    return factors[0]


@pytest.mark.filterwarnings("ignore:.* more often than not")  # of many factors
@examples(12)
@given(sizes_of, st.integers(1, 4), st.sampled_from(["tucker", "cp", "tt", "dense"]), st.data())
def test_trl(sizes: tuple[int, ...], outputs: int, factorization: str, data: Any) -> None:
    counts = {"tucker": len(sizes) + 1, "cp": 1, "tt": len(sizes), "dense": 0}
    ranks = tuple(data.draw(st.integers(1, 3)) for _ in range(counts[factorization]))
    graph = models.trl(sizes, outputs, rank=ranks, factorization=factorization.upper())
    whole_count = prod(sizes) * outputs
    if factorization != "dense":
        _, _, count, _ = forms([(size, outputs) for size in sizes])[f"trl {factorization}"]
        whole_count = count(ranks)
    assert counted(graph) == whole_count + outputs
    x = normal(3, *sizes)
    parameters, found = run(graph, x)
    assert "V" in parameters or factorization == "dense"
    weight = whole(factorization, {name: each for name, each in parameters.items() if name != "bias"})
    expected = np.tensordot(x, weight, len(sizes)) + parameters["bias"]
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


@examples(12)
@given(st.lists(st.integers(1, 3), min_size=1, max_size=8).map(tuple), st.data())
def test_multi_mode_dot(sizes: tuple[int, ...], data: Any) -> None:
    order = len(sizes)
    modes = sorted(data.draw(st.sets(st.integers(0, order - 1))))
    vectors = [mode for mode in modes if data.draw(st.booleans())]
    x = normal(*sizes)
    ranks = {mode: data.draw(st.integers(1, 3)) for mode in modes}
    factors = [
        normal(sizes[m], seed=m) if m in vectors else normal(ranks[m], sizes[m], seed=m) for m in modes
    ]
    graph = models.multi_mode_dot(order, modes, vectors=vectors)
    found = tn.compile(graph)({}, x, *factors)
    expected = tensorly_multi_mode_dot(x, factors, modes=modes) if modes else x
    np.testing.assert_allclose(found, np.asarray(expected).reshape(np.shape(found)), rtol=1e-10, atol=1e-10)


def test_mode_dot_and_bias() -> None:
    x, u = normal(2, 3, 4), normal(5, 3)
    expected = tensorly.tenalg.mode_dot(x, u, 1)
    np.testing.assert_allclose(tn.compile(models.mode_dot(3, 1))({}, x, u), expected, rtol=1e-12)
    np.testing.assert_allclose(
        tn.compile(models.mode_dot(3, 1, transpose=True))({}, x, u.T), expected, rtol=1e-12
    )
    np.testing.assert_allclose(
        tn.compile(models.mode_dot(3, 1, vector=True))({}, x, u[0]), expected[:, 0], rtol=1e-12
    )
    graph = models.multi_mode_dot(2, vectors=(0, 1), bias=True)
    a, b = normal(3), normal(4, seed=1)
    x = normal(3, 4, seed=2)
    np.testing.assert_allclose(tn.compile(graph)({}, x, a, b, np.array(2.0)), a @ x @ b + 2, rtol=1e-12)


@examples(8)
@given(pairs(6))
def test_tucker_to_tensor(case: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    sizes, ranks = case
    core = normal(*ranks)
    factors = [normal(i, r, seed=i) for i, r in zip(sizes, ranks, strict=True)]
    found = tn.compile(models.tucker_to_tensor(len(sizes)))({}, core, *factors)
    np.testing.assert_allclose(found, tensorly.tucker_to_tensor((core, factors)), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("order", sampled([7, 12], [7]))
def test_any_order_up_to_twelve(order: int) -> None:
    graph = models.linear(
        (2,) * order, (1, 2) * (order // 2) + (1,) * (order % 2), factorization="blocktt", rank=2
    )
    x = normal(2, 2**order)
    assert run(graph, x)[1].shape == (2, 2 ** (order // 2))
    assert counted(models.tcl((2,) * order, 1)) == 2 * order
    assert counted(models.trl((2,) * min(order, 11), 3, rank=1, bias=False)) == 1 + 2 * min(order, 11) + 3


def test_ranks_are_said_as_elsewhere() -> None:
    def count(ranks: tuple[int, ...]) -> int:
        return prod(ranks)

    assert choose_ranks("SAME", (3, 4), count) == (3, 4)
    assert choose_ranks(1.0, (3, 4), count) == (3, 4)
    assert choose_ranks(1, (3, 4), count) == (1, 1)
    assert choose_ranks((2, 3), (3, 4), count) == (2, 3)
    assert choose_ranks(np.int64(2), (3, 4), count) == choose_ranks(sympy.Integer(2), (3, 4), count) == (2, 2)


# ---------------------------------------------------------------------------- A rank as a fraction


def linear(kind: str) -> Callable[..., tn.Graph]:
    return lambda sizes, rank: models.linear(
        [a for a, _ in sizes], [b for _, b in sizes], factorization=kind, rank=rank, bias=False
    )


def trl(kind: str) -> Callable[..., tn.Graph]:
    return lambda sizes, rank: models.trl(
        [a for a, _ in sizes], sizes[0][1], factorization=kind, rank=rank, bias=False
    )


def counted_train(modes: list[int]) -> Callable[[tuple[int, ...]], int]:
    def count(ranks: tuple[int, ...]) -> int:
        return sum(a * m * b for a, m, b in zip((1, *ranks), modes, (*ranks, 1), strict=True))

    return count


def cut(modes: list[int]) -> list[int]:
    """The largest ranks of a train."""
    return [min(prod(modes[:n]), prod(modes[n:])) for n in range(1, len(modes))]


def forms(sizes: list[tuple[int, int]]) -> dict[str, tuple[Any, list[int], Callable[..., int], int]]:
    """How each is built, its full ranks, what ranks cost, and what dense costs; from the formulas on paper."""
    ins, outs = [a for a, _ in sizes], [b for _, b in sizes]
    pairs, flat = [a * b for a, b in sizes], [*outs, *ins]
    head = [*ins, outs[0]]

    def tucker(modes: list[int]) -> Callable[..., int]:
        return lambda ranks: prod(ranks) + sum(m * r for m, r in zip(modes, ranks, strict=True))

    dense, dense_head = prod(pairs), prod(head)
    return {
        "linear cp": (linear("cp"), [dense // max(flat)], lambda r: r[0] * sum(flat), dense),
        "linear kronecker": (linear("kronecker"), [dense // max(pairs)], lambda r: r[0] * sum(pairs), dense),
        "linear tucker": (linear("tucker"), flat, tucker(flat), dense),
        "linear tt": (linear("tt"), cut(flat), counted_train(flat), dense),
        "linear blocktt": (linear("blocktt"), cut(pairs), counted_train(pairs), dense),
        "trl cp": (trl("cp"), [dense_head // max(head)], lambda r: r[0] * sum(head), dense_head),
        "trl tucker": (trl("tucker"), head, tucker(head), dense_head),
        "trl tt": (trl("tt"), cut(head), counted_train(head), dense_head),
    }


FORMS = tuple(forms([(1, 1)]))


@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=3),
    st.sampled_from(FORMS),
    st.floats(0.001, 1.2),
)
def test_a_fraction_is_the_nearest_count(sizes: list[tuple[int, int]], form: str, fraction: float) -> None:
    build, full, count, dense = forms(sizes)[form]
    if prod(full) > 50_000:
        sizes = sizes[:2]
        build, full, count, dense = forms(sizes)[form]
    counts = [count(ranks) for ranks in itertools.product(*(range(1, each + 1) for each in full))]
    nearest = min(abs(each - fraction * dense) for each in counts)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = tn.parameter_count(build(sizes, fraction))
    slack = 0.01 if prod(full) <= 20_000 else 0.05
    off = abs(found - fraction * dense)
    assert off <= max(nearest, slack * fraction * dense) + 1e-9
    assert bool(told) == (off > 0.1 * fraction * dense or found > dense)
    assert all(each.category is tn.TensornetWarning for each in told)


@pytest.mark.filterwarnings("ignore:rank=1.0 asks for 2359296 of 2359296 parameters; the nearest is 2360224")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("fraction", [0.005, 0.05, 0.3, 1.0])
def test_large_layers_get_what_they_ask_for(form: str, fraction: float) -> None:
    sizes = [(8, 16), (12, 12), (8, 16)]
    build, _, _, dense = forms(sizes)[form]
    if 10 * tn.parameter_count(build(sizes, 1)) <= fraction * dense:
        assert tn.parameter_count(build(sizes, fraction)) == pytest.approx(fraction * dense, rel=0.05)


@pytest.mark.parametrize("form", ["tucker", "cp", "tt"])
def test_the_largest_layers_get_what_they_ask_for(form: str) -> None:
    graph = models.trl((10**9, 10**9), 10, factorization=form, rank=0.1, bias=False)
    assert tn.parameter_count(graph) == pytest.approx(0.1 * 10**19, rel=0.01)


def test_what_is_not_near_is_said() -> None:
    with pytest.warns(
        tn.TensornetWarning,
        match=r"rank=0.001 asks for 4.096 of 4096 parameters; the nearest is 32, at rank 1",
    ):
        models.linear((8, 8), (8, 8), factorization="cp", rank=0.001)
    with pytest.warns(tn.TensornetWarning, match=r"the nearest is 4, at rank 1, more than dense"):
        models.linear((1, 1), (1, 1), factorization="cp", rank=1.0)


def test_the_ranks_of_a_fraction_stay_in_proportion() -> None:
    graph = models.linear((16, 16), (16, 16), factorization="tucker", rank=0.1, bias=False)
    ranks = [size for name, size in graph.sizes if name[0] in "qr"]
    assert max(ranks) <= min(ranks) + 2


# ---------------------------------------------------------------------------- Mixtures of experts, and the products they are planned as, against plain torch a


def grouped(text: str) -> tn.Graph:
    """A layer of whose positions it is known that they are such, with a kernel in the place of its equation."""
    graph = holding(tn.layer(text, inputs="x p"), {"p": Element.WHOLE})
    return REWRITES["products by groups"](graph)


LOOKED_UP = grouped("y[n,f] = x[n,c] * W[p[n],f,c]")
TWICE = grouped("y[n,k,f] = x[n,c] * W[p[n,k],f,c]")


def plainly(x: Any, held: dict[str, Any], active: int, gated: bool) -> tuple[Any, Any]:
    """The mixture of experts and its loss, expert by expert."""
    scores = x @ held["R"].T
    top, positions = scores.topk(active)
    weights = torch.softmax(top, -1)
    y = torch.zeros_like(x)
    for e in range(len(held["R"])):
        for k in range(active):
            rows = positions[..., k] == e
            inner = torch.nn.functional.gelu(x[rows] @ held["W1"][e].T)
            inner = inner * (x[rows] @ held["W3"][e].T) if gated else inner
            y = y.index_put((rows,), (inner @ held["W2"][e].T) * weights[rows][:, k, None], accumulate=True)
    flat = positions.flatten()
    share = torch.nn.functional.one_hot(flat, len(held["R"])).to(x.dtype).mean(0)
    router = torch.softmax(scores, -1).flatten(0, -2).mean(0)
    return y, len(share) * (share * router).sum()


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(("tokens", "dim", "hidden", "experts"), [((2, 5), 6, 8, 4), ((2, 128), 64, 128, 16)])
def test_it_is_that_of_plain_torch(
    gated: bool, tokens: tuple[int, ...], dim: int, hidden: int, experts: int
) -> None:
    """Small ones are planned with all experts, larger ones by groups; both ways, on torch and as an equation."""
    graph = models.mixture_of_experts(dim, hidden, experts, 2, gated=gated, balance=True)
    x = torch.randn(*tokens, dim, dtype=torch.float64, requires_grad=True)
    held = {k: torch.tensor(v, requires_grad=True) for k, v in tn.init(graph, dtype="float64").items()}
    seed = torch.randn_like(x)
    leaves = [x, *held.values()]
    y, balance = plainly(x, held, 2, gated)
    expected = torch.autograd.grad((y * seed).sum() + balance, leaves)
    found, told = tn.compile(graph, backend="torch")(held, x)
    torch.testing.assert_close(found, y, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(told, balance, rtol=1e-6, atol=1e-6)
    gradients = torch.autograd.grad((found * seed).sum() + told, leaves)
    torch.testing.assert_close(gradients, expected, rtol=1e-9, atol=1e-9)
    derivative = tn.gradient(graph, wrt=["x", *held])
    arrays = {name: each.detach().numpy() for name, each in (*held.items(), ("x", x))}
    arrays |= {"y.grad": seed.numpy()}  # that of a number is 1
    written = by_numpy(derivative, arrays).values()
    for one, other in zip(written, expected, strict=True):
        np.testing.assert_allclose(one, other.numpy(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend(backend: str) -> None:
    graph = models.mixture_of_experts(64, 128, 16, 2)
    arrays = tn.init(graph, dtype="float64")
    x = normal(2, 128, 64)
    expected, _ = plainly(torch.tensor(x), {k: torch.tensor(v) for k, v in arrays.items()}, 2, False)
    (found,) = computed(graph, {**arrays, "x": x}, backend).values()
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5, atol=1e-12)


def test_the_plan_chooses() -> None:
    graph = models.mixture_of_experts(256, 1024, 16, 2)
    many = tn.plan(graph, backend="torch", lead=2048)
    assert many.code.count("grouped_matmul(") == 2
    dense = 2 * 2048 * 16 * 256 * 1024 * 2
    assert many.flops < dense / 7
    few = tn.plan(models.mixture_of_experts(8, 16, 4, 2), backend="torch", lead=8)
    assert "grouped_matmul" not in few.code


def test_it_is_compiled_as_one() -> None:
    graph = models.mixture_of_experts(64, 128, 16, 2)
    assert "grouped_matmul" in tn.plan(graph, backend="torch", lead=256).code
    module = tn.module(graph)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    x = torch.randn(256, 64, requires_grad=True)
    results = [each(x) for each in (module, compiled)]
    torch.testing.assert_close(results[1], results[0])
    gradients = [torch.autograd.grad(y.square().sum(), x)[0] for y in results]
    torch.testing.assert_close(gradients[1], gradients[0])


# ---------------------------------------------------------------------------- the kernels


@pytest.mark.parametrize("backend", ["numpy", "torch", "array-api-strict"])
def test_wrong_positions_are_refused(backend: str) -> None:
    library = BACKENDS[backend]()
    arrays = map(library.asarray, (np.zeros((3, 4)), np.array([0, 5, 1])))
    run = tn.compile(LOOKED_UP, backend=library)
    with pytest.raises(tn.ShapeError, match="5"):
        run({"W": library.asarray(np.zeros((5, 6, 4)))}, *arrays)


def test_jax_differentiates_and_traces_kernels() -> None:
    jax = pytest.importorskip("jax")
    library = load_backend("jax")
    run = tn.compile(TWICE, backend="jax")
    rng = np.random.default_rng(0)
    x, p, W = rng.standard_normal((7, 4)), rng.integers(0, 5, (7, 2)), rng.standard_normal((5, 6, 4))
    x, p, W = (library.asarray(each) for each in (x.astype("float32"), p, W.astype("float32")))

    def loss(x: Any, W: Any) -> Any:
        return jax.numpy.tanh(run({"W": W}, x, p)).sum()

    def plain(x: Any, W: Any) -> Any:
        return jax.numpy.tanh(jax.numpy.einsum("nc,nkfc->nkf", x, W[p])).sum()

    expected = jax.grad(plain, (0, 1))(x, W)
    for found in (jax.grad(loss, (0, 1))(x, W), jax.jit(jax.grad(loss, (0, 1)))(x, W)):
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_mixture_of_one_is_a_feed_forward_layer(activation: str) -> None:
    one = tn.models.mixture_of_experts(5, 7, 1, active=1, activation=activation)
    plain = feed_forward(5, 7, activation=activation, bias=False)
    params, x = tn.init(one, seed=0, dtype="float64"), normal(3, 4, 5)
    same = {name: params[name][0] for name in ("W1", "W2")}
    found, expected = tn.compile(one)(params, x), tn.compile(plain)(same, x)
    np.testing.assert_allclose(found[0] if isinstance(found, tuple) else found, expected, rtol=1e-12)
