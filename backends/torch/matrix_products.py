"""Large matrix products on a CPU, written into huge pages.

The system prepares a page of new memory at its first touch, which often takes longer than the product that is written
there. Linux prepares pages of 2 MiB at a time if it is advised to, as NumPy does for its arrays. A product of
50,176 × 96 by 288, of 58 MB, then takes 0.62 of the time, and 0.52 on two threads. Results of up to `MAPPED` bytes are
not affected.
"""

from __future__ import annotations

import ctypes
import functools
import math
import mmap
from collections.abc import Callable
from typing import Any

import torch

from tensornet.device.heap import MAPPED

from .products import is_differentiated, is_eager

__all__ = ["large_linear", "large_matmul"]


def large_matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a·b. A large result of two matrices, or of two batches with as many matrices, gets huge pages."""
    is_plain = a.ndim == b.ndim == 2 or (a.ndim == b.ndim == 3 and a.shape[0] == b.shape[0])
    if not is_plain or not _is_large((*a.shape[:-1], b.shape[-1]), a, b):
        return torch.matmul(a, b)
    return _product(a, b)


def large_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x·Wᵀ + u, with huge pages if the result is large."""
    given = (x, weight) if bias is None else (x, weight, bias)
    if not _is_large((x.shape[:-1].numel(), weight.shape[0]), *given):
        return torch.nn.functional.linear(*given)
    return _product(x.reshape(-1, x.shape[-1]), weight.t(), bias).view(*x.shape[:-1], weight.shape[0])


def _product(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """a·b + u, in huge pages."""
    if is_differentiated(*((a, b) if bias is None else (a, b, bias))):
        return _Product.apply(a, b, bias)  # type: ignore[no-any-return, no-untyped-call]
    result = _room((*a.shape[:-1], b.shape[-1]), a)
    if bias is not None:
        return torch.addmm(bias, a, b, out=result)
    return (torch.mm if a.ndim == 2 else torch.bmm)(a, b, out=result)


class _Product(torch.autograd.Function):
    """The product as one node of autograd's graph, so that large gradients get huge pages too."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        ctx.save_for_backward(a, b)
        return _product(a.detach(), b.detach(), None if bias is None else bias.detach())

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (a, b), (by_a, by_b, by_bias) = ctx.saved_tensors, ctx.needs_input_grad
        return (
            _lying_as(a, gradient, b.mT) if by_a else None,
            _lying_as(b, a.mT, gradient) if by_b else None,
            gradient.sum(0) if by_bias else None,
        )


def _lying_as(given: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a·b, transposed in memory where `given` is."""
    return large_matmul(a, b) if given.stride(-1) == 1 else large_matmul(b.mT, a.mT).mT


def _is_large(shape: tuple[int, ...], *given: torch.Tensor) -> bool:
    """Whether a result on a CPU gets memory from the system, and only autograd sees the operation."""
    size = math.prod(shape) * given[0].itemsize
    return size > MAPPED and given[0].device.type == "cpu" and is_eager(*given)


def _room(shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
    """A tensor to write a large result into."""
    result = like.new_empty(shape)
    if (advise := _advise()) is not None:
        start = -(-result.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        advise(start, result.data_ptr() + result.nbytes - start, _HUGE)
    return result


_HUGE = getattr(mmap, "MADV_HUGEPAGE", 0)


@functools.cache
def _advise() -> Callable[..., Any] | None:
    """The system's `madvise`, or None if it does not support huge pages."""
    if not _HUGE:
        return None
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return advise
