"""Attention with projections: tensornet, and by hand with `scaled_dot_product_attention`; signed, by its equation.

    python -m benchmarks.attention

Forward, and both ways with the bytes that are kept for backward.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch.nn.functional import linear, scaled_dot_product_attention

import tensornet as tn

from .report import run
from .suite import MEASURES, OURS, Case, Contestant, Place, Suite, on_cupy, ours

__all__ = ["SUITE"]


def itself(
    batch: int, tokens: int, width: int, heads: int, causal: bool, place: Place
) -> dict[str, Contestant]:
    """Self-attention; by hand with three projections, and with one for q, k and v."""
    x = place.drawn(batch, tokens, width).requires_grad_()
    graph = tn.models.attention(width, heads, mask="causal" if causal else None)
    mine, p = _mine(graph, (x,), place)
    joined = tuple(torch.cat([p[f"{kind}{part}"] for part in "qkv"]).requires_grad_() for kind in "Wb")
    split = (batch, tokens, heads, width // heads)

    def together(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        y = scaled_dot_product_attention(q, k, v, is_causal=causal)
        return linear(y.transpose(1, 2).reshape(batch, tokens, width), p["Wo"], p["bo"])

    def three(x: torch.Tensor) -> torch.Tensor:
        return together(
            *(linear(x, p[f"W{part}"], p[f"b{part}"]).view(split).transpose(1, 2) for part in "qkv")
        )

    def one(x: torch.Tensor) -> torch.Tensor:
        stacked = linear(x, *joined).view(batch, tokens, 3, heads, width // heads)
        return together(*stacked.permute(2, 0, 3, 1, 4).unbind(0))

    return {
        OURS: mine,
        **on_cupy(graph, p, (x,), place),
        "sdpa": Contestant(three, (x,), tuple(p.values())),
        "sdpa, one qkv": Contestant(one, (x,), (*joined, p["Wo"], p["bo"])),
    }


def cross(
    batch: int, queries: int, keys: int, width: int, inputs: int, heads: int, place: Place
) -> dict[str, Contestant]:
    """Queries that read many inputs, as the latents of a Perceiver do."""
    x, z = place.drawn(batch, queries, width), place.drawn(batch, keys, inputs, seed=1)
    graph = tn.models.attention(width, heads, keys=inputs)
    mine, p = _mine(graph, (x, z), place)

    def by_hand(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            linear(each, p[f"W{part}"], p[f"b{part}"]).view(batch, -1, heads, width // heads).transpose(1, 2)
            for part, each in zip("qkv", (x, z, z), strict=True)
        )
        y = scaled_dot_product_attention(q, k, v)
        return linear(y.transpose(1, 2).reshape(batch, -1, width), p["Wo"], p["bo"])

    theirs = Contestant(by_hand, (x, z), tuple(p.values()))
    return {OURS: mine, **on_cupy(graph, p, (x, z), place), "sdpa": theirs}


def signed(
    batch: int, heads: int, tokens: int, width: int, causal: bool, place: Place
) -> dict[str, Contestant]:
    """Signed attention without projections, sign(s)·softmax(|s|)·v, against the same in ordinary operations."""
    q, k, v = (place.drawn(batch, heads, tokens, width, seed=n).requires_grad_() for n in range(3))
    graph = tn.models.dot_product_attention(weights="signed", mask="causal" if causal else None)
    mine, _ = _mine(graph, (q, k, v), place)
    later = torch.ones(tokens, tokens, dtype=torch.bool, device=place.device).triu(1)

    def by_hand(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        s = q @ k.mT / width**0.5
        shown = s.abs().masked_fill(later, -math.inf) if causal else s.abs()
        return (s.sign() * shown.softmax(-1)) @ v

    theirs = Contestant(by_hand, (q, k, v))
    return {OURS: mine, **on_cupy(graph, {}, (q, k, v), place), "by hand": theirs}


def _mine(
    graph: tn.Graph, inputs: tuple[torch.Tensor, ...], place: Place
) -> tuple[Contestant, dict[str, torch.Tensor]]:
    """Ours, and its parameters by name; biases are drawn too, so that they count in the comparison."""
    mine = ours(graph, None, inputs, place)
    module = mine.function
    assert isinstance(module, torch.nn.Module)
    found: dict[str, torch.Tensor] = dict(module.named_parameters())
    for number, (name, parameter) in enumerate(found.items()):
        if name.startswith("b"):
            parameter.data = place.drawn(*parameter.shape, seed=number, std=0.1)
    return mine, found


LARGER = 16
"""How many times the batch is larger for a GPU."""


SHAPES = [
    (8, 197, 384, 6, False),
    (2, 1024, 512, 8, False),
    (2, 1024, 512, 8, True),
    (64, 49, 96, 3, False),
    (1, 4096, 256, 4, False),
]
"""Batch, tokens, width, heads, causal: ViT-S, longer texts, windows of Swin-T, a long sequence."""


def _case(scale: int, batch: int, tokens: int, width: int, heads: int, causal: bool) -> Case:
    batch *= scale
    name = f"{batch:,}×{tokens:,}×{width}, {heads} heads" + (", causal" if causal else "")
    return Case(name, partial(itself, batch, tokens, width, heads, causal), MEASURES)


def _read(scale: int, queries: int, keys: int, width: int, inputs: int) -> Case:
    name = f"Perceiver cross-attention, {scale}×{queries} of {keys:,}×{inputs}"
    return Case(name, partial(cross, scale, queries, keys, width, inputs, 1))


def _signed(batch: int, heads: int, tokens: int, width: int, causal: bool) -> Case:
    name = f"signed, {batch:,}×{heads}×{tokens:,}×{width}" + (", causal" if causal else "")
    return Case(name, partial(signed, batch, heads, tokens, width, causal), MEASURES)


def _cases(scale: int) -> tuple[Case, ...]:
    weighed = (_signed(2 * scale, 8, 1024, 64, causal) for causal in (False, True))
    windows = _signed(256 * scale, 3, 49, 32, False)
    return (
        *(_case(scale, *shape) for shape in SHAPES),
        *weighed,
        windows,
        _read(scale, 512, 50_176, 1024, 261),
    )


SUITE = Suite(
    "attention",
    "attention with projections, against scaled_dot_product_attention by hand",
    {
        "usual": _cases(1),
        "tiny": (
            _case(1, 2, 5, 12, 3, False),
            _case(1, 2, 5, 12, 3, True),
            _case(1, 64, 9, 12, 3, False),
            _signed(2, 2, 5, 4, False),
            _read(2, 4, 40, 8, 5),
        ),
        "large": _cases(LARGER),
    },
)

if __name__ == "__main__":
    run(SUITE)
