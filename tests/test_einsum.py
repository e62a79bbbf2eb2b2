"""`tensornet.einsum` against NumPy, with NumPy's and opt_einsum's documented examples."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tensornet as tn


def drawn(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


A = np.arange(25.0).reshape(5, 5)
B = np.arange(5.0)
C = np.arange(6.0).reshape(2, 3)
D = np.arange(60.0).reshape(3, 4, 5)
E = np.arange(24.0).reshape(4, 3, 2)

DOCUMENTED: list[tuple[Any, ...]] = [
    ("ii", A), (A, [0, 0]), ("ii->i", A), (A, [0, 0], [0]), ("ij->i", A), (A, [0, 1], [0]),
    ("...j->...", A), (A, [Ellipsis, 1], [Ellipsis]), ("ji", C), ("ij->ji", C), (C, [1, 0]), (C, [0, 1], [1, 0]),
    ("i,i", B, B), (B, [0], B, [0]), ("ij,j", A, B), (A, [0, 1], B, [1]), ("...j,j", A, B),
    ("..., ...", 3, C), (",ij", 3, C), (3, [Ellipsis], C, [Ellipsis]), ("i,j", np.arange(2.0) + 1, B),
    ("ijk,jil->kl", D, E), (D, [0, 1, 2], E, [1, 0, 3], [2, 3]), ("ki,jk->ij", C, np.arange(10.0).reshape(5, 2)),
    ("k...,jk", C, np.arange(10.0).reshape(5, 2)), ("ijk,ilm,njm,nlk,abc->", *[np.ones((2, 2, 2))] * 5),
    ("bdik,acaj,ikab,ajac,ikbd", *map(drawn, ((2, 3, 2, 3), (3, 2, 3, 4), (2, 3, 3, 2), (3, 4, 3, 2), (2, 3, 2, 3)))),
    ("a...a->a...", drawn((2, 3, 2))), ("...ij,...jk->...ik", drawn((4, 2, 3)), drawn((4, 3, 2))),
    ("...ij,...jk->...ik", drawn((1, 2, 3)), drawn((5, 4, 3, 2))), ("...,...->...", drawn((3, 1)), drawn((1, 4))),
]  # fmt: skip
"""The examples of NumPy, and those of opt_einsum that random equations are not like."""


def same(found: Any, expected: Any) -> None:
    assert np.shape(found) == np.shape(expected)
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    "arguments", DOCUMENTED, ids=lambda a: str(a[0] if isinstance(a[0], str) else a[1:2])
)
def test_documented_examples(arguments: tuple[Any, ...]) -> None:
    expected = np.einsum(*arguments)
    same(tn.einsum(*arguments), expected)
    same(tn.einsum(*arguments, optimize="greedy"), expected)
    as_torch = [torch.tensor(a) if isinstance(a, np.ndarray) else a for a in arguments]
    if isinstance(arguments[0], str) and isinstance(arguments[1], np.ndarray):
        same(tn.einsum(*as_torch).numpy(), expected)


def test_a_diagonal_can_be_written_to() -> None:
    found = tn.einsum("ii->i", drawn((3, 3)))
    found += 1


@pytest.mark.parametrize("shape", [(3, 4, 0), (3, 0, 5), (0, 4, 5), (0, 0, 0)])
def test_axes_without_positions(shape: tuple[int, int, int]) -> None:
    for equation, other in (("abc,ac->b", (0, 2)), ("abc,b->ac", (1,)), ("abc,cab->", (2, 0, 1))):
        given = drawn(shape), drawn(tuple(shape[n] for n in other), 1)
        same(tn.einsum(equation, *given), np.einsum(equation, *given))


@pytest.mark.parametrize("equation", ["ij , jk -> ik", " ij,jk->ik ", "ij,\tjk\n->ik", "éj,jк->éк"])
def test_space_around_factors_and_letters_of_any_alphabet(equation: str) -> None:
    a, b = drawn((2, 3)), drawn((3, 4))
    same(tn.einsum(equation, a, b), a @ b)


@pytest.mark.parametrize("name", ["lambda", "sin", "op0", "result", "lead0", "ſ"])
def test_an_axis_may_have_any_name(name: str) -> None:
    a, b = drawn((5, 2, 3)), drawn((3, 4))
    same(tn.einsum(f"... {name} s, s t -> ... {name} t", a, b), a @ b)


def test_lists_of_more_axes_than_there_are_letters() -> None:
    arrays = [np.full((1, 1), 2.0) for _ in range(90)]
    chain = [each for n, array in enumerate(arrays) for each in (array, [n, n + 1])]
    same(tn.einsum(*chain, [0, 90]), np.full((1, 1), 2.0**90))
    same(tn.einsum(*chain), np.full((1, 1), 2.0**90))


@st.composite
def split_equations(draw: Any) -> tuple[list[list[str]], list[str], dict[str, int]]:
    """Factors and a result of axes, some joined in twos, beside a factor that tells their sizes."""
    sizes = {name: draw(st.integers(0, 3)) for name in ("h", "d", "time", "b")}
    entry = st.lists(st.sampled_from(sorted(sizes)), min_size=1, max_size=2, unique=True)
    factors = draw(st.lists(st.lists(entry, max_size=3), min_size=1, max_size=3))
    used = draw(st.permutations(sorted({axis for term in factors for dim in term for axis in dim})))
    kept = list(used[: draw(st.integers(0, len(used)))])
    joined = (
        [kept[:2], *([axis] for axis in kept[2:])] if draw(st.booleans()) and kept else [[a] for a in kept]
    )
    return [*factors, [[axis] for axis in sizes]], joined, sizes


@given(split_equations(), st.integers(0, 1000))
def test_random_composites(
    case: tuple[list[list[list[str]]], list[list[str]], dict[str, int]], seed: int
) -> None:
    """Against NumPy's einsum of the arrays with every dimension taken apart."""
    terms, result, sizes = case
    text = lambda term: " ".join(f"({' '.join(dim)})" if len(dim) > 1 else dim[0] for dim in term)  # noqa: E731
    compact = lambda term: "".join(axis[0] for dim in term for axis in dim)  # noqa: E731
    apart = [drawn(tuple(sizes[axis] for dim in term for axis in dim), seed) for term in terms]
    *whole, last = ([math.prod(sizes[axis] for axis in dim) for dim in term] for term in [*terms, result])
    arrays = [array.reshape(shape) for array, shape in zip(apart, whole, strict=True)]
    expected = np.einsum(",".join(map(compact, terms)) + "->" + compact(result), *apart).reshape(last)
    same(tn.einsum(", ".join(map(text, terms)) + " -> " + text(result), *arrays), expected)


def test_one_part_of_a_composite_follows_from_the_others() -> None:
    a, b, c, d = np.arange(6.0), np.arange(12.0), np.arange(4.0), np.arange(8.0).reshape(2, 4)
    first, second = a.reshape(2, 3), b.reshape(3, 4)
    same(tn.einsum("(h d), (d e), e -> h d e", a, b, c), np.einsum("hd,de,e->hde", first, second, c))
    same(tn.einsum("(h d), h e -> (d e)", a, d), np.einsum("hd,he->de", first, d).ravel())
    same(tn.einsum("e, (d e) -> e d", c, b), np.einsum("e,de->ed", c, second))
    same(tn.einsum("h e -> (e h)", d), d.T.ravel())


def test_plans_are_made_once() -> None:
    from tensornet.runtime.eager import _executable

    arrays = [np.ones((3, 4)), np.ones((4, 5))]
    tn.einsum("i j, j k -> i k", *arrays)
    before = _executable.cache_info().misses
    for _ in range(3):
        tn.einsum("i j, j k -> i k", *arrays)
    assert _executable.cache_info().misses == before
    tn.einsum("i j, j k -> i k", np.ones((7, 9)), np.ones((9, 11)))
    assert _executable.cache_info().misses == before + 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.int64])
def test_numbers_beside_arrays_in_any_place(dtype: torch.dtype) -> None:
    """As for `numpy.einsum`; a number takes the library and the floating type of the arrays."""
    x = torch.arange(6).reshape(2, 3).to(dtype)
    for factor in (0.5, 2) if dtype.is_floating_point else (2,):
        expected = np.einsum(factor, [], x.double().numpy(), [0, 1], [1, 0])
        for found in (
            tn.einsum(factor, [], x, [0, 1], [1, 0]),
            tn.einsum(x, [0, 1], factor, [], [1, 0]),
            tn.einsum(",ij->ji", factor, x),
        ):
            assert found.dtype == dtype
            np.testing.assert_allclose(found.double().numpy(), expected)
    assert tn.einsum(0.5, [], np.ones(3, np.float32), [0]).dtype == np.float32
    assert float(tn.einsum("i,i->", np.zeros(0), np.zeros(0))) == 0
    assert float(tn.einsum(0.5, [])) == 0.5
