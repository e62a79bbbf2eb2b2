"""The Perceiver (spec C): counts, costs read off the formula, sharing, Fourier features, permutation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

import tensornet as tn
from tensornet import models

SHARING = ["all", "rest", "none"]
small: dict[str, Any] = {"latents": 4, "dim": 8, "depth": 2, "heads": 2, "classes": 5, "repeats": 3}


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("perceiver_imagenet", 44_912_254),
        ("perceiver_imagenet_shared", 42_135_859),
        ("perceiver_io_imagenet", 48_440_627),
        ("perceiver_io_imagenet_learned", 62_255_848),
        ("perceiver_io_imagenet_conv", 48_646_522),
    ],
)
def test_published_counts(name: str, number: int) -> None:
    graph = models.create(name)
    assert tn.parameter_count(graph) == number
    assert sum(row[2] for row in tn.parameter_table(graph)) == number


def test_costs_are_read_off_the_formula() -> None:
    """§3.1: O(M·N·D) and O(L·N²·D), and nothing in M²."""
    M, N, D, C = (sympy.Symbol(name) for name in "MNDC")
    layers = {}
    for depth in (1, 2, 5):
        graph = models.perceiver(
            None, C, N, D, depth, 1, 10, repeats=1, cross_attends=1, positions=None, cross_width="queries"
        )
        b = sympy.Symbol("b")
        cost = sympy.Poly(tn.flop_formula(graph) / b, M, N, D, C)
        assert cost.degree(M) == 1
        assert cost.coeff_monomial(M * N * D) == 4  # scores and averages, 2 FLOPs each
        layers[depth] = cost.coeff_monomial(N**2 * D)
    assert {depth: coefficient / depth for depth, coefficient in layers.items()} == {1: 4, 2: 4, 5: 4}


@given(st.integers(1, 4), st.integers(0, 4), st.sampled_from(SHARING), st.sampled_from(SHARING))
@settings(max_examples=20)
def test_sharing(repeats: int, cross: int, share: str, latent: str) -> None:
    def count(**changes: Any) -> int:
        settings = {
            **small,
            "repeats": repeats,
            "cross_attends": cross,
            "share_cross": share,
            "share_latent": latent,
        }
        return int(tn.parameter_count(models.perceiver(None, 3, positions=None, **{**settings, **changes})))

    one_cross = count(cross_attends=1, repeats=1) - count(cross_attends=0, repeats=1)
    one_tower = count(depth=3, cross_attends=0, repeats=1) - count(depth=1, cross_attends=0, repeats=1)
    used = min(cross, repeats)
    sets = {"all": min(used, 1), "rest": min(used, 2), "none": used}[share]
    towers = {"all": 1, "rest": min(repeats, 2), "none": repeats}[latent]
    base = count(cross_attends=0, repeats=1) - one_tower
    assert count() == base + sets * one_cross + towers * one_tower


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.integers(1, 3), st.integers(1, 4))
@settings(max_examples=30)
def test_fourier_features(shape: list[int], channels: int, bands: int) -> None:
    """§3.2, entry by entry: audio, images, video."""
    x = np.random.default_rng(0).standard_normal((2, channels, *shape))
    found = tn.compile(models.fourier_features(shape, channels, bands=bands))({}, x)
    expected = np.empty((2, math.prod(shape), channels + len(shape) * (2 * bands + 1)))
    for at, index in enumerate(np.ndindex(*shape)):
        p = [-1 + 2 * i / (size - 1) if size > 1 else -1.0 for i, size in zip(index, shape, strict=True)]
        angles = [
            math.pi * place * f
            for place, size in zip(p, shape, strict=True)
            for f in np.linspace(1, size / 2, bands)
        ]
        rest = [*p, *np.sin(angles), *np.cos(angles)]
        expected[:, at, :channels] = x[(slice(None), slice(None), *index)]
        expected[:, at, channels:] = rest
    np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize(
    ("shape", "changes"),
    [
        ((7,), {}),  # audio
        (11, {"positions": "learned", "position_dim": 6}),
        ((3, 5), {}),  # image
        ((2, 3, 2), {"bands": 1}),  # video: t, x, y
        ((4, 4), {"head": "query", "outputs": 3}),
        ((4, 4), {"head": "query", "cross_width": 6, "cross_heads": 2, "decoder_heads": 3, "query_dim": 9}),
        ((4, 4), {"positions": None, "head": None}),
    ],
)
def test_modalities(shape: Any, changes: dict[str, Any]) -> None:
    graph = models.perceiver(shape, 3, **{**small, "bands": 2, "cross_attends": 2, **changes})
    parameters = tn.init(graph, dtype="float64")
    assert sum(array.size for array in parameters.values()) == tn.parameter_count(graph)
    modes = (shape,) if isinstance(shape, int) else shape
    y = tn.compile(graph)(parameters, np.random.default_rng(0).standard_normal((2, 3, *modes)))
    expected = (
        (2, 4, 8) if changes.get("head", "") is None else (2, *([3] if changes.get("outputs") else []), 5)
    )
    assert y.shape == expected
    assert np.isfinite(y).all()


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_permuting_inputs_with_their_positions_changes_nothing(axes: int) -> None:
    graph = models.perceiver(None, 3, **small, positions="given", resolution=(8,) * axes, bands=3, mask=True)
    parameters = tn.init(graph, dtype="float64")
    rng = np.random.default_rng(0)
    x, p, keep = rng.standard_normal((2, 9, 3)), rng.uniform(-1, 1, (2, 9, axes)), rng.random((2, 9)) < 0.8
    f, order = tn.compile(graph), rng.permutation(9)
    y = f(parameters, x, p, keep)
    np.testing.assert_allclose(
        f(parameters, x[:, order], p[:, order], keep[:, order]), y, rtol=1e-9, atol=1e-11
    )
    assert abs(f(parameters, x[:, order], p, keep[:, order]) - y).max() > 1e-6


def test_masked_inputs_are_not_read() -> None:
    graph = models.perceiver(None, 3, **small, positions=None, mask=True)
    parameters, f = tn.init(graph, dtype="float64"), tn.compile(graph)
    rng = np.random.default_rng(0)
    x, keep = rng.standard_normal((2, 6, 3)), np.array([[1, 1, 0, 1, 0, 1], [1, 0, 0, 0, 0, 0]])
    other = np.where(keep[..., None] == 1, x, rng.standard_normal((2, 6, 3)))
    np.testing.assert_allclose(f(parameters, x, keep), f(parameters, other, keep), rtol=1e-12)


def test_given_queries_decode_as_many_outputs() -> None:
    settings = {**small, "positions": None, "head": "given", "query_dim": 6, "query_residual": False}
    graph = models.perceiver(None, 3, **settings)
    parameters, rng = tn.init(graph, dtype="float64"), np.random.default_rng(0)
    x, q = rng.standard_normal((2, 7, 3)), rng.standard_normal((2, 11, 6))
    y = tn.compile(graph)(parameters, x, q)
    assert y.shape == (2, 11, 5)
    np.testing.assert_allclose(tn.compile(graph)(parameters, x, q[:, 4:5]), y[:, 4:5], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dim": 9}, r"dim=9 does not divide by heads=8"),
        ({"cross_heads": 2}, r"width of the cross-attention=261 does not divide by cross_heads=2"),
        ({"share_cross": "some"}, r"share_cross='some'(?s:.*)'all', 'rest', 'none'"),
        ({"shape": None}, r"positions='fourier' needs a shape"),
        ({"positions": "given", "shape": None}, r"shape= or resolution="),
        ({"resolution": (4,)}, r"resolution=\(4,\) has 1 mode\(s\), and shape=\(224, 224\) has 2"),
        ({"cross_width": "keys"}, r"cross_width='keys'"),
    ],
)
def test_bad_configuration(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(tn.ShapeError, match=message):
        models.perceiver(**changes)


@pytest.mark.parametrize(("height", "width"), [(5, 6), (9, 12), (22, 17)])
def test_the_stem_is_a_convolution(height: int, width: int) -> None:
    import torch

    graph = models.convolutional_stem(height, width, 3, 4)
    rng = np.random.default_rng(0)
    x, f = rng.standard_normal((2, 3, height, width)), rng.standard_normal((4, 3, 7, 7))
    gain, bias = rng.standard_normal((2, 4))
    expected = torch.nn.functional.conv2d(torch.tensor(x), torch.tensor(f), stride=2, padding=3)
    expected = torch.relu(expected * torch.tensor(gain)[:, None, None] + torch.tensor(bias)[:, None, None])
    expected = torch.nn.functional.max_pool2d(expected, 3, 2)
    found = tn.compile(graph)({"F": f, "gain": gain, "bias": bias}, x)
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-11)
    with pytest.raises(tn.ShapeError, match=r"axis 'H' of 'x' is 30, and should be"):
        tn.compile(graph)({"F": f, "gain": gain, "bias": bias}, np.zeros((1, 3, 30, width)))
