"""The equation language: the grammar row by row, the Einstein rule, errors as users read them, garbage."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sympy
from hypothesis import example, given
from hypothesis import strategies as st

import tensornet as tn
from tensornet.language.equation import Equation, einstein
from tensornet.language.expression import Call, Contraction, Expression, show, subexpressions
from tensornet.language.parser import parse_block, parse_names, parse_size
from tests.conftest import examples, within
from tests.programs import SUMMED_ALONE

pytestmark = pytest.mark.filterwarnings(SUMMED_ALONE)


def read(text: str) -> Equation:
    """The one equation of a text, as parsed."""
    (equation,) = parse_block(text)
    assert isinstance(equation, Equation)
    return equation


# ---------------------------------------------------------------------------- the grammar

GRAMMAR = [
    # tensors and axes
    ("y[b,i] = x[ b , i ]", "y[b,i] = x[b,i]"),
    ("y=x", "y = x"),
    ("y[b] = q", "y[b] = q"),
    ("y[b,(p,q)] = x[b,(p,q)]", "y[b,(p,q)] = x[b,(p,q)]"),
    ("y[b,c] = z[b,0,c]", "y[b,c] = z[b,0,c]"),
    ("y[b,c] = z[b,-1,c]", "y[b,c] = z[b,-1,c]"),
    ("y[b,i,c] = E[t[b,i],c]", "y[b,i,c] = E[t[b,i],c]"),
    ("y[h,i,j] = B[h,rel[i,j]]", "y[h,i,j] = B[h,rel[i,j]]"),
    ("y[b] = E[t[s[b]]]", "y[b] = E[t[s[b]]]"),
    ("y[...,o] = x[...,i] * W[o,i]", "y[...,o] = x[...,i] * W[o,i]"),
    ("y[b] = blocks.0.mlp.W[b]", "y[b] = blocks.0.mlp.W[b]"),
    ("blocks.0.y[b] = x[b]", "blocks.0.y[b] = x[b]"),
    # arithmetic
    ("y[b] = x[b]*u[b]*2", "y[b] = x[b] * u[b] * 2"),
    ("y[b] = x[b]+u[b]-v[b]", "y[b] = x[b] + u[b] - v[b]"),
    ("y[b] = x[b]-(u[b]-v[b])", "y[b] = x[b] - (u[b] - v[b])"),
    ("y[b] = (x[b]+u[b])*v[b]", "y[b] = (x[b] + u[b]) * v[b]"),
    ("y[b] = x[b]+(u[b]*v[b])", "y[b] = x[b] + u[b] * v[b]"),
    ("y[b] = x[b]/u[b]/v[b]", "y[b] = x[b] / u[b] / v[b]"),
    ("y[b] = x[b]/(u[b]*v[b])", "y[b] = x[b] / (u[b] * v[b])"),
    ("y[b] = 1/x[b]", "y[b] = 1 / x[b]"),
    ("y[b] = 2/x[b]", "y[b] = 2 / x[b]"),
    ("y[b] = -x[b]", "y[b] = -x[b]"),
    ("y[b] = +x[b]", "y[b] = x[b]"),
    ("y[b] = -(x[b]+1)", "y[b] = -(x[b] + 1)"),
    ("y[b] = x[b]**2", "y[b] = x[b] ** 2"),
    ("y[b] = -x[b]**2", "y[b] = -x[b] ** 2"),
    ("y[b] = (-x[b])**2", "y[b] = (-x[b]) ** 2"),
    ("y[b] = x[b]**-2", "y[b] = x[b] ** (-2)"),
    # comparisons and logic
    ("y[b] = x[b]<u[b]", "y[b] = x[b] < u[b]"),
    ("y[b] = x[b]<=u[b]", "y[b] = x[b] <= u[b]"),
    ("y[b] = x[b]>u[b]", "y[b] = x[b] > u[b]"),
    ("y[b] = x[b]>=u[b]", "y[b] = x[b] >= u[b]"),
    ("y[b] = x[b]==u[b]", "y[b] = x[b] == u[b]"),
    ("y[b] = x[b]!=u[b]", "y[b] = x[b] != u[b]"),
    ("y[b] = (x[b]<1)&~(u[b]<1)", "y[b] = (x[b] < 1) & ~(u[b] < 1)"),
    ("y[b] = (x[b]<1)|(u[b]<1)", "y[b] = (x[b] < 1) | (u[b] < 1)"),
    # numbers and sizes
    ("y[b] = 0.5*x[b]", "y[b] = 0.5 * x[b]"),
    ("y[b] = 0x10*x[b]", "y[b] = 16 * x[b]"),
    ("y[b] = inf*x[b]", "y[b] = inf * x[b]"),
    ("y[b] = pi*x[b]", "y[b] = 3.141592653589793 * x[b]"),
    ("y[b] = 2j*x[b]", "y[b] = 2j * x[b]"),
    ("y[b] = x[b]/sqrt(d1*d2)", "y[b] = x[b] / sqrt(d1 * d2)"),
    # functions
    ("y[b] = gelu(x[b])", "y[b] = gelu(x[b])"),
    ("y[b] = maximum(x[b],0)", "y[b] = maximum(x[b], 0)"),
    ("y[b,j] = softmax[j](s[b,j])", "y[b,j] = softmax[j](s[b,j])"),
    ("y[b] = mean[i,j](x[b,i,j])", "y[b] = mean[i,j](x[b,i,j])"),
    ("y[b] = exp(sum[i](x[b,i]))", "y[b] = exp(sum[i](x[b,i]))"),
    ("y[b,c] = normalize[c](x[b,c],eps=0.5)", "y[b,c] = normalize[c](x[b,c], eps=0.5)"),
    ("y[b,i] = roll(x[b,i],i=-1)", "y[b,i] = roll(x[b,i], i=-1)"),
    ("y[b,i] = roll(x[b,i],i=-s)", "y[b,i] = roll(x[b,i], i=-s)"),
    ("y[b,i] = pad(x[b,i],i=(1,2),value=3)", "y[b,i] = pad(x[b,i], i=(1, 2), value=3)"),
    ("y[n,c] = concat[n](cls[1,c],p[n,c])", "y[n,c] = concat[n](cls[1,c], p[n,c])"),
    ("y[b,v] = onehot[v](t[b])", "y[b,v] = onehot[v](t[b])"),
    ("y[b] = dropout(x[b],0.1)", "y[b] = dropout(x[b], 0.1)"),
    ("y[i,j] = where(index(i)>=index(j),s,-inf)", "y[i,j] = where(index(i) >= index(j), s, -inf)"),
    # white space and comments
    ("  y[b] = x[b]  # as in the paper", "y[b] = x[b]"),
    ("y[b] = (x[b] +\n  u[b])", "y[b] = x[b] + u[b]"),
]


@pytest.mark.parametrize(("text", "printed"), GRAMMAR)
def test_grammar_row_prints_in_its_canonical_form(text: str, printed: str) -> None:
    assert str(read(text)) == printed


@pytest.mark.parametrize("printed", [printed for _, printed in GRAMMAR])
def test_canonical_form_prints_as_itself_and_means_the_same(printed: str) -> None:
    assert str(read(printed)) == printed
    assert read(str(read(printed))) == read(printed)


@pytest.mark.parametrize("text", ["y[(p,q)] = x[p] * u[q]", "y[p,q] = x[(p,q)]", "y[b] = E[t[(b,i)]]"])
def test_a_composite_axis_that_stands_alone_is_one_dimension(text: str) -> None:
    equation = read(text)
    indices = [
        equation.left,
        *(part.index for part in subexpressions(equation.right) if hasattr(part, "index")),
    ]
    assert any(isinstance(entry, tuple) for index in indices for entry in index)
    assert read(str(equation)) == equation


def test_a_composite_axis_that_stands_alone_prints_and_reads_back_as_one_dimension() -> None:
    equation = read("y[(p,q),] = x[p] * u[q]")
    assert equation.left == (("p", "q"),)
    assert read(str(equation)) == equation


@pytest.mark.parametrize(
    ("names", "kinds"),
    [
        ("x", [("x", None)]),
        ("x, t", [("x", None), ("t", None)]),
        ("x[b,n] t[b]", [("x", 2), ("t", 1)]),
        (["x[b,n]", "t"], [("x", 2), ("t", None)]),
    ],
)
def test_inputs_are_named_with_or_without_axes(names: Any, kinds: list[tuple[str, int | None]]) -> None:
    found = [
        (each.name, None if each.dims is None else len(each.dims)) for each in parse_names(names, "input")
    ]
    assert found == kinds


@pytest.mark.parametrize(
    ("text", "value"), [("4", 4), ("4*D + 1", 13), ("D**2", 9), ("(D+1)/2", 2), ("-D + 5", 2), ("D - 1", 2)]
)
def test_a_size_is_read_as_integer_or_formula(text: str, value: int) -> None:
    size = parse_size(text)
    assert (size if isinstance(size, int) else sympy.sympify(size).subs({"D": 3})) == value


OPERATORS = ("+", "-", "*", "/", "**", "<", "<=", ">", ">=", "==", "!=", "&", "|")


def expression_texts(depth: int = 4) -> st.SearchStrategy[str]:
    """Right sides in the grammar, with every operator and number; what they mean is not looked at."""
    numbers = st.one_of(
        st.integers(0, 10**20).map(str),
        st.floats(0, 1e300, allow_nan=False).map(repr),
        st.sampled_from(["inf", "pi", "1e999", "2j", "0.5j", "1_000", "0x1f"]),
    )
    tensors = st.sampled_from(
        [
            "q",
            "x[b,i]",
            "E[t[b,i],c]",
            "Q[(h,d),e]",
            "z[b,0]",
            "z[-1,c]",
            "w[...,i]",
            "blocks.0.W[i,j]",
            "x[(h,),i]",
        ]
    )

    def larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        pairs = st.tuples(inner, st.sampled_from(OPERATORS), inner)
        calls = [
            "gelu({})",
            "softmax[j](x[b,j] * ({}))",
            "sum[i](x[b,i] * ({}))",
            "roll({}, i=-1)",
            "abs(-({}))",
        ]
        return st.one_of(
            pairs.map(lambda each: f"({each[0]}) {each[1]} ({each[2]})"),
            st.tuples(st.sampled_from("-+~"), inner).map(lambda each: f"{each[0]}({each[1]})"),
            st.tuples(st.sampled_from(calls), inner).map(lambda each: each[0].format(each[1])),
            st.tuples(inner, inner).map(lambda each: f"maximum({each[0]}, {each[1]})"),
            st.tuples(inner, inner).map(lambda each: f"where(index(i) >= index(j), {each[0]}, {each[1]})"),
            inner.map(lambda each: f"pad({each}, i=(1,2), value=0.5)"),
        )

    return st.recursive(st.one_of(numbers, tensors), larger, max_leaves=2**depth)


@given(expression_texts())
@example("-(2)").via("a negative number is not a negated one")
@example("-(-(2))")
@example("0.5j")
@example("(2) - (-(3))")
@example("(1) / ((1) / (q))")
@example("((q) ** (2)) ** (3)")
@example("(-(q)) * (-(q))")
@example("-((1) * (q))")
@example("~(~(q))")
def test_printing_an_expression_and_reading_it_again_changes_nothing(text: str) -> None:
    expression = read(f"y[b] = {text}").right
    assert read(f"y[b] = {show(expression)}").right == expression


# ---------------------------------------------------------------------------- the Einstein rule


def sums(expression: Expression) -> dict[str, tuple[str, ...]]:
    """What each sum runs over, under the printed product it is a sum of."""
    return {
        " * ".join(show(factor) for factor in part.factors): part.summed
        for part in subexpressions(expression)
        if isinstance(part, Contraction) and part.summed
    }


EINSTEIN: list[tuple[str, dict[str, tuple[str, ...]]]] = [
    ("y[b,p] = x[b,i] * W[p,i]", {"x[b,i] * W[p,i]": ("i",)}),
    ("y[b] = x[b,i]", {"x[b,i]": ("i",)}),
    ("y = x[b,i]", {"x[b,i]": ("b", "i")}),
    ("y[b] = x[b,i] * u[b]", {"x[b,i] * u[b]": ("i",)}),
    ("y[b,i] = x[b,i] * u[i]", {}),
    ("y[b] = x[b,i] / u[i]", {"x[b,i] * 1 / u[i]": ("i",)}),
    ("y[b] = -x[b,i]", {"-1 * x[b,i]": ("i",)}),
    # each term of a sum on its own
    ("y[b] = x[b,i] * u[i] + v[b,j]", {"x[b,i] * u[i]": ("i",), "v[b,j]": ("j",)}),
    ("y[b] = x[b,i] - u[b,i]", {"x[b,i]": ("i",), "-1 * u[b,i]": ("i",)}),
    ("y[b] = (x[b,i] + u[b,i]) * v[b]", {"x[b,i]": ("i",), "u[b,i]": ("i",)}),
    # the innermost product that holds every occurrence
    ("y[b] = (x[b,i] + u[b,i]) * w[i]", {"x[b,i] + u[b,i] * w[i]": ("i",)}),
    ("y[b] = tanh(u[b,i] * v[b,i]) * x[b]", {"u[b,i] * v[b,i]": ("i",)}),
    ("y[b] = sum[i](tanh(u[b,i] * v[b,i]) * x[b,i])", {"tanh(u[b,i] * v[b,i]) * x[b,i]": ("i",)}),
    ("y[b] = tanh(x[b,i]) * tanh(u[b,i])", {"tanh(x[b,i]) * tanh(u[b,i])": ("i",)}),
    ("y[b] = exp(sum[i](x[b,i]))", {"x[b,i]": ("i",)}),
    # axes that a function binds
    ("y[b] = mean[i](x[b,i])", {}),
    ("y[b,j] = softmax[j](q[b,c] * k[j,c])", {"q[b,c] * k[j,c]": ("c",)}),
    (
        "y[b,d] = softmax[j](q[b,c] * k[j,c]) * v[j,d]",
        {"softmax[j](sum[c](q[b,c] * k[j,c])) * v[j,d]": ("j",), "q[b,c] * k[j,c]": ("c",)},
    ),
    # gathers, diagonals, composites
    ("y[c] = E[t[b],c] * u[b]", {"E[t[b],c] * u[b]": ("b",)}),
    ("y = x[i,i]", {"x[i,i]": ("i",)}),
    ("y[i] = x[i,i]", {}),
    ("y[b,h] = x[b,(h,d)]", {"x[b,(h,d)]": ("d",)}),
]


@pytest.mark.parametrize(("text", "expected"), EINSTEIN)
def test_einstein_rule_sums_where_the_text_implies(text: str, expected: dict[str, tuple[str, ...]]) -> None:
    assert sums(einstein(read(text)).right) == expected


def test_an_axis_is_summed_inside_the_function_where_it_is_held_and_outside_where_it_is_not() -> None:
    outer = einstein(read("y[b,o] = gelu(x[b,i]*W[f,i] + u[f]) * Z[o,f]")).right
    assert isinstance(outer, Contraction)
    assert outer.summed == ("f",)
    function = outer.factors[0]
    assert isinstance(function, Call)
    assert sums(function) == {"x[b,i] * W[f,i]": ("i",)}


@pytest.mark.parametrize("text", [text for text, _ in EINSTEIN])
def test_sums_written_out_are_left_alone(text: str) -> None:
    once = einstein(read(text))
    assert einstein(once) == once


# ---------------------------------------------------------------------------- errors as they are read


def test_an_error_survives_pickling() -> None:
    import pickle

    with pytest.raises(tn.EquationError, match="'geluu' is not a function") as caught:
        tn.layer("y[b] = geluu(x[b])", inputs="x")
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), type(copy), copy.place) == (str(caught.value), tn.EquationError, caught.value.place)


# ---------------------------------------------------------------------------- garbage

WORDS = """
x y W b i j d t sum mean softmax gelu where index roll pad concat onehot inf pi sqrt normalize dropout
[ ] ( ) , : = == + - * / ** ~ & | < >= ... . 0 1 -1 2 0.5 1e9 99999999999999999999 2j input parameter
constant output None True "s" lambda if else @ // % ; # -> x[b,i] W[i] y[b]
"""
TOKENS = [*WORDS.split(), "\\", "\n", "\t", " "]

HARD = [
    "",
    " ",
    "\x00",
    "y[b] = x[b]\x00",
    "y[b] = x[b] \\",
    "\ufeffy[b] = x[b]",
    "y[b] = x[b]\r\ny2[b] = x[b]\rz[b] = x[b]",
    "y[b] = x[b]\x0cz[b] = x[b]",
    "ﬁ[b] = x[b] * fi[b]",
    "y[b] = x[b] * 9**9**9**9",
    "y[b] = x[b] / 0",
    "y[b] = x[b] * " + "9" * 5000,
    "y[b] = x[b," + "9" * 4000 + "]",
    "y[b] = x[b] * 1e999",
    "b: " + "9" * 4000 + "\ny[b] = x[b]",
    "b: 9**9**9**9\ny[b] = x[b]",
    "b: 9**15**15\ny[b] = x[b]",
    "b: (((9**15)**15)**15)**15\ny[b] = x[b]",
    "b: 1/0\ny[b] = x[b]",
    "b: b\ny[b] = x[b]",
    "b: b + 1\ny[b] = x[b]",
    "b: i\ni: b\ny[b] = x[b,i]",
    "x[b: b + 1]: input\ny[b] = x[b]",
    "y[b] = roll(x[b], b=9**9**9**9)",
    "y[b] = roll(x[b], b=1/0)",
    "y[b] = pad(x[b], b=(9**9**9**9, 0))",
    "y[b] = pad(x[b], b=(-9,-9))",
    "W[b]: parameter(std=9**9**9)\ny[b] = x[b] * W[b]",
    "W[b]: parameter(std=-1)\ny[b] = x[b] * W[b]",
    "W[b]: parameter(std=1j)\ny[b] = x[b] * W[b]",
    "y[b] = " + "(" * 150 + "x[b]" + ")" * 150,
    "y[b] = " + "(" * 20000 + "x[b]" + ")" * 20000,
    "y[b] = " + "gelu(" * 90 + "x[b]" + ")" * 90,
    "y[b] = " + "-" * 5000 + "x[b]",
    "y[b] = " + "+".join(["x[b]"] * 2000),
    "y[b] = " + "**".join(["x[b]"] * 500),
    "y[b] = " + "x[" * 80 + "b" + "]" * 80,
    "y[" + ",".join(f"a{n}" for n in range(300)) + "] = x[" + ",".join(f"a{n}" for n in range(300)) + "]",
    "y[b] = x[b].__class__.__mro__",
    "y[b] = [c for c in ().__class__.__base__.__subclasses__()]",
    "y[b] = f'{x}'",
    "y[b] = (z := x[b])",
    "y[b] = await x[b]",
    "y[b] = x[b] if 1 else x[b]",
    "lambda: 1",
    "def f(): pass",
    "class y: pass",
    "y[b] = x[*b]",
    "y[*b] = x[b]",
    "(y)[b] = x[b]",
    "y[b][c] = x[b,c]",
    "x.0.[b] = x[b]",
    "y[b] = x...[b]",
]


def check_layer(text: str) -> None:
    """Either a graph that prints and hashes, or an error of our own; soon."""
    with within(5):
        try:
            graph = tn.layer(text, inputs="x")
        except tn.TensornetError:
            return
        assert tn.layer(str(graph)) == graph


def check_einsum(text: str, *arrays: Any) -> None:
    with within(5), np.errstate(all="ignore"):
        try:
            result = tn.einsum(text, *arrays)
        except tn.TensornetError:
            return
        assert isinstance(result, np.ndarray | np.generic)


@pytest.mark.parametrize("text", HARD, ids=range(len(HARD)))
def test_hard_text_is_a_layer_or_an_error_of_ours(text: str) -> None:
    check_layer(text)


@pytest.mark.parametrize("text", HARD, ids=range(len(HARD)))
def test_hard_text_is_an_einsum_or_an_error_of_ours(text: str) -> None:
    check_einsum(text, np.ones(2))


@examples(20)
@given(st.text(max_size=60))
def test_any_text_is_a_layer_or_an_error_of_ours(text: str) -> None:
    check_layer(text)
    check_layer(f"y[b] = x[b] * {text}")


@given(st.lists(st.sampled_from(TOKENS), max_size=25))
def test_token_soup_is_a_layer_or_an_error_of_ours(tokens: list[str]) -> None:
    check_layer(" ".join(tokens))
    check_layer("y[b] = x[b] " + "".join(tokens))


@given(st.text(alphabet="abij ,.->()[]x0\x00é", max_size=25))
@example("->")
@example("a->")
@example("(a b) -> (a) b")
@example("... a, ... b -> ...")
def test_any_text_is_an_einsum_or_an_error_of_ours(text: str) -> None:
    check_einsum(text, np.ones((2, 2)))
    check_einsum(text, np.ones((2, 3)), np.ones(3))


@pytest.mark.parametrize(
    "arguments",
    [
        ("i->i",),
        (),
        (None, np.ones(2)),
        (3, np.ones(2)),
        ("i->i", None),
        ("i->i", "text"),
        ("i->i", object()),
        ("i->i", [[1, 2], [3]]),
        ("i->i", {}),
        (np.ones(2), [0], [0, 0]),
        (np.ones(2), [None]),
        (np.ones(2), 3),
        ("i,i->i", np.ones(2)),
        ("i->i", np.ones(2), np.ones(2)),
    ],
)
def test_einsum_of_wrong_arguments_is_an_error_of_ours(arguments: tuple[Any, ...]) -> None:
    with pytest.raises((tn.TensornetError, TypeError), match=r"\w+") as caught:
        tn.einsum(*arguments)
    if arguments:  # without any argument Python itself complains
        assert isinstance(caught.value, tn.TensornetError)


@pytest.mark.parametrize(
    ("equation", "shapes", "shape"),
    [
        ("a b -> (a b)", [(2, 3)], (6,)),
        ("a b -> (b a)", [(2, 3)], (6,)),
        ("a, b -> (a b)", [(2,), (3,)], (6,)),
        ("(a b), a c -> (b c)", [(6,), (2, 4)], (12,)),
        ("a, (a b) -> b a", [(2,), (6,)], (3, 2)),
    ],
)
def test_einsum_joins_and_splits_a_whole_dimension(
    equation: str, shapes: list[tuple[int, ...]], shape: tuple[int, ...]
) -> None:
    arrays = [np.arange(np.prod(each), dtype=float).reshape(each) for each in shapes]
    assert tn.einsum(equation, *arrays).shape == shape
