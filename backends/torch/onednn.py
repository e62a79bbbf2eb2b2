"""oneDNN products: large matrix products that pack both operands.

A large product takes less time than by the product that PyTorch calls by default: half the time for nine layers of ViT
and Swin on an AMD EPYC with AVX-512, on one thread and on two. Plans use oneDNN on devices where it was measured to be
faster. Autograd gets gradients, and compilers get a custom operation. Other observers, such as `torch.func`, get the
usual product.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import library
from torch.nn import functional

from .products import is_differentiated, is_eager, is_transformed, with_vjp

__all__ = ["packed_linear", "packed_matmul"]


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
