"""Blocks called along an axis, as papers write cells: what they compute is what torch and plain loops do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tensornet as tn
from tensornet.protocol import load_backend

from . import oracle
from .conftest import sampled
from .differential import by_numpy, drawn
from .programs import titled

LSTM = """
def cell(x, h, c):
    x[b,i]: input
    h[b,p]: input
    c[b,p]: input
    f[b,o] = sigmoid(x[b,i] * Wf[o,i] + h[b,p] * Uf[o,p] + bf[o])
    g[b,o] = sigmoid(x[b,i] * Wg[o,i] + h[b,p] * Ug[o,p] + bg[o])
    k[b,o] = tanh(x[b,i] * Wk[o,i] + h[b,p] * Uk[o,p] + bk[o])
    r[b,o] = sigmoid(x[b,i] * Wr[o,i] + h[b,p] * Ur[o,p] + br[o])
    d[b,o] = f * c[b,o] + g * k
    z[b,o] = r * tanh(d)
    z: output
    d: output
x[b,t,i]: input
h[b,-1,o] = h0[b,o]
h[b,t,p], c[b,t,p] = cell(x, h[b,t-1,p], c[b,t-1,p], scope='lstm')
"""

RNN = """
def cell(x, h):
    x[b,i]: input
    h[b,p]: input
    z[b,o] = tanh(x[b,i] * W[o,i] + h[b,p] * U[o,p])
"""


def array(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).uniform(-1, 1, shape)


WRITTEN = titled("blocks.txt")
CELLS = [name for name in WRITTEN if not name.endswith(", as lines")]
"""Blocks that are called along an axis, and the same as lines."""


@pytest.mark.parametrize("name", CELLS)
def test_a_block_along_an_axis_is_its_lines(name: str) -> None:
    called, lines = WRITTEN[name].graph(), WRITTEN[f"{name}, as lines"]
    assert tn.layer(str(called)) == called
    used = drawn(lines.graph(), b=3, t=5, o=4, p=4)
    expected = oracle.run(lines.text, used, {"i": 2}, ["h"])["h"]
    np.testing.assert_allclose(by_numpy(called, used)["h"], expected, rtol=1e-10)


@pytest.mark.parametrize("backend", sampled(["numpy", "torch", "jax"], ["numpy", "torch"]))
def test_an_lstm_as_a_block_is_that_of_torch(backend: str) -> None:
    graph = tn.layer(LSTM, inputs="x h0", outputs="h", i=3, p=4)
    chosen = load_backend(backend)
    arrays = {
        leaf.name: array(*(4 if axis.name in "op" else 3 for (axis,) in leaf.dims))
        for leaf in graph.parameters
    }
    x, h0 = array(2, 5, 3), array(2, 4)
    loss = tn.layer("loss = sum[b,t,p](h[b,t,p] ** 2)", inputs="h[b,t,p]")
    step = tn.value_and_grad(graph, loss=loss, backend=backend)
    given = {name: chosen.asarray(each) for name, each in arrays.items()}
    value, gradients = step(given, chosen.asarray(x), chosen.asarray(h0))

    lstm = torch.nn.LSTM(3, 4, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        for name, letter in {"weight_ih_l0": "W", "weight_hh_l0": "U", "bias_ih_l0": "b"}.items():
            gates = [arrays[f"lstm.{letter}{gate}"] for gate in "gfkr"]
            getattr(lstm, name).copy_(torch.tensor(np.concatenate(gates)))
        lstm.bias_hh_l0.zero_()
    states, _ = lstm(torch.tensor(x), (torch.tensor(h0)[None], torch.zeros(1, 2, 4, dtype=torch.float64)))
    torch.sum(states**2).backward()
    assert float(value) == pytest.approx(float((states.detach() ** 2).sum()), rel=1e-10)
    for name, letter in {"weight_ih_l0": "W", "weight_hh_l0": "U", "bias_ih_l0": "b"}.items():
        found = np.concatenate([chosen.numpy(gradients[f"lstm.{letter}{gate}"]) for gate in "gfkr"])
        np.testing.assert_allclose(found, getattr(lstm, name).grad.numpy(), rtol=1e-9, atol=1e-11)


def test_a_block_along_an_axis_prints_as_its_equations() -> None:
    graph = tn.layer(f"{RNN}h[b,t,p] = cell(x[b,t,i], h[b,t-1,p], scope='rnn')", inputs="x", i=3, p=4)
    lines = ["rnn.U[o:p,p]: parameter", "h.before[b,t,p] = h[b,t-1,p]"]
    lines.append("h[b,t,p] = tanh(x[b,t,i] * rnn.W[p,i] + h.before[b,t,p_1] * rnn.U[p,p_1])")
    assert str(graph).splitlines()[-3:] == lines
    assert tn.layer(str(graph)) == graph


def test_both_ways_of_one_block_have_weights_by_scope() -> None:
    """Equal scopes share, others do not; axes of the caller that the block calls otherwise are its own."""
    text = f"""{RNN}
x[o,t,c]: input
h[o,t,r] = cell(x, h[o,t-1,r], scope='{{first}}')
g[o,t,r] = cell(x, g[o,t+1,r], scope='{{second}}')
y[o,t,b] = h[o,t,r] * V[b,r] + g[o,t,r] * V[b,r]
"""
    x = array(7, 5, 3)
    for scopes in (("to", "back"), ("one", "one")):
        graph = tn.layer(text.format(first=scopes[0], second=scopes[1]), c=3, r=4, b=2)
        assert tn.layer(str(graph)) == graph
        assert tn.parameter_count(graph) == len(set(scopes)) * (4 * 3 + 4 * 4) + 2 * 4
        weights = tn.init(graph, seed=0, dtype="float64")
        expected = 0
        for scope, turn in zip(scopes, (1, -1), strict=True):
            h, states = np.zeros((7, 4)), []
            for at in x.transpose(1, 0, 2)[::turn]:
                h = np.tanh(at @ weights[f"{scope}.W"].T + h @ weights[f"{scope}.U"].T)
                states.append(h)
            expected = expected + np.stack(states[::turn], 1) @ weights["V"].T
        np.testing.assert_allclose(tn.compile(graph)(weights, x), expected, rtol=1e-10, atol=1e-12)


def test_a_block_along_an_axis_keeps_its_own_names() -> None:
    """Its `t` is no axis of the caller, what is alike at all positions is made once, and blocks in it are opened."""
    text = """
def cell(x, h, m):
    x[b,t]: input
    h[b,s]: input
    m[s]: input
    def twice(a):
        a[b,t]: input
        y[b,t] = 2 * a[b,t]
    V[t,s] = W[t,s] * m[s] / sqrt(t)
    k = twice(x, scope='k')
    z[b,t] = tanh(k[b,t] * index(t) + h[b,s] * V[t,s])
h[t,b,p] = cell(x[t,b,i], h[t-1,b,q], m[p])
"""
    graph = tn.layer(text, inputs="x m", p=3)
    assert tn.layer(str(graph)) == graph
    x, m, weight = array(4, 2, 3), array(3), array(3, 3)
    h, expected = np.zeros((2, 3)), []
    for at in x:
        h = np.tanh(2 * at * np.arange(3) + h @ (weight * m / np.sqrt(3)).T)
        expected.append(h)
    np.testing.assert_allclose(tn.compile(graph)({"W": weight}, x, m), np.stack(expected), rtol=1e-10)
