"""Convolution and its gradients by torch's kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

from ..windows import Pools, Windows, convolutions, elements, margins, reach

__all__ = ["convolution", "convolution_k", "convolution_x", "max_pool", "mean_pool"]

_FORWARD = (functional.conv1d, functional.conv2d, functional.conv3d)
_BACKWARD = (functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d)
_LARGEST = (functional.max_pool1d, functional.max_pool2d, functional.max_pool3d)
_MEAN = (functional.avg_pool1d, functional.avg_pool2d, functional.avg_pool3d)


def _padded(x: Any, amounts: Sequence[tuple[int, int]]) -> Any:
    """A tensor with this many zeros added before and after its last dimensions. Negative numbers cut off elements."""
    flat = [amount for pair in reversed(amounts) for amount in pair]
    return functional.pad(x, flat) if any(flat) else x


def _convolution(x: Any, k: Any, groups: int, windows: Windows) -> Any:
    """y[b,go,p] = Σ x[b,gc,first + by·p + apart·u] · k[go,c,u]."""
    by, apart, _, outer = (list(each) for each in zip(*windows, strict=True))
    amounts = margins(x.shape[2:], windows, outer, k.shape[2:])
    padding = [before for before, _ in amounts]
    alike = all(
        before >= 0 and -by < after - before <= 0 for (before, after), by in zip(amounts, by, strict=True)
    )
    if not alike:
        x, padding = _padded(x, amounts), [0] * len(windows)
    return _FORWARD[len(windows) - 1](x, k, None, by, padding, apart, groups)


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
