"""Vision models (spec A, B, C): Swin, the tensorized Swin, ViT, the Perceiver; counts, windows, positions, equations."""

from __future__ import annotations

import math
from math import prod
from typing import Any

import numpy as np
import pytest
import scipy.ndimage
import sympy
import torch
from hypothesis import given
from hypothesis import strategies as st

import tensornet as tn
from tensornet import models
from tensornet.models.positions import CONVENTIONS
from tensornet.models.tensor_swin import PARTS, contraction, tensor_window_attention

from .conftest import covered, exact_perceiver, examples, normal, parameters_of, randomized, sampled

# ---------------------------------------------------------------------------- Swin (spec A8, A11)


SMALL: dict[str, Any] = {"patch": 2, "dim": 4, "depths": (2, 2), "heads": (1, 2), "classes": 3, "window": 2}


def test_stochastic_depth_skips_whole_examples_in_training_only() -> None:
    graph = models.swin(8, **{**SMALL, "depths": (2,), "heads": (1,)}, stochastic_depth=0.9)
    module = tn.module(graph, seed=0)
    x = torch.randn(1, 3, 8, 8).expand(64, 3, 8, 8)
    rows = {tuple(np.round(row.tolist(), 4)) for row in module(x).detach()}
    assert 1 < len(rows) <= 4  # the last layer's two sublayers, each there or not
    module.eval()
    assert len({tuple(np.round(row.tolist(), 4)) for row in module(x).detach()}) == 1


def seen_and_placed(
    grid: tuple[int, int], sides: tuple[int, int], shift: tuple[int, int], padding: str
) -> tuple[list[int | None], np.ndarray, np.ndarray]:
    """By a loop over tokens: which each is (none is padding), who sees whom, and at which row of B."""
    axes = []
    for size, side, by in zip(grid, sides, shift, strict=True):
        whole = -(-size // side) * side
        if padding == "before":  # where a row of the padded grid goes, and whether it goes round the end
            rows = [(row if row < size else None, (row - by) % whole, row < by) for row in range(whole)]
        else:  # the grid goes round, the padding stays below; all from `whole - by` is told apart
            rows = [(row, (row - by) % size, (row - by) % size >= whole - by > 0) for row in range(size)]
            rows += [(None, row, row >= whole - by) for row in range(size, whole)]
        axes.append([(row, at // side, at % side, round_) for row, at, round_ in rows])
    tokens = [(y, x) for y in axes[0] for x in axes[1]]
    which = [None if None in (y[0], x[0]) else y[0] * grid[1] + x[0] for y, x in tokens]
    seen, placed = np.zeros((2, len(tokens), len(tokens)), int)
    for i, (y, x) in enumerate(tokens):
        for j, (v, u) in enumerate(tokens):
            seen[i, j] = y[1] == v[1] and x[1] == u[1] and y[3] == v[3] and x[3] == u[3]
            if seen[i, j]:
                below, beside = y[2] - v[2] + sides[0] - 1, x[2] - u[2] + sides[1] - 1
                placed[i, j] = below * (2 * sides[1] - 1) + beside
    return which, seen, placed


def by_the_definition(p: Any, x: torch.Tensor, depths: Any, heads: Any, kind: str, side: int) -> torch.Tensor:
    """Swin of patches of 2 × 2 in plain torch: all tokens of a grid attend, and see whom they may."""
    F = torch.nn.functional

    def normed(h: torch.Tensor, name: str) -> torch.Tensor:
        return F.layer_norm(h, h.shape[-1:], p[f"{name}.gain"], p[f"{name}.bias"])

    h = F.conv2d(F.pad(x, (0, x.shape[3] % 2, 0, x.shape[2] % 2)), p["patches.E"], p["patches.bias"], 2)
    h = normed(h.permute(0, 2, 3, 1), "patches.norm")
    for stage, depth in enumerate(depths):
        for block in range(depth):
            name, (height, width) = f"stages.{stage}.blocks.{block}", h.shape[1:3]
            sides = {
                "torchvision": (side, side),
                "timm": (min(side, height), min(side, width)),
                "transformers": (min(side, height, width),) * 2,
            }[kind]
            down, across = (block % 2 * (side // 2 if size > side else 0) for size in (height, width))
            if kind == "transformers" and min(height, width) <= side:
                down = across = 0
            which, seen, placed = seen_and_placed(
                (height, width), sides, (down, across), "after" if kind == "timm" else "before"
            )
            tokens = normed(h, f"{name}.norm1").flatten(1, 2)
            tokens = torch.stack([tokens[:, n] if n is not None else 0 * tokens[:, 0] for n in which], 1)
            a = f"{name}.attention."
            q, k, v = (
                F.linear(tokens, p[f"{a}W{part}"], p[f"{a}b{part}"])
                .unflatten(2, (heads[stage], -1))
                .transpose(1, 2)
                for part in "qkv"
            )
            s = q @ k.mT / q.shape[-1] ** 0.5 + p[f"{a}B"][torch.tensor(placed)].permute(2, 0, 1)
            s = s.masked_fill(torch.tensor(seen) == 0, -torch.inf).softmax(-1)
            y = F.linear((s @ v).transpose(1, 2).flatten(2), p[f"{a}Wo"], p[f"{a}bo"])
            back = [which.index(n) for n in range(height * width)]
            h = h + y[:, back].unflatten(1, (height, width))
            inner = F.gelu(F.linear(normed(h, f"{name}.norm2"), p[f"{name}.mlp.W1"], p[f"{name}.mlp.b1"]))
            h = h + F.linear(inner, p[f"{name}.mlp.W2"], p[f"{name}.mlp.b2"])
        if stage + 1 < len(depths):
            h = F.pad(h, (0, 0, 0, h.shape[2] % 2, 0, h.shape[1] % 2))
            h = torch.cat([h[:, v::2, u::2] for u in (0, 1) for v in (0, 1)], -1)
            h = F.linear(normed(h, f"stages.{stage}.merge.norm"), p[f"stages.{stage}.merge.W"])
    return F.linear(normed(h, "norm").mean((1, 2)), p["head.W"], p["head.bias"])


KINDS: dict[str, dict[str, str]] = {
    "transformers": {},
    "torchvision": {"narrow": "padded"},
    "timm": {"narrow": "axes", "padding": "after"},
}


GRIDS = [((22, 4), 3, (2,)), ((1, 19), 4, (2,)), ((13, 18), 4, (2, 2))]


@pytest.mark.parametrize(("kind", "grid"), covered(KINDS, GRIDS))
def test_windows_against_their_definition(kind: str, grid: tuple[Any, int, tuple[int, ...]]) -> None:
    """An axis at most a window, and padding with a shift: as three libraries have it."""
    image, window, depths = grid
    heads = (1, 2)[: len(depths)]
    graph = models.swin(image, 2, 4, depths, heads, 3, window=window, ratio=2, **KINDS[kind])
    parameters = tn.to_backend(parameters_of(graph), "torch")
    assert sum(array.numel() for array in parameters.values()) == tn.parameter_count(graph)
    x = torch.randn(2, 3, *image, dtype=torch.float64)
    expected = by_the_definition(parameters, x, depths, heads, kind, window)
    found = tn.compile(graph, backend="torch")(parameters, x)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)
    if len(depths) > 1:
        return
    low = {name: array.bfloat16() for name, array in parameters.items()}
    rounded = tn.compile(graph, backend="torch")(low, x.bfloat16())
    torch.testing.assert_close(rounded.double(), expected, rtol=0.1, atol=0.1 * float(expected.abs().max()))


def test_parameters_of_narrow_windows() -> None:
    """(2u − 1)·(2w − 1)·h for the positions of each layer."""
    counts = {
        kind: tn.parameter_count(models.swin((4, 40), 2, 4, (3,), (2,), 3, window=7, **KINDS[kind]))
        for kind in KINDS
    }
    plain = counts["transformers"] - 3 * 2 * 3**2
    assert counts == {kind: plain + 3 * 2 * n for kind, n in zip(KINDS, (9, 13**2, 3 * 13), strict=True)}


# ---------------------------------------------------------------------------- The tensorized Swin Transformer (spec A5–A10)


TENSOR: dict[str, Any] = {"image": 16, "patch": 2, "depths": (2, 2), "classes": 3, "window": 4}
TENSOR |= {"modes": ((2, 2, 2), (2, 2, 4)), "heads": ((1, 2, 1), (2, 1, 2))}
modes = st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3))
shifts = st.tuples(st.integers(0, 1), st.integers(0, 2))


def test_counts_of_the_presets() -> None:
    assert tn.parameter_count(models.create("tensor_swin_t", classes=10)) <= 1_368_626
    for name in ("tensor_swin_t", "tensor_swin_28", "tensor_swin_32"):
        graph = models.create(name)
        assert tn.parameter_count(graph) == sum(array.size for array in tn.init(graph).values())


@given(modes, modes, st.booleans())
@examples(25)
def test_parameters_of_a_contraction(
    old: tuple[int, int, int], new: tuple[int, int, int], bias: bool
) -> None:
    """Eq. 3.0.3: Σ Iₖ·Rₖ."""
    graph = contraction(old, new, bias=bias)
    assert tn.parameter_count(graph) == sum(a * b for a, b in zip(old, new, strict=True)) + bias * prod(new)


@given(st.integers(1, 3), st.integers(1, 3), st.sampled_from(["soft", "signed"]), shifts)
@examples(6)
def test_one_mode_is_ordinary_window_attention(
    heads: int, width: int, weights: str, shift: tuple[int, int]
) -> None:
    """A6: with h₂ = h₃ = 1 and D₂ = D₃ = 1."""
    dim, grid, window = heads * width, (4, 6), (2, 3)
    settings: dict[str, Any] = {"grid": grid, "shift": shift, "weights": weights}
    tensor = tensor_window_attention((dim, 1, 1), (heads, 1, 1), window, **settings)
    dense = models.window_attention(dim, heads, window, bias=False, projected=False, **settings)
    parameters = parameters_of(dense)
    ours = {f"{name}{n}": np.ones((1, 1)) for name in "QKV" for n in (2, 3)}
    ours |= {f"{name.upper()}1": parameters[f"W{name}"] for name in "qkv"}
    ours |= {"B": parameters["B"].reshape(15, heads, 1, 1)}
    x = normal(2, *grid, dim)
    np.testing.assert_allclose(
        tn.compile(tensor)(ours, x), tn.compile(dense)(parameters, x), rtol=1e-9, atol=1e-11
    )


def test_the_worked_example_of_signed_attention() -> None:
    """A7: Q = [1,2,−1], K₁ = [1,0,−1], K₂ = [−1,1,1]."""
    graph = models.dot_product_attention(weights="signed", beta=1.0)
    q = np.array([1.0, 2.0, -1.0]).reshape(1, 1, 1, 3)
    k = np.array([[1.0, 0.0, -1.0], [-1.0, 1.0, 1.0]]).reshape(1, 1, 2, 3)
    found = tn.compile(graph)({}, q, k, np.eye(2).reshape(1, 1, 2, 2)).ravel()
    np.testing.assert_allclose(found, [1 / (1 + np.exp(-2)), 0], atol=1e-12)


WINDOWS = [{}, {"narrow": "axes", "padding": "after"}]


@pytest.mark.parametrize("windows", sampled(WINDOWS, WINDOWS[1:]))
def test_all_dense_is_swin(windows: dict[str, str]) -> None:
    settings: dict[str, Any] = {**TENSOR, "image": (6, 18), **windows}
    graph = models.tensor_swin(**settings, tensorized=(), weights="soft", ratios=(2, 2, 1))
    swin = models.swin((6, 18), 2, 8, (2, 2), (2, 4), 3, window=4, **windows)
    assert tn.parameter_count(graph) == tn.parameter_count(swin)
    parameters = parameters_of(swin)
    x = normal(2, 3, 6, 18)
    np.testing.assert_allclose(tn.compile(graph)(parameters, x), tn.compile(swin)(parameters, x), rtol=1e-12)


@pytest.mark.parametrize("is_projected", sampled([True, False], [True]))
def test_two_stages_against_their_equations(is_projected: bool) -> None:
    """A5, A6, A9, A10 in one: eq. 3.0.9–3.0.21 by einsum, each stage of one window and one layer."""
    stages = ((2, 1, 3), (2, 2, 3)), (1, 1), ((1, 1, 3), (2, 1, 1))
    settings: dict[str, Any] = {"window": 2, "ratios": (2, 1, 2), "head_rank": (2, 2, 2, 3)}
    graph = models.tensor_swin(4, 2, *stages, 4, **settings, position_bias=False, projected=is_projected)
    p = parameters_of(graph)

    def normed(z: Any, name: str) -> Any:
        shape, z = z.shape, z.reshape(*z.shape[:3], -1)
        centred = z - z.mean(-1, keepdims=True)
        z = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        return (z * p[f"{name}.gain"] + p[f"{name}.bias"]).reshape(shape)

    def contracted(z: Any, *factors: Any) -> Any:
        return np.einsum("bmnxyz,ax,cy,ez->bmnace", z, *factors)

    def projected(z: Any, name: str) -> Any:
        z = contracted(z, *(p[f"{name}.U{n}"] for n in (1, 2, 3)))
        return z + p[f"{name}.bias"].reshape(z.shape[3:]) if f"{name}.bias" in p else z

    x = normal(2, 3, 4, 4)
    z = x.reshape(2, 3, 2, 2, 2, 2).transpose(0, 2, 4, 3, 5, 1)  # b, rows, columns, then a patch
    z = contracted(z, *(p[f"patches.V{n}"] for n in range(3))) + p["patches.bias"].reshape(2, 1, 3)
    z = normed(z, "patches.norm")
    for stage, (heads, each) in enumerate((((1, 1, 3), (2, 1, 1)), ((2, 1, 1), (1, 2, 3)))):
        name = f"stages.{stage}.blocks.0"
        split = [size for pair in zip(heads, each, strict=True) for size in pair]
        q, k, v = (
            contracted(
                normed(z, f"{name}.norm1"), *(p[f"{name}.attention.{part}{n}"] for n in (1, 2, 3))
            ).reshape(2, -1, *split)
            for part in "QKV"
        )
        s = np.einsum("biuavcwe,bjuavcwe->buvwij", q, k) / np.sqrt(prod(each))
        power = np.exp(abs(s))
        a = np.sign(s) * power / power.sum(-1, keepdims=True)
        y = np.einsum("buvwij,bjuavcwe->biuavcwe", a, v).reshape(z.shape)
        z = z + (projected(y, f"{name}.attention.output") if is_projected else y)
        inner = torch.nn.functional.gelu(
            torch.tensor(projected(normed(z, f"{name}.norm2"), f"{name}.mlp.first"))
        )
        z = z + projected(inner.numpy(), f"{name}.mlp.second")
        if stage == 0:  # four neighbours, column by column, on the mode of channels: R₁ × R₂ × 4C
            near = [z[:, v, u] for u in (0, 1) for v in (0, 1)]
            flat = np.concatenate([each.reshape(2, 1, 1, -1) for each in near], -1)
            flat = normed(flat, "stages.0.merge.norm").reshape(2, 4, 2, 1, 3)
            z = np.concatenate([flat[:, n] for n in range(4)], -1)[:, None, None]
            z = contracted(z, *(p[f"stages.0.merge.U{n}"] for n in (1, 2, 3)))
    mean = normed(z, "norm").mean((1, 2))
    factors = [p["head.G"], *(p[f"head.U{n}"] for n in (1, 2, 3)), p["head.V"]]
    expected = np.einsum("bijk,pqrs,ip,jq,kr,os->bo", mean, *factors) + p["head.bias"]
    np.testing.assert_allclose(tn.compile(graph)(p, x), expected, rtol=1e-9)


def test_the_head_has_the_formula_of_the_thesis() -> None:
    """Eq. 3.0.8: ∏ Rₖ + Σ Iₖ·Rₖ + R·O, and O for the bias; each rank by a name of its own."""
    table = {name: formula for name, formula, _ in tn.parameter_table(models.tensor_swin(classes=10))}
    assert str(table["head"]) == "i1*r1 + i2*r2 + i3*r3 + o*s + o + r1*r2*r3*s"


@pytest.mark.parametrize("tensorized", [PARTS, pytest.param((), marks=pytest.mark.slow)])
def test_mlps_drop_values_in_training(tensorized: tuple[str, ...]) -> None:
    graph = models.tensor_swin(**{**TENSOR, "depths": (1, 1)}, tensorized=tensorized, dropout=0.5)
    module, x = tn.module(graph), torch.randn(2, 3, 16, 16)
    one, other = module(x), module(x)
    assert not torch.equal(one, other)
    module.eval()
    assert torch.equal(module(x), module(x))


# ---------------------------------------------------------------------------- The Vision Transformer (spec B)


def test_the_formula_of_symbolic_sizes() -> None:
    D, F, K, P, C = sympy.symbols("D F K P C")
    graph = models.vit(224, P, D, 12, 12, F, K, channels=C)
    layer = 4 * D**2 + 2 * D * F + 9 * D + F
    expected = P**2 * C * D + D + D + (224**2 / P**2 + 1) * D + 12 * layer + 2 * D + D * K + K
    found = tn.parameter_formula(graph).subs({"H": 224, "W": 224})
    assert sympy.expand(found - expected) == 0


def test_the_head_of_fine_tuning_starts_at_exactly_zero() -> None:
    graph = models.vit(8, 4, 8, 1, 2)
    x = normal(3, 3, 8, 8)
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
    positions = normal(old[0] * old[1] + cls, 3)
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
    positions = normal(1 + 7 * 7, 4, seed=1)
    found = tn.compile(models.resize_positions(7, 12))({}, positions)
    expected = scipy.ndimage.zoom(positions[1:].reshape(7, 7, 4), (12 / 7, 12 / 7, 1), order=1)
    np.testing.assert_allclose(found[1:], expected.reshape(-1, 4), atol=1e-12)
    others = [
        tn.compile(models.resize_positions(7, 12, convention=c))({}, positions) for c in CONVENTIONS[1:]
    ]
    assert all(abs(each - found).max() > 1e-3 for each in others)


# ---------------------------------------------------------------------------- The Perceiver (spec C)


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
    x = normal(2, channels, *shape)
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
