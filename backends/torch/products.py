"""Planned products: one autograd node with a planned backward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

__all__ = ["both_ways", "changing", "is_eager", "is_recorded", "is_traced", "is_transformed"]


def changing(arrays: Sequence[Any]) -> tuple[int, ...]:
    """Which of some tensors autograd wants gradients of, where it is autograd alone that differentiates.

    Under transforms of `torch.func`, in forward mode and while a compiler traces nothing is said: they go
    through the operations themselves.
    """
    if not torch.is_grad_enabled() or is_traced():
        return ()
    found = tuple([n for n, array in enumerate(arrays) if array.requires_grad])
    return () if any(arrays[n].is_complex() for n in found) else found


def is_recorded() -> bool:
    """Whether a compiler or `torch.jit.trace` takes down the operations, for other sizes as well."""
    return torch.compiler.is_compiling() or torch._C._is_tracing()


def is_traced() -> bool:
    """Whether something else than autograd sees the operations: a compiler, `torch.func`, or forward mode."""
    if is_recorded():
        return True
    level: int = forward_ad._current_level
    return level >= 0 or is_transformed()


def is_transformed() -> bool:
    """Whether a transform of `torch.func` sees the operations."""
    transforms = torch._C._functorch  # the compiler of PyTorch 2.12 knows no `get_dynamic_layer_stack_depth`
    return isinstance(transforms.peek_interpreter_stack(), transforms.CInterpreter)


def is_eager(*given: torch.Tensor) -> bool:
    """Whether tensors, of one type, are computed with as they stand, and nothing but autograd looks on."""
    if not _PLAIN.issuperset(map(type, given)) or len({each.dtype for each in given}) > 1:
        return False
    return not is_traced() and not torch.is_autocast_enabled("cpu")


_PLAIN = {torch.Tensor, torch.nn.Parameter}


def both_ways(
    forward: Callable[..., Any],
    backward: Callable[..., Any],
    reads: tuple[int, ...],
    gives: tuple[int, ...],
    plain: Callable[..., Any] | None = None,
    asks: bool = False,
) -> Callable[..., Any]:
    """A function of tensors whose gradients another computes.

    Args:
        forward: of the tensors; returns the result, or that and what is kept for the way back.
        backward: of some of the tensors and of what is kept, and of the gradient of the result, last.
        reads: which of the tensors, and after them of what is kept, it takes.
        gives: the tensors whose gradients it returns.
        plain: the result by operations that autograd differentiates, where those of `forward` are none.
        asks: whether `backward` is told as `wanted` which of the gradients in `gives` are; it gives None for others.
    """

    def first(*tensors: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor | tuple[torch.Tensor, ...] = forward(*tensors)
        return found[0] if isinstance(found, tuple) else found

    class Product(torch.autograd.Function):
        """The product, to autograd."""

        @staticmethod
        def forward(ctx: Any, *tensors: torch.Tensor) -> torch.Tensor:
            found: Any = forward(*tensors)
            result: torch.Tensor
            result, *kept = found if isinstance(found, tuple) else (found,)
            ctx.save_for_backward(*tensors, *kept)
            ctx.count = len(tensors)
            return result

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            tensors, count = ctx.saved_tensors, ctx.count
            found: list[torch.Tensor | None] = [None] * count
            if torch.is_grad_enabled():  # a derivative of this one is wanted: what is kept has none
                asked = [n for n in range(count) if ctx.needs_input_grad[n]]
                apart = [each.view_as(each) for each in tensors[:count]]  # one may be made of another
                given = [apart[n] for n in asked]
                result = (plain or first)(*apart)
                made = torch.autograd.grad(result, given, gradient, create_graph=True)
                for n, each in zip(asked, made, strict=True):
                    found[n] = each
                return tuple(found)
            told = {"wanted": tuple(ctx.needs_input_grad[n] for n in gives)} if asks else {}
            made = backward(*(tensors[n] for n in reads), gradient.contiguous(), **told)
            for n, each in zip(gives, made if isinstance(made, tuple) else (made,), strict=True):
                found[n] = each
            return tuple(found)

    def product(*tensors: torch.Tensor) -> torch.Tensor:
        if changing(tensors):
            result: torch.Tensor = Product.apply(*tensors)  # type: ignore[no-untyped-call]
            return result
        return first(*tensors)

    return product
