"""Faults that reviewers found in models, each held by a test."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sympy
import torch

import tensornet as tn
from tensornet import models
from tensornet.models.attention import dot_product_attention
from tensornet.models.positions import sinusoidal_positions

LOGITS = np.log([[0.7, 0.2, 0.1], [0.05, 0.05, 0.9]])


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
@pytest.mark.parametrize(("labels", "position"), [([3, 2], 3), ([0, -1], -1), ([-100, 1], -100)])
def test_a_position_outside_reads_no_neighbour(backend: str, labels: list[int], position: int) -> None:
    arrays = tn.to_backend({"x": LOGITS, "t": np.array(labels)}, backend)
    with pytest.raises(
        tn.ShapeError, match=rf"'t' holds the position {position}, where there are 3(?s:.*)0 to 2"
    ):
        tn.compile(models.cross_entropy(), backend=backend)({}, arrays["x"], arrays["t"])


def test_a_position_outside_fails_in_compiled_code() -> None:
    module = tn.module(models.cross_entropy())
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    good = compiled(torch.tensor(LOGITS), torch.tensor([0, 2]))
    torch.testing.assert_close(good, module(torch.tensor(LOGITS), torch.tensor([0, 2])))
    with pytest.raises(IndexError, match="out of range"):
        compiled(torch.tensor(LOGITS), torch.tensor([3, 2]))


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_positions_are_whole_numbers(backend: str) -> None:
    arrays = tn.to_backend({"x": LOGITS, "t": np.array([0.0, 1.0])}, backend)
    with pytest.raises(tn.DtypeError, match=r"'t' indexes, and holds .*float64(?s:.*)whole numbers"):
        tn.compile(models.cross_entropy(), backend=backend)({}, arrays["x"], arrays["t"])


@pytest.mark.parametrize(("dtype", "bound"), [(torch.bfloat16, 4e-3), (torch.float16, 5e-4)])
def test_positions_keep_their_precision_in_half_types(dtype: torch.dtype, bound: float) -> None:
    f = tn.compile(sinusoidal_positions(8), backend="torch")
    found, exact = (
        f({}, torch.zeros(1, 1000, 8, dtype=dtype)),
        f({}, torch.zeros(1, 1000, 8, dtype=torch.float64)),
    )
    assert found.dtype == dtype
    assert float((found.double() - exact).abs().max()) < bound


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


def test_positions_of_another_grid_are_refused() -> None:
    with pytest.raises(tn.ShapeError, match=r"axis 'n' of 'pos' is 17, and should be 5"):
        tn.compile(models.resize_positions(2, 2))({}, np.zeros((17, 3)))


def test_a_loss_of_impossible_classes_is_finite() -> None:
    logits = np.array([[1.0, -np.inf, 2.0], [0.0, 1.0, -np.inf]])
    expected = torch.nn.functional.cross_entropy(torch.tensor(logits), torch.tensor([0, 1])).item()
    np.testing.assert_allclose(tn.compile(models.cross_entropy())({}, logits, np.array([0, 1])), expected)
    logits[1] = np.nan
    ignoring = tn.compile(models.cross_entropy(ignore=-1))
    assert np.isfinite(ignoring({}, logits, np.array([0, -1])))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: models.attention(4, 2, beta=float("nan")), r"beta=nan(?s:.*)give a number"),
        (lambda: models.vit(8, 4, 8, -1, 2), r"depth=-1(?s:.*)from 0 to"),
        (lambda: models.vit(8, 4, 8, 2.0, 2), r"depth=2.0"),
        (lambda: models.transformer(dropout=1.5), r"dropout=1.5(?s:.*)below 1"),
        (lambda: models.vit(8, 4, 8, 1, 2, eps=-1.0), r"eps=-1.0"),
        (lambda: models.perceiver(outputs=7), r"outputs=7 with head='mean'"),
        (lambda: models.perceiver(sympy.symbols("H W")), r"shape=\(H, W\)"),
        (lambda: models.see_before([[0, 0, 1]]), r"does not hold every position once"),
        (lambda: models.factorize(2, 4.0), r"length=4.0"),  # type: ignore[arg-type]
    ],
)
def test_settings_out_of_range(make: Any, message: str) -> None:
    with pytest.raises(tn.ShapeError, match=message):
        make()


def test_numbers_of_numpy_are_numbers() -> None:
    graph = models.attention(4, 2, beta=np.float64(0.5), dropout=np.float64(0.1))
    assert [leaf.name for leaf in graph.parameters] == ["Wq", "bq", "Wk", "bk", "Wv", "bv", "Wo", "bo"]


def test_layers_that_differ_are_not_converted() -> None:
    module = torch.nn.Transformer(12, 2, 2, 1, 17, batch_first=True)
    module.decoder.layers[0].norm_first = True
    with pytest.raises(tn.ShapeError, match=r"pre differs(?s:.*)decoder.layers.0(?s:.*)layers are alike"):
        models.from_torch(module)


LAYER = "y[b,o] = x[b,i] * W[o,i]"


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: tn.to_backend({"W": LOGITS}, "numpy", dtype="float7"), tn.BackendError, "no element type 'float7'"),
        (lambda: tn.to_backend([LOGITS], "torch"), tn.DtypeError, r"a list, not arrays by their names(?s:.*)\{"),  # type: ignore[arg-type]
        (lambda: tn.to_backend({"W": LOGITS}, "torch", device="gpu"), tn.BackendError, r"no device 'gpu'(?s:.*)cuda:0"),
        (lambda: tn.module(models.tcl((2, 2), (2, 2)), device="gpu"), tn.BackendError, "no device 'gpu'"),
        (lambda: tn.layer(LAYER, inputs="x", outputs="y[c]"), tn.EquationError, r"'y' is named with axes(?s:.*)\^"),
        (lambda: tn.layer(LAYER, inputs="x", outputs="y y"), tn.EquationError, r"'y' is named twice(?s:.*)once"),
        (lambda: tn.parameter_table(models.tcl((2, 2), (2, 2)), depth=0), tn.ShapeError, r"depth=0(?s:.*)from 1"),
    ],
)  # fmt: skip
def test_what_is_passed_wrongly_is_told(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


def test_shared_parameters_start_alike() -> None:
    zeros, ones = (tn.layer(LAYER, inputs="x", o=3, init={"W": word}) for word in ("zeros", "ones"))
    with pytest.raises(tn.EquationError, match=r"'a.W' is shared by two calls(?s:.*)different scopes"):
        tn.model(lambda x: ones(zeros(x, scope="a"), scope="a"), inputs="x[b,i]", i=3)


def test_an_axis_may_be_called_as_the_graph_calls_itself() -> None:
    assert tn.layer("y[self] = x[self]", inputs="x").bind(self=3).bound == {"self": 3}
