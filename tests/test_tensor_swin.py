"""The tensorized Swin Transformer (spec A5–A10): each equation, each switch, and Swin when all are off."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tensornet as tn
from tensornet import models
from tensornet.models.tensor_swin import PARTS, contraction, tensor_window_attention

from .conftest import examples, parameters_of, sampled

small: dict[str, Any] = {"image": 16, "patch": 2, "depths": (2, 2), "classes": 3, "window": 4}
small |= {"modes": ((2, 2, 2), (2, 2, 4)), "heads": ((1, 2, 1), (2, 1, 2))}
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
    x = np.random.default_rng(0).standard_normal((2, *grid, dim))
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
    settings: dict[str, Any] = {**small, "image": (6, 18), **windows}
    graph = models.tensor_swin(**settings, tensorized=(), weights="soft", ratios=(2, 2, 1))
    swin = models.swin((6, 18), 2, 8, (2, 2), (2, 4), 3, window=4, **windows)
    assert tn.parameter_count(graph) == tn.parameter_count(swin)
    parameters = parameters_of(swin)
    x = np.random.default_rng(0).standard_normal((2, 3, 6, 18))
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

    x = np.random.default_rng(0).standard_normal((2, 3, 4, 4))
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
    graph = models.tensor_swin(**{**small, "depths": (1, 1)}, tensorized=tensorized, dropout=0.5)
    module, x = tn.module(graph), torch.randn(2, 3, 16, 16)
    one, other = module(x), module(x)
    assert not torch.equal(one, other)
    module.eval()
    assert torch.equal(module(x), module(x))


@pytest.mark.parametrize(
    "tensorized",
    sampled([*([part] for part in PARTS), [*PARTS], ["qkv", "output", "mlp"]], [["mlp"], [*PARTS]]),
)
def test_every_part_by_a_switch(tensorized: list[str]) -> None:
    graph = models.tensor_swin(**small, tensorized=tensorized)
    parameters = parameters_of(graph)
    assert tn.parameter_count(graph) == sum(array.size for array in parameters.values())
    x = np.random.default_rng(0).standard_normal((2, 3, 16, 16))
    expected = tn.compile(graph)(parameters, x)
    assert expected.shape == (2, 3)
    found = tn.compile(graph, backend="torch")(tn.to_backend(parameters, "torch"), torch.tensor(x))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-8, atol=1e-10)
