"""The Perceiver (spec C): counts, costs read off the formula, sharing, Fourier features, permutation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st

import tensornet as tn
from tensornet import models

from .conftest import exact_perceiver, examples, parameters_of, randomized, sampled

SHARING = ["all", "rest", "none"]
small: dict[str, Any] = {"latents": 4, "dim": 8, "depth": 2, "heads": 2, "classes": 5, "repeats": 3}


@pytest.mark.parametrize("heads", [1, 4])
def test_costs_are_read_off_the_formula(heads: int) -> None:
    """§3.1: O(M·N·D) and O(L·N²·D), and nothing in M²."""
    M, N, D, C = (sympy.Symbol(name) for name in "MNDC")
    layers = {}
    for depth in (1, 2, 5):
        graph = models.perceiver(
            None, C, N, D, depth, heads, 10, repeats=1, cross_attends=1, positions=None, cross_width="queries"
        )
        b = sympy.Symbol("b")
        formula = tn.flop_formula(graph, C=1024)  # so wide that keys and values are best made first
        cost = sympy.Poly(formula.subs("h", heads) / b, M, N, D, C)
        for each in (formula, tn.flop_formula(graph), tn.flop_formula(graph, naive=True)):
            assert sympy.Poly(each.subs("h", heads) / b, M).degree() == 1
        assert cost.coeff_monomial(M * N * D) == 4  # scores and averages, 2 FLOPs each
        layers[depth] = cost.coeff_monomial(N**2 * D)
    assert {depth: coefficient / depth for depth, coefficient in layers.items()} == {1: 4, 2: 4, 5: 4}


@given(st.integers(1, 4), st.integers(0, 4), st.sampled_from(SHARING), st.sampled_from(SHARING))
@examples(8)
def test_sharing(repeats: int, cross: int, share: str, latent: str) -> None:
    def count(**changes: Any) -> int:
        settings = {**small, "repeats": repeats, "cross_attends": cross, "share_cross": share}
        settings |= {"share_latent": latent, **changes}
        return int(tn.parameter_count(models.perceiver(None, 3, positions=None, **settings)))

    one_cross = count(cross_attends=1, repeats=1) - count(cross_attends=0, repeats=1)
    one_tower = count(depth=3, cross_attends=0, repeats=1) - count(depth=1, cross_attends=0, repeats=1)
    used = min(cross, repeats)
    sets = {"all": min(used, 1), "rest": min(used, 2), "none": used}[share]
    towers = {"all": 1, "rest": min(repeats, 2), "none": repeats}[latent]
    base = count(cross_attends=0, repeats=1) - one_tower
    assert count() == base + sets * one_cross + towers * one_tower


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.integers(1, 3), st.integers(1, 4))
@examples(15)
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


@pytest.mark.parametrize("modes", [1, 3])
@pytest.mark.parametrize("bands", [1, 3])
def test_fourier_features_of_given_positions(modes: int, bands: int) -> None:
    """§3.2 at positions of any kind, as of a point cloud."""
    mu, rng = [4.0, 7.0, 2.5][:modes], np.random.default_rng(0)
    x, p = rng.standard_normal((2, 6, 2)), rng.uniform(-1, 1, (2, 6, modes))
    graph = models.fourier_features(None, 2, bands=bands, resolution=mu)
    angles = np.concatenate(
        [math.pi * p[..., n, None] * np.linspace(1, mu[n] / 2, bands) for n in range(modes)], -1
    )
    expected = np.concatenate([x, p, np.sin(angles), np.cos(angles)], -1)
    np.testing.assert_allclose(tn.compile(graph)({}, x, p), expected, atol=1e-12)


@pytest.mark.parametrize("share", ["share_cross", "share_latent"])
def test_the_rest_share_what_the_second_has(share: str) -> None:
    """All but the first: with as many sets of parameters, of which those from the second are equal."""
    settings: dict[str, Any] = {**small, "depth": 1, "repeats": 3, "cross_attends": 3, "positions": None}
    settings |= {"share_cross": "none", "share_latent": "none"}
    tied, free = (models.perceiver(None, 3, **{**settings, share: each}) for each in ("rest", "none"))
    rng = np.random.default_rng(0)
    parameters = parameters_of(tied)
    part = "cross" if share == "share_cross" else "latent"
    copied = {}
    for leaf in free.parameters:
        scope, _, rest = leaf.name.partition(".")
        run, _, inner = rest.partition(".")
        copied[leaf.name] = parameters[f"{scope}.{min(int(run), 1)}.{inner}" if scope == part else leaf.name]
    x = rng.standard_normal((2, 6, 3))
    np.testing.assert_allclose(tn.compile(tied)(parameters, x), tn.compile(free)(copied, x), rtol=1e-9)


@given(st.tuples(*(st.integers(1, most) for most in (3, 5, 3, 4, 4))), st.booleans())
@examples(6)
def test_parameters_of_tokens_and_of_the_decoder(numbers: tuple[int, ...], tied: bool) -> None:
    """Counted by hand: embedding and positions, the decoder's attention, MLP and norms, what comes after."""
    widening, Q, heads, width, values = numbers
    V, L, D, K = 7, 6, small["dim"], small["classes"]
    tokens: dict[str, Any] = {**small, "vocabulary": V, "positions": "learned"}
    qk, v = heads * width, heads * values
    settings = {"query_dim": None if tied else Q, "tied": tied, "decoder_heads": heads, "decoder_width": qk}
    settings |= {"decoder_values": v, "decoder_widening": widening, "head": "query", "outputs": 3}
    graph = models.perceiver(L, Q, **tokens, **settings)
    without = models.perceiver(None, Q, **small, positions=None, head=None)
    attends = Q * qk + qk + D * qk + qk + D * v + v + v * Q + Q
    mlp = 2 * widening * Q**2 + widening * Q + Q
    after = V if tied else Q * K + K
    expected = V * Q + L * Q + 3 * Q + attends + mlp + 4 * Q + 2 * D + after
    assert tn.parameter_count(graph) - tn.parameter_count(without) == expected
    assert tn.parameter_count(graph) == sum(array.size for array in tn.init(graph).values())


@pytest.mark.parametrize("axes", sampled([1, 2, 3], [2]))
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


def test_given_queries_decode_as_many_outputs() -> None:
    settings = {**small, "positions": None, "head": "given", "query_dim": 6, "query_residual": False}
    graph = models.perceiver(None, 3, **settings)
    parameters, rng = tn.init(graph, dtype="float64"), np.random.default_rng(0)
    x, q = rng.standard_normal((2, 7, 3)), rng.standard_normal((2, 11, 6))
    y = tn.compile(graph)(parameters, x, q)
    assert y.shape == (2, 11, 5)
    np.testing.assert_allclose(tn.compile(graph)(parameters, x, q[:, 4:5]), y[:, 4:5], rtol=1e-10, atol=1e-12)


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


def _perceiver_models(reference: Any) -> dict[str, Any]:
    """Models of `transformers`, and inputs for them."""
    import torch
    import transformers

    sizes = {"num_latents": 5, "d_latents": 12, "d_model": 16, "num_blocks": 2}
    sizes |= {"num_self_attends_per_block": 2}
    sizes |= {"num_self_attention_heads": 3, "vocab_size": 11, "max_position_embeddings": 9, "image_size": 5}
    sizes |= {"num_labels": 4, "hidden_act": "gelu_new"}
    config, one = (transformers.PerceiverConfig(**sizes, num_cross_attention_heads=heads) for heads in (2, 1))

    def trained(channels: int, positions: int) -> dict[str, Any]:
        return {"trainable_position_encoding_kwargs": {"num_channels": channels, "index_dims": positions}}

    text, image = torch.randint(0, 11, (2, 7)), torch.randn(2, 3, 5, 5)
    wide = {"widening_factor": 3, "num_heads": 2, "qk_channels": 6, "v_channels": 8, "num_channels": 10}
    classes = reference.PerceiverClassificationDecoder(config, **wide, **trained(10, 1))
    many = {"output_num_channels": 3, "output_index_dims": 4, "num_channels": 12, "final_project": False}
    many = reference.PerceiverBasicDecoder(one, **many, use_query_residual=True, **trained(12, 4))
    bands = {"concat_pos": True, "max_resolution": (7, 3), "num_bands": 4, "sine_only": False}
    pixels = {"prep_type": "pixels", "fourier_position_encoding_kwargs": bands}
    learned = {"prep_type": "conv1x1", "out_channels": 6, "position_encoding_type": "trainable"}
    learned |= {"project_pos_dim": 6, **trained(6, 25)}
    pixels, learned = (
        reference.PerceiverImagePreprocessor(one, spatial_downsample=1, **each) for each in (pixels, learned)
    )
    words = reference.PerceiverTextPreprocessor(config)
    return {
        "masked": (transformers.PerceiverForMaskedLM(config), text),
        "sequence": (transformers.PerceiverForSequenceClassification(config), text),
        "wide": (transformers.PerceiverModel(config, decoder=classes, input_preprocessor=words), text),
        "pixels": (transformers.PerceiverModel(one, decoder=many, input_preprocessor=pixels), image),
        "learned": (transformers.PerceiverModel(one, decoder=many, input_preprocessor=learned), image),
    }


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize(
    "name", sampled(["masked", "sequence", "wide", "pixels", "learned"], ["masked", "sequence", "wide"])
)
def test_inputs_and_decoders_of_transformers(name: str) -> None:
    pytest.importorskip("transformers")
    import torch
    from transformers.models.perceiver import modeling_perceiver as reference

    torch.manual_seed(0)
    model, x = _perceiver_models(reference)[name]
    model, x = randomized(model, torch.float64), x.double() if x.is_floating_point() else x
    keep = torch.tensor([[1] * x.shape[1], [1, 1, 0] + [1] * (x.shape[1] - 3)])
    masked = x.ndim < 4
    with exact_perceiver(torch.float64), torch.no_grad():
        expected = model(x, **({"attention_mask": keep} if masked else {})).logits
    graph, parameters = models.from_transformers(model, mask=masked)
    found = tn.compile(graph, backend="torch")(parameters, x, *([keep] if masked else []))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    assert sum(array.numel() for array in parameters.values()) == tn.parameter_count(graph)


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
