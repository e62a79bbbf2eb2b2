"""Blocks called along an axis, as papers write cells: what they compute is what torch and plain loops do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensornet as tn

from . import oracle
from .differential import by_numpy, drawn
from .programs import titled

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
    used["h.grad"] = np.sin(np.arange(expected.size)).reshape(expected.shape)
    slopes, others = (by_numpy(tn.gradient(each, wrt="*"), used) for each in (called, lines.graph()))
    assert slopes.keys() == others.keys()
    for leaf, each in others.items():
        np.testing.assert_allclose(slopes[leaf], each, rtol=1e-9, atol=1e-11)


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
