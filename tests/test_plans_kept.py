"""Plans as text, on disk, and while they are made."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

import tensornet as tn
from tensornet import models
from tensornet.documents import Part
from tensornet.language.encoding import read_expression, read_size, write_expression, write_size
from tensornet.language.expression import Call, Contraction, Literal, Ref, Size
from tensornet.planning.plans import Plan
from tensornet.protocol import load_backend
from tensornet.running.executable import Executable, function_of
from tensornet.sizes import symbol

from . import reference
from .damage import BYTES, DOCUMENTS
from .strategies import Block, blocks, expression_texts
from .test_settings import SMALL

SEED = random.Random


def exactly(value: Any) -> Any:
    """What came back after JSON; a text of JSON in between, for tuples and kinds of numbers."""
    return json.loads(json.dumps(value))


# ---------------------------------------------------------------------------- plans as text


@given(blocks(), st.sampled_from(["numpy", "torch"]), st.sampled_from(["float32", "float64"]))
def test_a_plan_reads_back_equal(case: Block, backend: str, dtype: str) -> None:
    found = tn.plan(case.graph(), backend=backend, dtype=dtype)
    assert Plan.from_json(found.to_json()) == found


@given(blocks(open_sizes=True))
def test_a_plan_of_open_sizes_reads_back_equal(case: Block) -> None:
    try:
        found = tn.plan(case.graph(), compare=False)
    except tn.ShapeError:  # of an axis that no array has
        reject()
    assert Plan.from_json(found.to_json()) == found


@given(blocks())
def test_a_plan_read_back_runs(case: Block) -> None:
    graph, arrays, parameters = case.graph(), case.arrays(), case.parameters()
    executable = Executable(graph, "numpy")
    executable(parameters, *arrays)  # what it saw of the arrays is in the plan as well
    found = executable.plan
    again = Plan.from_json(found.to_json())
    assert again == found
    assert [leaf.holds for leaf in again.graph.leaves] == [leaf.holds for leaf in found.graph.leaves]
    named = {**parameters, **dict(zip((leaf.name for leaf in graph.inputs), arrays, strict=True))}
    function = function_of(again, load_backend("numpy"))
    results = function(*(named[leaf.name] for leaf in executable.leaves))
    results = results if isinstance(results, tuple) else (results,)
    expected = reference.run(graph, named, executable.sizes([named[leaf.name] for leaf in executable.leaves]))
    for name, result in zip(graph.outputs, results, strict=True):
        np.testing.assert_allclose(result, expected[name], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", sorted(SMALL))
def test_plans_of_the_models_read_back_equal(name: str) -> None:
    found = tn.plan(models.create(name, **SMALL[name]), backend="torch", compare=False)
    assert Plan.from_json(found.to_json()) == found


@given(expression_texts())
def test_any_expression_reads_back_equal(text: str) -> None:
    try:
        (line,) = tn.language.reading.parse_block(f"y = {text}")
    except tn.EquationError:
        return
    assert read_expression(Part(exactly(write_expression(line.right)), "it")) == line.right


@pytest.mark.parametrize(
    "expression",
    [
        Contraction((Contraction((Ref("x", ("b",)), Ref("z", ())), ()), Literal(1)), ()),  # text: x[b] * z
        Call("add", (Call("add", (Literal(1), Literal(2.0))), Literal(-0.0))),
        Call("normalize", tuple(Ref(each, ("c",)) for each in "xgu"), ("c",), (("eps", (Literal(1e-6),)),)),
        Contraction((Ref("x", ("0.0", ("1.0", "1.1"))), Literal(float("inf")), Literal(2j)), ("0.0",)),
        Call("pad", (Ref("x", ("i",)),), (), (("i", (Literal(-1), Size("d"))), ("value", (Literal(float("-inf")),)))),
        Ref("E", (Ref("t", ("b", ("i",))), -1, "...")),
        Literal(10**40),
        Literal(True),
    ],
)  # fmt: skip
def test_what_text_would_lose_is_kept(expression: Any) -> None:
    again = read_expression(Part(exactly(write_expression(expression)), "it"))
    assert again == expression
    assert repr(again) == repr(expression)


def sizes() -> st.SearchStrategy[Any]:
    """Formulas of sizes, made of all that a size may be made of."""
    import sympy

    names = st.sampled_from("abd").map(symbol)
    small = st.integers(1, 6)

    def larger(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        pairs = st.tuples(inner, inner)
        return st.one_of(
            pairs.map(lambda each: each[0] + each[1]),
            pairs.map(lambda each: each[0] * each[1]),
            pairs.map(lambda each: sympy.Max(*each)),
            pairs.map(lambda each: sympy.Min(*each)),
            st.tuples(inner, small).map(lambda each: sympy.floor(each[0] / sympy.Integer(each[1]))),
            st.tuples(inner, small).map(lambda each: sympy.ceiling(each[0] / sympy.Integer(each[1]))),
            st.tuples(inner, st.integers(-2, 3)).map(lambda each: sympy.Integer(1) * each[0] ** each[1]),
        )

    return st.recursive(st.one_of(names, names, small), larger, max_leaves=8)


@given(sizes())
def test_any_size_reads_back_equal(size: Any) -> None:
    assert read_size(Part(exactly(write_size(size)), "it")) == size


def test_a_size_whose_text_reads_as_another_is_written_by_its_parts() -> None:
    a, b = symbol("a"), symbol("b")
    product = (a + 1) * (b + 1) * 2
    assert write_size(product) == {"Mul": [2, "a + 1", "b + 1"]}
    assert write_size(2 * a * b) == "2*a*b"
    assert read_size(Part(write_size(product), "it")) == product
    assert write_size(2**70 * a) == {"Mul": [2**70, "a"]}
    assert read_size(Part(write_size(2**70 * a / 3), "it")) == 2**70 * a / 3


@pytest.mark.parametrize(
    "size",
    ["__import__('os')", "a..b", "", "1/0", "2**9**9", -(2**600) * 0.5, None, True, [], {}, {"Pow": [10, 10**9]},
     {"Mul": [1]}, {"Pow": ["a", "b"]}, {"Rational": [1, 0]}, {"Pow": [0, -1]}, {"Lambda": ["a", "a"]},
     {"Add": [1, 2], "Mul": [1, 2]}, {"Pow": [{"Pow": [2**60, 63]}, 63]}],
)  # fmt: skip
def test_what_is_no_size_is_refused(size: Any) -> None:
    with pytest.raises(tn.EquationError, match=r"^it"):
        read_size(Part(size, "it"))


def small_plan() -> Plan:
    """A plan with a bit of everything: a gather, a pad, a composite, a constant, a start."""
    graph = tn.layer(
        "e[b,i,d] = E[t[b,i],d] * m[d]\nh[b,i,(k,d)] = pad(e[b,i,d], i=(1,1)) * W[k]\n"
        "y[b,o] = softmax[o](h[b,i,(k,d)] * V[i,k,d,o] + inf * index(o)) * sqrt(d) / (b + 1)",
        inputs="t", constants={"m": np.arange(3.0)}, init={"W": np.ones(2)}, k=2,
    )  # fmt: skip
    return tn.plan(graph, b=3)


def test_a_plan_is_told_by_format_and_version() -> None:
    document = json.loads(small_plan().to_json())
    assert (document["format"], document["version"]) == ("tensornet.plan", 2)
    assert document["steps"][0]["equation"] == str(small_plan().steps[0].equation)
    with pytest.raises(tn.EquationError, match=r"not a plan of version 2: tensornet.plan 1\nfix: plan anew"):
        Plan.from_json(json.dumps({**document, "version": 1}))
    with pytest.raises(tn.EquationError, match=r"not a plan of version 2: tensornet.graph 1"):
        Plan.from_json(small_plan().graph.to_json())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (lambda d: d.pop("steps"), r"plan has no 'steps'"),
        (lambda d: d["steps"][2].pop("flops"), r"plan.steps\[2\] has no 'flops'"),
        (lambda d: d["steps"][0].update(flops="many"), r"plan.steps\[0\].flops is a str where a whole number"),
        (lambda d: d["steps"][0].update(equation="y = 1"), r"plan.steps\[0\].equation is not the text of t1\["),
        (lambda d: d["steps"][0].update(name="x = 1; import os"), r"plan.steps\[0\].name is 'x = 1; import os'"),
        (lambda d: d["steps"].pop(0), r"plan cannot be: step 2 reads 't1', which is not there"),
        (lambda d: d["steps"].append(d["steps"][0]), r"step \d+ makes what is there already"),
        (lambda d: d["results"][0]["value"].update(read="q"), r"the result 'y' is 'q', which is not there"),
        (lambda d: d["graph"]["equations"].pop(0), r"'e' is used before it is defined"),
        (lambda d: d["steps"][0].update(element="REAL"), r"element is 'REAL' where TRUTH or SHORT"),
        (lambda d: d["steps"][0].update(right={"call": "system", "of": [], "over": [], "with": []}),
         r"plan.steps\[0\].right calls 'system', which is no function here"),
        (lambda d: d["graph"]["leaves"][-1].update(value={"dtype": "<f8", "shape": [3], "data": "AA=="}),
         r"plan.graph.leaves\[\d\].value is no array"),
    ],
)  # fmt: skip
def test_a_damaged_plan_names_the_trouble(changed: Any, message: str) -> None:
    document = json.loads(small_plan().to_json())
    changed(document)
    with pytest.raises(tn.EquationError, match=message):
        Plan.from_json(json.dumps(document))


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null", "[" * 10**5, '{"format": 1}', b"\xff"])
def test_what_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(tn.EquationError, match="plan"):
        Plan.from_json(text)


def test_damage_of_every_kind_is_refused_or_harmless() -> None:
    draw, whole = SEED(0), small_plan().to_json().encode()
    for ways in (BYTES, DOCUMENTS):
        for way in ways.values():
            for _ in range(20):
                damaged = way(whole, draw)
                try:
                    found = Plan.from_json(damaged.decode(errors="replace"))
                except (tn.EquationError, tn.ShapeError):
                    continue
                assert Plan.from_json(found.to_json()) == found


def test_the_names_of_registered_functions_must_be_known() -> None:
    tn.register("halved", numpy=lambda a: a / 2)
    found = tn.plan(tn.layer("y[i] = halved(x[i])", inputs="x"))
    try:
        assert Plan.from_json(found.to_json()) == found
        text = found.to_json().replace("halved", "quartered")
        with pytest.raises(
            tn.EquationError, match=r"calls 'quartered', which is no function here\nfix: tensornet.reg"
        ):
            Plan.from_json(text)
    finally:
        del tn.operations.functions.FUNCTIONS["halved"]
