"""Recurrent cells by torch's own kernels, else by plain loops.

The weights of the gates are stacked along the rows, in the order of `torch.nn.LSTM` and `torch.nn.GRU`. The dimensions
are positions, batch and channels, in this order.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import library

from .products import changing, is_traced, with_vjp

__all__ = ["gru_along", "lstm_along", "relu_along", "tanh_along"]

# Weights are separate parameters of the graph. On CUDA, cuDNN copies them into one chunk at each call, and torch warns
# each time. The copy takes some 10 µs of the milliseconds that a layer takes.
warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk")


def lstm_along(*tensors: Any, back: float) -> Any:
    """h of an LSTM at each position, from x, W, U, the initial h and c, and optional biases."""
    return _along("lstm", tensors, back)


def gru_along(*tensors: Any, back: float) -> Any:
    """h of a GRU at each position, from x, W, U, the initial h, and optional biases b and u."""
    return _along("gru", tensors, back)


def tanh_along(*tensors: Any, back: float) -> Any:
    """tanh(x·W + h·U + b)."""
    return _along("rnn_tanh", tensors, back)


def relu_along(*tensors: Any, back: float) -> Any:
    """relu(x·W + h·U + b)."""
    return _along("rnn_relu", tensors, back)


def _along(kind: str, tensors: tuple[Any, ...], back: float) -> Any:
    """The layer by the library, or by a loop if the library's kernel does not apply. `back` reverses the positions."""
    x, *rest = tensors
    if back:
        return _along(kind, (x.flip(0), *rest), 0).flip(0)
    library, plain = functools.partial(_by_library, kind), PLAIN[kind]
    alike = all(each.dtype is x.dtype and each.device == x.device and each.numel() for each in tensors)
    if not alike or x.dtype not in TYPES.get(x.device.type, ()):
        return plain(*tensors)
    if torch.compiler.is_dynamo_compiling() and not torch.compiler.is_exporting():
        return by_library(kind, list(tensors))
    if is_traced():
        return plain(*tensors)
    if not changing(tensors):
        with torch.no_grad():
            return library(*tensors)
    return _differentiated(library, plain, len(tensors))(*tensors)


TYPES = {
    "cpu": (torch.float32, torch.float64),
    "cuda": (torch.float32, torch.float64, torch.float16, torch.bfloat16),
}
"""The element types for which the library has kernels that are as accurate as plain loops, by type of device."""


def _differentiated(library: Callable[..., Any], plain: Callable[..., Any], count: int) -> Callable[..., Any]:
    """The kernel as one node of autograd's graph. The loop gives the derivatives of its derivative."""

    def forward(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        inside = [each.detach().requires_grad_(each.requires_grad) for each in tensors]
        with torch.enable_grad():
            result = library(*inside)
        return result.detach(), result, *inside

    def backward(result: torch.Tensor, *given: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        *inside, gradient = given
        asked = [each for each in inside if each.requires_grad]
        found = iter(torch.autograd.grad(result, asked, gradient, retain_graph=True))
        return tuple(next(found) if each.requires_grad else None for each in inside)

    kept = range(count, 2 * count + 1)
    return with_vjp(forward, backward, tuple(kept), tuple(range(count)), plain)


# ---------------------------------------------------------------------------- by the library


def _weights(w: Any, u: Any, biases: tuple[Any, ...]) -> list[Any]:
    """The weights of a layer as the library takes them, with two biases or none."""
    if not biases:
        return [w, u]
    b, *inner = biases
    return [w, u, b, inner[0] if inner else torch.zeros_like(b)]


def _by_library(kind: str, x: Any, w: Any, u: Any, *more: Any) -> Any:
    """A layer by torch's kernel, which is cuDNN's on CUDA."""
    states, biases = more[: STATES[kind]], more[STATES[kind] :]
    h, *c = (each[None].contiguous() for each in states)
    kernel, start, training = getattr(torch, kind), (h, *c) if c else h, torch.is_grad_enabled()
    return kernel(x, start, _weights(w, u, biases), bool(biases), 1, 0.0, training, False, False)[0]


STATES = {"lstm": 2, "gru": 1, "rnn_tanh": 1, "rnn_relu": 1}
"""The number of states of each layer, by torch's name for the layer."""


# ---------------------------------------------------------------------------- by loops


def _products(x: Any, w: Any, b: Any = None) -> Any:
    return torch.nn.functional.linear(x, w, b)


def _stacked(found: list[Any], like: Any) -> Any:
    """Results stacked along a new first axis, even if there are none."""
    return torch.stack(found) if found else like.new_zeros((0, *like.shape))


def _plain_lstm(x: Any, w: Any, u: Any, h: Any, c: Any, *biases: Any) -> Any:
    found = []
    for given in _products(x, w, *biases).unbind(0):
        i, f, g, o = (given + _products(h, u)).chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        found.append(h)
    return _stacked(found, h)


def _plain_gru(x: Any, w: Any, u: Any, h: Any, *biases: Any) -> Any:
    found = []
    for given in _products(x, w, *biases[:1]).unbind(0):
        inner = _products(h, u, *biases[1:]).chunk(3, -1)
        r, z = (torch.sigmoid(one + other) for one, other in zip(given.chunk(3, -1), inner[:2], strict=False))
        h = (1 - z) * torch.tanh(given.chunk(3, -1)[2] + r * inner[2]) + z * h
        found.append(h)
    return _stacked(found, h)


def _plain(function: Callable[[Any], Any], x: Any, w: Any, u: Any, h: Any, *biases: Any) -> Any:
    found = []
    for given in _products(x, w, *biases).unbind(0):
        h = function(given + _products(h, u))
        found.append(h)
    return _stacked(found, h)


PLAIN: Mapping[str, Callable[..., Any]] = {
    "lstm": _plain_lstm,
    "gru": _plain_gru,
    "rnn_tanh": functools.partial(_plain, torch.tanh),
    "rnn_relu": functools.partial(_plain, torch.relu),
}
"""Each layer as a loop."""


# ---------------------------------------------------------------------------- as operations for compilers


def _recorded() -> Any:
    """A context in which autograd records the operations inside of a custom operation."""
    keys, left_out = torch._C.DispatchKey, torch._C._dispatch_tls_local_exclude_set()
    for key in (keys.AutogradCPU, keys.AutogradCUDA, keys.AutogradOther, keys.ADInplaceOrView):
        left_out = left_out.remove(key)
    return torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), left_out)


@library.custom_op("tensornet::by_library", mutates_args=())
def by_library(kind: str, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """A layer as one operation. Compilers would otherwise unroll it position by position."""
    with torch.no_grad():
        result: torch.Tensor = _by_library(kind, *tensors)
    return result.contiguous()


@library.custom_op("tensornet::by_library_back", mutates_args=())
def by_library_back(kind: str, gradient: torch.Tensor, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The gradients of all operands of a layer. It is computed again, because only the operands are saved."""
    with _recorded(), torch.enable_grad():
        inside = [each.detach().requires_grad_() for each in tensors]
        result = _by_library(kind, *inside)
        return [each.contiguous() for each in torch.autograd.grad(result, inside, gradient)]


@by_library.register_fake
def _(kind: str, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    x, _, _, h, *_ = tensors
    return x.new_empty((x.shape[0], *h.shape))


@by_library_back.register_fake
def _(kind: str, gradient: torch.Tensor, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [each.new_empty(each.shape) for each in tensors]


def _kept(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.kind, tensors = inputs
    ctx.save_for_backward(*tensors)


def _back(ctx: Any, gradient: torch.Tensor) -> tuple[None, list[torch.Tensor]]:
    return None, by_library_back(ctx.kind, gradient, list(ctx.saved_tensors))


def _one_by_one(info: Any, dims: Any, kind: str, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, int]:
    """The batching rule for `vmap`: one call of the layer for each entry of the batch."""
    _, axes = dims
    found = [
        by_library(
            kind, [each if at is None else each.select(at, n) for each, at in zip(tensors, axes, strict=True)]
        )
        for n in range(info.batch_size)
    ]
    return torch.stack(found), 0


by_library.register_autograd(_back, setup_context=_kept)
by_library.register_vmap(_one_by_one)
