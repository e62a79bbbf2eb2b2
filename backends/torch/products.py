"""Planned products: one autograd node with a planned backward pass."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeAlias

import torch
from torch.autograd import forward_ad

from tensornet.protocol import load_backend

__all__ = ["changing", "is_eager", "is_recorded", "is_traced", "is_transformed", "signature", "with_vjp"]

backend = load_backend("torch")

Given: TypeAlias = Sequence[torch.Tensor]
Gradients: TypeAlias = "tuple[torch.Tensor | None, ...]"


def signature(arrays: Sequence[Any]) -> tuple[Hashable, ...]:
    """The signature of a call: each tensor, whether torch casts them, and which of them `changing` names."""
    casts = bool(arrays) and _may_cast(arrays[0]) and backend.autocasts(arrays[0])
    return (casts, changing(arrays), *[(type(x), x.shape, x.dtype, x.device) for x in arrays])


def _may_cast(tensor: torch.Tensor) -> bool:
    """Whether torch might cast: what it says of all devices leaves some out, and what it says of one takes long."""
    if torch.compiler.is_compiling() or not (tensor.is_cpu or tensor.is_cuda):
        return True
    return bool(torch._C._is_any_autocast_enabled())


def changing(arrays: Sequence[Any]) -> tuple[int, ...]:
    """Which of some tensors autograd wants gradients of, where it is autograd alone that differentiates.

    Under transforms of `torch.func`, in forward mode and while a compiler traces nothing is said: they go
    through the operations themselves.
    """
    found = [n for n, array in enumerate(arrays) if array.requires_grad] if torch.is_grad_enabled() else []
    if not found or is_traced() or any(arrays[n].dtype.is_complex for n in found):
        return ()
    return tuple(found)


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


def with_vjp(
    forward: Callable[..., Any],
    backward: Callable[..., Any],
    reads: tuple[int, ...],
    gives: tuple[int, ...],
    plain: Callable[..., Any] | None = None,
    asks: bool = False,
) -> Callable[..., Any]:
    """A function of tensors whose gradients another computes.

    Args:
        forward: of the tensors; returns the result, or that and what is kept for the backward pass.
        backward: of some of the tensors and of what is kept, and of the gradient of the result, last.
        reads: which of the tensors, and after them of what is kept, it takes.
        gives: the tensors whose gradients it returns.
        plain: the result by operations that autograd differentiates, where those of `forward` are none.
        asks: whether `backward` is told as `wanted` which of the gradients in `gives` are; it gives None for others.
    """

    def first(*tensors: torch.Tensor) -> torch.Tensor:
        return _with_kept(forward(*tensors))[0]

    def gradients(given: Given, kept: Given, gradient: torch.Tensor, needed: Sequence[bool]) -> Gradients:
        if torch.is_grad_enabled():  # a derivative of this one is wanted: what is kept has none
            return _differentiable(plain or first, given, gradient, needed)
        told = {"wanted": tuple(needed[n] for n in gives)} if asks else {}
        tensors = (*given, *kept)
        made = backward(*(tensors[n] for n in reads), gradient.contiguous(), **told)
        found = dict(zip(gives, made if isinstance(made, tuple) else (made,), strict=True))
        return tuple(found.get(n) for n in range(len(given)))

    node = _node(forward, gradients)

    def product(*tensors: torch.Tensor) -> torch.Tensor:
        if changing(tensors):
            result: torch.Tensor = node.apply(*tensors)  # type: ignore[no-untyped-call]
            return result
        return first(*tensors)

    return product


def _with_kept(found: torch.Tensor | tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """What a forward function returns: the result, and what is kept for the backward pass, if it is."""
    return found if isinstance(found, tuple) else (found,)


def _node(
    function: Callable[..., Any], gradients: Callable[[Given, Given, torch.Tensor, Sequence[bool]], Gradients]
) -> type[torch.autograd.Function]:
    """A function of tensors as autograd records it.

    Args:
        function: of the tensors; returns the result, or that and what is saved for the backward pass.
        gradients: gives those of the tensors; takes these, what is saved, the gradient of the result, and whether
            each is needed.
    """

    class Product(torch.autograd.Function):
        """The product, to autograd."""

        @staticmethod
        def forward(ctx: Any, *tensors: torch.Tensor) -> torch.Tensor:
            result, *kept = _with_kept(function(*tensors))
            ctx.save_for_backward(*tensors, *kept)
            ctx.count = len(tensors)
            return result

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            saved, count = ctx.saved_tensors, ctx.count
            return gradients(saved[:count], saved[count:], gradient, ctx.needs_input_grad)

    return Product


def _differentiable(
    function: Callable[..., Any], given: Given, gradient: torch.Tensor, needed: Sequence[bool]
) -> Gradients:
    """The gradients of some tensors by operations that autograd differentiates in turn."""
    asked = [n for n in range(len(given)) if needed[n]]
    apart = [each.view_as(each) for each in given]  # one may be made of another
    result = function(*apart)
    made = torch.autograd.grad(result, [apart[n] for n in asked], gradient, create_graph=True)
    found = dict(zip(asked, made, strict=True))
    return tuple(found.get(n) for n in range(len(given)))
