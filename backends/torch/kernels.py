"""Kernels: large products, attention, convolution, pooling and normalisation where torch is slow or has none.

The system prepares a page of new memory at its first touch, which often takes longer than the product that is written
there. Linux prepares pages of 2 MiB at a time if it is advised to, as NumPy does for its arrays. A product of
50,176 × 96 by 288, of 58 MB, then takes 0.62 of the time, and 0.52 on two threads. The memory of such a result is kept
when it is freed, for the next one of its size: a tensor contraction layer of 100,352 × 96 takes 0.81 of the time both
ways. Results of up to `MAPPED` bytes are not affected: the C library keeps their memory.

On a CPU torch has no kernel of attention with a mask that has a gradient, or with values longer than keys. Its own
operations also look for rows without any key, which here are NaN, and scale both operands. Without a mask, the weights
take the place of the scores, and their gradients that of the gradients of these. Windows of 49 positions take 0.75 to
0.8 of the time, both ways. Normalisation by fused sums is fast along any axis.
"""

from __future__ import annotations

import functools
import math
import mmap
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from tensornet.device.cost_model import MAPPED

from ..windows import Pools, Windows, convolutions, elements, margins, reach
from .products import is_differentiated, is_differentiated_twice, is_eager, is_recorded, with_vjp

__all__ = [
    *("large_linear", "large_matmul", "scaled_dot_product_attention"),
    *("convolution", "convolution_bias", "convolution_k", "convolution_x", "max_pool", "mean_pool"),
    *("batch_norm", "deviation", "mean", "normalize", "pairwise_distance", "variance"),
]


def large_matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a·b. A large result of two matrices, or of two batches with as many matrices, gets huge pages."""
    is_plain = a.ndim == b.ndim == 2 or (a.ndim == b.ndim == 3 and a.shape[0] == b.shape[0])
    if not is_plain or not is_large((*a.shape[:-1], b.shape[-1]), a, b):
        return torch.matmul(a, b)
    return _product(a, b)


def large_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x·Wᵀ + u, with huge pages if the result is large."""
    given = (x, weight) if bias is None else (x, weight, bias)
    if not is_large((x.shape[:-1].numel(), weight.shape[0]), *given):
        return torch.nn.functional.linear(*given)
    return _product(x.reshape(-1, x.shape[-1]), weight.t(), bias).view(*x.shape[:-1], weight.shape[0])


def _product(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """a·b + u, in huge pages."""
    if is_differentiated(*((a, b) if bias is None else (a, b, bias))):
        return _Product.apply(a, b, bias)  # type: ignore[no-any-return, no-untyped-call]
    result = room((*a.shape[:-1], b.shape[-1]), a)
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


def is_large(shape: tuple[int, ...], *given: torch.Tensor) -> bool:
    """Whether a result on a CPU gets memory from the system, and only autograd sees the operation."""
    size = math.prod(shape) * given[0].itemsize
    return size > MAPPED and given[0].device.type == "cpu" and is_eager(*given)


def room(shape: tuple[int, ...], like: torch.Tensor, zero: bool = False) -> torch.Tensor:
    """A tensor to write a large result into, or to add to zeros, in memory that was freed or is new."""
    if not _FREE:
        return like.new_zeros(shape) if zero else like.new_empty(shape)
    size = math.prod(shape) * like.itemsize
    try:
        memory, is_new = _FREED[size].pop(), False
    except (KeyError, IndexError):
        memory, is_new = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), True
        memory.madvise(getattr(mmap, "MADV_HUGEPAGE", mmap.MADV_NORMAL))
    array = numpy.frombuffer(memory, numpy.uint8)
    weakref.finalize(array, _keep, memory).atexit = False
    result = torch.from_numpy(array).view(like.dtype).view(shape)
    return result.zero_() if zero and not is_new else result


KEPT = 2**30
"""The most bytes of freed memory that are kept."""

_FREE = getattr(mmap, "MADV_FREE", 0)
"""The advice by which a system may take back pages that a process keeps, or 0 if it has none."""

_FREED: dict[int, list[mmap.mmap]] = {}
"""Freed memory by its size. Several threads, and the collection of garbage, may change it at any time."""


def _keep(memory: Any) -> None:
    """Keeps the memory of a result that no tensor holds any more. The system may take its pages when it needs some."""
    memory.madvise(_FREE)
    if len(memory) + sum(size * len(kept) for size, kept in list(_FREED.items())) > KEPT:
        _FREED.clear()  # other sizes are in use now
    _FREED.setdefault(len(memory), []).append(memory)


# ---------------------------------------------------------------------------- attention


def scaled_dot_product_attention(q: Any, k: Any, v: Any, **more: Any) -> Any:
    """softmax(scale · q·k + mask) · v, by torch's kernel where it has one, of four dimensions each."""
    mask = more.get("attn_mask")
    has_kernel = q.shape[-1] == v.shape[-1] and not (mask is not None and mask.requires_grad)
    given = (q, k, v) if mask is None else (q, k, v, mask)
    if not is_recorded() and is_differentiated_twice():
        with sdpa_kernel(SDPBackend.MATH):
            return functional.scaled_dot_product_attention(q, k, v, **more)
    if (
        has_kernel
        or not more.keys() <= {"attn_mask", "scale"}
        or q.device.type != "cpu"
        or not is_eager(*given)
    ):
        return functional.scaled_dot_product_attention(q, k, v, **more)
    attention = _attention(more["scale"]) if mask is None else functools.partial(_plain, more["scale"])
    return attention(*given)


@functools.lru_cache(maxsize=64)
def _attention(scale: float) -> Callable[..., Any]:
    """Attention without a mask, with a backward pass of its own."""
    forward, backward, plain = (functools.partial(each, scale) for each in (_forward, _backward, _plain))
    return with_vjp(forward, backward, (0, 1, 2, 3), (0, 1, 2), plain, asks=True)


def _plain(scale: float, q: Any, k: Any, v: Any, *mask: Any) -> Any:
    scores = torch.matmul(q * scale, k.mT)
    for each in mask:
        scores.add_(each)
    return torch.matmul(torch.softmax(scores, -1), v)


def _forward(scale: float, q: Any, k: Any, v: Any) -> Any:
    """The result, and the weights for the backward pass."""
    weights: Any = large_matmul((q * scale).flatten(0, 1), k.flatten(0, 1).mT)
    torch.softmax(weights, -1, out=weights)
    return (weights @ v.flatten(0, 1)).unflatten(0, q.shape[:2]), weights


def _backward(
    scale: float, q: Any, k: Any, v: Any, weights: Any, gradient: Any, wanted: Sequence[bool]
) -> Any:
    """v̄ = wᵀ ȳ, s̄ = w · (ȳ vᵀ − Σ_j w · ȳ vᵀ), q̄ = scale · s̄ k, k̄ = scale · s̄ᵀ q."""
    batch, gradient = q.shape[:2], gradient.flatten(0, 1)
    of_v = (weights.mT @ gradient).unflatten(0, batch) if wanted[2] else None
    if not any(wanted[:2]):
        return None, None, of_v
    scores: Any = large_matmul(gradient, v.flatten(0, 1).mT)
    torch.ops.aten._softmax_backward_data.out(scores, weights, -1, scores.dtype, grad_input=scores)
    of_q = (scores @ k.flatten(0, 1)).mul_(scale).unflatten(0, batch) if wanted[0] else None
    of_k = (scores.mT @ q.flatten(0, 1)).mul_(scale).unflatten(0, batch) if wanted[1] else None
    return of_q, of_k, of_v


# ---------------------------------------------------------------------------- convolution and pooling


_FORWARD = (functional.conv1d, functional.conv2d, functional.conv3d)
_BACKWARD = (functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d)
_LARGEST = (functional.max_pool1d, functional.max_pool2d, functional.max_pool3d)
_MEAN = (functional.avg_pool1d, functional.avg_pool2d, functional.avg_pool3d)


def _padded(x: Any, amounts: Sequence[tuple[int, int]]) -> Any:
    """A tensor with this many zeros added before and after its last dimensions. Negative numbers cut off elements."""
    flat = [amount for pair in reversed(amounts) for amount in pair]
    return functional.pad(x, flat) if any(flat) else x


def _convolution(x: Any, k: Any, groups: int, windows: Windows, bias: Any = None) -> Any:
    """y[b,go,p] = Σ x[b,gc,first + by·p + apart·u] · k[go,c,u] + bias[go]."""
    by, apart, _, outer = (list(each) for each in zip(*windows, strict=True))
    amounts = margins(x.shape[2:], windows, outer, k.shape[2:])
    padding = [before for before, _ in amounts]
    alike = all(
        before >= 0 and -by < after - before <= 0 for (before, after), by in zip(amounts, by, strict=True)
    )
    if not alike:
        x, padding = _padded(x, amounts), [0] * len(windows)
    return _FORWARD[len(windows) - 1](x, k, bias, by, padding, apart, groups)


def _convolution_x(y: Any, k: Any, groups: int, windows: Windows) -> Any:
    """x[b,gc,i] = Σ y[b,go,p] · k[go,c,u] where i is first + by·p + apart·u."""
    by, apart, first, sizes = (list(each) for each in zip(*windows, strict=True))
    spans = map(reach, by, apart, y.shape[2:], k.shape[2:])
    amounts = [(low, size - low - span) for low, size, span in zip(first, sizes, spans, strict=True)]
    padding = [-low for low in first]
    more = [after - before for before, after in amounts]
    kept = all(
        low >= 0 and 0 <= extra < max(steps)
        for low, extra, *steps in zip(padding, more, by, apart, strict=True)
    )
    back = _BACKWARD[len(windows) - 1]
    if kept:
        return back(y, k, None, by, padding, more, groups, apart)
    return _padded(back(y, k, None, by, 0, 0, groups, apart), amounts)


def _convolution_k(x: Any, y: Any, groups: int, windows: Windows) -> Any:
    """k[go,c,u] = Σ x[b,gc,first + by·p + apart·u] · y[b,go,p]."""
    by, apart, _, inner = (list(each) for each in zip(*windows, strict=True))
    amounts = margins(x.shape[2:], windows, y.shape[2:], inner)
    x = _padded(x, amounts)
    like = x.new_empty((y.shape[1], x.shape[1] // groups, *inner))
    zeros, mask = [0] * len(windows), [False, True, False]
    backward = torch.ops.aten.convolution_backward
    return backward(y, x, like, None, by, zeros, apart, False, zeros, groups, mask)[1]


def _zeros(one: Any, other: Any, shape: tuple[int, ...]) -> Any:
    """Zeros that depend on no element of two tensors, so that both get gradients of zeros."""
    return one.new_zeros(shape) + one.flatten()[:0].sum() + other.flatten()[:0].sum()


convolution, convolution_x, convolution_k = convolutions(_convolution, _convolution_x, _convolution_k, _zeros)


def convolution_bias(x: Any, k: Any, bias: Any, groups: int, windows: Windows) -> Any:
    """A convolution with a bias of each channel, and its gradient in the same passes."""
    if 0 in (*x.shape, *k.shape):
        return convolution(x, k, groups, windows) + bias.reshape(-1, *(1 for _ in windows))
    return _convolution(x, k, groups, windows, bias)


def _reached(x: Any, windows: Pools) -> Any:
    """The part of a tensor that windows reach. A rest behind them may stay if it is too short for another window."""
    for axis, (by, apart, first, outer, inner) in enumerate(windows, 1):
        span = reach(by, apart, outer, inner)
        if first or x.shape[axis] - span >= by:
            x = x.narrow(axis, first, span)
    return x


def max_pool(x: Any, windows: Pools) -> Any:
    """The largest element of each window. The first dimension has no windows."""
    by, apart, _, _, inner = (list(each) for each in zip(*windows, strict=True))
    return _by_kernel(_LARGEST, _reached(x, windows), inner, by, 0, apart)


def mean_pool(x: Any, windows: Pools) -> Any:
    """The arithmetic mean of each window. The first dimension has no windows."""
    by, apart, _, _, inner = (list(each) for each in zip(*windows, strict=True))
    if any(each > 1 for each in apart):
        return torch.stack(list(elements(x, windows))).mean(0)
    return _by_kernel(_MEAN, _reached(x, windows), inner, by)


def _by_kernel(kernels: Sequence[Callable[..., Any]], x: Any, *given: Any) -> Any:
    """A pool by the kernel for its dimensions. Kernels take an empty batch, but not an absence of channels."""
    kernel = kernels[x.ndim - 2]
    return kernel(x, *given) if len(x) else kernel(x.unsqueeze(1), *given).squeeze(1)


# ---------------------------------------------------------------------------- normalisation


def normalize(
    x: torch.Tensor, axis: int, eps: float, gain: torch.Tensor | None = None, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """(x − mean) / √(variance + eps) along one axis, by the fused kernel if the axis is the last.

    An optional gain and bias follow, with one number for each position along the axis.
    """
    if axis in (-1, x.ndim - 1):
        if gain is None or bias is None or gain.dtype == x.dtype == bias.dtype:
            return torch.nn.functional.layer_norm(x, x.shape[-1:], gain, bias, eps)
        return torch.nn.functional.layer_norm(x, x.shape[-1:], eps=eps) * gain + bias
    if x.itemsize == 2:  # squares in 16 bits would overflow or be inaccurate
        made = x.dtype if gain is None else torch.result_type(x, gain)
        return normalize(x.float(), axis, eps, gain, bias).to(made)
    centred = x - mean(x, (axis,), True)  # torch.var_mean goes element by element: ten times as long
    scale = torch.rsqrt(mean(centred.square(), (axis,), True) + eps)
    normed = multiplied(centred, scale)
    if gain is None or bias is None:
        return normed
    shape = (-1,) + (1,) * (x.ndim - axis - 1)
    return added(multiplied(normed, gain.reshape(shape)), bias.reshape(shape))


def batch_norm(eps: float, x: torch.Tensor, *affine: torch.Tensor) -> torch.Tensor:
    """(x − mean) / √(variance + eps) · gain + bias, over the first and the last of three dimensions.

    Of four dimensions, it is over the last two, and gain and bias have the two between.
    """
    if x.ndim == 4 and not x.numel():
        return x * affine[0][..., None] + affine[1][..., None]
    if x.ndim == 4:
        flat = [each.flatten() for each in affine]
        return torch.group_norm(x.flatten(1, 2), x.shape[1], flat[0], flat[1], eps).reshape(x.shape)
    gain, bias = affine if affine and affine[0].ndim == 1 else (None, None)
    if is_eager(x, *affine) and x.itemsize > 2 and x.numel():
        normed = torch.native_batch_norm(x, gain, bias, None, None, True, 0.0, eps)[0]
    else:
        rows = x.movedim(1, 0)
        normed = normalize(rows.flatten(1), 1, eps).view(rows.shape).movedim(0, 1)
        normed = normed if gain is None or bias is None else normed * gain[:, None] + bias[:, None]
    return normed * affine[0] + affine[1] if affine and gain is None else normed


def mean(x: torch.Tensor, axes: tuple[int, ...], keepdim: bool = False) -> torch.Tensor:
    """The arithmetic mean. Autograd divides the gradient of `torch.mean` at each element, and that of a sum before."""
    if x.itemsize == 2 or not is_differentiated(x):
        return torch.mean(x, axes, keepdim)
    return torch.sum(x, axes, keepdim) / math.prod(x.shape[axis] for axis in axes)


def variance(x: torch.Tensor, axes: tuple[int, ...]) -> torch.Tensor:
    """The biased variance. It avoids `torch.var`, which goes element by element."""
    if x.itemsize == 2:  # squares in 16 bits would overflow or be inaccurate
        return variance(x.float(), axes).to(x.dtype)
    centred = x - mean(x, axes, True)
    return mean((centred.abs() if x.is_complex() else centred).square(), axes)


def deviation(x: torch.Tensor, axes: tuple[int, ...]) -> torch.Tensor:
    """The biased standard deviation, with gradient 0 where it is 0."""
    if x.itemsize == 2:  # which may hold a root whose square it does not
        return deviation(x.float(), axes).to(x.dtype)
    squared = variance(x, axes)
    still = squared == 0
    return torch.where(still, squared, torch.where(still, 1.0, squared).sqrt())


# ---------------------------------------------------------------------------- in place


def added(made: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """made + other, written into `made` if possible."""
    return made.add_(other) if _is_room(made, other) else made + other


def multiplied(made: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """made · other, written into `made` if possible. It is not if autograd records it and so saves the operands."""
    return made * other if is_differentiated(made, other) or not _is_room(made, other) else made.mul_(other)


def _is_room(made: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether a result may be written into its first operand, which nothing else reads.

    It may not under a compiler, `torch.func` or forward mode, nor if the element types differ. If autograd records
    it, a view is not written into either: autograd would copy the gradient.
    """
    return is_eager(made, other) and not (made._is_view() and is_differentiated(made, other))


# ---------------------------------------------------------------------------- pairwise distances


def pairwise_distance(p: torch.Tensor, q: torch.Tensor, root: bool) -> Any:
    """y[b,i,j] = Σ (p[b,i,c] − q[b,j,c])², or its root, without a tensor of the differences."""
    is_whole = is_eager(p, q) and p.dtype in (torch.float32, torch.float64) and p.device.type != "mps"
    whole, plain = (_distance, _differences) if root else (_square, _squares)
    return whole(p, q) if is_whole else plain(p, q)


def _differences(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return torch.linalg.vector_norm(p[:, :, None] - q[:, None], dim=-1)  # type: ignore[no-any-return]


def _squares(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return (p[:, :, None] - q[:, None]).square().sum(-1)


def _distances(p: torch.Tensor, q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    found = torch.cdist(p, q, compute_mode="donot_use_mm_for_euclid_dist")
    return found, found


def _square_vjp(
    p: torch.Tensor, q: torch.Tensor, gradient: torch.Tensor, wanted: Sequence[bool]
) -> tuple[torch.Tensor | None, ...]:
    """The gradients of squares, by products in double precision: what nearby rows have in common is cancelled."""
    wide, dtype = gradient.double(), p.dtype
    p, q = p.double(), q.double()
    of_p = (2 * (p * wide.sum(-1)[..., None] - wide @ q)).to(dtype) if wanted[0] else None
    of_q = (2 * (q * wide.sum(-2)[..., None] - wide.mT @ p)).to(dtype) if wanted[1] else None
    return of_p, of_q


def _distance_vjp(
    p: torch.Tensor, q: torch.Tensor, distances: torch.Tensor, gradient: torch.Tensor, wanted: Sequence[bool]
) -> tuple[torch.Tensor | None, ...]:
    """The gradients of roots of squares, 0 where these are 0."""
    return _square_vjp(p, q, torch.where(distances == 0, 0.0, gradient / (2 * distances)), wanted)


_square = with_vjp(
    lambda p, q: _distances(p, q)[0].square_(), _square_vjp, (0, 1), (0, 1), _squares, asks=True
)
_distance = with_vjp(_distances, _distance_vjp, (0, 1, 2), (0, 1), _differences, asks=True)
