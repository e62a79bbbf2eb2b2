"""Sizes in normal form against sympy, and against what they are at random values."""

from __future__ import annotations

import contextlib
import math
import pickle
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st

from tensornet.errors import ShapeError
from tensornet.language.parser import parse_size
from tensornet.sizes import (
    Size,
    are_equal,
    floored,
    is_never_negative,
    larger,
    name_of,
    of_sympy,
    put_in,
    quotient,
    read_parts,
    size_names,
    size_source,
    smaller,
    symbol,
    to_sympy,
    write_size,
)
from tests.conftest import examples

NAMES = ("a", "b", "h")
VALUES = st.fixed_dictionaries({name: st.integers(1, 9) for name in NAMES})

Pair = tuple[Any, Callable[[dict[str, int]], Fraction]]
"""A sympy expression, and what it is at whole numbers."""


def leaves() -> st.SearchStrategy[Pair]:
    numbers = st.integers(-4, 4).map(lambda n: (sympy.Integer(n), lambda at: Fraction(n)))
    names = st.sampled_from(NAMES).map(lambda n: (sympy.Symbol(n), lambda at: Fraction(at[n])))
    return st.one_of(names, names, numbers)


def deeper(inner: st.SearchStrategy[Pair]) -> st.SearchStrategy[Pair]:
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


formulas = st.recursive(leaves(), deeper, max_leaves=6)


@examples(300)
@given(formulas, VALUES)
def test_a_size_has_the_value_of_its_formula(formula: Pair, values: dict[str, int]) -> None:
    expression, at = formula
    size, expected = of_sympy(expression), at(values)
    found = put_in(size, values)
    assert found == expected
    assert isinstance(found, int) == (expected.denominator == 1)
    if isinstance(found, int):
        assert eval(size_source(size), {**values}) == expected


@examples(200)
@given(formulas, VALUES)
def test_there_and_back_it_is_the_same(formula: Pair, values: dict[str, int]) -> None:
    size = of_sympy(formula[0])
    assert of_sympy(to_sympy(size)) == size
    number = to_sympy(size).subs(values)
    assert Fraction(int(sympy.numer(number)), int(sympy.denom(number))) == formula[1](values)
    assert read_parts(write_size(size)) == size
    assert of_sympy(sympy.sympify(str(size), {name: sympy.Symbol(name) for name in NAMES})) == size


@examples(200)
@given(formulas, formulas, formulas)
def test_arithmetic_has_one_result(one: Pair, two: Pair, three: Pair) -> None:
    a, b, c = (of_sympy(each[0]) for each in (one, two, three))
    assert a + b == b + a
    assert (a + b) * c == a * c + b * c
    assert hash(a * b) == hash(b * a)
    assert a - a == 0
    assert larger(a, b) == larger(b, a)
    assert larger(a, b) + smaller(a, b) == a + b
    assert floored(a + 3) == floored(a) + 3
    if c != 0:
        assert are_equal((a * c + b * c) / c, a + b, {})


Made = tuple[Any, Callable[[dict[str, int]], Fraction]]
"""A size, and what it is at whole numbers."""


def random_size(random: Random, depth: int) -> Made:
    """A size of everything that sizes are made with, quotients by sums included."""
    if not depth or random.random() < 0.15:
        if random.random() < 0.6:
            name = random.choice(NAMES)
            return symbol(name), lambda at: Fraction(at[name])
        number = random.randint(-4, 6)
        return number, lambda at: Fraction(number)
    (a, first), (b, second) = (random_size(random, depth - 1) for _ in range(2))
    by, power = random.randint(1, 4), random.randint(0, 3)
    ways: list[Callable[[], Made]] = [
        lambda: (a + b, lambda at: first(at) + second(at)),
        lambda: (a - b, lambda at: first(at) - second(at)),
        lambda: (a * b, lambda at: first(at) * second(at)),
        lambda: (a * b, lambda at: first(at) * second(at)),
        lambda: (quotient(a, b), lambda at: first(at) / second(at)),
        lambda: (floored(a, by), lambda at: Fraction(math.floor(first(at) / by))),
        lambda: (larger(a, b), lambda at: max(first(at), second(at))),
        lambda: (smaller(a, b), lambda at: min(first(at), second(at))),
        lambda: (a**power, lambda at: first(at) ** power),
    ]
    try:
        return random.choice(ways)()
    except ShapeError:  # divided by 0, or beyond what a size may be
        return a, first


@pytest.mark.parametrize("seed", range(4))
def test_random_sizes_have_their_values_as_numbers_text_source_and_parts(seed: int) -> None:
    random = Random(seed)
    for _ in range(100):
        size, expected = random_size(random, 4)
        if isinstance(size, Size):
            assert parse_size(str(size)) == size
        assert read_parts(write_size(size)) == size
        for _ in range(3):
            at = {name: random.randint(1, 9) for name in NAMES}
            try:
                value = expected(at)
            except ZeroDivisionError:
                continue
            assert put_in(size, at) == value, (str(size), at)
            with contextlib.suppress(ShapeError):  # the larger of fractions is no source in whole numbers
                source = size_source(size)
                assert value.denominator > 1 or eval(source, {**at}) == value, (str(size), at)


EQUAL = (Path(__file__).parent / "data" / "sizes.txt").read_text().splitlines()[2:]


@pytest.mark.parametrize(("one", "two"), [line.split(" = ") for line in EQUAL])
def test_equal_formulas_are_one_size(one: str, two: str) -> None:
    first, second = (of_sympy(sympy.sympify(each, evaluate=False)) for each in (one, two))
    assert first == second
    assert len({first, second}) == 1


def test_what_a_size_says_of_itself() -> None:
    h = symbol("h")
    assert str(floored((h + 1) / 2) * 2 - 3) == "2*floor(h/2 + 1/2) - 3"
    assert str(3 * symbol("a") ** 2 * h / (2 * symbol("b")) - 1 / h) == "3*a**2*h/(2*b) - 1/h"
    assert (name_of(h), name_of(h + 1), name_of(7)) == ("h", None, None)
    assert size_names(h // 2 + symbol("a")) == ("a", "h")
    assert is_never_negative(h + 3)
    assert not is_never_negative(h - 3)
    assert put_in(h, {"h": symbol("a") + 1}) * 2 == symbol("a") * 2 + 2
    assert h + sympy.Symbol("a") == symbol("a") + h == sympy.Symbol("a") + sympy.Symbol("h")
    assert isinstance(h - h + 4, int)
    assert pickle.loads(pickle.dumps(h + 1)) == h + 1
    with pytest.raises(ShapeError, match=r"the size \(h\)/0"):
        _ = h / 0
    with pytest.raises(ShapeError, match=r"sizes have no sin\(h\)"):
        of_sympy(sympy.sin(sympy.Symbol("h")))
    with pytest.raises(ShapeError, match="terms"):
        _ = sum((symbol(name) for name in "abcdefgh"), 1) ** 20
    assert isinstance(h, Size)
