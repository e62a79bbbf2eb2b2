"""Faults that reviewers found in models, each held by a test."""

from __future__ import annotations

import numpy as np
import pytest
import sympy
import torch

import tensornet as tn
from tensornet import models
from tensornet.models.attention import dot_product_attention

LOGITS = np.log([[0.7, 0.2, 0.1], [0.05, 0.05, 0.9]])


def test_a_position_outside_fails_in_compiled_code() -> None:
    module = tn.module(models.cross_entropy())
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    good = compiled(torch.tensor(LOGITS), torch.tensor([0, 2]))
    torch.testing.assert_close(good, module(torch.tensor(LOGITS), torch.tensor([0, 2])))
    with pytest.raises(RuntimeError, match="out of bounds"):  # torch.gather says so
        compiled(torch.tensor(LOGITS), torch.tensor([3, 2]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_row_that_sees_nothing_is_finite_in_every_type(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 1, 3, 4).to(dtype)
    f = tn.compile(dot_product_attention(mask="padding"), backend="torch")
    found = f({}, q, k, v, torch.zeros(1, 3, dtype=torch.bool))
    torch.testing.assert_close(found, v.mean(2, keepdim=True).expand_as(v), rtol=2e-2, atol=2e-2)


def test_symbols_with_assumptions() -> None:
    plain, positive = sympy.symbols("D h"), sympy.symbols("D h", positive=True, integer=True)
    formulas = [tn.parameter_formula(models.vit(8, 4, dim, 1, heads)) for dim, heads in (plain, positive)]
    assert formulas[0] == formulas[1]


@pytest.mark.parametrize("text", ["maximum(sum[n](x[b,n]), 1)", "minimum(sum[n](x[b,n]), 0.5)"])
def test_the_larger_of_a_tensor_and_a_number_compiles(text: str) -> None:
    module = tn.module(tn.layer(f"y[b] = {text}", inputs="x"))
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(torch.ones(2, 3)), module(torch.ones(2, 3)))


def test_a_loss_of_impossible_classes_is_finite() -> None:
    logits = np.array([[1.0, -np.inf, 2.0], [0.0, 1.0, -np.inf]])
    expected = torch.nn.functional.cross_entropy(torch.tensor(logits), torch.tensor([0, 1])).item()
    np.testing.assert_allclose(tn.compile(models.cross_entropy())({}, logits, np.array([0, 1])), expected)
    logits[1] = np.nan
    ignoring = tn.compile(models.cross_entropy(ignore=-1))
    assert np.isfinite(ignoring({}, logits, np.array([0, -1])))


def test_numbers_of_numpy_are_numbers() -> None:
    graph = models.attention(4, 2, beta=np.float64(0.5), dropout=np.float64(0.1))
    assert [leaf.name for leaf in graph.parameters] == ["Wq", "bq", "Wk", "bk", "Wv", "bv", "Wo", "bo"]


def test_an_axis_may_be_called_as_the_graph_calls_itself() -> None:
    assert tn.layer("y[self] = x[self]", inputs="x").bind(self=3).bound == {"self": 3}
