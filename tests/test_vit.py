"""The Vision Transformer (spec B): shapes, counts, patches, heads, other resolutions."""

from __future__ import annotations

import numpy as np
import scipy.ndimage
import sympy
import torch
from hypothesis import given
from hypothesis import strategies as st

import tensornet as tn
from tensornet import models
from tensornet.models.positions import CONVENTIONS

from .conftest import examples, those_of

small = st.integers(1, 4)


@given(st.tuples(*[small] * 4), st.tuples(*[small] * 4), st.integers(0, 2), st.integers(1, 3))
@examples(8)
def test_shapes_and_parameters(
    grid: tuple[int, int, int, int], sizes: tuple[int, int, int, int], depth: int, width: int
) -> None:
    """Counted by hand: E and its bias, class token, positions, layers, last norm, head."""
    (rows, columns, u, v), (heads, channels, classes, batch) = grid, sizes
    image, dim, hidden = (rows * u, columns * v), heads * width, 3
    graph = models.vit(image, (u, v), dim, depth, heads, hidden, classes, channels=channels)
    parameters = tn.init(graph, dtype="float64")
    layer = 4 * dim * dim + 4 * dim + 2 * dim * hidden + hidden + dim + 4 * dim
    embedding = u * v * channels * dim + dim + dim + (rows * columns + 1) * dim
    number = sum(array.size for array in parameters.values())
    assert number == embedding + depth * layer + 2 * dim + dim * classes + classes
    found = tn.parameter_formula(graph).subs(dict(graph.bound)).subs(dict(graph.bound))
    assert tn.parameter_count(graph) == found == number
    x = np.random.default_rng(0).standard_normal((batch, channels, *image))
    assert tn.compile(graph)(parameters, x).shape == (batch, classes)
    tokens = models.vit(image, (u, v), dim, depth, heads, hidden, channels=channels, tokens=True)
    y = tn.compile(tokens)(those_of(tokens, parameters), x)
    assert y.shape == (batch, rows * columns + 1, dim)
    readout = models.vit(image, (u, v), dim, depth, heads, hidden, None, channels=channels)
    found = tn.compile(readout)(those_of(readout, parameters), x)
    np.testing.assert_allclose(found, y[:, 0], rtol=1e-10, atol=1e-12)


def test_the_formula_of_symbolic_sizes() -> None:
    D, F, K, P, C = sympy.symbols("D F K P C")
    graph = models.vit(224, P, D, 12, 12, F, K, channels=C)
    layer = 4 * D**2 + 2 * D * F + 9 * D + F
    expected = P**2 * C * D + D + D + (224**2 / P**2 + 1) * D + 12 * layer + 2 * D + D * K + K
    found = tn.parameter_formula(graph).subs({"H": 224, "W": 224})
    assert sympy.expand(found - expected) == 0


def test_the_head_of_fine_tuning_starts_at_exactly_zero() -> None:
    graph = models.vit(8, 4, 8, 1, 2)
    x = np.random.default_rng(0).standard_normal((3, 3, 8, 8))
    assert np.all(tn.compile(graph)(tn.init(graph, dtype="float64"), x) == 0)
    pretrained = models.vit(8, 4, 8, 1, 2, head="mlp")
    assert np.all(tn.compile(pretrained)(tn.init(pretrained, dtype="float64"), x).std(0) > 0)
    assert tn.parameter_count(pretrained) - tn.parameter_count(graph) == 8 * 8 + 8


grids = st.tuples(st.integers(1, 7), st.integers(1, 7))


@given(grids, grids, st.sampled_from(CONVENTIONS), st.booleans())
@examples(20)
def test_positions_on_another_grid(
    old: tuple[int, int], new: tuple[int, int], convention: str, cls: bool
) -> None:
    """Against torch, whose options are those of the implementations in the wild."""
    positions = np.random.default_rng(0).standard_normal((old[0] * old[1] + cls, 3))
    found = tn.compile(models.resize_positions(old, new, convention=convention, class_token=cls))(
        {}, positions
    )
    grid = torch.tensor(positions[int(cls) :]).reshape(1, *old, 3).permute(0, 3, 1, 2)
    mode, _, kind = convention.partition("_")
    expected = torch.nn.functional.interpolate(
        grid, size=new, mode=mode, align_corners=kind == "aligned", antialias=kind == "antialiased"
    )
    expected = expected.permute(0, 2, 3, 1).reshape(-1, 3).numpy()
    np.testing.assert_allclose(found[int(cls) :], expected, atol=1e-12)
    if cls:
        np.testing.assert_array_equal(found[0], positions[0])


def test_the_default_convention_is_the_originals() -> None:
    """The original code zooms with scipy at order 1."""
    positions = np.random.default_rng(1).standard_normal((1 + 7 * 7, 4))
    found = tn.compile(models.resize_positions(7, 12))({}, positions)
    expected = scipy.ndimage.zoom(positions[1:].reshape(7, 7, 4), (12 / 7, 12 / 7, 1), order=1)
    np.testing.assert_allclose(found[1:], expected.reshape(-1, 4), atol=1e-12)
    others = [
        tn.compile(models.resize_positions(7, 12, convention=c))({}, positions) for c in CONVENTIONS[1:]
    ]
    assert all(abs(each - found).max() > 1e-3 for each in others)


def test_a_hybrid_reads_a_feature_map_in_patches_of_one() -> None:
    graph = models.vit((3, 5), 1, 8, 1, 2, classes=4, channels=16)
    assert tn.init(graph)["embed.E"].shape == (8, 16, 1, 1)
    assert tn.init(graph)["embed.pos"].shape == (16, 8)
    x = np.random.default_rng(0).standard_normal((2, 16, 3, 5))
    assert tn.compile(graph)(tn.init(graph, dtype="float64"), x).shape == (2, 4)
