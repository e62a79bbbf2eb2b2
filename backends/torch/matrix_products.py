"""Large matrix products on a CPU: by oneDNN, which packs both operands, and into huge pages.

A large product by oneDNN takes less time than by the product that PyTorch calls by default: half the time for nine
layers of ViT and Swin on an AMD EPYC with AVX-512, on one thread and on two. Plans use oneDNN on devices where it was
measured to be faster. Autograd gets gradients, and compilers get a custom operation. Other observers, such as
`torch.func`, get the usual product.

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
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import library
from torch.nn import functional

from tensornet.device.heap import MAPPED

from .products import is_differentiated, is_eager, is_transformed, with_vjp

__all__ = ["large_linear", "large_matmul", "packed_linear", "packed_matmul"]


_THEN: Mapping[str, tuple[str, str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "": ("none", "", lambda y: y),
    "relu": ("relu", "", functional.relu),
    "gelu": ("gelu", "none", functional.gelu),
    "gelu_tanh": ("gelu", "tanh", functools.partial(functional.gelu, approximate="tanh")),
    "silu": ("swish", "", functional.silu),
    "sigmoid": ("sigmoid", "", torch.sigmoid),
    "tanh": ("tanh", "", torch.tanh),
}
"""The functions applied to each element of a product: name and variant in oneDNN, and the function in PyTorch."""


def packed_linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, then: str = ""
) -> torch.Tensor:
    """x·Wᵀ + u, with the function `then` applied to each element."""
    given = (x, weight) if bias is None else (x, weight, bias)
    name, how, alone = _THEN[then]
    if _is_compiled(*given):
        return alone(operation(x, weight, bias))
    if not _is_taken(*given):
        return alone(functional.linear(*given))
    if is_differentiated(*given):
        return alone(_products[len(given)](*given))
    bias = None if bias is None else bias.contiguous()  # oneDNN assumes this
    found: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, name, [], how)
    return found


def _gradients(
    x: torch.Tensor, weight: torch.Tensor, gradient: torch.Tensor, wanted: Sequence[bool]
) -> tuple[torch.Tensor | None, ...]:
    """The wanted gradients of x·Wᵀ + u."""
    rows = gradient.reshape(-1, gradient.shape[-1])
    of_x, of_weight, *of_bias = wanted
    return (
        packed_matmul(rows, weight).reshape(x.shape) if of_x else None,
        rows.t() @ x.reshape(-1, x.shape[-1]) if of_weight else None,
        *(rows.sum(0) if each else None for each in of_bias),
    )


def _product(gives: tuple[int, ...]) -> Callable[..., torch.Tensor]:
    return with_vjp(packed_linear, _gradients, (0, 1), gives, functional.linear, asks=True)


_products = {2: _product((0, 1)), 3: _product((0, 1, 2))}


def packed_matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a·b."""
    if _is_compiled(a, b):
        made: torch.Tensor = operation(a, b.t(), None)
        return made
    if not _is_taken(a, b) or is_differentiated(a, b):
        return torch.matmul(a, b)
    found: torch.Tensor = torch.ops.mkldnn._linear_pointwise(a, b.t(), None, "none", [], "")
    return found


def _is_taken(x: torch.Tensor, *others: torch.Tensor) -> bool:
    """Whether oneDNN computes with these tensors as they are laid out."""
    return _is_known(x, *others) and x.is_contiguous() and is_eager(x, *others)


def _is_compiled(*given: torch.Tensor) -> bool:
    """Whether a compiler traces these tensors directly. Under `torch.func` it does not accept custom operations."""
    if not torch.compiler.is_dynamo_compiling() or torch.compiler.is_exporting():
        return False
    return not is_transformed() and _is_known(*given)


def _is_known(*given: torch.Tensor) -> bool:
    """Whether oneDNN is available, and has products for these tensors."""
    known = torch._C._has_mkldnn and not torch.is_autocast_enabled("cpu")
    return known and all(
        each.device.type == "cpu" and each.dtype == torch.float32 and each.numel() > 0 for each in given
    )


# ---------------------------------------------------------------------------- as an operation for compilers


@library.custom_op("tensornet::packed_linear", mutates_args=())
def operation(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """x·Wᵀ + u."""
    with torch.no_grad():
        return packed_linear(x.contiguous(), weight, bias)


@operation.register_fake
def _(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


def _kept(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs[:2])


def _back(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    return _gradients(x, weight, gradient, ctx.needs_input_grad)


operation.register_autograd(_back, setup_context=_kept)


# ---------------------------------------------------------------------------- in huge pages


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
