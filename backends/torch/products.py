"""Planned products: one autograd node with a planned backward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch._subclasses.fake_tensor import is_fake
from torch.autograd import forward_ad

from ..loops import as_tuple

__all__ = [
    "changing",
    "is_differentiated",
    "is_eager",
    "is_recorded",
    "is_traced",
    "is_transformed",
    "is_unseen",
    "with_vjp",
]

Given: TypeAlias = Sequence[torch.Tensor]
Gradients: TypeAlias = "tuple[torch.Tensor | None, ...]"


def changing(arrays: Sequence[Any]) -> tuple[int, ...]:
    """The indices of the tensors that require gradients, if only autograd differentiates.

    The result is empty under transforms of `torch.func`, in forward mode and while a compiler traces: these
    differentiate the operations themselves. It is also empty if a tensor that requires a gradient is complex.
    """
    if not is_differentiated(*arrays):
        return ()
    found = tuple(n for n, array in enumerate(arrays) if array.requires_grad)
    return () if any(arrays[n].is_complex() for n in found) else found


def is_differentiated(*tensors: torch.Tensor) -> bool:
    """Whether autograd, and nothing else, records the operations on these tensors."""
    return torch.is_grad_enabled() and True in [each.requires_grad for each in tensors] and not is_traced()


def is_recorded() -> bool:
    """Whether a compiler or `torch.jit.trace` records the operations, which may then run at other sizes."""
    return torch.compiler.is_compiling() or torch._C._is_tracing()


def is_traced() -> bool:
    """Whether something other than autograd sees the operations: a compiler, `torch.func`, or forward mode."""
    if is_recorded():
        return True
    level: int = forward_ad._current_level
    return level >= 0 or is_transformed()


def is_transformed() -> bool:
    """Whether a transform of `torch.func` sees the operations."""
    transforms = torch._C._functorch  # PyTorch 2.12 does not compile `get_dynamic_layer_stack_depth`
    return isinstance(transforms.peek_interpreter_stack(), transforms.CInterpreter)


def is_differentiated_twice() -> bool:
    """Whether forward mode, or two gradients of `torch.func`, see the operations. Fused kernels have neither."""
    transforms = torch._C._functorch
    gradients = [each for each in transforms.get_interpreter_stack() or () if each.key() == _GRADIENT]
    return forward_ad._current_level >= 0 or len(gradients) > 1


_GRADIENT = torch._C._functorch.TransformType.Grad


def is_unseen(*tensors: torch.Tensor) -> bool:
    """Whether the values of the tensors cannot be read: during tracing, under `vmap` and in a CUDA graph."""
    captured = any(each.is_cuda for each in tensors) and torch.cuda.is_current_stream_capturing()
    return torch.compiler.is_compiling() or captured or any(map(_has_no_values, tensors))


def _has_no_values(tensor: Any) -> bool:
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        if functorch.is_batchedtensor(tensor):
            return True
        tensor = functorch.get_unwrapped(tensor)
    return is_fake(tensor)


def is_eager(*given: torch.Tensor) -> bool:
    """Whether these are plain tensors of one element type, without autocast, and only autograd sees the operations."""
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
    """A function of tensors with its gradients computed by another function.

    Args:
        forward: takes the tensors. Returns the result, or a tuple of it and the residuals.
        backward: takes some of the tensors and residuals, and last the gradient of the result.
        reads: the indices of its operands, in the tensors followed by the residuals.
        gives: the indices of the tensors whose gradients it returns.
        plain: the same result by differentiable operations, if those of `forward` are not differentiable.
        asks: whether `backward` takes `wanted`, a flag for each gradient in `gives`. It returns None for the others.
    """

    class Product(torch.autograd.Function):
        """The function as one node of autograd's graph."""

        @staticmethod
        def forward(ctx: Any, *tensors: torch.Tensor) -> Any:
            made = as_tuple(forward(*tensors))
            ctx.save_for_backward(*tensors, *made[1:])
            return made[0]

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Gradients:
            saved, needed = ctx.saved_tensors, ctx.needs_input_grad  # read once: checkpointing unpacks them
            if torch.is_grad_enabled():  # double backward: residuals have no derivatives
                return _differentiable(plain or first, saved[: len(needed)], gradient, needed)
            told = {"wanted": tuple(needed[n] for n in gives)} if asks else {}
            made = as_tuple(backward(*[saved[n] for n in reads], gradient.contiguous(), **told))
            if gives == (*range(len(needed)),):
                return made
            found = dict(zip(gives, made, strict=True))
            return tuple(found.get(n) for n in range(len(needed)))

    def first(*tensors: torch.Tensor) -> Any:
        return as_tuple(forward(*tensors))[0]

    # what `Function.apply` does before is for the transforms of torch.func
    apply = super(torch.autograd.Function, Product).apply

    def product(*tensors: torch.Tensor) -> Any:
        return apply(*tensors) if is_differentiated(*tensors) else first(*tensors)  # type: ignore[no-untyped-call]

    return product


def _differentiable(
    function: Callable[..., Any], given: Given, gradient: torch.Tensor, needed: Sequence[bool]
) -> Gradients:
    """The gradients of some tensors, by operations that autograd can differentiate again."""
    asked = [n for n in range(len(given)) if needed[n]]
    apart = [each.view_as(each) for each in given]  # one tensor may be computed from another
    result = function(*apart)
    made = torch.autograd.grad(result, [apart[n] for n in asked], gradient, create_graph=True)
    found = dict(zip(asked, made, strict=True))
    return tuple(found.get(n) for n in range(len(given)))
