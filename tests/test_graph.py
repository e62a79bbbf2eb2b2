"""Graphs as values: they print and read back, validate, compose, and give their formulas."""

from __future__ import annotations

import copy
import dataclasses
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st

import tensornet as tn
from tensornet.frontend.instantiate import hygienic
from tensornet.models.attention import attention

from .conftest import examples, normal, rows, within

# ---------------------------------------------------------------------------- Graphs as values


def dense(**sizes: Any) -> tn.Graph:
    return tn.layer("y[b,o] = x[b,i] * W[o,i]", inputs="x", **sizes)


def built(function: Callable[..., Any], inputs: str, **sizes: Any) -> tn.Graph:
    """`tn.model`, which answers soon."""
    with within(5):
        return tn.model(function, inputs=inputs, **sizes)


def names(leaves: tuple[Any, ...]) -> list[str]:
    return [leaf.name for leaf in leaves]


# ---------------------------------------------------------------------------- values


def with_constant() -> tn.Graph:
    table = np.arange(6, dtype=np.float32).reshape(2, 3)
    return tn.layer("y[b,i] = x[b,i] * sum[k](C[k,i])", inputs="x", constants={"C": table}, k=2, i=3)


def test_constants_travel_in_json_and_belong_to_the_value() -> None:
    graph = with_constant()
    again = tn.Graph.from_json(graph.to_json())
    assert again == graph
    assert again.constants[0].value.array().tolist() == [[0, 1, 2], [3, 4, 5]]
    assert again.constants[0].value.array().dtype == np.float32
    assert tn.layer(str(graph), constants={"C": graph.constants[0].value.array()}) == graph
    assert tn.layer(str(graph), constants={"C": np.zeros((2, 3), np.float32)}) != graph


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.int64, np.bool_, np.complex64])
def test_constants_keep_their_type(kind: type[Any]) -> None:
    value = np.ones(3, kind)
    graph = tn.layer("y[i] = x[i] * C[i]", inputs="x", constants={"C": value}, i=3)
    assert tn.Graph.from_json(graph.to_json()).constants[0].value.array().dtype == value.dtype


def test_the_size_of_a_constant_decides_that_of_its_axis() -> None:
    graph = tn.layer("y[b] = x[b] * C[b]", inputs="x", constants={"C": np.ones(3)})
    assert graph.bound == {"b": 3}
    assert graph.open_sizes == ()


@pytest.mark.parametrize("start", [0.02, 1.5, "zeros", "ones", 0])
def test_how_a_parameter_starts_is_part_of_the_value(start: float | str) -> None:
    graph = tn.layer("y[b] = x[b] * W[b]", inputs="x", init={"W": start})
    assert graph != tn.layer("y[b] = x[b] * W[b]", inputs="x")
    assert tn.layer(str(graph)) == graph == tn.Graph.from_json(graph.to_json())


def test_a_graph_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError, match="outputs"):
        dense().outputs = ()  # type: ignore[misc]


def test_order_and_names_make_a_difference() -> None:
    assert dense() == dense()
    assert dense() != dense(i=4)
    assert dense() != tn.layer("y[b,o] = x[b,i] * V[o,i]", inputs="x")


# ---------------------------------------------------------------------------- sizes


def test_sizes_of_composites_that_agree_in_all_are_taken() -> None:
    """A state under composite axes, read under others."""
    text = "z[t,(o1,o2)] = x[t] * A[o1,o2] + h[t-1,(p1,p2)] * C[o1,p1,s] * D[s,o2,p2]; h[t,n] = tanh(z[t,n])"
    layer = tn.layer(text, inputs="x", o1=2, o2=3, p1=3, p2=2, s=1)
    shapes = {name: array.shape for name, array in tn.init(layer).items()}
    assert shapes == {"A": (2, 3), "C": (2, 3, 1), "D": (1, 3, 2)}


def test_a_size_may_be_given_again() -> None:
    assert dense(i=4).bind(i=4) == dense().bind(i=4) == dense(i=4)


# ---------------------------------------------------------------------------- composition


def test_scopes_name_the_parameters_and_a_scope_used_twice_shares_them() -> None:
    def tower(x: tn.Tensor) -> Any:
        return dense(o=8)(dense(o=8)(dense(o=8)(x, scope="a"), scope="b"), scope="a")

    graph = built(tower, "x[b,i]", i=8)
    assert names(graph.parameters) == ["a.W", "b.W"]
    assert tn.parameter_count(graph) == 2 * 64


def test_scopes_nest() -> None:
    block = built(lambda x: dense(o=4)(x, scope="mlp"), "x[b,i]", i=4)
    graph = built(lambda x: block(block(x, scope="blocks.0"), scope="blocks.1"), "x[b,i]", i=4)
    assert names(graph.parameters) == ["blocks.0.mlp.W", "blocks.1.mlp.W"]
    assert tn.layer(str(graph)) == graph


@pytest.mark.parametrize(
    "inputs", ["p[n,c] q[n,c]", "x[b,i] z[b,i]", "x[i,b] z[i,b]", "x[b,i] z[n,c]", "z[b,c] x[n,i]"]
)
def test_a_layer_of_two_inputs_meets_tensors_of_any_names(inputs: str) -> None:
    layer = tn.layer("y[b,o] = x[b,i] * z[b,i] * W[o,i]", inputs="x z", o=2)
    graph = built(lambda first, second: layer(first, second), inputs)
    x, z, W = np.ones((2, 3)), np.arange(6.0).reshape(2, 3), np.arange(6.0).reshape(2, 3)
    np.testing.assert_allclose(tn.compile(graph, backend="numpy")({"W": W}, x, z), (x * z) @ W.T)


def test_sizes_of_layer_and_model_meet() -> None:
    graph = built(dense(i=4, o=8), "x[b,c]")
    assert tn.parameter_count(graph) == 32
    assert sympy.sympify(graph.inputs[0].shape[1]).subs(graph.bound) == 4
    assert built(dense(o=8), "x[b,c]", c=4).parameters[0].shape[1] == sympy.Symbol("c")


def test_a_symbolic_tensor_tells_its_shape() -> None:
    seen: list[tuple[Any, ...]] = []
    built(lambda x: seen.append(x.shape) or dense(o=8)(x), "x[b,i]", i=4)
    assert seen == [(sympy.Symbol("b"), 4)]


def test_a_model_of_several_results_and_one_of_none_of_its_own() -> None:
    graph = built(lambda x: (dense(o=2)(x, scope="a"), dense(o=3)(x, scope="b")), "x[b,i]")
    assert graph.outputs == ("a.y", "b.y")
    assert [graph.bound[str(graph.dims[name][1][0].size)] for name in graph.outputs] == [2, 3]
    assert built(lambda x: x, "x[b,i]").outputs == ("x",)


# ---------------------------------------------------------------------------- formulas


def test_sizes_that_stay_open_stay_in_the_count() -> None:
    assert str(tn.parameter_count(dense(i=4))) == "4*o"
    assert tn.parameter_count(dense(i=4), o=3) == 12
    without = tn.layer("y[b] = tanh(x[b])", inputs="x")
    assert tn.parameter_formula(without) == tn.parameter_count(without) == 0


def test_sizes_given_as_formulas_appear_in_formulas() -> None:
    D, R = sympy.symbols("D R")
    mlp = "h[b,f] = gelu(x[b,i] * A[f,i] + u[f])\ny[b,o] = h * B[o,f] + v[o]"
    graph = tn.layer(mlp, inputs="x", i=D, f=4 * D, o=D)
    assert sympy.expand(tn.parameter_formula(graph) - (8 * D**2 + 5 * D)) == 0
    factored = tn.layer("y[b,o] = x[b,i] * P[i,r] * Q[r,o]", inputs="x", i=D, o=2 * D, r=R)
    assert sympy.expand(tn.parameter_formula(factored) - 3 * D * R) == 0
    assert tn.parameter_formula(factored).subs({"D": 8, "R": 2}) == 48
    assert tn.flop_formula(dense(i=D, o=4 * D)) == 8 * sympy.Symbol("b") * D**2


def test_a_graph_keeps_no_size_that_nothing_in_it_mentions() -> None:
    """Also where a block names an axis as its caller names a size of another block."""
    joined = tn.layer("p[b,f] = x[b,i] * W[f,i]\ny[b,h] = concat[h](p[b,h], p[b,h])", inputs="x", f=4)
    heads = tn.layer("y[b,(h,d)] = x[b,(h,d)] * g[h]", inputs="x", h=2)
    graph = tn.model(lambda x: heads(joined(x, scope="a"), scope="b"), inputs="x[b,i]", i=3)
    assert tn.layer(str(graph)) == graph == dataclasses.replace(graph, sizes=(*graph.sizes, ("unused", 3)))


def test_a_model_of_symbolic_width_gives_its_formula() -> None:
    D, n = sympy.Symbol("D"), 3

    def tower(x: tn.Tensor) -> Any:
        for number in range(n):
            x = dense(o=D)(dense(o=4 * D)(x, scope=f"block{number}.up"), scope=f"block{number}.down")
        return x

    graph = built(tower, "x[b,i]", i=D)
    assert sympy.expand(tn.parameter_formula(graph) - n * 8 * D**2) == 0
    assert [scope for scope, _, _ in tn.parameter_table(graph)] == ["block0", "block1", "block2"]


def test_the_parameters_by_part() -> None:
    graph = built(lambda x: dense(o=8)(dense(o=4)(x, scope="a.in"), scope="a.out"), "x[b,i]", i=2)
    assert [(scope, number) for scope, _, number in tn.parameter_table(graph)] == [("a", 2 * 4 + 4 * 8)]
    assert [(scope, number) for scope, _, number in tn.parameter_table(graph, depth=2)] == [
        ("a.in", 8),
        ("a.out", 32),
    ]


def test_the_table_of_parameters_has_names_and_prints() -> None:
    table = tn.parameter_table(tn.layer("y[b,o] = x[b,i] * W[o,i] + u[o]", inputs="x", i=1000, o=2))
    first, (name, formula, number) = table
    assert (first.name, str(first.formula), first.parameters) == ("W", "i*o", 2000)
    assert (name, str(formula), number) == ("u", "o", 2)
    assert table.parameters == 2002
    assert str(table).splitlines() == ["W      i*o  2,000", "u      o        2", "total       2,002"]
    cell = '<td style="padding:2px 8px;text-align:right;white-space:nowrap">2,000</td>'
    assert cell in table._repr_html_()
    assert isinstance(table, tuple)
    assert copy.deepcopy(table) == table == tuple(table)


def test_a_composite_of_other_sizes_prints_and_reads_back() -> None:
    graph = tn.layer("z[b,h] = x[b,h]\ny[b] = z[b,j] * sum[d](W[(j,b),d])", inputs="x", d=2)
    assert "W[(j,b):(h,b),d]: parameter" in str(graph)
    assert tn.layer(str(graph)) == graph


def test_tensors_of_a_model_are_added_subtracted_and_multiplied() -> None:
    """As a residual branch needs; by numbers too."""
    layer = tn.layer("y[...,o] = tanh(x[...,i] * W[o,i])", inputs="x", i=4, o=4)
    graph = tn.model(
        lambda x: 1 + 0.5 * (x + layer(x, scope="a")) * 2 - x * layer(x, scope="b"), inputs="x[b,t,i]", i=4
    )
    assert tn.layer(str(graph)) == graph
    halved = tn.model(lambda x: np.float64(0.5) * (np.int64(3) - x) - np.float32(2), inputs="x[b]")
    np.testing.assert_array_equal(tn.compile(halved)({}, np.array([1.0, 4.0])), [-1.0, -2.5])
    with pytest.raises(tn.EquationError, match="nan is no number of the language"):
        tn.model(lambda x: x + math.nan, inputs="x[b]")
    params, x = tn.init(graph, seed=0, dtype="float64"), normal(2, 3, 4)
    a, b = (np.tanh(x @ params[f"{name}.W"].T) for name in "ab")
    np.testing.assert_allclose(tn.compile(graph)(params, x), 1 + x + a - x * b, rtol=1e-12)
    for other in ("a", None, np.ones(4), True):
        with pytest.raises(TypeError, match="operand"):
            tn.model(lambda x: x + other, inputs="x[b]")  # noqa: B023


def test_a_warning_points_at_the_line_that_led_to_it() -> None:
    calls = (
        lambda: tn.layer("y[b,o] = x[b,i] * W[o,j]", inputs="x"),
        lambda: tn.models.linear([2, 2], [2, 2], factorization="tt", rank=0.01),
        lambda: tn.model(lambda x: tn.layer("y[b] = x[b] * W[b,j]", inputs="x")(x), inputs="x[b]"),
    )
    for call in calls:
        with pytest.warns(tn.TensornetWarning) as found:
            call()
        assert {each.filename for each in found} == {__file__}


def test_an_axis_of_a_window_is_no_size_of_its_name() -> None:
    """A constant gives `u` a value, and the `u` of the window is as long as fits: the text tells them apart."""
    text = "a[u] = C[u]*w[u]\ny[u] = x[u+v]*k[v]\nz = sum[u](a[u]) + sum[u](y[u])"
    arrays = {"C": np.ones(3)}
    graph = tn.layer(text, inputs="x[n]", constants=arrays, n=30, v=3)
    assert str(graph).splitlines()[-2] == "y[u_1] = x[u_1+v] * k[v]"
    assert tn.layer(str(graph), constants=arrays) == graph


# ---------------------------------------------------------------------------- Sizes as formulas


def patches(size: Any) -> tn.Graph:
    return tn.layer("y[b,p,d] = x[b,(p,u)] * E[d,u]", inputs="x[b,(p,u)]", u=size, d=3)


def test_a_size_may_be_text() -> None:
    graph = tn.layer("y[...,o] = x[...,i] * W[o,i]", inputs="x", i="D", o="2*D + 1")
    assert tn.parameter_formula(graph) == sympy.sympify("D*(2*D + 1)")
    assert tn.parameter_count(graph, D=3) == 21


def test_a_model_takes_the_sizes_of_its_layers() -> None:
    layer = tn.layer("y[...,o] = x[...,i] * W[o,i]", inputs="x", i="D", o="2*D")
    graph = tn.model(lambda x: layer(x, scope="a"), inputs="x[b,c]", D=8)
    assert tn.parameter_formula(graph) == sympy.sympify("2*D**2")
    assert tn.parameter_count(graph) == 128


@pytest.mark.parametrize("side", [16, None])
def test_one_tensor_cut_in_two_ways(side: int | None) -> None:
    """Composites of one axis, with parts of other sizes; the number of parts is a formula of it."""

    def both(x: tn.Tensor) -> Any:
        return patches(4)(x, scope="a"), patches(8)(x, scope="b")

    graph = tn.model(both, inputs="x[b,H]", **({"H": side} if side else {}))
    assert dict(graph.flat.sizes)["p"] == sympy.Symbol("H") / 4
    assert tn.layer(str(graph)) == graph
    assert tn.Graph.from_json(graph.to_json()) == graph
    x, parameters = normal(2, 16), tn.init(graph, dtype="float64")
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
    ("block", "axes"), [(SQUARE, "j"), (SQUARE, "i"), (SQUARE, "ij"), (SUMS, "e"), (SUMS, "de")]
)
def test_a_given_size_is_that_of_the_axis_of_a_block(block: str, axes: str) -> None:
    """`errors.txt` has sizes that are not."""
    call, sizes = f"{block}y = f(x, scope='s')", dict.fromkeys(axes, 8)
    for batch in ("b", "b:2"):
        text = f"x[{batch},c:8]: input\n{call}"
        assert tn.layer(text, **sizes) == tn.layer(text)
    assert tn.layer(call, inputs="x[b,c]", **sizes).bound["c"] == 8


@pytest.mark.parametrize("made", ["index(i)", "1 + 0 * index(i)", "repeat[i](2)"])
def test_what_is_padded_may_have_its_size_by_name_alone(made: str) -> None:
    text = f"o[i] = pad({made}, i=(1,1))"
    assert str(tn.layer(text).named["o"][0][0].size) == "i + 2"
    assert tn.compile(tn.layer(text, i=5))({}).shape == (7,)


def test_a_size_that_a_block_has_of_its_own_is_not_the_one_given() -> None:
    inner = "def f(x):\n    x[n]: input\n    k: 4\n    z[k,n] = U[k] * x[n]\n"
    outer = f"def g(x):\n    {inner.replace(chr(10), chr(10) + '    ')}x[n]: input\n    y = f(x)\n"
    for block, name in ((inner, "f"), (outer, "g")):
        graph = tn.layer(f"x[n:3]: input\n{block}y = {name}(x)", k=2)
        assert tn.parameter_count(graph) == 4


# ---------------------------------------------------------------------------- numbers to be trained


@pytest.mark.parametrize(("text", "told"), rows("numbers.txt"))
def test_a_number_that_nobody_trains_is_declared_or_given(text: str, told: str) -> None:
    name, why = told.split(": ")
    message = rf"'{name}' is no axis, size or tensor here, .*: .*{why}(?s:.*)give {name}=… if it is a size"
    with pytest.raises(tn.EquationError, match=message):
        tn.layer(text, inputs="x")
    sizes: dict[str, Any] = {name: 3}
    assert name in str(tn.layer(text, inputs="x", **sizes))
    declared = tn.layer(f"{name}[()]: parameter\n{text}", inputs="x")
    assert [leaf.name for leaf in declared.parameters] == [name]
    assert [leaf.name for leaf in tn.layer(text, inputs="x", init={name: 3.0}).parameters] == [name]


@pytest.mark.parametrize(("text", "names"), rows("trained.txt"))
def test_other_numbers_are_trained(text: str, names: str) -> None:
    assert [leaf.name for leaf in tn.layer(text, inputs="x").parameters] == names.split()


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("y[b,length] = x[b,length] * lenght", "length"),
        ("h[b,i] = W_query[i]*x[b,i]\ny[b,i] = h * W_qeury", "W_query"),
    ],
)
def test_a_number_whose_name_is_a_slip_of_another_is_told(text: str, meant: str) -> None:
    with pytest.warns(
        tn.TensornetWarning, match=rf"is read as a number to be trained: did you mean '{meant}'\?"
    ):
        tn.layer(text, inputs="x")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("y[i,w] = B[index(i) - w + 3]", r"'w' in the brackets of 'B' is a position, the same as index\(w\)"),
        (
            "at[i,w] = index(i) + index(w)\ny[i,w] = B[at[i,w] - index(i) - w]",
            r"'w' in the brackets of 'B' is a pos",
        ),
        ("y[b,i] = x[b,i] * W[i,i]\nz[b,i] = y * W[i,i]", r"fix: write W\[i\] for a vector; or declare 'W'"),
    ],
)
def test_a_reading_that_is_likely_not_meant_is_told_once(text: str, message: str) -> None:
    sizes = {"w": 3} if "w" in text else {}
    with pytest.warns(tn.TensornetWarning, match=message) as told:
        graph = tn.layer(text, inputs="B[n]" if "B" in text else "x", i=4, **sizes)
    assert len(told) == 1
    assert tn.layer(str(graph)) == graph == tn.Graph.from_json(graph.to_json())


@pytest.mark.parametrize(
    ("value", "axis"),
    [
        ("where(index(i) >= j, x[i,j], 0)", "j"),
        ("x[i,j] * exp(-(i - j)**2)", "i"),
        ("x[i,j] * exp(-abs(j - i))", "j"),
        ("where(index(i) == i - 1, x[i,j], 0)", ""),
        ("where(index(i) + j - i >= index(j), x[i,j], 0)", ""),
        ("x[i,j] * (i + j)**2 / (i - 1)", ""),
    ],
)
def test_the_size_of_an_axis_where_positions_are_likely_meant_is_told(value: str, axis: str) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        tn.layer(f"y[i,j] = {value}", inputs="x")
    assert [str(each.message).partition(" is the size of this axis here")[0] for each in told] == [
        f"'{axis}'"
    ] * bool(axis)


# ---------------------------------------------------------------------------- sums that a slip makes


@pytest.mark.parametrize(("text", "meant"), rows("summed_alone.txt"))
def test_a_sum_over_an_axis_that_one_tensor_has_beside_others_is_told(text: str, meant: str) -> None:
    """And none of one tensor alone, or one that is written."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        graph = tn.layer(text.replace("\\n", "\n"), inputs="x[b,i]")
    for each, fix in zip(told, filter(None, meant.split("; ")), strict=True):
        assert "is summed, and nothing else has it" in str(each.message)
        assert str(each.message).endswith(f"or write {fix} where it is meant")
        assert "^" in str(each.message)
    assert tn.layer(str(graph)) == graph == tn.Graph.from_json(graph.to_json())  # which tell of none
    tn.gradient(graph, wrt="x")
