"""Sizes as formulas: of axes that no tensor sizes, through composition, and under a caller's symbols."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st

import tensornet as tn
from tensornet.frontend.instantiate import hygienic
from tensornet.models.attention import attention
from tests.conftest import examples


def patches(size: Any) -> tn.Graph:
    return tn.layer("y[b,p,d] = x[b,(p,u)] * E[d,u]", inputs="x[b,(p,u)]", u=size, d=3)


def test_a_size_may_be_text() -> None:
    graph = tn.layer("y[...,o] = x[...,i] * W[o,i]", inputs="x", i="D", o="2*D + 1")
    assert tn.parameter_formula(graph) == sympy.sympify("D*(2*D + 1)")
    assert tn.parameter_count(graph, D=3) == 21
    with pytest.raises(tn.EquationError, match="syntax error"):
        tn.layer("y[b,o] = x[b,i] * W[o,i]", inputs="x", i="2*")


def test_a_model_takes_the_sizes_of_its_layers() -> None:
    layer = tn.layer("y[...,o] = x[...,i] * W[o,i]", inputs="x", i="D", o="2*D")
    graph = tn.model(lambda x: layer(x, scope="a"), inputs="x[b,c]", D=8)
    assert tn.parameter_formula(graph) == sympy.sympify("2*D**2")
    assert tn.parameter_count(graph) == 128
    with pytest.raises(
        tn.ShapeError, match=r"'E', which no input and no layer of the model uses(?s:.*)D, b, c"
    ):
        tn.model(lambda x: layer(x, scope="a"), inputs="x[b,c]", E=8)


@pytest.mark.parametrize("side", [16, None])
def test_one_tensor_cut_in_two_ways(side: int | None) -> None:
    """Composites of one axis, with parts of other sizes; the number of parts is a formula of it."""

    def both(x: tn.Tensor) -> Any:
        return patches(4)(x, scope="a"), patches(8)(x, scope="b")

    graph = tn.model(both, inputs="x[b,H]", **({"H": side} if side else {}))
    assert dict(graph.flat.sizes)["p"] == sympy.Symbol("H") / 4
    assert tn.layer(str(graph)) == graph
    assert tn.Graph.from_json(graph.to_json()) == graph
    x, parameters = np.random.default_rng(0).standard_normal((2, 16)), tn.init(graph, dtype="float64")
    coarse, fine = tn.compile(graph)(parameters, x)
    np.testing.assert_allclose(coarse, x.reshape(2, 4, 4) @ parameters["a.E"].T)
    np.testing.assert_allclose(fine, x.reshape(2, 2, 8) @ parameters["b.E"].T)


NAMES = [*"bcdefghijnosuvxDFH", "past"]


@examples(10)
@given(
    st.lists(st.sampled_from(NAMES), min_size=3, max_size=3, unique=True),
    st.integers(1, 3),
    st.integers(1, 3),
)
def test_a_callers_symbols_are_not_the_layers_axes(names: list[str], heads: int, width: int) -> None:
    """Attention has axes b, c, d, …; a width called by one of these names stays the caller's."""
    dim, keys, out = (sympy.Symbol(name) for name in names)
    graph = attention(dim, heads, keys=keys, out=out)
    formula = tn.parameter_formula(graph).subs(dict(graph.bound)).subs(dict(graph.bound))
    assert sympy.expand(formula - (dim**2 + 2 * dim * keys + dim * out + 3 * dim + out)) == 0
    sizes = dict(zip(names, (heads * width, 5, 7), strict=True))
    bound = graph.bind(**sizes)
    assert tn.layer(str(graph)) == graph
    rng = np.random.default_rng(0)
    parameters = tn.init(bound, dtype="float64")
    x, z = rng.standard_normal((2, 3, heads * width)), rng.standard_normal((2, 4, 5))
    plain = attention(heads * width, heads, keys=5, out=7)
    np.testing.assert_allclose(tn.compile(bound)(parameters, x, z), tn.compile(plain)(parameters, x, z))


def test_hygiene_leaves_integers_alone() -> None:
    layer = tn.layer("y[b,o] = x[b,i] * W[o,i]", inputs="x", i=2, o=3)
    assert (
        hygienic(lambda **sizes: tn.layer("y[b,o] = x[b,i] * W[o,i]", inputs="x", **sizes), {"i": 2, "o": 3})
        == layer
    )


SQUARE = "def f(x):\n    o[b,i,j] = x[b,i] * x[b,j]\n"
SUMS = "def f(x):\n    y[b] = sum[d](x[b,d]) * sum[e](x[b,e])\n"


@pytest.mark.parametrize(
    ("block", "sizes", "disagreement"),
    [
        (SQUARE, {"j": 7}, "axis 'j' is 7, but it is 8 in the block 'f'"),
        (SQUARE, {"i": 7}, "axis 'i' is 7, but it is 8 in the block 'f'"),
        (SQUARE, {"i": 8, "j": 7}, "axis 'j' is 7, but it is 8 in the block 'f'"),
        (SUMS, {"e": 7}, "axis 'e' is 7, but it is 8 in the block 'f'"),
        (SUMS, {"d": 7, "e": 8}, "axis 'd' is 7, but it is 8 in the block 'f'"),
    ],
)
def test_a_given_size_is_that_of_the_axis_of_a_block(block: str, sizes: Any, disagreement: str) -> None:
    for batch in ("b", "b:2"):
        text = f"x[{batch},c:8]: input\n{block}y = f(x, scope='s')"
        with pytest.raises(tn.ShapeError, match=disagreement):
            tn.layer(text, **sizes)
        assert tn.layer(text, **dict.fromkeys(sizes, 8)) == tn.layer(text)
    open_size = f"{block}y = f(x, scope='s')"
    found = tn.layer(open_size, inputs="x[b,c]", **dict.fromkeys(sizes, 8))
    assert found.bound["c"] == 8
    with pytest.raises(tn.ShapeError, match="8 in the block 'g'"):  # of two blocks, none has it
        tn.layer(f"{text}\n{block.replace('def f', 'def g')}z = g(x, scope='t')", outputs="y z", **sizes)


@pytest.mark.parametrize("made", ["index(i)", "1 + 0 * index(i)", "repeat[i](2)"])
def test_what_is_padded_may_have_its_size_by_name_alone(made: str) -> None:
    text = f"o[i] = pad({made}, i=(1,1))"
    assert str(tn.layer(text).named["o"][0][0].size) == "i + 2"
    assert tn.compile(tn.layer(text, i=5))({}).shape == (7,)
    for sizes in ({}, {"i": 5}):
        with pytest.raises(tn.ShapeError, match="axis 'i' is i \\+ 2"):
            tn.layer(f"{text}\ny[i] = o[i] + x[i]", inputs="x[i]", **sizes)


def test_a_size_that_a_block_has_of_its_own_is_not_the_one_given() -> None:
    inner = "def f(x):\n    x[n]: input\n    k: 4\n    z[k,n] = U[k] * x[n]\n"
    outer = f"def g(x):\n    {inner.replace(chr(10), chr(10) + '    ')}x[n]: input\n    y = f(x)\n"
    for block, name in ((inner, "f"), (outer, "g")):
        graph = tn.layer(f"x[n:3]: input\n{block}y = {name}(x)", k=2)
        assert tn.parameter_count(graph) == 4
