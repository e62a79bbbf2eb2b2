"""Sums written into one of their terms, which nothing else reads: into no memory that is new."""

from __future__ import annotations

import torch

from .torch_products import is_traced

__all__ = ["added", "subtracted"]


def added(made: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """made + other, written where `made` lies if it may be."""
    return made.add_(other) if _is_room(made, other) else made + other


def subtracted(made: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """made − other, written where `made` lies if it may be."""
    return made.sub_(other) if _is_room(made, other) else made - other


def _is_room(made: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether a sum may lie where its first term does, which is of no other use.

    To a compiler, `torch.func` and forward mode it is a sum like any other; nor may it be of a longer type. Autograd
    would copy the gradient of what is written into a view.
    """
    if is_traced() or made.dtype != other.dtype or not _PLAIN.issuperset((type(made), type(other))):
        return False
    recorded = torch.is_grad_enabled() and (made.requires_grad or other.requires_grad)
    return not (recorded and made._is_view())


_PLAIN = {torch.Tensor, torch.nn.Parameter}
