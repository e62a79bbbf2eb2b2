"""Swin (spec A8, A11): counts, windows, shifts, masks, padding, merging; parity in `test_convert.py`'s manner."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tensornet as tn
from tensornet import models
from tensornet.models.swin import MERGED, SHIFTED

small: dict[str, Any] = {"patch": 2, "dim": 4, "depths": (2, 2), "heads": (1, 2), "classes": 3, "window": 2}


def parameters_of(graph: tn.Graph) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    return {name: 0.5 * rng.standard_normal(a.shape) for name, a in tn.init(graph, dtype="float64").items()}


@pytest.mark.parametrize(
    ("name", "changes", "number"),
    [
        ("swin_t", {}, 28_288_354),
        ("swin_t", {"classes": 10}, 27_527_044),
        ("swin_s", {}, 49_606_258),
        ("swin_b", {}, 87_768_224),
    ],
)
def test_published_counts(name: str, changes: dict[str, Any], number: int) -> None:
    graph = models.create(name, **changes)
    assert tn.parameter_count(graph) == number
    assert sum(row[2] for row in tn.parameter_table(graph)) == number


@given(st.integers(1, 23), st.integers(1, 23), st.integers(1, 3), st.integers(1, 4), st.integers(1, 3))
@settings(max_examples=20)
def test_any_image(height: int, width: int, patch: int, window: int, stages: int) -> None:
    graph = models.swin((height, width), patch, 4, (2,) * stages, (2,) * stages, 3, window=window, ratio=1)
    parameters = parameters_of(graph)
    assert sum(array.size for array in parameters.values()) == tn.parameter_count(graph)
    x = np.random.default_rng(0).standard_normal((2, 3, height, width))
    y = tn.compile(graph)(parameters, x)
    assert y.shape == (2, 3)
    assert np.isfinite(y).all()


@given(st.integers(1, 3), st.integers(1, 3), st.integers(2, 4), st.integers(0, 3), st.integers(0, 99))
@settings(max_examples=25)
def test_only_neighbours_see_one_another(down: int, across: int, window: int, shift: int, seed: int) -> None:
    """A8: after the shift a token is seen exactly by those it shares a window and a part of the image with."""
    shift = shift % window
    height, width = (down + 1) * window, (across + 1) * window
    graph = models.window_attention(4, 2, window, grid=(height, width), shift=shift)
    parameters, rng = parameters_of(graph), np.random.default_rng(seed)
    x = rng.standard_normal((1, height, width, 4))  # as it is after the roll
    f = tn.compile(graph)
    before = f(parameters, x)
    at = rng.integers(height), rng.integers(width)
    other = x.copy()
    other[0, at[0], at[1]] += 1
    changed = np.abs(f(parameters, other) - before).max((0, 3)) > 0

    def part(position: int, size: int) -> int:
        """Which window, and in the last one which side of the seam."""
        return position // window * 2 + (shift > 0 and position >= size - shift)

    rows = np.array([part(y, height) == part(at[0], height) for y in range(height)])
    columns = np.array([part(z, width) == part(at[1], width) for z in range(width)])
    np.testing.assert_array_equal(changed, rows[:, None] & columns[None, :])


def test_shift_and_unshift_are_the_identity() -> None:
    x = np.random.default_rng(0).standard_normal((2, 5, 7, 3))
    there = tn.compile(tn.layer(SHIFTED.format(by=-2), inputs="g"))({}, x)
    np.testing.assert_array_equal(there, np.roll(x, (-2, -2), (1, 2)))
    np.testing.assert_array_equal(tn.compile(tn.layer(SHIFTED.format(by=2), inputs="g"))({}, there), x)


def test_merging_takes_neighbours_column_by_column() -> None:
    x = np.random.default_rng(0).standard_normal((2, 4, 6, 3))
    found = tn.compile(tn.layer(MERGED, inputs="x", u=2, v=2))({}, x)
    parts = [x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]]
    np.testing.assert_array_equal(found, np.concatenate(parts, -1))


def test_window_attention_against_its_definition() -> None:
    graph = models.window_attention(4, 2, 3)
    parameters = parameters_of(graph)
    x = np.random.default_rng(0).standard_normal((1, 3, 3, 4))
    tokens = x.reshape(9, 4)
    q, k, v = (tokens @ parameters[f"W{n}"].T + parameters[f"b{n}"] for n in "qkv")
    places = [(y, z) for y in range(3) for z in range(3)]
    heads = []
    for h in range(2):
        own = slice(2 * h, 2 * h + 2)
        bias = [[parameters["B"][(a[0] - b[0] + 2) * 5 + a[1] - b[1] + 2, h] for b in places] for a in places]
        s = q[:, own] @ k[:, own].T / np.sqrt(2) + np.array(bias)
        a = np.exp(s - s.max(1, keepdims=True))
        heads.append(a / a.sum(1, keepdims=True) @ v[:, own])
    expected = np.concatenate(heads, 1) @ parameters["Wo"].T + parameters["bo"]
    np.testing.assert_allclose(tn.compile(graph)(parameters, x).reshape(9, 4), expected, rtol=1e-10)


def test_stochastic_depth_skips_whole_examples_in_training_only() -> None:
    graph = models.swin(8, **{**small, "depths": (2,), "heads": (1,)}, stochastic_depth=0.9)
    module = tn.module(graph, seed=0)
    x = torch.randn(1, 3, 8, 8).expand(64, 3, 8, 8)
    rows = {tuple(np.round(row.tolist(), 4)) for row in module(x).detach()}
    assert 1 < len(rows) <= 4  # the last layer's two sublayers, each there or not
    module.eval()
    assert len({tuple(np.round(row.tolist(), 4)) for row in module(x).detach()}) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "changes",
    [
        {"image_size": 32},
        {"image_size": (50, 70)},
        {"image_size": 37, "window_size": 3, "qkv_bias": False, "mlp_ratio": 2.5},
        {"image_size": 64, "depths": [2, 1, 2], "num_heads": [2, 2, 4]},
    ],
)
def test_parity_with_transformers(dtype: torch.dtype, changes: dict[str, Any]) -> None:
    transformers = pytest.importorskip("transformers")
    logging.getLogger("transformers").setLevel(logging.ERROR)
    torch.manual_seed(0)
    settings = {"patch_size": 4, "embed_dim": 8, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}
    config = transformers.SwinConfig(**{**settings, **changes}, attn_implementation="sdpa", num_labels=5)
    side = config.image_size if isinstance(config.image_size, tuple) else (config.image_size,) * 2
    x = torch.randn(2, 3, *side, dtype=dtype)
    for kind, output in (("SwinModel", "last_hidden_state"), ("SwinForImageClassification", "logits")):
        model = getattr(transformers, kind)(config)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.3 if parameter.ndim > 1 else 0.5)
        model = model.to(dtype).eval()
        graph, parameters = models.from_transformers(model)
        with torch.no_grad():
            expected = getattr(model(x), output)
            found = tn.compile(graph, backend="torch")(parameters, x)
        assert found.shape == expected.shape
        bound = 1e-5 if dtype == torch.float32 else 1e-9
        assert float((found - expected).abs().max() / expected.abs().max()) < bound


def test_one_graph_to_torch_compile() -> None:
    module = tn.module(models.swin(9, **small), seed=0)
    x = torch.randn(2, 3, 9, 9)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), module(x))
    compiled(x).square().mean().backward()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": (3, 2)}, r"dim of stage 1=4 does not divide by heads=3"),
        ({"heads": (1,)}, r"depths=\(2, 2\) and heads=\(1,\)"),
        ({"window": 0}, r"window=0"),
        ({"stochastic_depth": 1.0}, r"stochastic_depth=1.0(?s:.*)below 1"),
        ({"depths": (2, -1)}, r"depths=-1"),
        ({"weights": "both"}, r"weights='both'"),
    ],
)
def test_bad_configuration(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(tn.ShapeError, match=message):
        models.swin(8, **{**small, **changes})


def test_a_shift_needs_its_grid() -> None:
    with pytest.raises(tn.ShapeError, match=r"shift=1 is given without a grid"):
        models.window_attention(4, 2, 3, shift=1)
    with pytest.raises(tn.ShapeError, match=r"grid=7 does not divide by window=3"):
        models.window_attention(4, 2, 3, grid=(6, 7), shift=1)
