"""Integer kernels: rounded weights times activations that each call rounds, as in dynamic quantization.

    x ≈ s·(q − z),  W = scale ∘ codes:    y[b,o] = s·scale[o]·Σᵢ (q[b,i] − z)·codes[o,i] + bias[o]

The integers q have 7 bits and one step s for all rows of a call: so the sum of two products fits the 16 bits in which
fbgemm adds them without VNNI. Rows of weights have one scale each. Weights with scales of groups, and whole weights of
factors, are rounded once more, each row to 8 bits.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..products import is_eager
from .kept import Kept

LEAST, WORK = 3 << 15, 3 << 20
"""The least elements of a weight, and of these times rows + 4: smaller products are faster in floats (measured)."""

ENGINES = "x86", "fbgemm"
"""The engines of torch that are faster than floats."""

SPAN, LARGEST = 2**-4, torch.finfo(torch.float32).max
"""The span of inputs and 0. fbgemm takes no step below 6.1e-5: small inputs and states would become few integers."""

NEEDED = "linear_prepack", "linear_dynamic", "make_quantized_cell_params_dynamic"
"""Operations that torch may drop."""


class Integers:
    """The packed weights of a layer, kept while codes, scales and biases are as they were.

    Attributes:
        count: the elements of its weight, of its smallest factor, or of the weight of states.
        columns: the size of a row that it takes.
    """

    def __init__(self, count: int, columns: int) -> None:
        self.count, self.columns, self._kept = count, columns, Kept[list[Any]]()

    def _pays(self, rows: int, positions: int = 1) -> bool:
        return self.count >= LEAST and self.count * positions * (rows + 4) >= WORK

    def linear(self, layer: Any, x: torch.Tensor) -> torch.Tensor | None:
        """x·Wᵀ + bias, of low rank by two products; None where floats are needed, or are expected to be faster."""
        is_large = self._pays(x.numel() // self.columns) and x.ndim > 1 and x.shape[-1] == self.columns
        is_bare = is_large and not torch.is_grad_enabled() and is_eager(x)
        tensors = _tensors([layer]) if is_bare and _are_floats(x) else []
        packs = self._kept.read(tensors, False, functools.partial(_chain, layer)) if tensors else []
        for each in packs:
            x = torch.ops.quantized.linear_dynamic(x, each, True)
        return x if packs else None

    def cells(self, module: Any, x: torch.Tensor, states: Any) -> list[Any]:
        """The packed weights of a GRU or an LSTM in a call without gradients, for `recurrence`; none in these cases."""
        base, layers = module.base, [*module._modules.values()]
        rows, positions = x.shape[:2] if base.batch_first else x.shape[1::-1]
        if not self._pays(rows, positions) or not all("_integers" in each.__dict__ for each in layers):
            return []
        is_hooked = base._forward_hooks or base._forward_pre_hooks
        given = () if states is None else (states,) if isinstance(states, torch.Tensor) else states
        if base.mode not in KERNELS or is_hooked or x.shape[-1] != self.columns:
            return []
        tensors = _tensors(layers) if _are_floats(x, *given) else []
        return self._kept.read(tensors, False, functools.partial(_cells, layers)) if tensors else []


def recurrence(base: Any, cells: Sequence[Any], x: torch.Tensor, states: Sequence[torch.Tensor]) -> Any:
    """All states of the last layer of a GRU or an LSTM, and the last ones of all layers, from packed weights."""
    options = True, base.num_layers, 0.0, False, base.bidirectional, base.batch_first
    y, *last = KERNELS[base.mode](x, states, cells, *options)
    return y, tuple(last) if len(last) > 1 else last[0]


KERNELS: Mapping[str, Callable[..., Any]] = {
    "GRU": lambda x, states, *rest: torch.quantized_gru(x, states[0], *rest),
    "LSTM": lambda *given: torch.quantized_lstm(*given, dtype=torch.qint8),
}
"""The kernels of recurrences, by torch's name for these."""


def _tensors(layers: Sequence[Any]) -> list[torch.Tensor]:
    """What the packed weights of some layers are made of; nothing if a layer is trained."""
    found = list[torch.Tensor]()
    for layer in layers:
        for part in layer._modules[layer._place]._modules.values():
            if layer.training or "free" in part._parameters:
                return []
            found += part.tensors()
        if layer.bias is not None:
            found.append(layer.bias)
    return found


def _are_floats(x: torch.Tensor, *states: torch.Tensor) -> bool:
    """Whether these are finite numbers of float32 on the CPU, and inputs large enough for the steps of kernels.

    Kernels make numbers of what is none.
    """
    if False in [each.dtype == torch.float32 and each.is_cpu for each in (x, *states)] or not x.numel():
        return False
    low, high = torch.aminmax(x)
    span = max(float(high), 0.0) - min(float(low), 0.0)
    return SPAN <= span <= LARGEST and False not in [math.isfinite(each.sum()) for each in states]


def _are_there(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether there are kernels for weights of these tensors, and these can be kept."""
    types = torch.int8, torch.float32
    is_kept = all(each.is_cpu and each.dtype in types and not each.is_inference() for each in tensors)
    has_kernels = all(hasattr(torch.ops.quantized, each) for each in NEEDED)
    return is_kept and has_kernels and torch.backends.quantized.engine in ENGINES


def _matrices(layer: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The codes, and the scale of each row, of the matrices that a layer multiplies by one after another."""
    held, is_turned = layer._modules[layer._place]._modules, layer._kind.columns == (0,)
    if layer._lone is None:  # scales of ranks are those of rows of the first
        u, v = held["U"], held["V"]
        first, last = (u.codes.mT, v.codes.mT) if is_turned else (v.codes, u.codes)
        scale = u.scale * v.scale
        # what the first makes is as large as inputs, since small numbers lose their digits
        size = (first * scale[:, None]).square().sum(1).mean().sqrt().clamp(min=torch.finfo(scale.dtype).tiny)
        return [(first, scale / size), (last, size.expand(len(last)))]
    whole = held[layer._lone]
    if is_turned or whole.scale.numel() != len(whole.codes):
        return [_by_row(whole().mT if is_turned else whole())]
    return [(whole.codes, whole.scale)]


def _by_row(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of 8 bits and a scale for each row of a matrix."""
    scale = matrix.abs().amax(1).clamp(min=torch.finfo(matrix.dtype).tiny) / 127
    return (matrix / scale[:, None]).round().to(torch.int8), scale


def _packed(codes: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None) -> Any:
    zeros = torch.zeros(len(scale), dtype=torch.int64)
    with warnings.catch_warnings():  # quantized tensors are deprecated, and the only way to these kernels
        warnings.filterwarnings("ignore", "torch.quantize_per_tensor")
        made = torch._make_per_channel_quantized_tensor(codes.contiguous(), scale.detach().double(), zeros, 0)
    return torch.ops.quantized.linear_prepack(made, None if bias is None else bias.detach())


def _chain(layer: Any) -> list[Any]:
    """The packed matrices of a linear layer; none if there are no kernels."""
    if not _are_there(_tensors([layer])):
        return []
    *first, last = _matrices(layer)
    return [*(_packed(*each, None) for each in first), _packed(*last, layer.bias)]


def _cells(layers: Sequence[Any]) -> list[Any]:
    """The packed weights of each layer and direction of a recurrence; none if there are no kernels."""
    packs, biases = list[Any](), list[torch.Tensor]()
    for layer in layers if _are_there(_tensors(layers)) else ():
        found = _matrices(layer)
        codes, scale = found[0] if len(found) == 1 else _by_row(layer.weight.detach())
        biases.append(torch.zeros(len(scale)) if layer.bias is None else layer.bias.detach())
        packs.append(_packed(codes, scale, biases[-1]))
    pairs = zip(packs[::2], packs[1::2], biases[::2], biases[1::2], strict=True)
    return [torch.ops.quantized.make_quantized_cell_params_dynamic(*each, True) for each in pairs]
