"""Losses against torch's own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tensornet as tn
from tensornet import models
from tensornet.protocol import load_backend

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
