"""The core form: programs there and back, and one node for equal values."""

from __future__ import annotations

import gc
import itertools
import pickle
from typing import Any

import numpy as np
import pytest

import tensornet as tn
from tensornet import models
from tensornet.frontend.elaborate_ir import function_of
from tensornet.graph.element_types import of_leaves
from tensornet.graph.leaves import Leaf
from tensornet.graph.shape_inference import Axis
from tensornet.ir import node as nodes
from tensornet.ir.naming import graph_of
from tensornet.ir.node import Function, Names, Operand, along, concatenated, leaf, node, number, order
from tensornet.ops.table import Element
from tensornet.sizes import evaluate as size_at
from tensornet.sizes import symbol

from . import oracle
from .conftest import sampled
from .differential import by_numpy, named
from .test_settings import SMALL

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
    lengths = dict(zip(graph.open_sizes, itertools.cycle((2, 3, 4)), strict=False))
    draw, arrays = np.random.default_rng(0), dict[str, Any]()
    kinds = of_leaves(graph)
    for each in (each for each in graph.leaves if each.value is None):
        shape = [int(size_at(size_at(size, graph.bound), lengths)) for size in each.shape]
        truth, position = kinds[each.name] is Element.TRUTH, kinds[each.name].is_position
        drawn = draw.integers(0, 2, shape) if truth or position else draw.normal(size=shape) * 0.5
        arrays[each.name] = drawn > 0 if truth else drawn
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
