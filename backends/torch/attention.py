"""Attention where torch has no kernel on a CPU: with a mask that has a gradient, or values longer than keys.

Torch's own operations also look for rows without any key, which here are NaN, and scale both operands. Without a mask,
the weights take the place of the scores, and their gradients that of the gradients of these. Windows of 49 positions
take 0.75 to 0.8 of the time, both ways.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

from .matrix_products import large_matmul
from .products import is_eager, with_vjp

__all__ = ["scaled_dot_product_attention"]


def scaled_dot_product_attention(q: Any, k: Any, v: Any, **more: Any) -> Any:
    """softmax(scale · q·k + mask) · v, by torch's kernel where it has one, of four dimensions each."""
    mask = more.get("attn_mask")
    has_kernel = q.shape[-1] == v.shape[-1] and not (mask is not None and mask.requires_grad)
    given = (q, k, v) if mask is None else (q, k, v, mask)
    if (
        has_kernel
        or not more.keys() <= {"attn_mask", "scale"}
        or q.device.type != "cpu"
        or not is_eager(*given)
    ):
        return functional.scaled_dot_product_attention(q, k, v, **more)
    attention = _attention(more["scale"]) if mask is None else functools.partial(_plain, more["scale"])
    return attention(*given)


@functools.lru_cache(maxsize=64)
def _attention(scale: float) -> Callable[..., Any]:
    """Attention without a mask, with a backward pass of its own."""
    forward, backward, plain = (functools.partial(each, scale) for each in (_forward, _backward, _plain))
    return with_vjp(forward, backward, (0, 1, 2, 3), (0, 1, 2), plain, asks=True)


def _plain(scale: float, q: Any, k: Any, v: Any, *mask: Any) -> Any:
    scores = torch.matmul(q * scale, k.mT)
    for each in mask:
        scores.add_(each)
    return torch.matmul(torch.softmax(scores, -1), v)


def _forward(scale: float, q: Any, k: Any, v: Any) -> Any:
    """The result, and the weights for the backward pass."""
    weights: Any = large_matmul((q * scale).flatten(0, 1), k.flatten(0, 1).mT)
    torch.softmax(weights, -1, out=weights)
    return (weights @ v.flatten(0, 1)).unflatten(0, q.shape[:2]), weights


def _backward(
    scale: float, q: Any, k: Any, v: Any, weights: Any, gradient: Any, wanted: Sequence[bool]
) -> Any:
    """v̄ = wᵀ ȳ, s̄ = w · (ȳ vᵀ − Σ_j w · ȳ vᵀ), q̄ = scale · s̄ k, k̄ = scale · s̄ᵀ q."""
    batch, gradient = q.shape[:2], gradient.flatten(0, 1)
    of_v = (weights.mT @ gradient).unflatten(0, batch) if wanted[2] else None
    if not any(wanted[:2]):
        return None, None, of_v
    scores: Any = large_matmul(gradient, v.flatten(0, 1).mT)
    torch.ops.aten._softmax_backward_data.out(scores, weights, -1, scores.dtype, grad_input=scores)
    of_q = (scores @ k.flatten(0, 1)).mul_(scale).unflatten(0, batch) if wanted[0] else None
    of_k = (scores.mT @ q.flatten(0, 1)).mul_(scale).unflatten(0, batch) if wanted[1] else None
    return of_q, of_k, of_v
