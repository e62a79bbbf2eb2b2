"""Attention and what stands beside it, against NumPy in float64 written from the definitions (spec E1–E5)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tensornet as tn
from tensornet.models.attention import attention, dot_product_attention
from tensornet.models.blocks import embedding, feed_forward, norm
from tensornet.models.positions import learned_positions, sinusoidal_positions

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


def test_the_causal_mask_of_the_thesis() -> None:
    """Chapter 2.7: M of a sequence of four; future values change nothing."""
    rng = np.random.default_rng(2)
    q, k, v = rng.standard_normal((3, 1, 1, 4, 2))
    f = tn.compile(dot_product_attention(mask="causal"))
    mask = np.triu(np.full((4, 4), -np.inf), 1)
    expected = softmax(q[0, 0] @ k[0, 0].T / math.sqrt(2) + mask) @ v[0, 0]
    np.testing.assert_allclose(f({}, q, k, v)[0, 0], expected)
    later = v.copy()
    later[..., 2:, :] += 1
    assert np.array_equal(f({}, q, k, later)[..., :2, :], f({}, q, k, v)[..., :2, :])


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


def test_one_stacked_projection_is_three() -> None:
    """Lecture: q, k, v from one tall W ∈ R^{3d×d}."""
    stacked = tn.layer(
        """
        p[s,b,n,c] = x[b,n,e] * W[(s,c),e]
        a[b,i,j] = softmax[j](p[0,b,i,c] * p[1,b,j,c] / sqrt(c))
        y[b,i,c] = a[b,i,j] * p[2,b,j,c]
        """,
        inputs="x",
        s=3,
        c=4,
    )
    rng = np.random.default_rng(3)
    x, w, eye = rng.standard_normal((2, 5, 4)), rng.standard_normal((12, 4)), np.eye(4)
    apart = tn.compile(attention(4, bias=False, out_bias=False))
    parts = {"Wq": w[:4], "Wk": w[4:8], "Wv": w[8:], "Wo": eye}
    np.testing.assert_allclose(tn.compile(stacked)({"W": w}, x), apart(parts, x), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("past", [0, 1, 4])
def test_attention_goes_on_from_stored_keys_and_values(past: int) -> None:
    whole, step = attention(8, 2, mask="causal"), attention(8, 2, mask="causal", past=True)
    p = tn.init(whole, dtype="float64")
    x = np.random.default_rng(6).standard_normal((3, 6, 8))
    expected = tn.compile(whole)(p, x)
    empty = np.zeros((3, 2, 0, 4))
    f = tn.compile(step)
    y, k, v = f(p, x[:, :past], empty, empty) if past else (expected[:, :0], empty, empty)
    rest, k, v = f(p, x[:, past:], k, v)
    assert k.shape == v.shape == (3, 2, 6, 4)
    np.testing.assert_allclose(np.concatenate([y, rest], 1), expected, rtol=1e-12, atol=1e-14)


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


def test_blocks_of_a_transformer() -> None:
    rng = np.random.default_rng(7)
    x = rng.standard_normal((2, 3, 5))
    g, b = rng.standard_normal((2, 5))
    centred = x - x.mean(-1, keepdims=True)
    expected = g * centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-3) + b
    np.testing.assert_allclose(tn.compile(norm(5, 1e-3))({"gain": g, "bias": b}, x), expected, rtol=1e-12)
    p = tn.init(feed_forward(5, 7, activation="relu"), dtype="float64")
    expected = np.maximum(x @ p["W1"].T + p["b1"], 0) @ p["W2"].T + p["b2"]
    np.testing.assert_allclose(tn.compile(feed_forward(5, 7, activation="relu"))(p, x), expected, atol=1e-13)
    table, t = rng.standard_normal((11, 4)), rng.integers(0, 11, (2, 6))
    np.testing.assert_array_equal(tn.compile(embedding(11, 4))({"E": table}, t), table[t])
    np.testing.assert_allclose(tn.compile(embedding(11, 4, scale=True))({"E": table}, t), 2 * table[t])
    found = tn.compile(learned_positions(11, 4))({"P": table}, np.zeros((2, 6, 4)))
    np.testing.assert_array_equal(found, np.broadcast_to(table[:6], (2, 6, 4)))
