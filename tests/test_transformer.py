"""The Transformer (spec E5, E6): its parts, decoding step by step, the classifier of texts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tensornet as tn
from tensornet import models

from .conftest import covered, examples, those_of

small: dict[str, Any] = {"vocabulary": 11, "dim": 8, "depth": 2, "heads": 2, "hidden": 6}


@given(
    st.tuples(*[st.integers(1, 3)] * 2, st.integers(1, 5)),
    st.tuples(*[st.integers(0, 2)] * 2),
    st.tuples(*[st.booleans()] * 3),
)
@examples(12)
def test_parameters(
    sizes: tuple[int, int, int], depths: tuple[int, int], switches: tuple[bool, bool, bool]
) -> None:
    (heads, half, hidden), (encoder, decoder), (pre, own, bias) = sizes, depths, switches
    dim = 2 * half * heads
    target = {"target_vocabulary": 5 if own else None, "tied": not own}
    graph = models.transformer(
        7, dim, encoder, heads, hidden, decoder_depth=decoder, pre=pre, bias=bias, **target
    )
    attention, feed_forward = 4 * dim**2 + bias * 4 * dim, 2 * dim * hidden + hidden + dim
    layers = encoder * (attention + feed_forward + 4 * dim)
    layers += decoder * (2 * attention + feed_forward + 6 * dim)
    embeddings = 7 * dim + own * 2 * 5 * dim
    assert tn.parameter_count(graph) == layers + embeddings + pre * 4 * dim
    assert sum(array.size for array in tn.init(graph).values()) == tn.parameter_count(graph)


@pytest.mark.parametrize(
    ("positions", "pre"), covered(["sinusoidal", "sines_first", "learned", None], [False, True])
)
def test_parts_and_steps_make_the_whole(positions: str | None, pre: bool) -> None:
    settings = {**small, "positions": positions, "pre": pre, "padding": True, "length": 9}
    settings |= {"target_vocabulary": 7}
    whole, encoder, decoder, step = (
        models.transformer(**settings, part=part) for part in ("both", "encoder", "decoder", "step")
    )
    parameters, rng = tn.init(whole, dtype="float64"), np.random.default_rng(0)
    source, target = rng.integers(0, 11, (3, 5)), rng.integers(0, 7, (3, 6))
    keep, own = np.arange(5) < np.array([[5], [3], [1]]), np.ones((3, 6))
    expected = tn.compile(whole)(parameters, source, target, keep, own)
    memory = tn.compile(encoder)(those_of(encoder, parameters), source, keep)
    np.testing.assert_allclose(
        tn.compile(decoder)(those_of(decoder, parameters), target, memory, keep, own), expected, atol=1e-12
    )
    f, stored, steps = tn.compile(step), [np.zeros((3, 2, 0, 4))] * 4, []
    for n in range(6):
        logits, *stored = f(those_of(step, parameters), target[:, n : n + 1], memory, keep, *stored)
        steps.append(logits)
    np.testing.assert_allclose(np.concatenate(steps, 1), expected, atol=1e-12)
    assert stored[0].shape == (3, 2, 6, 4)


@pytest.mark.parametrize(("pool", "padding"), covered(["max", "mean", "first"], [True, False]))
def test_classifier_of_texts(pool: str, padding: bool) -> None:
    graph = models.transformer_classifier(11, 3, 8, 2, 2, 6, pool=pool, padding=padding)
    parameters, rng = tn.init(graph, dtype="float64"), np.random.default_rng(0)
    t, f = rng.integers(0, 11, (2, 7)), tn.compile(graph)
    if not padding:
        assert f(parameters, t).shape == (2, 3)
        return
    keep = np.array([[1] * 7, [1, 1, 1, 0, 0, 0, 0]])
    y = f(parameters, t, keep)
    assert y.shape == (2, 3)
    np.testing.assert_array_equal(f(parameters, np.where(keep == 1, t, 0), keep), y)
    np.testing.assert_allclose(f(parameters, t[1:, :3], keep[1:, :3]), y[1:], atol=1e-12)


def test_classifier_parameters() -> None:
    graph = models.transformer_classifier(100, 2, 16, 3, 4, 32)
    layer = 4 * 16**2 + 16 + 2 * 16 * 32 + 32 + 16 + 4 * 16
    assert tn.parameter_count(graph) == 100 * 16 + 3 * layer + 16 * 2 + 2


def test_vectors_before_the_logits() -> None:
    whole, before = (models.transformer(**small, logits=logits) for logits in (True, False))
    parameters, rng = tn.init(whole, dtype="float64"), np.random.default_rng(0)
    source, target = rng.integers(0, 11, (2, 5)), rng.integers(0, 11, (2, 4))
    vectors = tn.compile(before)(parameters, source, target)
    expected = tn.compile(whole)(parameters, source, target)
    np.testing.assert_allclose(vectors @ parameters["shared.E"].T, expected, atol=1e-12)


def test_a_classifier_with_a_norm_after_the_embedding() -> None:
    """Against torch: embedding, positions, norm, an encoder without layers, the mean and a projection."""
    import torch

    graph = models.transformer_classifier(
        11, 3, 8, 0, 2, 6, pool="mean", padding=False, positions="learned", length=5, scale=False,
        embedding_norm=True, eps=0.1,
    )  # fmt: skip
    rng = np.random.default_rng(0)
    parameters = {name: rng.standard_normal(each.shape) for name, each in tn.init(graph).items()}
    assert {"embedding.norm.gain", "embedding.norm.bias"} <= set(parameters)
    t = rng.integers(0, 11, (2, 5))
    given = {name: torch.tensor(each) for name, each in parameters.items()}
    x = given["embedding.E"][t] + given["source_positions.P"]
    x = torch.nn.functional.layer_norm(
        x, (8,), given["embedding.norm.gain"], given["embedding.norm.bias"], 0.1
    )
    expected = x.mean(1) @ given["head.W"].T + given["head.bias"]
    np.testing.assert_allclose(tn.compile(graph)(parameters, t), expected.numpy(), atol=1e-12)


@pytest.mark.parametrize(("mlp_bias", "norm_bias"), [(False, True), (True, False), (False, False)])
def test_parameters_without_biases(mlp_bias: bool, norm_bias: bool) -> None:
    def count(**changes: bool) -> int:
        graph = models.transformer(None, 8, 2, 2, 6, decoder_depth=1, pre=True, **changes)
        assert sum(array.size for array in tn.init(graph).values()) == tn.parameter_count(graph)
        return tn.parameter_count(graph)

    layers, norms = 3, 2 * 2 + 3 + 2
    dropped = (not mlp_bias) * layers * (6 + 8) + (not norm_bias) * norms * 8
    assert count() - count(mlp_bias=mlp_bias, norm_bias=norm_bias) == dropped
