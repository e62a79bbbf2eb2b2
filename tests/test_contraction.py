"""Contractions: einsum against NumPy, and orders of many operands."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import opt_einsum
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from opt_einsum.testing import rand_equation

import tensornet as tn
from tensornet.contraction.order_search import Search, fastest, fewest_flops, left_to_right, tree_of
from tensornet.contraction.pairs import Order, Problem
from tensornet.device.cost_model import default_profile

from .conftest import examples, normal, sampled, within

# ---------------------------------------------------------------------------- `tensornet.einsum` against NumPy, with NumPy's and opt_einsum's documented examp


def drawn(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return normal(*shape, seed=[seed, *shape])


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


# ---------------------------------------------------------------------------- Contractions of many operands


CPU = default_profile("cpu")
Operands = list[tuple[str, ...]]


def problem(operands: Operands, kept: set[str], size: Callable[[str], int]) -> Problem:
    axes = dict.fromkeys(itertools.chain(*operands))
    return Problem(tuple(operands), frozenset(kept), None, {axis: size(axis) for axis in axes}, CPU, 4)


def chain(count: int) -> Problem:
    return problem([(f"a{n}", f"a{n + 1}") for n in range(count)], {"a0", f"a{count}"}, lambda axis: 8)


def ring(count: int) -> Problem:
    return problem([(f"a{n}", f"a{(n + 1) % count}") for n in range(count)], set(), lambda axis: 8)


def tree(count: int) -> Problem:
    """Node n holds the edge to its parent, and those to nodes 2n + 1 and 2n + 2."""
    below = [(f"e{n}", *(f"e{m}" for m in (2 * n + 1, 2 * n + 2) if m < count)) for n in range(count)]
    return problem(below, {"e0"}, lambda axis: 4)


def star(count: int) -> Problem:
    rays = [(f"a{n % 10}",) for n in range(count - 1)]
    return problem([tuple(dict.fromkeys(axis for (axis,) in rays)), *rays], set(), lambda axis: 3)


def cp(count: int) -> Problem:
    """x[b, i…] · Π U[iₙ, r] · Π V[oₙ, r]: the rank is an axis of every factor."""
    modes = (count - 1) // 2
    ins, outs = ([f"{letter}{n}" for n in range(modes)] for letter in "io")
    factors = [(axis, "r") for axis in (*ins, *outs)]
    return problem([("b", *ins), *factors], {"b", *outs}, lambda axis: {"b": 64, "r": 32}.get(axis, 4))


def train(count: int) -> Problem:
    """x[b, i…] times the cores of a tensor train, a matrix."""
    last = count - 2
    cores = [
        (*([f"r{n}"] if n else []), f"i{n}", f"o{n}", *([f"r{n + 1}"] if n < last else []))
        for n in range(count - 1)
    ]
    kept = {"b", *(f"o{n}" for n in range(count - 1))}
    return problem(
        [("b", *(f"i{n}" for n in range(count - 1))), *cores],
        kept,
        lambda axis: {"b": 64, "r": 8}.get(axis[0], 2),
    )


def states(count: int) -> Problem:
    """The inner product of two matrix product states."""
    sites = count // 2
    rows = [
        (*([f"{letter}{n}"] if n else []), f"i{n}", *([f"{letter}{n + 1}"] if n < sites - 1 else []))
        for letter in "pq"
        for n in range(sites)
    ]
    return problem(rows, set(), lambda axis: 2 if axis[0] == "i" else 8)


def kronecker(count: int) -> Problem:
    modes = range(count - 1)
    kept = {"b", *(f"o{n}" for n in modes)}
    operands = [("b", *(f"i{n}" for n in modes)), *((f"o{n}", f"i{n}") for n in modes)]
    return problem(operands, kept, lambda axis: 64 if axis == "b" else 2)


NETWORKS = [
    *(each(count) for each in (chain, ring, tree, star, states) for count in (7, 32)),
    *(each(7) for each in (cp, train, kronecker)),
]
LARGE = [
    *(each(64) for each in (chain, ring, tree, star, states)),
    *(each(13) for each in (cp, train, kronecker)),
    train(17),
]
"""Tried by night."""

of_networks = pytest.mark.parametrize(
    "network",
    sampled([*NETWORKS, *LARGE], NETWORKS),
    ids=lambda each: f"{len(each.layouts)} of {each.layouts[-1]}",
)


def seconds(order: Order) -> float:
    return sum(pair.way.seconds for pair in order)


@of_networks
def test_never_slower_than_the_path_of_opt_einsum(network: Problem) -> None:
    with within(60):
        found = fastest(network)
    sets = [frozenset(layout) for layout in network.layouts]
    path = opt_einsum.paths.get_path_fn("auto")(sets, network.kept, dict(network.sizes))
    theirs, _ = Search(network).along(tree_of(path, len(sets)))
    assert seconds(found) <= theirs * (1 + 1e-9)
    assert len(found) == len(sets) - 1


@of_networks
@pytest.mark.parametrize("choose", [fastest, fewest_flops], ids=lambda each: each.__name__)
def test_orders_of_many_operands_compute_the_product(
    network: Problem, choose: Callable[[Problem], Order]
) -> None:
    """Sizes are made small, so that the product can be had another way; the order is that of the large ones."""
    small = replace(
        network, sizes={axis: 1 + number % 2 for number, axis in enumerate(sorted(network.sizes))}
    )
    computes_the_product(small, choose(network))


def computes_the_product(network: Problem, order: Order) -> None:
    """By NumPy in this order, against opt_einsum in one of its own."""
    generator = np.random.default_rng(0)
    arrays = [
        generator.uniform(0.5, 1, [network.sizes[axis] for axis in layout]) for layout in network.layouts
    ]
    made = list(zip(arrays, network.layouts, strict=True))
    for pair in order:
        result = tuple(itertools.chain(*pair.way.result))
        made.append((_product(*made[pair.first], *made[pair.second], result), result))
    numbers, kept = {axis: number for number, axis in enumerate(network.sizes)}, sorted(network.kept)
    parts = [(array, _to(layout, numbers)) for array, layout in zip(arrays, network.layouts, strict=True)]
    expected = opt_einsum.contract(*itertools.chain(*parts), _to(kept, numbers), optimize="greedy")
    array, layout = made[-1]
    found = np.transpose(array, [layout.index(axis) for axis in kept])
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def _to(layout: tuple[str, ...] | list[str], numbers: dict[str, int]) -> list[int]:
    return [numbers[axis] for axis in layout]


def _product(
    a: np.ndarray, one: tuple[str, ...], b: np.ndarray, two: tuple[str, ...], result: tuple[str, ...]
) -> np.ndarray:
    local = {axis: number for number, axis in enumerate(dict.fromkeys((*one, *two)))}
    return np.einsum(a, _to(one, local), b, _to(two, local), _to(result, local))


@examples(10)
@given(st.randoms(use_true_random=False), st.integers(7, 16))
def test_random_networks_with_hyperedges(generator: random.Random, count: int) -> None:
    """Each axis in one to four of the operands, kept or summed."""
    operands: list[list[str]] = [[] for _ in range(count)]
    for number in range(count + 2):
        for each in generator.sample(operands, generator.randint(1, 4)):
            each.append(f"a{number}")
    operands = [each or ["a0"] for each in operands]
    axes = sorted(set(itertools.chain(*operands)))
    alone = {axis for axis in axes if sum(axis in each for each in operands) == 1}
    kept = alone | {axis for axis in axes if generator.random() < 0.15}
    sizes = {axis: generator.choice((1, 2, 3)) for axis in axes}
    network = problem([tuple(each) for each in operands], kept, sizes.__getitem__)
    computes_the_product(network, fastest(network))


def test_large_random_networks_are_searched_with_perturbed_scores() -> None:
    """Each of 60 tensors shares an axis with three others, at random: greedy search takes 50 times as long."""
    equation, _, sizes = rand_equation(60, 3, n_out=2, d_min=3, d_max=3, seed=1, return_size_dict=True)
    inputs, _, kept = equation.partition("->")
    layouts = [tuple(each) for each in inputs.split(",")]
    network = problem(layouts, set(kept), sizes.__getitem__)
    state = random.getstate()
    found = fastest(network)
    assert random.getstate() == state
    path = opt_einsum.paths.greedy([frozenset(each) for each in layouts], network.kept, dict(network.sizes))
    assert seconds(found) < 0.1 * Search(network).along(tree_of(path, len(layouts)))[0]


def test_equal_problems_are_searched_once() -> None:
    """Problems that differ in the names of their axes alone get the same order, each in its own names."""
    one = chain(9)
    names = {axis: f"z{axis}" for axis in one.sizes}
    layouts = [tuple(names[axis] for axis in layout) for layout in one.layouts]
    other = problem(layouts, {names[axis] for axis in one.kept}, lambda axis: 8)
    found = [replace(pair, way=pair.way.renamed(names)) for pair in fastest(one)]
    assert tuple(found) == fastest(other)


def test_axes_that_go_together_are_searched_as_one() -> None:
    parts = {"i": ("i1", "i2", "i3"), "o": ("o1", "o2")}
    sizes = {"i1": 2, "i2": 3, "i3": 4, "o1": 5, "o2": 6, "b": 70_000, "r": 2}
    sizes |= {axis: int(np.prod([sizes[part] for part in own])) for axis, own in parts.items()}

    def whole(layout: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(part for axis in layout for part in parts.get(axis, (axis,)))

    operands, kept = [("b", "i"), ("r", "i"), ("o", "r")], ("b", "o")
    one = Problem(tuple(operands), frozenset(kept), kept, sizes, CPU, 4)
    many = Problem(tuple(map(whole, operands)), frozenset(whole(kept)), whole(kept), sizes, CPU, 4)
    apart = replace(many, wanted=None, layouts=(("b", "i3", "i1", "i2"), *many.layouts[1:]))
    pairs = [[(pair.first, pair.second) for pair in fastest(each)] for each in (one, many)]
    assert pairs[0] == pairs[1]
    for each in (many, apart):
        computes_the_product(each, fastest(each))


def test_trees_of_paths() -> None:
    assert left_to_right(4) == ((0, 1), (4, 2), (5, 3))
    assert tree_of([(0, 1), (0, 1), (0, 1)], 4) == ((0, 1), (2, 3), (4, 5))
    assert tree_of([(0, 1, 2)], 3) == ((0, 1), (3, 2))


@pytest.mark.parametrize("sites", sampled([784, 196], [196]))
def test_a_chain_of_many_sites_is_one_contraction(sites: int) -> None:
    """A matrix product state over many pixels, written sites last; against a loop over the sites."""
    rank, labels = 3, 5
    x = ", ".join(f"b i{n}" for n in range(sites))
    cores = ["i0 p1", *(f"p{n} i{n} p{n + 1}" for n in range(1, sites - 1)), f"p{sites - 1} i{sites - 1} o"]
    generator = np.random.default_rng(0)
    pixels = [generator.uniform(0, 1, (2, 2)) for _ in range(sites)]
    shapes = [(2, rank), *[(rank, 2, rank)] * (sites - 2), (rank, 2, labels)]
    weights = [generator.uniform(0.2, 0.5, shape) for shape in shapes]
    with within(120):
        found = tn.einsum(f"{x}, {', '.join(cores)} -> b o", *pixels, *weights)
    state = pixels[0] @ weights[0]
    for pixel, core in zip(pixels[1:], weights[1:], strict=True):
        state = np.einsum("bp,pir,bi->br", state, core, pixel)
    np.testing.assert_allclose(found, state, rtol=1e-9)
