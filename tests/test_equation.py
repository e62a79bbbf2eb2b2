"""The equation language: the grammar row by row, the Einstein rule, errors as users read them, garbage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import tensornet as tn
from tensornet.language.equation import Equation, einstein
from tensornet.language.expression import Contraction, Expression, show, subexpressions
from tensornet.language.parser import parse_block
from tests.conftest import examples, rows, within
from tests.programs import SUMMED_ALONE

pytestmark = pytest.mark.filterwarnings(SUMMED_ALONE)


def read(text: str) -> Equation:
    """The one equation of a text, as parsed."""
    (equation,) = parse_block(text)
    assert isinstance(equation, Equation)
    return equation


# ---------------------------------------------------------------------------- the grammar


DATA = Path(__file__).parent / "data"


GRAMMAR = rows("grammar.txt")
GRAMMAR += [
    ("  y[b] = x[b]  # as in the paper", "y[b] = x[b]"),
    ("y[b] = (x[b] +\n  u[b])", "y[b] = x[b] + u[b]"),
    ("# it's \"the\" \\d layer of 1if\ny[b] = x[b]  # don't 'a.b'\r\n", "y[b] = x[b]"),
]


@pytest.mark.parametrize(("text", "printed"), GRAMMAR)
def test_a_row_of_the_grammar_prints_in_its_canonical_form_which_means_the_same(
    text: str, printed: str
) -> None:
    assert str(read(text)) == str(read(printed)) == printed
    assert read(printed) == read(str(read(printed)))


TENSORS = "q x[b,i] E[t[b,i],c] Q[(h,d),e] z[b,0] z[-1,c] w[...,i] blocks.0.W[i,j] x[(h,),i]"
OPERATORS = ("+", "-", "*", "/", "**", "<", "<=", ">", ">=", "==", "!=", "&", "|")


def expression_texts(depth: int = 4) -> st.SearchStrategy[str]:
    """Right sides in the grammar, with every operator and number; what they mean is not looked at."""
    numbers = st.one_of(
        st.integers(0, 10**20).map(str),
        st.floats(0, 1e300, allow_nan=False).map(repr),
        st.sampled_from(["inf", "pi", "1e999", "2j", "0.5j", "1_000", "0x1f"]),
    )
    tensors = st.sampled_from(TENSORS.split())

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


@pytest.mark.parametrize(("text", "expected"), rows("sums.txt"))
def test_einstein_rule_sums_where_the_text_implies_and_leaves_what_is_written_out(
    text: str, expected: str
) -> None:
    once = einstein(read(text))
    found = {f"{','.join(axes)} over {product}" for product, axes in sums(once.right).items()}
    assert found == {*filter(None, expected.split("; "))}
    assert einstein(once) == once


# ---------------------------------------------------------------------------- errors as they are read


def test_an_error_survives_pickling() -> None:
    import pickle

    with pytest.raises(tn.EquationError, match="'geluu' is not a function") as caught:
        tn.layer("y[b] = geluu(x[b])", inputs="x")
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), type(copy), copy.place) == (str(caught.value), tn.EquationError, caught.value.place)


# ---------------------------------------------------------------------------- garbage

HARD = [
    "",
    " ",
    "y[b] = x[b] * " + "9" * 5000,
    "y[b] = x[b," + "9" * 4000 + "]",
    "b: " + "9" * 4000 + "\ny[b] = x[b]",
    "y[b] = " + "(" * 150 + "x[b]" + ")" * 150,
    "y[b] = " + "(" * 20000 + "x[b]" + ")" * 20000,
    "y[b] = " + "gelu(" * 90 + "x[b]" + ")" * 90,
    "y[b] = " + "-" * 5000 + "x[b]",
    "y[b] = " + "+".join(["x[b]"] * 2000),
    "y[b] = " + "**".join(["x[b]"] * 500),
    "y[b] = " + "x[" * 80 + "b" + "]" * 80,
    "y[" + ",".join(f"a{n}" for n in range(300)) + "] = x[" + ",".join(f"a{n}" for n in range(300)) + "]",
]
HARD += [line.encode().decode("unicode_escape") for line in (DATA / "hard.txt").read_text().splitlines()]


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
def test_hard_text_is_a_layer_and_an_einsum_or_an_error_of_ours(text: str) -> None:
    check_layer(text)
    check_einsum(text, np.ones(2))


@examples(20)
@given(st.text(max_size=60))
def test_any_text_is_a_layer_or_an_error_of_ours(text: str) -> None:
    check_layer(text)
    check_layer(f"y[b] = x[b] * {text}")


@given(st.text(alphabet="abij ,.->()[]x0\x00é", max_size=25))
@example("->")
@example("a->")
@example("(a b) -> (a) b")
@example("... a, ... b -> ...")
def test_any_text_is_an_einsum_or_an_error_of_ours(text: str) -> None:
    check_einsum(text, np.ones((2, 2)))
    check_einsum(text, np.ones((2, 3)), np.ones(3))


def test_einsum_of_nothing_is_an_error_of_python() -> None:
    with pytest.raises(TypeError, match="missing"):
        tn.einsum()  # type: ignore[call-arg]
