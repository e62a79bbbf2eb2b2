"""In-place sums and products: written into an operand that nothing else reads."""

from __future__ import annotations

import torch

from .products import is_traced

__all__ = ["added", "multiplied", "subtracted"]


def added(made: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """made + other, written into `made` if possible."""
    return made.add_(other) if _is_room(made, other) else made + other


def subtracted(made: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """made − other, written into `made` if possible."""
    return made.sub_(other) if _is_room(made, other) else made - other


def multiplied(made: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """made · other, written into `made` if possible. It is not if autograd records it and so saves the operands."""
    return made.mul_(other) if _is_room(made, other) and not _is_recorded(made, other) else made * other


def _is_room(made: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether a result may be written into its first operand, which nothing else reads.

    It may not under a compiler, `torch.func` or forward mode, nor if the element types differ. If autograd records
    it, a view is not written into either: autograd would copy the gradient.
    """
    if is_traced() or made.dtype != other.dtype or not _PLAIN.issuperset((type(made), type(other))):
        return False
    return not (made._is_view() and _is_recorded(made, other))


def _is_recorded(*tensors: torch.Tensor) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


_PLAIN = {torch.Tensor, torch.nn.Parameter}
