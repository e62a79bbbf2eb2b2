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


@given(st.integers(0, 99), st.booleans(), st.booleans())
@examples(12)
def test_a_query_stream_does_not_see_its_own_token(seed: int, segments: bool, memory: bool) -> None:
    """D2, to the bit: g at z_t is blind to x_{z_t}, and to what comes later in the order."""
    graph = models.xlnet(**small, segments=segments, memory=memory)
    parameters, rng = parameters_of(graph), np.random.default_rng(seed)
    order = models.factorize(1, 6, seed=seed)
    t = rng.integers(0, 13, (1, 6))
    z = order.order  # predict every position, in the order
    rest = [order.see, *([rng.integers(0, 2, (1, 6))] if segments else [])]
    rest += [rng.standard_normal((1, 3, 8)) for _ in range(2)] if memory else []
    f = tn.compile(graph)

    def logits(tokens: Any) -> Any:
        y = f(parameters, tokens, z, *rest)
        return y[0] if memory else y

    before = logits(t)
    for at in range(6):
        other = t.copy()
        other[0, z[0, at]] = (t[0, z[0, at]] + 1 + rng.integers(12)) % 13
        changed = logits(other)
        assert np.array_equal(changed[:, : at + 1], before[:, : at + 1])
        if at < 5:
            assert abs(changed[:, at + 1 :] - before[:, at + 1 :]).max() > 0


def test_partial_prediction_costs_less() -> None:
    """D4: the query stream exists for the p predicted positions only; its cost is linear in p."""
    p, n = sympy.symbols("p n")
    graph = models.xlnet(**small)
    cost = sympy.Poly(tn.flop_formula(graph, n=64, p=10), p, n)
    assert cost.degree(p) == 1
    numbers = [tn.flop_count(graph, b=1, n=60, p=60 // k) for k in (1, 2, 6, 60)]
    assert numbers == sorted(numbers, reverse=True)
    assert numbers[0] > 1.7 * numbers[-1]


def test_memory_continues_a_text() -> None:
    """D6: a text in two segments with memory is the causal text in one, as positions are relative."""
    whole = models.xlnet(**small, two_streams=False, mask=None, causal=True, segments=False)
    parts = models.xlnet(**small, two_streams=False, mask=None, causal=True, segments=False, memory=True)
    parameters, t = parameters_of(whole), np.random.default_rng(0).integers(0, 13, (2, 9))
    expected = tn.compile(whole)(parameters, t)
    f = tn.compile(parts)
    first, *memories = f(parameters, t[:, :4], *[np.zeros((2, 0, 8))] * 2)
    second, *_ = f(parameters, t[:, 4:], *memories)
    np.testing.assert_allclose(np.concatenate([first, second], 1), expected, rtol=1e-10, atol=1e-12)


@given(st.integers(1, 5), st.integers(1, 6), st.integers(0, 3), st.sampled_from([None, 2]))
@examples(8)
def test_both_ways_of_reading(batch: int, length: int, seed: int, clamp_len: int | None) -> None:
    """The second half of the batch, backwards, is what the first half is forwards."""
    same = {**ONE, "clamp_len": clamp_len}
    forwards, both = models.xlnet(**same), models.xlnet(**same, bi_data=True)
    assert tn.parameter_count(both) == tn.parameter_count(forwards)
    parameters, rng = parameters_of(forwards), np.random.default_rng(seed)
    t = rng.integers(0, 13, (batch, length))
    expected = tn.compile(forwards)(parameters, t)
    half = batch // 2
    turned = np.concatenate([t[:half], t[half:, ::-1]])
    y = tn.compile(both)(parameters, turned)
    np.testing.assert_allclose(np.concatenate([y[:half], y[half:, ::-1]]), expected, rtol=1e-10, atol=1e-12)


def test_long_texts_in_low_precision() -> None:
    """Distances are exact where bfloat16 has no such integers."""
    graph = models.xlnet(**ONE, clamp_len=290, bi_data=True)
    low = {name: torch.tensor(array).bfloat16() for name, array in parameters_of(graph).items()}
    t = torch.tensor(np.random.default_rng(0).integers(0, 13, (2, 400)))
    f = tn.compile(graph, backend="torch")
    expected = f({name: array.double() for name, array in low.items()}, t)
    torch.testing.assert_close(f(low, t).double(), expected, rtol=0.02, atol=0.02)


def test_the_distribution_depends_on_the_target_position() -> None:
    """D1: from one context, other positions are predicted otherwise; h of the context is the same."""
    graph = models.xlnet(**small, segments=False)
    parameters = parameters_of(graph)
    t = np.array([[3, 1, 4, 1, 5]])
    see = np.zeros((1, 5, 5), bool)
    see[:, 3:, :3] = True  # both targets see positions 0, 1 and 2
    see[:, :3, :3] = True
    logits = tn.compile(graph)(parameters, t, np.array([[3, 4]]), see)[0]
    assert abs(logits[0] - logits[1]).max() > 1e-3
    alone = models.xlnet(**small, segments=False, two_streams=False, head=None)
    h = tn.compile(alone)(those_of(alone, parameters), t, see)
    elsewhere = tn.compile(alone)(those_of(alone, parameters), np.array([[3, 1, 4, 7, 8]]), see)
    np.testing.assert_array_equal(h[:, :3], elsewhere[:, :3])


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


def test_predictions_do_not_depend_on_what_else_is_predicted() -> None:
    graph = models.xlnet(**small)
    parameters, rng = parameters_of(graph), np.random.default_rng(0)
    order = models.factorize(2, 6)
    t, segment = rng.integers(0, 13, (2, 6)), np.zeros((2, 6), int)
    f = tn.compile(graph)
    all_of_them = f(parameters, t, order.order, order.see, segment)
    some = f(parameters, t, order.order[:, 4:], order.see, segment)
    np.testing.assert_allclose(some, all_of_them[:, 4:], rtol=1e-10, atol=1e-12)


def test_streams_begin_with_w_and_with_embeddings() -> None:
    """D2: without layers g is w wherever it stands, and h is e(x)."""
    parameters = parameters_of(models.xlnet(**{**small, "depth": 0}, mask=None, segments=False))
    E, w = parameters["embedding.E"], parameters["w"]
    t, z = np.array([[3, 1, 4]]), np.array([[2, 0]])
    two = models.xlnet(**{**small, "depth": 0}, mask=None, segments=False)
    np.testing.assert_allclose(tn.compile(two)(parameters, t, z), [[E @ w] * 2], rtol=1e-12)
    alone = models.xlnet(**{**small, "depth": 0}, mask=None, segments=False, two_streams=False, head=None)
    np.testing.assert_array_equal(tn.compile(alone)({"embedding.E": E}, t), E[t])


def test_distances_beyond_the_clamp_are_alike() -> None:
    """With one layer, a position reads tokens two and more away alike, wherever they are on that side."""
    graph = models.xlnet(**ONE, clamp_len=2)
    parameters, f = parameters_of(graph), tn.compile(graph)
    t = np.array([[3, 1, 4, 1, 5, 9, 2]])
    y = f(parameters, t)
    for a, b, alike in ((4, 6, True), (3, 6, False)):
        other = t.copy()
        other[0, [a, b]] = t[0, [b, a]]
        assert np.allclose(f(parameters, other)[0, 2], y[0, 2], rtol=1e-10) == alike
    far, wide = models.xlnet(**ONE), models.xlnet(**ONE, clamp_len=7)
    np.testing.assert_array_equal(tn.compile(wide)(parameters, t), tn.compile(far)(parameters, t))


def test_padding_is_not_read() -> None:
    graph = models.xlnet(**small, mask=("permutation", "padding"))
    parameters, rng = parameters_of(graph), np.random.default_rng(0)
    see = np.ones((1, 5, 5), bool)
    t, segment, keep = rng.integers(0, 13, (1, 5)), np.zeros((1, 5), int), np.array([[1, 1, 1, 0, 0]])
    z = np.array([[0, 1, 2]])
    other = np.where(keep == 1, t, (t + 5) % 13)
    f = tn.compile(graph)
    np.testing.assert_array_equal(
        f(parameters, t, z, see, keep, segment), f(parameters, other, z, see, keep, segment)
    )
