"""Positions of the largest, of the smallest, and of all in order: exact, and the first where several are equal."""

from __future__ import annotations

import numpy as np
import pytest

import tensornet as tn
from tensornet.frontend.elaborate_ir import of_tensors
from tensornet.graph.element_types import of_leaves
from tensornet.ops.table import Element

from .differential import BACKENDS

TEXT = "a[b] = argmax[i](x[b,i])\nz[b] = argmin[i](x[b,i])\no[b,i] = argsort[i](x[b,i])\nt[b,k] = top[i,k](x[b,i])"


@pytest.mark.parametrize("kind", ["float32", "int32", "uint8", "bool"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_of_equal_ones_the_first(backend: str, kind: str) -> None:
    x = np.random.default_rng(0).integers(0, 2 if kind == "bool" else 4, (5, 40)).astype(kind)
    library, graph = BACKENDS[backend](), tn.layer(TEXT, inputs="x", outputs="a z o t", k=7)
    found = [library.numpy(each) for each in tn.compile(graph, backend=library)({}, library.asarray(x))]
    wide = x.astype(int)
    orders = [sorted(range(40), key=lambda i: (sign * row[i], i)) for sign in (1, -1) for row in wide]
    rising, falling = np.array(orders[:5]), np.array(orders[5:])
    for one, other in zip(found, (falling[:, 0], rising[:, 0], rising, falling[:, :7]), strict=True):
        assert one.dtype.kind == "i"
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("backend", ["numpy", "torch", "array-api-strict"])
def test_integers_of_any_size_are_told_apart(backend: str) -> None:
    """2⁵³ + 1 and 2⁵³ are one number in float64; the least integer has no negative."""
    x = np.array([[2**53, 2**53 + 1, -(2**63), 2**53]])
    library, graph = BACKENDS[backend](), tn.layer(TEXT, inputs="x", outputs="a z o t", k=4)
    found = [library.numpy(each) for each in tn.compile(graph, backend=library)({}, library.asarray(x))]
    for one, other in zip(found, ([1], [2], [[2, 0, 3, 1]], [[1, 0, 3, 2]]), strict=True):
        np.testing.assert_array_equal(one, other)


def test_what_is_read_at_positions_is_no_position() -> None:
    graph = tn.layer("p[b,k] = top[i,k](x[b,c] * W[i,c])\ny[b,k,c] = V[p[b,k],c] * u[c]", inputs="x", k=2)
    assert set(of_leaves(graph).values()) == {Element.NUMBER}
    assert of_tensors(graph)["p"] is Element.WHOLE
