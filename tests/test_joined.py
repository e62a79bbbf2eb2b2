"""Products of one tensor with several factors: computed as one, and the same as one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensornet as tn
from tensornet import models
from tensornet.device.cost_model import default_profile
from tensornet.planning.liveness import is_view
from tensornet.planning.steps import Step

from .differential import BACKENDS, by_numpy, computed, drawn
from .programs import has, titled
from .test_rewrites import REWRITES

torch = pytest.importorskip("torch")

CPU = default_profile("cpu")
S = {"e": 4, "c": 4, "o": 3, "p": 2, "g": 2, "h": 3, "d": 2, "f": 3, "i": 5}
FORMS = titled("joined.txt")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("form", FORMS)
def test_one_product_gives_what_several_do(form: str, backend: str) -> None:
    text = FORMS[form].text
    graph = FORMS[form].graph(inputs="x", **{axis: size for axis, size in S.items() if has(text, axis)})
    arrays = drawn(graph, **dict.fromkeys(graph.open_sizes, 4))
    frozen = tn.freeze(graph, {leaf.name: arrays[leaf.name] for leaf in graph.parameters})
    joined = REWRITES["join"](frozen)
    assert sum("concat" in str(equation) for equation in joined.own) in (1, 2)
    assert sum("pad" in str(equation) for equation in joined.own) == (
        3 if "\nw[" in text and "D" not in text else 2
    )
    expected = by_numpy(graph, arrays)
    for form_of in (frozen, joined):
        for name, each in computed(form_of, arrays, backend).items():
            np.testing.assert_allclose(each, expected[name], rtol=1e-9, atol=1e-9)


def attention(heads: int = 2, **settings: Any) -> tn.Graph:
    return models.attention(64, heads, **settings)


def frozen(graph: tn.Graph, names: str = "*") -> tn.Graph:
    return tn.freeze(graph, tn.init(graph, seed=0, backend="numpy"), names)


def products(plan: tn.Plan) -> int:
    return sum(isinstance(step, Step) and step.arrangement is not None for step in plan.steps)


def test_frozen_queries_keys_and_values_are_one_product_and_go_to_the_kernel() -> None:
    plan = tn.plan(frozen(attention()), backend="torch", profile=CPU, b=8, i=64)
    assert products(plan) == 2
    assert "scaled_dot_product_attention" in plan.code
    joined = [step for step in plan.once if isinstance(step, Step) and "concat" in str(step.equation)]
    assert [len(step.equation.left) for step in joined] == [1, 2]  # biases, and factors
    assert tn.Plan.from_json(plan.to_json()) == plan


def test_only_what_is_frozen_is_joined() -> None:
    plan = tn.plan(frozen(attention(bias=False), "Wq Wv"), backend="torch", profile=CPU, b=8, i=64)
    assert products(plan) == 3
    assert products(tn.plan(attention(), backend="torch", profile=CPU, b=8, i=64)) == 4


def test_parts_are_looks_at_the_whole() -> None:
    plan = tn.plan(frozen(attention()), backend="torch", profile=CPU, compare=False, b=8, i=64)
    parts = [step for step in plan.steps if isinstance(step, Step) and "pad" in str(step.equation)]
    assert len(parts) == 3
    assert all(is_view(step) and step.seconds == CPU.view for step in parts)
    padded = tn.plan(tn.layer("y[b,n] = pad(x[b,n], n=(-1, 1)) + 1", inputs="x", n=8), profile=CPU, b=8)
    assert not any(is_view(step) for step in padded.steps if isinstance(step, Step))


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("mask", [None, "causal"])
def test_frozen_attention_gives_the_same(backend: str, mask: str | None) -> None:
    graph = attention(4, qk=64, v=32, mask=mask)
    params = tn.init(graph, seed=0, backend="numpy", dtype="float64")
    x = np.random.default_rng(0).standard_normal((3, 17, 64))
    expected = by_numpy(graph, {**params, "x": x})["y"]
    found = computed(tn.freeze(graph, params), {"x": x}, backend)["y"]
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
