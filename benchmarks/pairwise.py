"""Layers over pairs, whose intermediates are large: tensornet, and the operations of torch by hand.

    python -m benchmarks.pairwise --threads 1 --clock process

Forward, and both ways with the bytes that are kept for backward.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch

import tensornet as tn

from .report import run
from .suite import MEASURES, OURS, Case, Contestant, Place, Suite, ours

__all__ = ["SUITE"]

Tensor = torch.Tensor
Pairs = Callable[..., Tensor]


def additive(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Additive attention (Bahdanau et al. 2015)."""
    return (torch.tanh(q[:, :, None] + k[:, None]) @ torch.ones_like(v[0, 0])).softmax(-1) @ v


def relation(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Differences of objects, gated (Santoro et al. 2017)."""
    return (torch.relu(q[:, :, None] - k[:, None]) * v[:, None]).sum(2)


def distance(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention by weighed distances."""
    return (-(q[:, :, None] - k[:, None]).square().sum(-1) / q.shape[-1]).softmax(-1) @ v


def squared(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention by squared ReLU, before softmax (So et al. 2021, "Primer", of the feed-forward part)."""
    return torch.relu(q @ k.mT / q.shape[-1]).square().softmax(-1) @ v


LAYERS: Mapping[str, tuple[str, Pairs]] = {
    "additive": (
        "s[b,i,j] = sum[c](tanh(q[b,i,c] + k[b,j,c]))\ny[b,i,c] = softmax[j](s) * v[b,j,c]",
        additive,
    ),
    "relation": ("y[b,i,c] = relu(q[b,i,c] - k[b,j,c]) * v[b,j,c]", relation),
    "distance": (
        "s[b,i,j] = -sum[c]((q[b,i,c] - k[b,j,c])**2) / size[c]\ny[b,i,c] = softmax[j](s) * v[b,j,c]",
        distance,
    ),
    "squared ReLU": (
        "s[b,i,j] = relu(sum[c](q[b,i,c] * k[b,j,c]) / size[c])**2\ny[b,i,c] = softmax[j](s) * v[b,j,c]",
        squared,
    ),
}
"""The equations of each layer, and the operations by hand."""


def layer(kind: str, batch: int, positions: int, width: int, place: Place) -> dict[str, Contestant]:
    """A layer over all pairs of positions."""
    text, by_hand = LAYERS[kind]
    given = [place.drawn(batch, positions, width, seed=seed).requires_grad_() for seed in range(3)]
    graph = tn.layer(text.replace("size[c]", str(width)), inputs="q k v")
    return {OURS: ours(graph, None, tuple(given), place), "torch": Contestant(by_hand, tuple(given))}


def _cases(batch: int, positions: int, width: int) -> tuple[Case, ...]:
    shape = f"{batch} × {positions} × {width}"
    return tuple(
        Case(f"{kind}, {shape}", partial(layer, kind, batch, positions, width), MEASURES) for kind in LAYERS
    )


SUITE = Suite(
    "pairwise",
    "layers over pairs of positions, forward and both ways",
    {
        "usual": (*_cases(8, 64, 64), *_cases(8, 128, 128), *_cases(16, 256, 64)),
        "tiny": _cases(2, 4, 3),
        "large": _cases(32, 256, 128),
    },
)

if __name__ == "__main__":
    run(SUITE)
