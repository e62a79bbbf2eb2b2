"""Normalisation and variance by fused sums, fast along any axis."""

from __future__ import annotations

import torch

from .products import is_differentiated, is_eager

__all__ = ["deviation", "normalize", "variance"]


def normalize(
    x: torch.Tensor,
    axis: int,
    eps: float,
    gain: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """(x − mean) / √(variance + eps) along one axis, by the fused kernel if the axis is the last.

    An optional gain and bias follow, with one number for each position along the axis.
    """
    if axis in (-1, x.ndim - 1):
        if gain is None or bias is None or gain.dtype == x.dtype == bias.dtype:
            return torch.nn.functional.layer_norm(x, x.shape[-1:], gain, bias, eps)
        return torch.nn.functional.layer_norm(x, x.shape[-1:], eps=eps) * gain + bias
    if x.itemsize == 2:  # squares in 16 bits would overflow or be inaccurate
        made = x.dtype if gain is None else torch.result_type(x, gain)
        return normalize(x.float(), axis, eps, gain, bias).to(made)
    centred = x - x.mean(axis, keepdim=True)  # torch.var_mean goes element by element: ten times as long
    scale = torch.rsqrt(centred.square().mean(axis, keepdim=True) + eps)
    normed = multiplied(centred, scale)
    if gain is None or bias is None:
        return normed
    shape = (-1,) + (1,) * (x.ndim - axis - 1)
    return added(multiplied(normed, gain.reshape(shape)), bias.reshape(shape))


def variance(x: torch.Tensor, axes: tuple[int, ...]) -> torch.Tensor:
    """The biased variance. It avoids `torch.var`, which goes element by element."""
    if x.itemsize == 2:  # squares in 16 bits would overflow or be inaccurate
        return variance(x.float(), axes).to(x.dtype)
    centred = x - x.mean(axes, keepdim=True)
    return (centred.abs() if x.is_complex() else centred).square().mean(axes)


def deviation(x: torch.Tensor, axes: tuple[int, ...]) -> torch.Tensor:
    """The biased standard deviation, with gradient 0 where it is 0."""
    if x.itemsize == 2:  # which may hold a root whose square it does not
        return deviation(x.float(), axes).to(x.dtype)
    squared = variance(x, axes)
    still = squared == 0
    return torch.where(still, squared, torch.where(still, 1.0, squared).sqrt())


# ---------------------------------------------------------------------------- in place


def added(made: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """made + other, written into `made` if possible."""
    return made.add_(other) if _is_room(made, other) else made + other


def multiplied(made: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """made · other, written into `made` if possible. It is not if autograd records it and so saves the operands."""
    return made * other if is_differentiated(made, other) or not _is_room(made, other) else made.mul_(other)


def _is_room(made: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether a result may be written into its first operand, which nothing else reads.

    It may not under a compiler, `torch.func` or forward mode, nor if the element types differ. If autograd records
    it, a view is not written into either: autograd would copy the gradient.
    """
    return is_eager(made, other) and not (made._is_view() and is_differentiated(made, other))
