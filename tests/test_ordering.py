"""Contractions of many operands: chains, rings, trees, stars, hyperedges; against opt_einsum and NumPy."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import opt_einsum
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opt_einsum.testing import rand_equation

import tensornet as tn
from tensornet.contraction.order_search import Search, fastest, fewest_flops, left_to_right, tree_of
from tensornet.contraction.pairs import Order, Problem
from tensornet.device.cost_model import default_profile

from .conftest import examples, sampled, within

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
