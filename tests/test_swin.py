"""Swin (spec A8, A11): counts, windows, shifts, masks, padding, merging; parity in `test_convert.py`'s manner."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tensornet as tn
from tensornet import models

from .conftest import covered, parameters_of

small: dict[str, Any] = {"patch": 2, "dim": 4, "depths": (2, 2), "heads": (1, 2), "classes": 3, "window": 2}


def test_stochastic_depth_skips_whole_examples_in_training_only() -> None:
    graph = models.swin(8, **{**small, "depths": (2,), "heads": (1,)}, stochastic_depth=0.9)
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
    x = torch.randn(2, 3, *image, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
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
