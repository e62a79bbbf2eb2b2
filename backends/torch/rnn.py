"""Recurrent cells by torch's own kernels, else by plain loops.

The weights of the gates are stacked along the rows, in the order of `torch.nn.LSTM` and `torch.nn.GRU`. The dimensions
are positions, batch and channels, in this order.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import library
from torch.nn import functional

from .products import is_differentiated, is_traced, is_transformed, with_vjp

__all__ = ["gru_along", "lstm_along", "relu_along", "tanh_along"]

# Weights are separate parameters of the graph. On CUDA, cuDNN copies them into one chunk at each call, and torch warns
# each time. The copy takes some 10 µs of the milliseconds that a layer takes.
warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk")


def _along(kind: str, x: Any, *rest: Any, back: float) -> Any:
    """The layer by the library, or by a loop if the library's kernel does not apply. `back` reverses the positions."""
    if back:
        return _along(kind, x.flip(0), *rest, back=0).flip(0)
    tensors = (x, *rest)
    library, plain = functools.partial(_by_library, kind), functools.partial(_by_loop, kind)
    alike = all(each.dtype is x.dtype and each.device == x.device and each.numel() for each in tensors)
    if not alike or x.dtype not in TYPES.get(x.device.type, ()):
        return plain(*tensors)
    if torch.compiler.is_dynamo_compiling() and not (torch.compiler.is_exporting() or is_transformed()):
        return by_library(kind, list(tensors))
    if is_traced():
        return plain(*tensors)
    if not is_differentiated(*tensors):
        with torch.no_grad():
            return library(*tensors)
    return _differentiated(library, plain, len(tensors))(*tensors)


lstm_along = functools.partial(_along, "lstm")
"""h of an LSTM at each position, from x, W, U, the initial h and c, and optional biases."""
gru_along = functools.partial(_along, "gru")
"""h of a GRU at each position, from x, W, U, the initial h, and optional biases b and u."""
tanh_along = functools.partial(_along, "rnn_tanh")
"""tanh(x·W + h·U + b)."""
relu_along = functools.partial(_along, "rnn_relu")
"""relu(x·W + h·U + b)."""

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


def _by_library(kind: str, x: Any, w: Any, u: Any, *more: Any) -> Any:
    """A layer by torch's kernel, which is cuDNN's on CUDA. It takes two biases or none."""
    states, biases = more[: STATES[kind]], more[STATES[kind] :]
    biases = (*biases, torch.zeros_like(biases[0])) if len(biases) == 1 else biases
    h, *c = (each[None].contiguous() for each in states)
    kernel, start, training = getattr(torch, kind), (h, *c) if c else h, torch.is_grad_enabled()
    return kernel(x, start, [w, u, *biases], bool(biases), 1, 0.0, training, False, False)[0]


STATES = {"lstm": 2, "gru": 1, "rnn_tanh": 1, "rnn_relu": 1}
"""The number of states of each layer, by torch's name for the layer."""


# ---------------------------------------------------------------------------- by loops


def _lstm(x: Any, h: Any, states: Sequence[Any]) -> tuple[Any, ...]:
    i, f, g, o = (x + h).chunk(4, -1)
    c = torch.sigmoid(f) * states[1] + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def _gru(x: Any, h: Any, states: Sequence[Any]) -> tuple[Any, ...]:
    (r, z, n), (r_inner, z_inner, n_inner) = x.chunk(3, -1), h.chunk(3, -1)
    r, z = torch.sigmoid(r + r_inner), torch.sigmoid(z + z_inner)
    return ((1 - z) * torch.tanh(n + r * n_inner) + z * states[0],)


CELLS: Mapping[str, Callable[[Any, Any, Sequence[Any]], tuple[Any, ...]]] = {
    "lstm": _lstm,
    "gru": _gru,
    "rnn_tanh": lambda x, h, states: (torch.tanh(x + h),),
    "rnn_relu": lambda x, h, states: (torch.relu(x + h),),
}
"""The next states of each layer, h first, from x·W and h·U with their biases, and the states."""


def steps(kind: str, given: Sequence[Any], multiply: Callable[[Any], Any], states: Sequence[Any]) -> Any:
    """h at each position, and the last states, from x·W at each position and the product h·U."""
    found: list[Any] = []  # which torch.compile traces
    for each in given:
        states = CELLS[kind](each, multiply(states[0]), states)
        found.append(states[0])
    return found, states


def _gru_in_place(x: Any, inner: Any, multiply: Callable[..., Any], states: Any, made: Any) -> Any:
    (h,), size, product = states, made.shape[-1], x.new_empty(x.shape[1:])
    both, last = product.split((2 * size, size), -1)
    r, z = both.chunk(2, -1)
    gates = x[..., 2 * size :].clone()
    x[..., 2 * size :] = inner
    for given, n, out in zip(x, gates, made, strict=True):
        multiply(given, h, product)
        both.sigmoid_()
        h = torch.lerp(n.addcmul_(r, last).tanh_(), h, z, out=out)
    return (h.clone(),)


def _gru_in_numpy(x: Any, inner: Any, multiply: Callable[..., Any], states: Any, made: Any) -> Any:
    state, product, size = states[0].clone(), x.new_empty(x.shape[1:]), made.shape[-1]
    gates, h, whole = x.numpy(), state.numpy(), product.numpy()
    r, z, last, both = whole[:, :size], whole[:, size : 2 * size], whole[:, 2 * size :], whole[:, : 2 * size]
    one, inside = np.ones_like(both), gates[..., 2 * size :].copy()
    gates[..., 2 * size :] = inner.numpy()
    for given, n, out in zip(gates, inside, made.numpy(), strict=True):
        multiply(None, state, product)
        np.add(whole, given, whole)
        np.add(np.exp(np.negative(both, both), both), one, both)  # 1 / σ
        np.tanh(np.add(n, np.divide(last, r, last), n), n)
        np.add(np.divide(np.subtract(h, n, h), z, h), n, h)
        np.copyto(out, h)
    return (state,)


def _lstm_in_place(x: Any, inner: Any, multiply: Callable[..., Any], states: Any, made: Any) -> Any:
    h, c, product = states[0], states[1].clone(), x.new_empty(x.shape[1:])
    i, f, g, o = product.chunk(4, -1)
    both = product[..., : 2 * made.shape[-1]]
    for given, out in zip(x, made, strict=True):
        multiply(given, h, product)
        both.sigmoid_()
        c.mul_(f).addcmul_(i, g.tanh_())
        h = torch.mul(o.sigmoid_(), torch.tanh(c, out=g), out=out)
    return h.clone(), c


def _lstm_in_numpy(x: Any, inner: Any, multiply: Callable[..., Any], states: Any, made: Any) -> Any:
    (state, cell), product = (each.clone() for each in states), x.new_empty(x.shape[1:])
    h, c, whole = state.numpy(), cell.numpy(), product.numpy()
    i, f, g, o = np.split(whole, 4, -1)
    both, one = whole[:, : 2 * h.shape[-1]], np.ones_like(whole[:, : 2 * h.shape[-1]])
    for given, out in zip(x.numpy(), made.numpy(), strict=True):
        multiply(None, state, product)
        np.add(whole, given, whole)
        np.add(np.exp(np.negative(both, both), both), one, both)  # 1 / σ
        np.add(np.divide(c, f, c), np.divide(np.tanh(g, g), i, g), c)
        np.add(np.exp(np.negative(o, o), o), one[:, : h.shape[-1]], o)
        np.divide(np.tanh(c, h), o, h)
        np.copyto(out, h)
    return state, cell


def _plain_in_place(
    function: Callable[..., Any], x: Any, inner: Any, multiply: Callable[..., Any], states: Any, made: Any
) -> Any:
    (h,), product = states, x.new_empty(x.shape[1:])
    for given, out in zip(x, made, strict=True):
        multiply(given, h, product)
        h = function(product, out=out)
    return (h.clone(),)


IN_PLACE: Mapping[str, Callable[..., tuple[Any, ...]]] = {
    "lstm": _lstm_in_place,
    "gru": _gru_in_place,
    "rnn_tanh": functools.partial(_plain_in_place, torch.tanh),
    "rnn_relu": functools.partial(_plain_in_place, functools.partial(torch.clamp_min, min=0)),
}
"""The last states of each layer without gradients.

Their arguments: x·W with all biases but `inner`, which they write over; the bias of the elements of h·U that a GRU
multiplies by r; a function that adds h·U to x·W and writes it; the first states; and memory for h at all positions. The
last states do not lie there: who writes over them leaves the result as it is.
"""

IN_NUMPY: Mapping[str, Callable[..., tuple[Any, ...]]] = {"lstm": _lstm_in_numpy, "gru": _gru_in_numpy}
"""The same with the functions of NumPy, whose calls take a third of the time; torch multiplies."""


def _by_loop(kind: str, x: Any, w: Any, u: Any, *more: Any) -> Any:
    """A layer by a loop over the positions."""
    states, biases = more[: STATES[kind]], more[STATES[kind] :]
    gates = functional.linear(x, w, *biases[:1]).unbind(0)
    found, _ = steps(kind, gates, lambda h: functional.linear(h, u, *biases[1:]), states)
    return torch.stack(found) if found else states[0].new_zeros((0, *states[0].shape))


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


by_library.register_autograd(_back, setup_context=_kept)
