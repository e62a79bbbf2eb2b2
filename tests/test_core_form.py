"""The core form: programs there and back, one node for equal values, sizes as arguments."""

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
from tensornet.graph.element_types import of_leaves, of_tensors
from tensornet.graph.graph import Graph
from tensornet.ir import node as nodes
from tensornet.ir.build import leaf, node, number
from tensornet.ir.function import Function, applied, order, rewritten
from tensornet.ir.naming import graph_of
from tensornet.ir.node import Affine, Gather, Node, Operand, along
from tensornet.ops.table import Element
from tensornet.sizes import evaluate as size_at
from tensornet.sizes import symbol

from .array_functions import join_leading, split_leading
from .conftest import sampled
from .core_form import evaluate, sizes_of
from .test_settings import SMALL

# Random programs, and those that went wrong once, go through `differential.check`, which holds the core form too.

ROWS: list[tuple[str, str, dict[str, int]]] = [
    ("y[b,o] = gelu(x[b,i] * W[o,i] + c[o])", "x", {}),
    ("y[b,p,o] = x[b,2*p + u,c] * K[u,c,o]", "x[b,t,c]", {"u": 3}),
    ("y[p,k] = x[k, 7 - p - u] * K[u]", "x[k,t]", {"u": 3, "t": 8}),
    ("y[b,(h,d)] = roll(x[b,(h,d)], d=1) * index(h)", "x", {"h": 2, "d": 3}),
    ("y[i] = x[i,i] + x[i,-1] + x[0,i]", "x", {}),
    ("y[b,n,c] = E[t[b,n],c]", "t", {"c": 3}),
    ("y[j,c] = 0\ny[t[n],c] += x[n,c]", "t, x", {"j": 9}),
    ("y[j] = 0\ny[2*p + 1] += x[p]", "x", {"j": 9, "p": 4}),
    ("y[b,n] = concat[n](x[b,n], z[b,n], w[b])", "x, z, w", {}),
    ("y[b,i] = pad(tanh(x[b,i]), i=(2,-1), value=1/2) * 2", "x", {}),
    ("y[b,i] = x[b,1:] - x[b,:-1]", "x[b,i]", {}),
    ("y[b,k] = top[i,k](x[b,i])\nz[b] = argmax[i](x[b,i])\nw[b,k] = x[b,y[b,k]] + z[b]", "x", {"k": 2}),
    ("y[b,i] = where(x[b,i] > mean[i](x[b,i]), x[b,i] / sqrt(i), -1)", "x", {}),
    ("y[b,i] = softmax[i](x[b,i]) / 3 + i // 2", "x", {}),
    ("y[...,o] = normalize[i](x[...,i]) * W[o,i]", "x", {"o": 3}),
    ("h[b,t,o] = tanh(x[b,t,i] * W[o,i] + h[b,t-1,p] * U[o,p] - h[b,t-2,o])", "x", {}),
    ("h[t] = x[t] + 0.5 * h[t+1]\nh[+1] = 2", "x", {}),
    ("h[i,j] = x[i,j] + 0.3 * h[i-1,j] + 0.2 * h[i,j-1]", "x", {}),
    (
        "def f(x):\n    x[i,j]: input\n    y[i] = x[i,j] * W[j]\ny = f(a, scope='one')\nz = f(c, scope='two')",
        "a[b,k], c[m,q]",
        {},
    ),
]


def arrays_for(graph: Graph, sizes: dict[str, int]) -> dict[str, Any]:
    """Arrays for the leaves of a graph, positions among them 0 or 1."""
    draw, kinds = np.random.default_rng(0), of_leaves(graph)
    found = {}
    for each in (each for each in graph.leaves if each.value is None):
        shape = [int(size_at(size_at(size, graph.bound), sizes)) for size in each.shape]
        kind = kinds[each.name]
        found[each.name] = draw.integers(0, 2, shape) if kind.is_position else draw.normal(size=shape) * 0.5
        if kind is Element.TRUTH:
            found[each.name] = draw.random(shape) > 0.5
    return found


def results(graph: Graph, arrays: dict[str, Any]) -> list[Any]:
    parameters = {each.name: arrays[each.name] for each in graph.parameters}
    found = tn.compile(graph, dtype="float64")(parameters, *(arrays[each.name] for each in graph.inputs))
    return [np.asarray(each) for each in (found if isinstance(found, tuple) else (found,))]


def interpreted(graph: Graph, arrays: dict[str, Any]) -> list[Any]:
    function, names = function_of(graph)
    arrays = dict(arrays)
    leading = join_leading(graph, arrays)
    given = [arrays[each.name] for each in names.leaves if each.value is None]
    known = {"lead": int(np.prod(leading))} | {n: v for n, v in graph.sizes if isinstance(v, int)}
    found = evaluate(function, given, sizes_of(function, given, known))
    return [
        split_leading(graph, *pair, leading)
        for pair in zip(graph.outputs, map(np.asarray, found), strict=True)
    ]


def check(graph: Graph, sizes: dict[str, int]) -> None:
    """The graph, its function interpreted, and the graph that is named after it have the same values."""
    arrays = arrays_for(graph, sizes)
    again = graph_of(*function_of(graph))
    for one, two, three in zip(
        results(graph, arrays), interpreted(graph, arrays), results(again, arrays), strict=True
    ):
        np.testing.assert_allclose(two, one, atol=1e-10)
        np.testing.assert_allclose(three, one, atol=1e-10)
    assert [each.name for each in again.leaves] == [each.name for each in graph.leaves]
    assert again.outputs == graph.outputs
    kinds = of_tensors(graph)
    function, _ = function_of(graph)
    assert [each.element for each in function.outputs] == [kinds[name] for name in graph.outputs]


@pytest.mark.parametrize(("text", "inputs", "sizes"), ROWS, ids=[row[0].splitlines()[0] for row in ROWS])
@pytest.mark.parametrize("length", [3, 8])
def test_a_program_there_and_back(text: str, inputs: str, sizes: dict[str, int], length: int) -> None:
    """With sizes that stay open in the function."""
    graph = tn.layer(text, inputs=inputs, **sizes)
    check(graph, dict.fromkeys(graph.open_sizes, length))


@pytest.mark.parametrize("name", sampled(SMALL, [*SMALL][::4]))
def test_models_there_and_back(name: str) -> None:
    graph = models.create(name, **SMALL[name])
    lengths = itertools.cycle((2, 3, 4))
    check(graph, {size: next(lengths) for size in graph.open_sizes})


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
    assert [each.op for each in order(function.outputs)] == [
        "input",
        "contract",
        "input",
        "contract",
        "tanh",
        "add",
    ]
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


def test_a_window_is_read_by_one_affine_position() -> None:
    function, _ = function_of(tn.layer("y[p] = x[2*p + u + 1] * K[u]", inputs="x", u=3))
    (product,) = function.outputs
    (entry,) = product.operands[0].reads
    assert isinstance(entry, Affine)
    assert (entry.terms, entry.offset) == (((0, 2), (1, 1)), 1)
    assert str(product.shape[0]) == "floor(x0/2) - 1"


def test_a_scatter_is_written_at_positions() -> None:
    function, _ = function_of(tn.layer("y[j,c] = 0\ny[t[n],c] += x[n,c]", inputs="t, x", j=4))
    products = [each for each in order(function.outputs) if each.op == "contract" and each.operands]
    (scatter,) = (each for each in products if any(isinstance(entry, Gather) for entry in each.result))
    assert scatter.dims[0] is None
    assert scatter.element is Element.NUMBER


def test_a_block_of_two_sizes_is_one_function() -> None:
    function, _ = function_of(tn.layer(ROWS[-1][0], inputs=ROWS[-1][1], outputs="y z", k=4))
    calls = [each for each in order(function.outputs) if each.op == "call"]
    first, second = (each.attributes["function"] for each in calls)
    assert first is second or first == second
    assert [each.attributes["sizes"] for each in calls] == [
        tuple(map(symbol, sizes)) for sizes in (("b", "k"), ("m", "q"))
    ]


def test_a_block_that_is_called_alike_is_the_same_result() -> None:
    text = "def f(x):\n    x[i]: input\n    y[i] = x[i] * x[i]\ny = f(a)\nz = f(a)"
    function, _ = function_of(tn.layer(text, inputs="a[b]", outputs="y z"))
    assert function.outputs[0] is function.outputs[1]


def test_a_call_written_out_is_what_it_calls() -> None:
    text = "def f(x):\n    x[i,j]: input\n    y[i] = x[i,j] * W[j]\ny = f(a)"
    called, _ = function_of(tn.layer(text, inputs="a[b,k]"))
    plain, _ = function_of(tn.layer("y[b] = a[b,k] * W[k]", inputs="a[b,k]"))

    def inlined(each: Node) -> Node:
        if each.op != "item" or each.operands[0].node.op != "call":
            return each
        call = each.operands[0].node
        given = [operand.node for operand in call.operands]
        return applied(call.attributes["function"], given, call.attributes["sizes"])[each.attributes["n"]]

    assert rewritten(called, inlined).outputs == plain.outputs


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
    function, _ = function_of(tn.layer(ROWS[0][0], inputs="x"))
    again: Function = pickle.loads(pickle.dumps(function))
    assert again.outputs[0] is function.outputs[0]
