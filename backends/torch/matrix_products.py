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
    if a.ndim == b.ndim == 2:
        shape: tuple[int, ...] = (a.shape[0], b.shape[1])
        product = torch.mm
    elif a.ndim == b.ndim == 3 and a.shape[0] == b.shape[0]:
        shape = (a.shape[0], a.shape[1], b.shape[2])
        product = torch.bmm
    else:
        return torch.matmul(a, b)
    result = _room(shape, a, b)
    return torch.matmul(a, b) if result is None else product(a, b, out=result)


def large_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x·Wᵀ + u, with huge pages if the result is large."""
    given = (x, weight) if bias is None else (x, weight, bias)
    result = _room((x.shape[:-1].numel(), weight.shape[0]), *given)
    if result is None:
        return torch.nn.functional.linear(*given)
    rows = x.reshape(-1, x.shape[-1])
    if bias is None:
        torch.mm(rows, weight.t(), out=result)
    else:
        torch.addmm(bias, rows, weight.t(), out=result)
    return result.view(*x.shape[:-1], weight.shape[0])


def _room(shape: tuple[int, ...], *given: torch.Tensor) -> torch.Tensor | None:
    """A tensor to write a result into. None if that is small, not on a CPU, not eager, or recorded by autograd."""
    size = math.prod(shape) * given[0].itemsize
    if size <= MAPPED or given[0].device.type != "cpu" or not is_eager(*given) or is_differentiated(*given):
        return None
    result = given[0].new_empty(shape)
    if (advise := _advise()) is not None:
        start = -(-result.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        advise(start, result.data_ptr() + size - start, _HUGE)
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
