"""Attention and what stands beside it, against NumPy in float64 written from the definitions (spec E1–E5)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import tensornet as tn
from tensornet.models.attention import attention, dot_product_attention
from tensornet.models.blocks import embedding
from tensornet.models.positions import sinusoidal_positions

from .conftest import examples

Array = Any
sizes = st.integers(1, 5)


def softmax(s: Array) -> Array:
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def reference(q: Array, k: Array, v: Array, beta: float, see: Array | None, weights: str) -> Array:
    """Over the last two axes: queries [i, d], keys [j, d], values [j, f]."""
    s = beta * q @ np.swapaxes(k, -1, -2)
    score = abs(s) if weights == "signed" else s
    score = score if see is None else np.where(see, score, -1e30)
    if weights == "hard":
        a = np.eye(s.shape[-1])[score.argmax(-1)]
    else:
        a = softmax(score) * (np.sign(s) if weights == "signed" else 1)
    return a @ v


@given(st.data(), st.tuples(*[sizes] * 6), st.sampled_from(["soft", "hard", "signed"]), st.booleans())
@examples(40)
def test_scaled_dot_product(data: Any, shape: Any, weights: str, given_beta: bool) -> None:
    b, h, i, j, d, f = shape
    masks = data.draw(st.sets(st.sampled_from(["causal", "padding", "any"])))
    beta = data.draw(st.floats(0.1, 3)) if given_beta else None
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    q, k, v = (rng.standard_normal(shape) for shape in [(b, h, i, d), (b, h, j, d), (b, h, j, f)])
    keep, see = rng.random((b, j)) < 0.7, rng.random((b, i, j)) < 0.7
    given_masks = [each for name, each in (("padding", keep), ("any", see)) if name in masks]
    allowed = np.ones((b, i, j), bool)
    allowed &= np.arange(i)[:, None] >= np.arange(j) if "causal" in masks else True
    allowed &= keep[:, None, :] if "padding" in masks else True
    allowed &= see if "any" in masks else True
    graph = dot_product_attention(
        weights=weights, beta=beta, mask=[m for m in ("causal", "padding", "any") if m in masks]
    )
    found = tn.compile(graph)({}, q, k, v, *given_masks)
    expected = reference(q, k, v, beta or 1 / math.sqrt(d), allowed[:, None], weights)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_hard_attention_is_the_limit_of_soft_attention() -> None:
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 2, 2, 6, 4))
    hard = tn.compile(dot_product_attention(weights="hard"))({}, q, k, v)
    away = [
        abs(tn.compile(dot_product_attention(beta=beta))({}, q, k, v) - hard).max()
        for beta in (1.0, 10.0, 1e4)
    ]
    assert away[0] > away[1] > away[2]
    assert away[2] < 1e-9


@given(st.data(), sizes, st.integers(1, 3), sizes, sizes, sizes, sizes, sizes, sizes, sizes, st.booleans())
@examples(20)
def test_multi_head_attention_with_widths_of_its_own(
    data: Any, b: int, h: int, i: int, j: int, c: int, e: int, g: int, d: int, f: int, bias: bool
) -> None:
    graph = attention(c, h, keys=e, values=g, qk=h * d, v=h * f, out=7, bias=bias, out_bias=bias)
    expected = h * d * (c + e) + h * f * g + 7 * h * f + bias * (2 * h * d + h * f + 7)
    assert tn.parameter_count(graph) == expected
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    p = {name: rng.standard_normal(each.shape) for name, each in tn.init(graph).items()}
    x, z, u = (rng.standard_normal(s) for s in [(b, i, c), (b, j, e), (b, j, g)])

    def projected(x: Array, name: str, rows: slice) -> Array:
        return x @ p[f"W{name}"][rows].T + (p[f"b{name}"][rows] if bias else 0)

    heads = []
    for n in range(h):  # separate projections: head n has rows n·d … of the stacked ones
        of_keys, of_values = slice(n * d, n * d + d), slice(n * f, n * f + f)
        q, k, v = projected(x, "q", of_keys), projected(z, "k", of_keys), projected(u, "v", of_values)
        heads.append(reference(q, k, v, 1 / math.sqrt(d), None, "soft"))
    expected = np.concatenate(heads, -1) @ p["Wo"].T + (p["bo"] if bias else 0)
    found = tn.compile(graph)(p, x, z, u)
    assert found.shape == (b, i, 7)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-11)


@given(sizes, st.integers(1, 6).map(lambda n: 2 * n), sizes)
@examples(30)
def test_sinusoidal_positions(n: int, dim: int, past: int) -> None:
    """Thesis 2.3.1–2.3.2, entry by entry."""
    column, pos = np.arange(dim), np.arange(n + past)[:, None]
    angles = pos / 10000 ** ((column - column % 2) / dim)
    table = np.where(column % 2 == 0, np.sin(angles), np.cos(angles))
    zeros = np.zeros((2, n, dim))
    found = tn.compile(sinusoidal_positions(dim))({}, zeros)
    np.testing.assert_allclose(found, np.broadcast_to(table[:n], zeros.shape), atol=1e-14)
    halves = tn.compile(sinusoidal_positions(dim, interleaved=False))({}, zeros)
    np.testing.assert_allclose(halves[..., : dim // 2], found[..., ::2], atol=1e-14)
    np.testing.assert_allclose(halves[..., dim // 2 :], found[..., 1::2], atol=1e-14)


def test_an_embedding_may_be_scaled_by_the_root_of_its_width() -> None:
    table, t = np.random.default_rng(7).standard_normal((11, 4)), np.arange(10).reshape(2, 5)
    np.testing.assert_allclose(tn.compile(embedding(11, 4, scale=True))({"E": table}, t), 2 * table[t])
