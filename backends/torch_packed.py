"""Products of two large matrices by oneDNN, which lays both out anew, where the library has it.

Where there is much to compute it takes less time than the product that PyTorch calls by itself; autograd,
`torch.func` and compilers do not see through it, and get the usual one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import torch
from torch.nn import functional

from .torch_products import both_ways, changing, is_eager

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
"""What is done to each element of a product, as oneDNN calls it, and as PyTorch does it by itself."""


def packed_linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, then: str = ""
) -> torch.Tensor:
    """x·Wᵀ + u, and a function of that."""
    given = (x, weight) if bias is None else (x, weight, bias)
    name, how, alone = _THEN[then]
    if not _is_taken(*given):
        return alone(functional.linear(*given))
    if changing(given):
        return alone(_products[len(given)](*given))
    bias = None if bias is None else bias.contiguous()  # it is read as if it were
    found: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, name, [], how)
    return found


def _gradients(
    x: torch.Tensor, weight: torch.Tensor, gradient: torch.Tensor, wanted: Sequence[bool]
) -> tuple[torch.Tensor | None, ...]:
    """Those of x·Wᵀ + u that are wanted."""
    rows = gradient.reshape(-1, gradient.shape[-1])
    of_x, of_weight, *of_bias = wanted
    return (
        packed_matmul(rows, weight).reshape(x.shape) if of_x else None,
        rows.t() @ x.reshape(-1, x.shape[-1]) if of_weight else None,
        *(rows.sum(0) if each else None for each in of_bias),
    )


def _product(gives: tuple[int, ...]) -> Callable[..., torch.Tensor]:
    return both_ways(packed_linear, _gradients, (0, 1), gives, functional.linear, asks=True)


_products = {2: _product((0, 1)), 3: _product((0, 1, 2))}


def packed_matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a·b."""
    if not _is_taken(a, b) or changing((a, b)):
        return torch.matmul(a, b)
    found: torch.Tensor = torch.ops.mkldnn._linear_pointwise(a, b.t(), None, "none", [], "")
    return found


def _is_taken(x: torch.Tensor, *others: torch.Tensor) -> bool:
    """Whether oneDNN takes such tensors as they lie."""
    known = torch._C._has_mkldnn and x.device.type == "cpu" and x.dtype == torch.float32
    return known and x.is_contiguous() and all(each.numel() for each in (x, *others)) and is_eager(x, *others)
