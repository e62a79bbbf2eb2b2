"""The equation language: the grammar row by row, the Einstein rule, errors as users read them, garbage."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import tensornet as tn
from tensornet.errors import PAGE
from tensornet.language.equation import Equation, einstein
from tensornet.language.expression import Call, Contraction, Expression, show, subexpressions
from tensornet.language.parser import parse_block, parse_names, parse_size
from tests.conftest import examples, within
from tests.strategies import SUMMED_ALONE, Block, blocks, expression_texts

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
    assert (size if isinstance(size, int) else size.subs({"D": 3})) == value


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


@given(blocks())
def test_a_line_of_a_graph_reads_back_with_the_same_sums(block: Block) -> None:
    for equation in block.graph().equations:
        assert str(einstein(read(str(equation)))) == str(equation)


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


@pytest.mark.parametrize(
    "text",
    [
        "y[b] = tanh(x[b,i])",
        "y[b] = tanh(x[b,i]) * u[b]",
        "y[b] = u[b] / x[b,i]",
        "y[b] = x[b] ** u[i]",
        "y[b] = maximum(x[b,i], u[b])",
        "y[b] = roll(x[b,i], i=1)",
        "y[b] = softmax[i](x[b,i])",
        "y[b] = gelu(x[b,i] + u[b])",
        "y[b] = exp(-x[b,i])",
        "y[b] = exp(2 * x[b,i])",
        "y[b] = exp(x[b,i] * u[b])",
        "y[b] = mean[j](x[b,i,j])",
    ],
)
def test_an_axis_that_occurs_only_inside_a_function_asks_for_a_sum(text: str) -> None:
    with pytest.raises(tn.EquationError, match=r"axis 'i' is not on the left(?s:.*)write sum\[i\]\(…\)"):
        tn.layer(text, inputs="x")


@pytest.mark.parametrize(
    "text", ["y[b] = x[...,b]", "y[b] = x[...,b] * u[b]", "y[b] = tanh(x[...,b])", "y[b] = x[...,i] * u[b,i]"]
)
def test_leading_axes_are_never_summed(text: str) -> None:
    with pytest.raises(tn.EquationError, match=r"'\.\.\.' is (missing|not) on the left"):
        tn.layer(text, inputs="x")


def test_two_ellipses_in_one_tensor_are_refused() -> None:
    with pytest.raises(tn.EquationError, match=r"'\.\.\.'.*twice|one '\.\.\.'"):
        tn.layer("y[...,b] = x[...,...,b]", inputs="x")


@pytest.mark.parametrize("text", ["y[b] = roll(x[b], j=1)", "y[b] = pad(x[b], j=(1,2))"])
def test_roll_and_pad_name_axes_of_their_operand(text: str) -> None:
    with pytest.raises(tn.EquationError, match="axis 'j' does not occur"):
        tn.layer(text, inputs="x")


@pytest.mark.parametrize("text", ["y[b] = roll(x[b], b=1.5)", "y[b] = pad(x[b], b=(0.5,1))"])
def test_roll_and_pad_move_by_whole_positions(text: str) -> None:
    with pytest.raises(tn.TensornetError, match="not a whole number"):
        tn.layer(text, inputs="x")


# ---------------------------------------------------------------------------- errors as they are read

ERRORS = [
    (
        "y[b] == x[b]",
        [
            "a comparison is not an equation",
            "  line 1: y[b] == x[b]",
            "          ^^^^^^^^^^^^",
            "fix: use one '=': `y[b] = …`",
        ],
    ),
    (
        "x[b]",
        [
            "this line is not an equation",
            "  line 1: x[b]",
            "          ^^^^",
            "fix: write `name[axes] = expression`",
        ],
    ),
    (
        "y[b] -= x[b]",
        [
            "this line is not an equation",
            "  line 1: y[b] -= x[b]",
            "          ^^^^^^^^^^^^",
            "fix: write `name[axes] = expression`",
        ],
    ),
    (
        "import os",
        [
            "this line is not an equation",
            "  line 1: import os",
            "          ^^^^^^^^^",
            "fix: write `name[axes] = expression`",
        ],
    ),
    (
        "y[b], z[b] = x[b]",
        [
            "the left side is not a tensor",
            "  line 1: y[b], z[b] = x[b]",
            "          ^^^^^^^^^^",
            "fix: write `name[axes] = …`",
        ],
    ),
    (
        "sum[b] = x[b]",
        [
            "'sum' belongs to the language",
            "  line 1: sum[b] = x[b]",
            "          ^^^^^^",
            "fix: choose another name",
        ],
    ),
    (
        "y[b,b] = x[b]",
        [
            "axis 'b' is on the left twice",
            "  line 1: y[b,b] = x[b]",
            "            ^",
            "fix: give each axis of a result a name of its own",
        ],
    ),
    (
        "y[0] = x[b]",
        [
            "the left side takes axis names only",
            "  line 1: y[0] = x[b]",
            "            ^",
            "fix: name the axis, as in `y[b,i]`",
        ],
    ),
    (
        "y[b] = x[1:2]",
        [
            "the axis of this slice of 'x' is not known",
            "  line 1: y[b] = x[1:2]",
            "                   ^^^",
            "fix: give 'x' its axes first, as in inputs='x[b,t]'",
        ],
    ),
    (
        'y[b] = x["b"]',
        [
            "this is not an index",
            '  line 1: y[b] = x["b"]',
            "                   ^^^",
            "fix: inside brackets stand axis names, (h,d), integers, positions (t[b,i], 2*p+u), slices or ...",
        ],
    ),
    (
        "y[b] = x[b,(i,...)]",
        [
            "this is not an index",
            "  line 1: y[b] = x[b,(i,...)]",
            "                        ^^^",
            "fix: inside brackets stand axis names, (h,d), integers, positions (t[b,i], 2*p+u), slices or ...",
        ],
    ),
    (
        "y[b] = x[b] @ x[b]",
        [
            "this operator is not part of the language",
            "  line 1: y[b] = x[b] @ x[b]",
            "                 ^^^^^^^^^^^",
            "fix: name the axes of a product, `x[b,i] * w[i,o]`: what is not on the left is summed",
        ],
    ),
    (
        "y[b] = x[b].T",
        [
            "this is not part of the language",
            "  line 1: y[b] = x[b].T",
            "                 ^^^^^^",
            "fix: use + - * / // % **, comparisons, & | ~, and the functions of the language",
        ],
    ),
    (
        'y[b] = __import__("os")',
        [
            "'__import__' is not a function",
            '  line 1: y[b] = __import__("os")',
            "                 ^^^^^^^^^^",
            "fix: `tensornet functions` lists all, tn.register adds one of your own",
        ],
    ),
    (
        "y[b] = 1 < x[b] < 2",
        [
            "this is not part of the language",
            "  line 1: y[b] = 1 < x[b] < 2",
            "                 ^^^^^^^^^^^^",
            "fix: compare two at a time, `(a < b) & (b < c)`",
        ],
    ),
    (
        "y[b] = geluu(x[b])",
        [
            "'geluu' is not a function",
            "  line 1: y[b] = geluu(x[b])",
            "                 ^^^^^",
            "fix: did you mean 'gelu'? `tensornet functions` lists all, tn.register adds one of your own",
        ],
    ),
    (
        "y[b] = swish(x[b])",
        [
            "'swish' is not a function",
            "  line 1: y[b] = swish(x[b])",
            "                 ^^^^^",
            "fix: write silu(…); `tensornet functions` lists all, tn.register adds one of your own",
        ],
    ),
    (
        "y[b] = layer_norm[b](x[b])",
        [
            "'layer_norm' is not a function",
            "  line 1: y[b] = layer_norm[b](x[b])",
            "                 ^^^^^^^^^^^^^",
            "fix: write normalize[b](…); `tensornet functions` lists all, tn.register adds one of your own",
        ],
    ),
    (
        "y[b] = gelu(x[b], x[b])",
        [
            "gelu takes 1 argument(s), not 2",
            "  line 1: y[b] = gelu(x[b], x[b])",
            "                 ^^^^^^^^^^^^^^^^",
        ],
    ),
    (
        "y[b] = gelu(*x[b])",
        [
            "'*' does not unpack here",
            "  line 1: y[b] = gelu(*x[b])",
            "                 ^^^^^^^^^^^",
            "fix: write the arguments out",
        ],
    ),
    (
        "y[b] = gelu(x[b], rate=2)",
        [
            "gelu has no keyword 'rate'",
            "  line 1: y[b] = gelu(x[b], rate=2)",
            "                 ^^^^^^^^^^^^^^^^^^",
            "fix: it takes none",
        ],
    ),
    (
        "y[b] = gelu[b](x[b])",
        [
            "gelu runs over no axis",
            "  line 1: y[b] = gelu[b](x[b])",
            "                 ^^^^^^^^^^^^^",
            "fix: write gelu(…)",
        ],
    ),
    (
        "y[b] = softmax(x[b])",
        [
            "softmax needs the axis it runs over",
            "  line 1: y[b] = softmax(x[b])",
            "                 ^^^^^^^^^^^^^",
            "fix: write softmax[j](…)",
        ],
    ),
    (
        "y[b] = softmax[0](x[b])",
        [
            "a function runs over axes",
            "  line 1: y[b] = softmax[0](x[b])",
            "                         ^",
            "fix: write softmax[j](…)",
        ],
    ),
    (
        "y[b] = softmax[j](x[b])",
        [
            "axis 'j' does not occur inside softmax",
            "  line 1: y[b] = softmax[j](x[b])",
            "                 ^^^^^^^^^^^^^^^^",
            "fix: its axes are b",
        ],
    ),
    (
        "y[b] = sum(x[b])",
        [
            "a sum names its axes and one expression",
            "  line 1: y[b] = sum(x[b])",
            "                 ^^^^^^^^^",
            "fix: write sum[i](…)",
        ],
    ),
    (
        "y[b] = sum[j](x[b])",
        [
            "axis 'j' does not occur inside the sum",
            "  line 1: y[b] = sum[j](x[b])",
            "                 ^^^^^^^^^^^^",
            "fix: its axes are b",
        ],
    ),
    (
        "y[b] = concat[b,c](x[b])",
        [
            "concat runs over one axis",
            "  line 1: y[b] = concat[b,c](x[b])",
            "                 ^^^^^^^^^^^^^^^^^",
            "fix: write concat[n](…)",
        ],
    ),
    (
        "y[b] = index(0)",
        [
            "index takes one axis name",
            "  line 1: y[b] = index(0)",
            "                 ^^^^^^^^",
            "fix: write index(i)",
        ],
    ),
    (
        "y[b] = roll(x[b])",
        [
            "roll names its axes",
            "  line 1: y[b] = roll(x[b])",
            "                 ^^^^^^^^^^",
            "fix: write roll(x, i=1)",
        ],
    ),
    (
        "y[b] = roll(x[b], b=u[b])",
        [
            "b= takes a number, not a tensor",
            "  line 1: y[b] = roll(x[b], b=u[b])",
            "                              ^^^^",
            "fix: use integers, or the names of axes for their sizes",
        ],
    ),
    (
        "y[b] = pad(x[b], b=(1,2,3))",
        [
            "pad takes (before, after)",
            "  line 1: y[b] = pad(x[b], b=(1,2,3))",
            "                             ^^^^^^^",
            "fix: write b=(1,1)",
        ],
    ),
    (
        "y[b,c] = x[b]",
        [
            "axis 'c' is on the left but nowhere on the right",
            "  line 1: y[b,c] = x[b]",
            "              ^",
            "fix: the right side has b; what is the same at each position is repeat[c](…)",
        ],
    ),
    (
        "y[b] = tanh(x[b,i])",
        [
            "axis 'i' is not on the left, and no product holds it: it occurs only in x[b,i]",
            "  line 1: y[b] = tanh(x[b,i])",
            "                          ^",
            "fix: write sum[i](…) where it is to be summed, or put 'i' on the left",
        ],
    ),
    (
        "y[b,p] = x[b,i] * gelu(W[p,k])",
        [
            "axis 'k' is not on the left, and no product holds it: it occurs only in W[p,k]",
            "  line 1: y[b,p] = x[b,i] * gelu(W[p,k])",
            "                                     ^",
            "fix: write sum[k](…) where it is to be summed, or put 'k' on the left",
        ],
    ),
    (
        "y[b] = softmax[i](x[b,i])",
        [
            "axis 'i' is not on the left, and no product holds it: it occurs only in softmax[i](x[b,i])",
            "  line 1: y[b] = softmax[i](x[b,i])",
            "                         ^",
            "fix: write sum[i](…) where it is to be summed, or put 'i' on the left",
        ],
    ),
    (
        "y[b] = maximum(x[b,i], u[i])",
        [
            "axis 'i' is not on the left, and no product holds it: it occurs only in maximum(x[b,i], u[i])",
            "  line 1: y[b] = maximum(x[b,i], u[i])",
            "                             ^",
            "fix: write sum[i](…) where it is to be summed, or put 'i' on the left",
        ],
    ),
    (
        "y[...,b] = x[b]",
        [
            "axis '...' is on the left but nowhere on the right",
            "  line 1: y[...,b] = x[b]",
            "            ^^^",
            "fix: the right side has b",
        ],
    ),
    (
        "y[b] = x",
        [
            "the axes of the input 'x' are not known yet",
            "  line 1: y[b] = x",
            "                 ^",
            'fix: write x[b,i], or list it as inputs="x[b,i]", one number as "x[()]"',
        ],
    ),
    (
        "y[b,t] = x[b,t+s] * K[4-index(s)]",
        [
            "'s' is how long the axis is here, and elsewhere index(s) says where it is",
            "  line 1: y[b,t] = x[b,t+s] * K[4-index(s)]",
            "                         ^",
            "fix: write index(s) here too, or give the size another name",
        ],
    ),
    (
        "y[b] = y[b]",
        [
            "'y' is used before it is defined",
            "  line 1: y[b] = y[b]",
            "                 ^^^^",
            "fix: order the lines so that it comes first",
        ],
    ),
    (
        "x[b] = u[b]",
        [
            "'x' is declared as input, and defined here",
            "  line 1: x[b] = u[b]",
            "          ^^^^",
            "fix: take 'x' out of the declarations, or define another name",
        ],
    ),
    (
        "x[b]: tensor; y[b] = x[b]",
        [
            "this declares no tensor",
            "  line 1: x[b]: tensor; y[b] = x[b]",
            "                ^^^^^^",
            "fix: a tensor is declared as one of: input, parameter, constant, output",
        ],
    ),
    (
        "W[b]: parameter(mean=1); y[b] = x[b] * W[b]",
        [
            "this is no way to start",
            "  line 1: W[b]: parameter(mean=1); y[b] = x[b] * W[b]",
            "                ^^^^^^^^^^^^^^^^^",
            "fix: write `parameter(std=0.02)`, or one of std, value, identity, near_identity, orthogonal, kaiming, xavier",
        ],
    ),
    (
        "y[b] = x[b] + x[b,c]",
        [
            "'x' has 1 dimension(s), and is read with 2",
            "  line 1: y[b] = x[b] + x[b,c]",
            "                        ^^^^^^",
            "fix: 'x' was defined as x[b]",
        ],
    ),
    (
        "é[b] = x[b] * gélu(x[b])",
        [
            "'gélu' is not a function",
            "  line 1: é[b] = x[b] * gélu(x[b])",
            "                        ^^^^",
            "fix: did you mean 'gelu'? `tensornet functions` lists all, tn.register adds one of your own",
        ],
    ),
    (
        "y[b] = x[b]\nz[b] = y[c]\ny[b] = z[b]",
        [
            "axis 'b' is on the left but nowhere on the right",
            "  line 2: z[b] = y[c]",
            "            ^",
            "fix: the right side has c; what is the same at each position is repeat[b](…)",
        ],
    ),
    (
        "z[b] = y[b]\ny[b] = x[b]",
        [
            "'y' is used before it is defined",
            "  line 1: z[b] = y[b]",
            "                 ^^^^",
            "fix: order the lines so that it comes first",
        ],
    ),
    (
        "y[b] = x[b]\n\n# a comment\nz[b] = gelu(y[b,c])",
        [
            "axis 'c' is not on the left, and no product holds it: it occurs only in y[b,c]",
            "  line 4: z[b] = gelu(y[b,c])",
            "                          ^",
            "fix: write sum[c](…) where it is to be summed, or put 'c' on the left",
        ],
    ),
    (
        "  y[b] = x[b]\n  z[b] = gelu(y[b], 2)",
        [
            "gelu takes 1 argument(s), not 2",
            "  line 2: z[b] = gelu(y[b], 2)",
            "                 ^^^^^^^^^^^^^",
        ],
    ),
]


@pytest.mark.parametrize(("text", "lines"), ERRORS)
def test_error_names_the_place_the_cause_and_the_fix(text: str, lines: list[str]) -> None:
    message = re.escape("\n".join(lines))
    with pytest.raises(tn.TensornetError, match=rf"\A{message}\nsee: {PAGE}#[\w-]+\Z"):
        tn.layer(text, inputs="x")


@pytest.mark.parametrize(
    "text", ["y[b] = x[b", "y[b] = x[b] x[b]", "2 = x[b]", "f(b) = x[b]", "y[b] = ", "y[b]: "]
)
def test_text_that_is_not_python_points_at_its_line(text: str) -> None:
    pattern = r"\Asyntax error: .*\n  line 2: " + re.escape(text) + r"\n +\^+\nfix: an equation reads"
    with pytest.raises(tn.EquationError, match=pattern):
        tn.layer(f"z[b] = x[b]\n{text}", inputs="x")


@pytest.mark.parametrize("equations", [None, 3, b"y[b] = x[b]", ["y[b] = x[b]"]])
def test_equations_that_are_not_text_are_refused(equations: Any) -> None:
    with pytest.raises(tn.EquationError, match=f"equations are text, not {type(equations).__name__}"):
        tn.layer(equations)


@pytest.mark.parametrize("inputs", [3, [3], ["x", None]])
def test_inputs_that_are_not_names_are_refused(inputs: Any) -> None:
    with pytest.raises(tn.EquationError, match="name"):
        tn.layer("y[b] = x[b]", inputs=inputs)


@pytest.mark.parametrize("value", [None, -1, float("nan"), "normal", [1]])
def test_a_start_that_is_no_deviation_is_refused(value: Any) -> None:
    with pytest.raises(tn.EquationError, match="init of 'W' is"):
        tn.layer("y[b] = x[b] * W[b]", inputs="x", init={"W": value})


@pytest.mark.parametrize("name", ["V", "x", "y"])
def test_only_a_parameter_has_a_start(name: str) -> None:
    with pytest.raises(tn.EquationError, match=f"init names '{name}', which is no parameter"):
        tn.layer("y[b] = x[b] * W[b]", inputs="x", init={name: 1.0})


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


def test_einsum_cannot_split_a_dimension_into_unknown_sizes() -> None:
    with pytest.raises(tn.ShapeError, match="size"):
        tn.einsum("(h d) -> h d", np.arange(6.0))


@pytest.mark.parametrize(
    "text",
    [
        "y[i] = -1 * 2 - x[i]",
        "y[i] = x[i] - -1 * 2",
        "y[i] = x[i] + (-1) // w[i]",
        "y[i] = x[i] + -w[i] // 2",
        "y[i] = x[i] - (-w[i] % 2) - -1 % w[i]",
        "y[i] = -(1 - -(2 - -x[i])) - -w[i] - -3",
    ],
)
def test_a_line_with_signs_reads_back_as_it_is(text: str) -> None:
    graph = tn.layer(text, inputs="x w" if "w[" in text else "x")
    assert tn.layer(str(graph)) == graph
    values = {"x": np.array([2.0, 5.0]), "w": np.array([3.0, 4.0])}
    expected = eval(text.partition(" = ")[2].replace("[i]", ""), {}, values)
    found = tn.compile(tn.layer(str(graph)))({}, *(values[leaf.name] for leaf in graph.inputs))
    np.testing.assert_allclose(found, expected)
