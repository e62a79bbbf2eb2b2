"""The core form: programs there and back, one node for equal values, sizes as formulas."""

from __future__ import annotations

import contextlib
import gc
import itertools
import math
import pickle
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st

import tensornet as tn
from tensornet import models
from tensornet.errors import EquationError, ShapeError
from tensornet.frontend.elaborate_ir import function_of
from tensornet.graph.leaves import Leaf
from tensornet.graph.shape_inference import Axis
from tensornet.ir import node as nodes
from tensornet.ir.naming import graph_of
from tensornet.ir.node import Function, Names, Operand, along, concatenated, leaf, node, number, order
from tensornet.language.parser import parse_size, read_size
from tensornet.ops.table import Element
from tensornet.sizes import (
    Size,
    are_equal,
    floored,
    is_never_negative,
    larger,
    name_of,
    put_in,
    quotient,
    read_written,
    size_names,
    size_source,
    smaller,
    symbol,
    to_sympy,
    write_size,
)

from . import oracle
from .conftest import examples, sampled
from .differential import by_numpy, drawn_of_kinds, named
from .test_models import SMALL

# ---------------------------------------------------------------------------- The core form


# Programs, written and random, go through `differential.check`, which holds the core form too.

UNREAD = (
    "bert clip_text clip_vision deit gpt2 gru llama lstm perceiver residual_block rnn swin "
    "tensor_swin transformer transformer_classifier vit xlnet "
)
"""Models whose text the oracle does not read; other libraries have them."""


@pytest.mark.parametrize("name", sampled([*SMALL, "along two axes"], [*SMALL, "along two axes"][::4]))
def test_models_there_and_back(name: str) -> None:
    """A model, the graph that is named after its core form, and what the oracle reads of its text, are the same."""
    two = "h[i,j] = x[i,j] + 0.3 * h[i-1,j] + 0.2 * h[i,j-1]"
    graph = models.create(name, **SMALL[name]) if name in SMALL else tn.layer(two, inputs="x")
    arrays, lengths = drawn_of_kinds(graph)
    expected, found = by_numpy(graph, arrays), [by_numpy(named(graph), arrays)]
    if name not in UNREAD.split():
        found.append(oracle.meaning(graph, arrays, lengths))
    for each, output in itertools.product(found, graph.outputs):
        np.testing.assert_allclose(each[output], expected[output], atol=1e-10)


# ---------------------------------------------------------------------------- one node for equal values


def test_equal_programs_are_the_same_object() -> None:
    one, _ = function_of(tn.layer("y[b,o] = tanh(x[b,i] * W[o,i])", inputs="x"))
    two, _ = function_of(tn.layer("z[b,o] = x[b,i] * W[o,i]\nq[p,r] = tanh(z[p,r])", inputs="x"))
    assert one.outputs[0] is two.outputs[0]


def test_common_subexpressions_are_one_and_dead_code_is_not_met() -> None:
    graph = tn.layer(
        "u[b] = sum[i](x[b,i])\nv[b] = tanh(x[b,i] * k[i])\ny[b] = sum[j](x[b,j]) + tanh(x[b,m] * k[m])",
        inputs="x",
        outputs="u v y",
    )
    function, _ = function_of(graph.select("y"))
    found = " ".join(each.op for each in order(function.outputs))
    assert found == "input contract input contract tanh add"
    both, _ = function_of(graph.select(["u", "v", "y"]))
    assert both.outputs[2].operands[1].node is both.outputs[1]


def test_draws_are_never_one() -> None:
    graph = tn.layer("y[b] = dropout(x[b], 0.5) + dropout(x[b], 0.5)", inputs="x")
    (result,) = function_of(graph)[0].outputs
    first, second = (each.node for each in result.operands)
    assert first is not second
    text = "def f(x):\n    x[i]: input\n    y[i] = dropout(x[i], 0.5)\ny = f(a)\nz = f(a)"
    function, _ = function_of(tn.layer(text, inputs="a[b]", outputs="y z"))
    assert function.outputs[0] is not function.outputs[1]


def test_numbers_that_python_takes_for_equal_are_not_one() -> None:
    values = [number(1), number(1.0), number(True), number(0.0), number(-0.0)]
    assert len(set(values)) == 5
    assert number(float("nan")) is number(float("nan"))


def test_a_number_that_only_a_concatenation_sizes_is_read_back_as_long() -> None:
    """What is repeated along such an axis has an equation of its own, which gives its size."""
    given = leaf("input", [symbol("m")], Element.NUMBER, n=0)
    zeros = node("copy", {0: symbol("k")}, [Operand(number(0.0))], (along(0),))
    function = Function((given,), (concatenated([zeros, given], 0),), ("m", "k"))
    leaves = (Leaf("x", "input", ((Axis("m", symbol("m")),),)),)
    graph = graph_of(function, Names(leaves, ("y",), (("k", 2),), {}, {}))
    np.testing.assert_array_equal(tn.compile(graph)({}, np.ones(3)), [0, 0, 1, 1, 1])


def test_the_table_of_nodes_keeps_none_that_nobody_holds() -> None:
    size = symbol("n")
    chain = leaf("input", [size], Element.NUMBER, n=0)
    before = len(nodes._TABLE)
    for value in range(2000):
        chain = node(
            "add", {0: size}, [Operand(chain, (along(0),)), Operand(number(value + 0.5))], (along(0),)
        )
    assert len(nodes._TABLE) >= before + 2000
    chain = number(0)
    gc.collect()
    assert len(nodes._TABLE) <= before + 2


def test_a_function_comes_back_from_another_process() -> None:
    function, _ = function_of(tn.layer("y[b,o] = gelu(x[b,i] * W[o,i] + c[o])", inputs="x"))
    again: Function = pickle.loads(pickle.dumps(function))
    assert again.outputs[0] is function.outputs[0]


# ---------------------------------------------------------------------------- Sizes in normal form against sympy, and against what they are at random values


NAMES = ("a", "b", "h")
VALUES = st.fixed_dictionaries({name: st.integers(1, 9) for name in NAMES})

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


SIZES = st.builds(
    lambda seed, depth: random_size(Random(seed), depth), st.integers(0, 2**20), st.integers(1, 4)
)


@examples(400)
@given(SIZES, VALUES)
def test_a_size_has_its_value_as_a_number_a_text_source_parts_and_a_formula(
    made: Made, values: dict[str, int]
) -> None:
    size, expected = made
    if isinstance(size, Size):
        assert parse_size(str(size)) == size
    assert read_written(write_size(size)) == size
    assert parse_size(str(to_sympy(size))) == size
    try:
        value = expected(values)
    except ZeroDivisionError:
        return
    found, number = put_in(size, values), to_sympy(size).subs(values)
    assert found == value, str(size)
    assert isinstance(found, int) == (value.denominator == 1)
    assert Fraction(int(sympy.numer(number)), int(sympy.denom(number))) == value
    with contextlib.suppress(ShapeError):  # the larger of fractions is no source in whole numbers
        source = size_source(size)
        assert value.denominator > 1 or eval(source, {**values}) == value, str(size)


@examples(200)
@given(SIZES, SIZES, SIZES, VALUES)
def test_values_are_put_in_all_at_the_same_time(made: Made, one: Made, two: Made, at: dict[str, int]) -> None:
    """A name that stands for another is not put in again."""
    try:
        values = {**at, "a": one[1](at), "b": two[1](at)}
        expected = made[1](values)  # type: ignore[arg-type]
        found = put_in(made[0], {"a": one[0], "b": two[0]})
    except (ShapeError, ZeroDivisionError):
        return
    assert put_in(found, at) == expected


@examples(200)
@given(SIZES, SIZES, SIZES, st.integers(-9, 9), st.integers(1, 4))
def test_arithmetic_has_one_result(one: Made, two: Made, three: Made, first: int, by: int) -> None:
    a, b, c = one[0], two[0], three[0]
    assert a + b == b + a
    assert (a + b) * c == a * c + b * c
    assert hash(a * b) == hash(b * a)
    assert a - a == 0
    assert larger(a, b) == larger(b, a)
    assert larger(a, b) + smaller(a, b) == a + b
    assert floored(a + 3 * by, by) == floored(a, by) + 3
    whole = 3 * symbol("a") ** 2 - symbol("b") * symbol("h") + symbol("h") + first
    moved = {"h": symbol("b") + first, "a": symbol("h") - 2, "b": 5}
    assert put_in(floored(whole, by), moved) == floored(put_in(whole, moved), by)
    assert put_in(floored(whole, by), {"a": 2, "b": 3, "h": 7}) == (first - 2) // by
    halves, thirds = quotient(symbol("h"), 2), Fraction(first, 3)
    assert put_in(floored(halves + thirds, by), {"h": 7}) == (Fraction(7, 2) + thirds) // by
    if c != 0:
        assert are_equal((a * c + b * c) / c, a + b, {})


EQUAL = (Path(__file__).parent / "data" / "sizes.txt").read_text().splitlines()[2:]


@pytest.mark.parametrize(("one", "two"), [line.split(" = ") for line in EQUAL])
def test_equal_formulas_are_one_size(one: str, two: str) -> None:
    first, second = (read_size(sympy.sympify(each, evaluate=False), "n") for each in (one, two))
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
    with pytest.raises(EquationError, match=r"this is not a size(?s:.*)sin\(h\)"):
        read_size(sympy.sin(sympy.Symbol("h")), "n")
    with pytest.raises(ShapeError, match="terms"):
        _ = sum((symbol(name) for name in "abcdefgh"), 1) ** 20
    assert isinstance(h, Size)


def test_threads_that_make_a_size_get_one_object() -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for number in range(100):
            start = threading.Barrier(8)

            def make(number: int, start: threading.Barrier = start) -> Any:
                start.wait()
                a, b = symbol(f"a{number}"), symbol(f"b{number}")
                return a * b + 3 * a + number * b * b

            with ThreadPoolExecutor(8) as together:
                first, *others = together.map(make, [number] * 8)
            assert all(each is first for each in others)
    finally:
        sys.setswitchinterval(before)
