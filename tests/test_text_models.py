"""Models of texts (spec D, E): attention, positions, the Transformer, XLNet, losses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import sympy
import torch
from hypothesis import given
from hypothesis import strategies as st

import tensornet as tn
from tensornet import models
from tensornet.models.attention import attention, dot_product_attention
from tensornet.models.blocks import embedding
from tensornet.models.positions import sinusoidal_positions
from tensornet.protocol import load_backend

from .conftest import covered, examples, normal, parameters_of, those_of

# ---------------------------------------------------------------------------- Attention and what stands beside it, against NumPy in float64 written from the d


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
    table, t = normal(11, 4, seed=7), np.arange(10).reshape(2, 5)
    np.testing.assert_allclose(tn.compile(embedding(11, 4, scale=True))({"E": table}, t), 2 * table[t])


# ---------------------------------------------------------------------------- The Transformer (spec E5, E6)


TRANSFORMER: dict[str, Any] = {"vocabulary": 11, "dim": 8, "depth": 2, "heads": 2, "hidden": 6}


@pytest.mark.parametrize(
    ("positions", "pre"), covered(["sinusoidal", "sines_first", "learned", None], [False, True])
)
def test_parts_and_steps_make_the_whole(positions: str | None, pre: bool) -> None:
    settings = {**TRANSFORMER, "positions": positions, "pre": pre, "padding": True, "length": 9}
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


def test_vectors_before_the_logits() -> None:
    whole, before = (models.transformer(**TRANSFORMER, logits=logits) for logits in (True, False))
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


# ---------------------------------------------------------------------------- XLNet (spec D)


XLNET: dict[str, Any] = {"vocabulary": 13, "dim": 8, "depth": 2, "heads": 2, "hidden": 12}
ONE: dict[str, Any] = {**XLNET, "depth": 1, "mask": None, "segments": False}
ONE |= {"two_streams": False, "head": None}
"""One layer of one stream, of which all sees all."""


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
    graph = models.xlnet(**XLNET)
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
    two = models.xlnet(**XLNET, memory=True)
    alone = models.xlnet(**XLNET, memory=True, two_streams=False, head=None)
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
    graph = models.xlnet(**XLNET, mask=None, segments=False, causal=True)
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


# ---------------------------------------------------------------------------- Losses against torch's own


cross_entropy = torch.nn.functional.cross_entropy


@given(st.integers(1, 5), st.integers(1, 6), st.floats(0, 1), st.integers(0, 99))
def test_cross_entropy(batch: int, classes: int, smoothing: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    logits, t = rng.standard_normal((batch, classes)) * 5, rng.integers(0, classes, batch)
    expected = cross_entropy(torch.tensor(logits), torch.tensor(t), label_smoothing=smoothing).item()
    found = tn.compile(models.cross_entropy(smoothing=smoothing))({}, logits, t)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_labels_that_do_not_count(backend: str, smoothing: float) -> None:
    rng = np.random.default_rng(0)
    logits, t = rng.standard_normal((3, 5, 7)), rng.integers(0, 7, (3, 5))
    t[1, 2:] = -100
    expected = cross_entropy(
        torch.tensor(logits).transpose(1, 2), torch.tensor(t), label_smoothing=smoothing, ignore_index=-100
    )
    graph = models.cross_entropy(tokens=True, smoothing=smoothing, ignore=-100)
    arrays = map(load_backend(backend).asarray, (logits, t))
    np.testing.assert_allclose(
        float(tn.compile(graph, backend=backend)({}, *arrays)), expected.item(), rtol=1e-12
    )
    assert float(tn.compile(graph)({}, logits, np.full_like(t, -100))) == 0


def test_permutation_loss() -> None:
    rng = np.random.default_rng(0)
    order = models.factorize(4, 9, predict=3)
    logits, t = rng.standard_normal((4, 3, 7)), rng.integers(0, 7, (4, 9))
    logp = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    expected = -np.mean(
        [logp[b, p, t[b, z]] for b, row in enumerate(order.targets) for p, z in enumerate(row)]
    )
    np.testing.assert_allclose(tn.compile(models.permutation_loss())({}, logits, t, order.targets), expected)


@pytest.mark.parametrize("own", [{}, {"loss.V": np.array(2.0)}])
def test_a_loss_of_parameters_with_labels_and_parameters_of_its_own(own: dict[str, np.ndarray]) -> None:
    a, t = np.array([1.0, -2.0, 3.0]), np.array([0.5, 4.0, -1.0])
    line = "loss = mean[i](y[i] * t[i] * V)" if own else "loss = sum[i](y[i] ** 2)"
    loss = tn.layer(line, inputs="y[i], t[i]" if own else "y[i]")
    step = tn.value_and_grad(tn.layer("y[i] = A[i] ** 2", i=3), loss=loss)
    value, gradients = step({"A": a, **own}, *([t] if own else []))
    np.testing.assert_allclose(value, 2 * np.mean(a**2 * t) if own else (a**4).sum())
    np.testing.assert_allclose(gradients["A"], 4 * a * t / 3 if own else 4 * a**3)
    if own:
        np.testing.assert_allclose(gradients["loss.V"], np.mean(a**2 * t))


RECURRENT = """
h[b,t,o] = tanh(x[b,t,i] * W[o,i] + h[b,t-1,p] * U[o,p])
y[b,k] = h[b,-1,o] * V[k,o] + mean[t](cumsum[t](x[b,t,i] * Z[k,i])) / sqrt(t)
"""


@pytest.mark.parametrize(
    "loss", [models.cross_entropy(), tn.layer("t = sum[b,k]((y[b,k] - W[b,k]) ** 2)", inputs="y W")]
)
def test_a_loss_may_have_the_names_of_axes_and_of_parameters(loss: tn.Graph) -> None:
    layer = tn.layer(RECURRENT, inputs="x", i=2, o=3, p=3, k=4)
    graph = tn.model(lambda x: layer(x, scope=""), inputs="x[b,t,i]", i=2)
    draw = np.random.default_rng(0)
    x = draw.standard_normal((2, 5, 2))
    given = np.array([3, 0]) if loss.inputs[-1].name == "t" else draw.standard_normal((2, 4))
    params = tn.init(graph, seed=0, dtype="float64")
    logits = torch.tensor(tn.compile(graph)(params, x), requires_grad=True)
    labels = torch.tensor(given)
    is_class = given.dtype.kind == "i"
    expected = cross_entropy(logits, labels) if is_class else ((logits - labels) ** 2).sum()
    value, gradients = tn.value_and_grad(graph, loss=loss)(params, x, given)
    np.testing.assert_allclose(value, expected.item(), rtol=1e-12)
    (slope,) = torch.autograd.grad(expected, logits)
    tanh = tn.compile(graph.select("h"))(params, x)[:, -1]
    np.testing.assert_allclose(gradients["V"], slope.numpy().T @ tanh, rtol=1e-10)
