"""Recurrent layers beside torch's, forward and gradients; layers along a sequence beside plain loops."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import tensornet as tn
from tensornet.models.recurrent import LETTERS
from tensornet.protocol import load_backend

from .conftest import sampled
from .differential import by_numpy
from .test_gradients import check

KINDS = [torch.nn.RNN, torch.nn.LSTM, torch.nn.GRU]


def layer(kind: Any, **settings: Any) -> Any:
    torch.manual_seed(0)
    return kind(5, 7, num_layers=2, bidirectional=True, batch_first=True, **settings).double()


@pytest.mark.parametrize(
    ("kind", "settings"),
    [*((kind, {}) for kind in KINDS), (KINDS[0], {"bias": False}), (KINDS[0], {"nonlinearity": "relu"})],
)
def test_layers_are_those_of_torch(kind: Any, settings: dict[str, Any]) -> None:
    module = layer(kind, **settings)
    x = torch.randn(3, 6, 5, dtype=torch.float64)
    graph, parameters = tn.models.from_torch(module)
    with torch.no_grad():
        expected = module(x)[0].numpy()
    for backend in map(load_backend, ("numpy", "torch", *(["jax"] if kind is torch.nn.LSTM else []))):
        given = {name: backend.asarray(each.numpy()) for name, each in parameters.items()}
        found = tn.compile(graph, backend=backend)(given, backend.asarray(x.numpy()))
        np.testing.assert_allclose(backend.numpy(found), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("kind", sampled(KINDS, [torch.nn.LSTM]))
def test_gradients_are_those_of_torch(kind: Any) -> None:
    module = layer(kind)
    x = torch.randn(3, 6, 5, dtype=torch.float64, requires_grad=True)
    torch.sin(module(x)[0]).sum().backward()
    graph, parameters = tn.models.from_torch(module)
    own = {name: each.clone().requires_grad_() for name, each in parameters.items()}
    given = x.detach().clone().requires_grad_()
    torch.sin(tn.compile(graph, backend="torch")(own, given)).sum().backward()
    assert given.grad is not None
    assert x.grad is not None
    torch.testing.assert_close(given.grad, x.grad, rtol=1e-12, atol=1e-14)
    stacked = torch.cat([own[f"layers.1.backward.U{gate}"].grad for gate in _letters(kind)])  # type: ignore[misc]
    torch.testing.assert_close(stacked, module.weight_hh_l1_reverse.grad, rtol=1e-12, atol=1e-13)
    arrays = {name: each.detach().numpy() for name, each in (*parameters.items(), ("x", x))}
    check(graph, arrays, [*arrays], backends=("numpy",), tolerance=1e-11)


def _letters(kind: Any) -> tuple[str, ...]:
    return LETTERS[kind.__name__.lower()]


@pytest.mark.parametrize("kind", KINDS)
def test_states_come_in_and_go_out(kind: Any) -> None:
    module = layer(kind)
    x, h = torch.randn(3, 6, 5, dtype=torch.float64), torch.randn(4, 3, 7, dtype=torch.float64)
    first = (h, torch.randn(4, 3, 7, dtype=torch.float64)) if kind is torch.nn.LSTM else (h,)
    graph, parameters = tn.models.from_torch(module, states=True)
    with torch.no_grad():
        y, last = module(x, first if len(first) > 1 else h)
        found = tn.compile(graph, backend="torch")(parameters, x, *first)
    for one, other in zip(found, (y, *(last if len(first) > 1 else (last,))), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("form", ["tt", "blocktt", "cp", "low_rank"])
def test_factorized_weights_are_weights(form: str) -> None:
    """An LSTM of factorized weights is the dense one of the weights that the factors make."""
    graph = tn.models.lstm((2, 3), (3, 2), factorization=form, rank=2)
    parameters = tn.init(graph, dtype="float64")
    x = np.random.default_rng(0).standard_normal((2, 4, 6))
    expected = by_numpy(graph, {**parameters, "x": x})
    np.testing.assert_allclose(tn.compile(graph)(parameters, x), next(iter(expected.values())), rtol=1e-12)
    assert tn.parameter_count(graph) < tn.parameter_count(tn.models.lstm(6, 6))


def test_a_tensorized_lstm_trains() -> None:
    """It learns which of two numbers was the larger, the first or the last."""
    graph = tn.models.lstm((2, 2), (4, 4), factorization="blocktt", rank=2)
    head = tn.layer("y[b] = h[b,-1,o] * w[o]", inputs="h[b,t,o]")
    whole = tn.model(lambda x: head(graph(x, scope="lstm"), scope="head"), inputs="x[b,t,i]", i=4)
    loss = tn.layer("l = mean[b](softplus(-s[b] * y[b]))", inputs="y[b] s[b]")
    step = tn.value_and_grad(whole, loss=loss)
    rng, parameters = np.random.default_rng(0), tn.init(whole, seed=3)
    losses = []
    momentum = {name: np.zeros_like(each) for name, each in parameters.items()}
    for _ in range(150):
        x = rng.standard_normal((64, 6, 4)).astype(np.float32)
        sign = np.sign(x[:, 0, 0] - x[:, -1, 0]).astype(np.float32)
        value, gradients = step(parameters, x, sign)
        losses.append(float(value))
        for name, gradient in gradients.items():
            momentum[name] = 0.9 * momentum[name] + gradient
            parameters[name] = parameters[name] - np.float32(0.03) * momentum[name]
    assert np.mean(losses[-10:]) < 0.5 < np.mean(losses[:5])


# ---------------------------------------------------------------------------- along a sequence


def numbers(graph: tn.Graph, *shape: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    rng = np.random.default_rng(0)
    return tn.init(graph, dtype="float64"), rng.uniform(size=shape)


def test_state_spaces() -> None:
    graph = tn.models.state_space(3, 4)
    p, x = numbers(graph, 2, 9, 3)
    decay, h = np.exp(-np.exp(p["step"][:, None] + p["rate"])), np.zeros((2, 3, 4))
    expected = []
    for t in range(9):
        h = decay * h + (1 - decay) * p["B"] * x[:, t, :, None]
        expected.append((h * p["C"]).sum(-1) + p["D"] * x[:, t])
    np.testing.assert_allclose(tn.compile(graph)(p, x), np.stack(expected, 1), rtol=1e-12)


def test_linear_attention_is_attention_without_a_softmax() -> None:
    graph = tn.models.linear_attention(6, 2)
    p, x = numbers(graph, 2, 7, 6)
    q, k, v = (np.einsum("btc,hdc->bhtd", x, p[f"W{name}"].reshape(2, 3, 6)) for name in "qkv")
    q, k = (np.where(each > 0, each + 1, np.exp(np.minimum(each, 0))) for each in (q, k))
    weights = np.tril(q @ k.swapaxes(-1, -2))
    o = (weights / weights.sum(-1, keepdims=True)) @ v
    expected = np.einsum("bhte,ahe->bta", o, p["Wo"].reshape(6, 2, 3))
    np.testing.assert_allclose(tn.compile(graph)(p, x), expected, rtol=1e-11)


@pytest.mark.parametrize("features", ["cosine", "share"])
def test_matrix_products(features: str) -> None:
    graph = tn.models.matrix_product(11, 3, bond=4, features=features)
    p, x = numbers(graph, 2, 11)
    told = [np.cos(math.pi / 2 * x), np.sin(math.pi / 2 * x)] if features == "cosine" else [1 - x, x]
    v = np.tile(p["start"], (2, 1))
    for t in range(11):
        v = v + np.einsum("br,rps,bp->bs", v, p["A"][t], np.stack(told, -1)[:, t])
    np.testing.assert_allclose(tn.compile(graph)(p, x), v @ p["W"].T, rtol=1e-12)


def test_784_sites_are_planned_at_once() -> None:
    plan = tn.plan(tn.models.matrix_product(784, 10), b=100)
    assert len(plan.steps) < 20


def test_long_chains_start_alive() -> None:
    graph = tn.models.matrix_product(784, 10)
    found = tn.compile(graph)(
        tn.init(graph), np.random.default_rng(0).uniform(size=(50, 784)).astype(np.float32)
    )
    assert 0.3 < found.std() < 3


@pytest.mark.parametrize("maker", [tn.models.rnn, tn.models.lstm, tn.models.gru])
def test_recurrent_layers_start_alive(maker: Any) -> None:
    graph = maker(32, 64)
    x = np.random.default_rng(0).standard_normal((8, 40, 32)).astype(np.float32)
    found = tn.compile(graph)(tn.init(graph), x)
    assert 0.1 < found[:, 0].std() < 1
    assert 0.1 < found[:, -1].std() < 1


def test_recurrent_layers_are_modules() -> None:
    module = tn.module(tn.models.lstm(3, 4, bidirectional=True))
    assert "layers.0.onward.Wi" in module.state_dict()
    module(torch.randn(2, 5, 3)).sum().backward()
    assert all(each.grad is not None for each in module.parameters())


def test_gates_of_one_weight_are_read_as_they_lie() -> None:
    graph = tn.layer(
        """
        z[b,t,g,o] = x[b,t,i] * W[g,o,i] + h[b,t-1,k] * U[g,o,k] + u[g,o]
        c[b,t,o] = sigmoid(z[b,t,1,o]) * c[b,t-1,o] + sigmoid(z[b,t,0,o]) * tanh(z[b,t,2,o])
        h[b,t,o] = sigmoid(z[b,t,3,o]) * tanh(c[b,t,o])
        """,
        inputs="x[b,t,i]",
        g=4,
    )
    code = tn.plan(graph, backend="torch", b=8, t=32, i=16, o=16).code
    assert "lstm_along(" in code
    assert "cat(" not in code
