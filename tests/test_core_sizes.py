"""Sizes in normal form against sympy, and against what they are at random values."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st

from tensornet.ir.size import ONE, ZERO, Size, floor, of_sympy
from tests.conftest import examples

NAMES = ("a", "b", "h")
VALUES = st.fixed_dictionaries({name: st.integers(1, 9) for name in NAMES})

Pair = tuple[Any, Callable[[dict[str, int]], Fraction]]
"""A sympy expression, and what it is at whole numbers."""


def leaves() -> st.SearchStrategy[Pair]:
    numbers = st.integers(-4, 4).map(lambda n: (sympy.Integer(n), lambda at: Fraction(n)))
    names = st.sampled_from(NAMES).map(lambda n: (sympy.Symbol(n), lambda at: Fraction(at[n])))
    return st.one_of(names, names, numbers)


def larger(inner: st.SearchStrategy[Pair]) -> st.SearchStrategy[Pair]:
    two = st.tuples(inner, inner)
    return st.one_of(
        two.map(lambda p: (p[0][0] + p[1][0], lambda at: p[0][1](at) + p[1][1](at))),
        two.map(lambda p: (p[0][0] - p[1][0], lambda at: p[0][1](at) - p[1][1](at))),
        two.map(lambda p: (p[0][0] * p[1][0], lambda at: p[0][1](at) * p[1][1](at))),
        two.map(lambda p: (sympy.Max(p[0][0], p[1][0]), lambda at: max(p[0][1](at), p[1][1](at)))),
        two.map(lambda p: (sympy.Min(p[0][0], p[1][0]), lambda at: min(p[0][1](at), p[1][1](at)))),
        st.tuples(inner, st.integers(2, 4)).map(
            lambda p: (sympy.floor(p[0][0] / p[1]), lambda at: Fraction(p[0][1](at) // p[1]))
        ),
        st.tuples(inner, st.integers(2, 4)).map(
            lambda p: (sympy.ceiling(p[0][0] / p[1]), lambda at: Fraction(-(-p[0][1](at) // p[1])))
        ),
        st.tuples(inner, st.sampled_from(NAMES)).map(
            lambda p: (p[0][0] / sympy.Symbol(p[1]), lambda at: p[0][1](at) / at[p[1]])
        ),
    )


formulas = st.recursive(leaves(), larger, max_leaves=6)


@examples(300)
@given(formulas, VALUES)
def test_a_size_has_the_value_of_its_formula(formula: Pair, values: dict[str, int]) -> None:
    expression, at = formula
    size, expected = of_sympy(expression), at(values)
    found = size.at(values)
    assert found == ZERO + ONE * expected
    assert found.value == (int(expected) if expected.denominator == 1 else None)


@examples(200)
@given(formulas, VALUES)
def test_there_and_back_through_sympy_it_is_the_same(formula: Pair, values: dict[str, int]) -> None:
    size = of_sympy(formula[0])
    again = size.to_sympy()
    assert of_sympy(again) == size
    number = again if isinstance(again, int) else again.subs(values)
    assert Fraction(int(sympy.numer(number)), int(sympy.denom(number))) == formula[1](values)


@examples(200)
@given(formulas, formulas, formulas)
def test_arithmetic_has_one_result(one: Pair, two: Pair, three: Pair) -> None:
    a, b, c = (of_sympy(each[0]) for each in (one, two, three))
    assert a + b == b + a
    assert (a + b) * c == a * c + b * c
    assert hash(a * b) == hash(b * a)
    assert a - a == ZERO
    assert a.maximum(b) == b.maximum(a)
    assert a.maximum(b) + a.minimum(b) == a + b
    assert floor(a + 3) == floor(a) + 3


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("floor(h/2 + 1/2) - 1", "floor(h/2 - 3/2) + 1"),
        ("floor((h - 3 + 2)/2) + 1", "floor((h + 1)/2)"),
        ("floor((floor(h/2) + 1)/2)", "floor((h + 2)/4)"),
        ("floor(3*h/2)", "h + floor(h/2)"),
        ("floor(h/2 + 1/3)", "floor(h/2)"),
        ("a*(b + h) - a*h", "a*b"),
        ("a*b/a", "b"),
        ("Max(3, h) - 3", "Max(0, h - 3)"),
        ("Min(a, b)", "a + b - Max(a, b)"),
        ("Max(a, a + b)", "a + b"),
        ("h/(a + b) + a/(a + b)", "(h + a)/(a + b)"),
    ],
)
def test_equal_formulas_are_one_size(one: str, two: str) -> None:
    first, second = (of_sympy(sympy.sympify(each, evaluate=False)) for each in (one, two))
    assert first == second
    assert len({first, second}) == 1


def test_what_a_size_says_of_itself() -> None:
    h = Size.of("h")
    assert str(floor((h + 1) / 2) * 2 - 3) == "2*floor(1/2*h + 1/2) - 3"
    assert (h.name, (h + 1).name, Size.of(7).value, h.value) == ("h", None, 7, None)
    assert (h // 2).names == {"h"}
    assert (h + 3).is_never_negative
    assert not (h - 3).is_never_negative
    assert h.at({"h": Size.of("a") + 1}) * 2 == Size.of("a") * 2 + 2
    with pytest.raises(ZeroDivisionError, match="h / 0"):
        _ = h / 0
    with pytest.raises(ValueError, match=r"sin\(h\) is no size"):
        of_sympy(sympy.sin(sympy.Symbol("h")))
