"""Layers: shapes, parameter-count formulas and values, over random orders, sizes and ranks."""

from __future__ import annotations

import string
from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np
import pytest
import sympy
import tensorly
from hypothesis import example, given
from hypothesis import strategies as st
from tensorly.tenalg import multi_mode_dot as tensorly_multi_mode_dot

import tensornet as tn
from tensornet import models
from tensornet.weights.ranks import choose_ranks

from .conftest import examples, sampled


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
            array += np.random.default_rng(seed).standard_normal(array.shape)
    return parameters, tn.compile(graph)(parameters, *inputs)


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


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
    x = random(*batch, *sizes)
    parameters, found = run(graph, x)
    factors = [parameters[f"U{n}"] for n in range(1, len(sizes) + 1)]
    modes = list(range(len(batch), len(batch) + len(sizes)))
    expected = tensorly_multi_mode_dot(x, factors, modes=modes) + (parameters["bias"] if bias else 0)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)


def whole(kind: str, named: dict[str, np.ndarray]) -> np.ndarray:
    """The tensor that factors make: first what belongs to outputs; by tensorly, or by numpy of pairs of modes."""
    factors = [each for name, each in named.items() if kind != "tucker" or name != "G"]
    if kind == "tucker":
        return np.asarray(tensorly.tucker_to_tensor((named["G"], factors)))
    if kind == "cp":
        return np.asarray(tensorly.cp_to_tensor((None, factors)))
    if kind == "tt":
        return np.asarray(tensorly.tt_to_tensor([factors[0][None], *factors[1:-1], factors[-1][:, :, None]]))
    if kind == "dense":
        return factors[0]
    order, letters, ranks = len(factors), string.ascii_lowercase, string.ascii_uppercase
    modes = [letters[n] + letters[order + n] for n in range(order)]
    if kind == "kronecker":
        parts = [f"z{each}" for each in modes]
    else:
        parts = [ranks[n - 1] * (n > 0) + each + ranks[n] * (n < order - 1) for n, each in enumerate(modes)]
    return np.einsum(f"{','.join(parts)}->{letters[: 2 * order]}", *factors)


@examples(12)
@given(sizes_of, st.integers(1, 4), st.sampled_from(["tucker", "cp", "tt", "dense"]), st.data())
def test_trl(sizes: tuple[int, ...], outputs: int, factorization: str, data: Any) -> None:
    counts = {"tucker": len(sizes) + 1, "cp": 1, "tt": len(sizes), "dense": 0}
    ranks = tuple(data.draw(st.integers(1, 3)) for _ in range(counts[factorization]))
    graph = models.trl(sizes, outputs, rank=ranks, factorization=factorization.upper())
    formulas = {
        "tucker": lambda: prod(ranks) + sum(i * r for i, r in zip((*sizes, outputs), ranks, strict=True)),
        "cp": lambda: ranks[0] * (sum(sizes) + outputs),
        "tt": lambda: sum(
            a * i * b for a, i, b in zip((1, *ranks), (*sizes, outputs), (*ranks, 1), strict=True)
        ),
        "dense": lambda: prod(sizes) * outputs,
    }
    assert counted(graph) == formulas[factorization]() + outputs
    x = random(3, *sizes)
    parameters, found = run(graph, x)
    assert "V" in parameters or factorization == "dense"
    weight = whole(factorization, {name: each for name, each in parameters.items() if name != "bias"})
    expected = np.tensordot(x, weight, len(sizes)) + parameters["bias"]
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


LINEAR = ["dense", "tucker", "cp", "tt", "blocktt", "kronecker"]


@examples(12)
@given(pairs(4), st.sampled_from(LINEAR), st.integers(1, 3), st.booleans())
@example(((2,), (3,)), "kronecker", 2, False)
def test_linear(
    case: tuple[tuple[int, ...], tuple[int, ...]], factorization: str, rank: int, bias: bool
) -> None:
    ins, outs = case
    graph = models.linear(ins, outs, factorization=factorization, rank=rank, bias=bias)
    total = counted(graph) - bias * prod(outs)
    order = len(ins)
    formulas = {
        "dense": prod(ins) * prod(outs),
        "tucker": rank ** (2 * order) + rank * (sum(ins) + sum(outs)),
        "cp": rank * (sum(ins) + sum(outs)),
        "kronecker": rank * sum(i * o for i, o in zip(ins, outs, strict=True)),
        "blocktt": train([i * o for i, o in zip(ins, outs, strict=True)], rank),
        "tt": train([*outs, *ins], rank),
    }
    assert total == formulas[factorization]
    x = random(2, 3, prod(ins))
    parameters, found = run(graph, x)
    factors = {name: each for name, each in parameters.items() if name != "bias"}
    letters = {"dense": "W", "tucker": "GAB", "cp": "AB", "tt": "G", "blocktt": "G", "kronecker": "A"}
    assert {name[0] for name in factors} == {*letters[factorization]}
    weight = whole(factorization, factors).reshape(prod(outs), prod(ins))
    expected = x @ weight.T + (parameters["bias"].reshape(-1) if bias else 0)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


def train(modes: list[int], rank: int) -> int:
    links = [1] + [rank] * (len(modes) - 1) + [1]
    return sum(links[n] * size * links[n + 1] for n, size in enumerate(modes))


@examples(12)
@given(st.lists(st.integers(1, 3), min_size=1, max_size=8).map(tuple), st.data())
def test_multi_mode_dot(sizes: tuple[int, ...], data: Any) -> None:
    order = len(sizes)
    modes = sorted(data.draw(st.sets(st.integers(0, order - 1))))
    vectors = [mode for mode in modes if data.draw(st.booleans())]
    x = random(*sizes)
    ranks = {mode: data.draw(st.integers(1, 3)) for mode in modes}
    factors = [
        random(sizes[m], seed=m) if m in vectors else random(ranks[m], sizes[m], seed=m) for m in modes
    ]
    graph = models.multi_mode_dot(order, modes, vectors=vectors)
    found = tn.compile(graph)({}, x, *factors)
    expected = tensorly_multi_mode_dot(x, factors, modes=modes) if modes else x
    np.testing.assert_allclose(found, np.asarray(expected).reshape(np.shape(found)), rtol=1e-10, atol=1e-10)


def test_mode_dot_and_bias() -> None:
    x, u = random(2, 3, 4), random(5, 3)
    expected = tensorly.tenalg.mode_dot(x, u, 1)
    np.testing.assert_allclose(tn.compile(models.mode_dot(3, 1))({}, x, u), expected, rtol=1e-12)
    np.testing.assert_allclose(
        tn.compile(models.mode_dot(3, 1, transpose=True))({}, x, u.T), expected, rtol=1e-12
    )
    np.testing.assert_allclose(
        tn.compile(models.mode_dot(3, 1, vector=True))({}, x, u[0]), expected[:, 0], rtol=1e-12
    )
    graph = models.multi_mode_dot(2, vectors=(0, 1), bias=True)
    a, b = random(3), random(4, seed=1)
    x = random(3, 4, seed=2)
    np.testing.assert_allclose(tn.compile(graph)({}, x, a, b, np.array(2.0)), a @ x @ b + 2, rtol=1e-12)


@examples(8)
@given(pairs(6))
def test_tucker_to_tensor(case: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    sizes, ranks = case
    core = random(*ranks)
    factors = [random(i, r, seed=i) for i, r in zip(sizes, ranks, strict=True)]
    found = tn.compile(models.tucker_to_tensor(len(sizes)))({}, core, *factors)
    np.testing.assert_allclose(found, tensorly.tucker_to_tensor((core, factors)), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("order", sampled([7, 12], [7]))
def test_any_order_up_to_twelve(order: int) -> None:
    graph = models.linear(
        (2,) * order, (1, 2) * (order // 2) + (1,) * (order % 2), factorization="blocktt", rank=2
    )
    x = random(2, 2**order)
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
