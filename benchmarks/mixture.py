"""Mixtures of experts: tensornet, expert by expert by hand, and each token through all experts.

    python -m benchmarks.mixture

Forward, and both ways with the bytes that are kept for backward.
"""

from __future__ import annotations

from functools import partial

import torch
from torch.nn.functional import linear, silu

import tensornet as tn

from .report import run
from .suite import MEASURES, OURS, Case, Contestant, Place, Suite, on_cupy, ours

__all__ = ["SUITE"]


def mixture(
    tokens: int, width: int, hidden: int, experts: int, active: int, place: Place
) -> dict[str, Contestant]:
    """Tokens through the active of some experts, weighed by a softmax of their scores."""
    x = place.drawn(tokens, width).requires_grad_()
    graph = tn.models.mixture_of_experts(width, hidden, experts, active, activation="silu")
    mine = ours(graph, None, (x,), place)
    assert isinstance(mine.function, torch.nn.Module)
    p = dict(mine.function.named_parameters())

    def routed(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores, positions = linear(x, p["R"]).topk(active)
        return scores.softmax(-1), positions

    def one_by_one(x: torch.Tensor) -> torch.Tensor:
        weights, positions = routed(x)
        y = torch.zeros_like(x)
        for expert, (first, second) in enumerate(zip(p["W1"], p["W2"], strict=True)):
            rows, place = (positions == expert).nonzero(as_tuple=True)
            made = linear(silu(linear(x[rows], first)), second)
            y = y.index_add(0, rows, made * weights[rows, place, None])
        return y

    def through_all(x: torch.Tensor) -> torch.Tensor:
        weights, positions = routed(x)
        gates = torch.zeros(tokens, experts, dtype=x.dtype, device=x.device).scatter(1, positions, weights)
        inner = silu(linear(x, p["W1"].flatten(0, 1))) * gates.repeat_interleave(hidden, 1)
        return inner @ p["W2"].transpose(1, 2).flatten(0, 1)

    parameters = tuple(p.values())
    return {
        OURS: mine,
        **on_cupy(graph, p, (x,), place),
        "expert by expert": Contestant(one_by_one, (x,), parameters),
        "all experts": Contestant(through_all, (x,), parameters),
    }


def _case(tokens: int, width: int, hidden: int, experts: int, active: int) -> Case:
    name = f"{tokens:,} tokens, {width}→{hidden:,}→{width}, {active} of {experts} experts"
    return Case(name, partial(mixture, tokens, width, hidden, experts, active), MEASURES)


SUITE = Suite(
    "mixture",
    "mixtures of experts, against loops by hand and against all experts",
    {
        "usual": (_case(2048, 256, 1024, 16, 2), _case(2048, 256, 1024, 8, 2), _case(512, 512, 512, 64, 1)),
        "tiny": (_case(40, 12, 24, 4, 2), _case(96, 24, 48, 6, 1)),
        "large": (_case(32_768, 1024, 4096, 8, 2), _case(16_384, 1024, 1024, 64, 2)),
    },
)

if __name__ == "__main__":
    run(SUITE)
