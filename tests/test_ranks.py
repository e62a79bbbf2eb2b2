"""A rank as a fraction: the nearest number of parameters that ranks can give, against all ranks there are."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from math import prod
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tensornet as tn
from tensornet import models


def linear(kind: str) -> Callable[..., tn.Graph]:
    return lambda sizes, rank: models.linear(
        [a for a, _ in sizes], [b for _, b in sizes], factorization=kind, rank=rank, bias=False
    )


def trl(kind: str) -> Callable[..., tn.Graph]:
    return lambda sizes, rank: models.trl(
        [a for a, _ in sizes], sizes[0][1], factorization=kind, rank=rank, bias=False
    )


def train(modes: list[int]) -> Callable[[tuple[int, ...]], int]:
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
        "linear tt": (linear("tt"), cut(flat), train(flat), dense),
        "linear blocktt": (linear("blocktt"), cut(pairs), train(pairs), dense),
        "trl cp": (trl("cp"), [dense_head // max(head)], lambda r: r[0] * sum(head), dense_head),
        "trl tucker": (trl("tucker"), head, tucker(head), dense_head),
        "trl tt": (trl("tt"), cut(head), train(head), dense_head),
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
