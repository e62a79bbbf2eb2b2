"""XLNet (spec D): two streams, factorization orders, partial prediction, fine-tuning, memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import sympy
import torch
from hypothesis import given
from hypothesis import strategies as st

import tensornet as tn
from tensornet import models

from .conftest import examples, parameters_of, those_of

small: dict[str, Any] = {"vocabulary": 13, "dim": 8, "depth": 2, "heads": 2, "hidden": 12}
ONE: dict[str, Any] = {**small, "depth": 1, "mask": None, "segments": False}
ONE |= {"two_streams": False, "head": None}
"""One layer of one stream, of which all sees all."""


@given(
    st.tuples(*[st.integers(1, 3)] * 2, st.integers(1, 5)), st.integers(0, 3), st.booleans(), st.booleans()
)
@examples(12)
def test_parameters(sizes: tuple[int, int, int], depth: int, segments: bool, two: bool) -> None:
    """Counted by hand; both streams have one set of parameters, and only w is more."""
    heads, width, hidden = sizes
    dim = 2 * heads * width
    graph = models.xlnet(7, dim, depth, heads, hidden, segments=segments, two_streams=two)
    layer = 5 * dim**2 + 2 * dim + segments * 3 * dim + 4 * dim + 2 * dim * hidden + hidden + dim
    assert tn.parameter_count(graph) == 7 * dim + depth * layer + two * dim
    assert sum(array.size for array in tn.init(graph).values()) == tn.parameter_count(graph)


@given(st.integers(1, 4), st.integers(1, 9), st.floats(1, 12), st.integers(0, 99))
def test_factorization_orders(batch: int, length: int, predict: float, seed: int) -> None:
    """D3: the mask against a loop written from the definition; targets are the last of the order."""
    found = models.factorize(batch, length, predict=predict, seed=seed)
    for b, order in enumerate(found.order):
        assert sorted(order) == list(range(length))
        for t, position in enumerate(order):
            before = set(order[:t])
            assert {j for j in range(length) if found.see[b, position, j]} == before
    count = max(1, round(length / predict))
    np.testing.assert_array_equal(found.targets, found.order[:, length - count :])
    np.testing.assert_array_equal(
        found.order, models.factorize(batch, length, predict=predict, seed=seed).order
    )


def test_orders_are_uniform() -> None:
    orders = models.factorize(6000, 3, seed=1).order
    _, counts = np.unique(orders, axis=0, return_counts=True)
    assert len(counts) == 6
    assert abs(counts / 6000 - 1 / 6).max() < 0.02


def test_partial_prediction_costs_less() -> None:
    """D4: the query stream exists for the p predicted positions only; its cost is linear in p."""
    p, n = sympy.symbols("p n")
    graph = models.xlnet(**small)
    cost = sympy.Poly(tn.flop_formula(graph, n=64, p=10), p, n)
    assert cost.degree(p) == 1
    numbers = [tn.flop_count(graph, b=1, n=60, p=60 // k) for k in (1, 2, 6, 60)]
    assert numbers == sorted(numbers, reverse=True)
    assert numbers[0] > 1.7 * numbers[-1]


def test_long_texts_in_low_precision() -> None:
    """Distances are exact where bfloat16 has no such integers."""
    graph = models.xlnet(**ONE, clamp_len=290, bi_data=True)
    low = {name: torch.tensor(array).bfloat16() for name, array in parameters_of(graph).items()}
    t = torch.tensor(np.random.default_rng(0).integers(0, 13, (2, 400)))
    f = tn.compile(graph, backend="torch")
    expected = f({name: array.double() for name, array in low.items()}, t)
    torch.testing.assert_close(f(low, t).double(), expected, rtol=0.02, atol=0.02)


def test_fine_tuning_drops_the_query_stream() -> None:
    """D5: the content stream alone is the content stream of two."""
    two = models.xlnet(**small, memory=True)
    alone = models.xlnet(**small, memory=True, two_streams=False, head=None)
    parameters, rng = parameters_of(two), np.random.default_rng(0)
    order = models.factorize(2, 5)
    t, segment = rng.integers(0, 13, (2, 5)), rng.integers(0, 2, (2, 5))
    memories = [rng.standard_normal((2, 4, 8)) for _ in range(2)]
    _, *inner = tn.compile(two)(parameters, t, order.targets, order.see, segment, *memories)
    _, *same = tn.compile(alone)(those_of(alone, parameters), t, order.see, segment, *memories)
    for a, b in zip(inner, same, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)


def test_the_first_half_of_an_odd_batch_is_read_forwards() -> None:
    """The others, backwards, are what they are forwards when they are turned."""
    forwards, both = models.xlnet(**ONE), models.xlnet(**ONE, bi_data=True)
    parameters = parameters_of(forwards)
    t = np.random.default_rng(0).integers(0, 13, (3, 5))
    expected = tn.compile(forwards)(parameters, t)
    y = tn.compile(both)(parameters, np.concatenate([t[:1], t[1:, ::-1]]))
    np.testing.assert_allclose(np.concatenate([y[:1], y[1:, ::-1]]), expected, rtol=1e-10, atol=1e-12)


def test_a_causal_query_sees_what_is_before_it_alone() -> None:
    graph = models.xlnet(**small, mask=None, segments=False, causal=True)
    run, tokens, places = (
        tn.compile(graph, params=parameters_of(graph)),
        np.arange(6)[None],
        np.arange(6)[None],
    )
    logits = run(tokens, places)
    for changed in range(6):
        other = np.where(places == changed, 12, tokens)
        apart = np.abs(run(other, places) - logits).max(-1)[0]
        assert not apart[: changed + 1].any()
        assert (apart[changed + 1 :] > 1e-6).all()
