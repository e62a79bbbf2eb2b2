"""Rounded factors, integer codes and scales in the place of a parameter, and dynamic quantization.

Integer kernels multiply rounded weights by activations that each call rounds:

    x ≈ s·(q − z),  W = scale ∘ codes:    y[b,o] = s·scale[o]·Σᵢ (q[b,i] − z)·codes[o,i] + bias[o]

The integers q have 7 bits and one step s for all rows of a call: so the sum of two products fits the 16 bits in which
fbgemm adds them without VNNI. Rows of weights have one scale each. Weights with scales of groups, and whole weights of
factors, are rounded once more, each row to 8 bits. Calls without gradients keep results while the tensors that they
were made of are as they were.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from tensornet.fitting.rounding import largest_code, pack, packed_bytes, unpack
from tensornet.weights.equations import CODES, SCALE, Formed

from ..products import is_recorded
from ..rnn import TYPES

T = TypeVar("T")

ALL, SOME = 1 << 14, 64
"""The most elements of a tensor that are all compared; and about how many of a larger one are, at equal distances."""

STEPS = [0]
"""The number of steps of optimizers. Those of fused ones raise no version of a tensor."""


def _stepped(*_: Any) -> None:
    STEPS[0] += 1


register_optimizer_step_post_hook(_stepped)

WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integers of so many bytes: NumPy reads bits of types that it does not have."""


PADDING = 16
"""Elements between the columns of a matrix. Columns that are whole pages apart would share few places of a cache."""


def by_columns(matrix: torch.Tensor) -> torch.Tensor:
    """The same matrix with its columns in one piece each on the CPU: y = x·Wᵀ of up to 256 rows is faster so."""
    matrix = matrix.detach()
    if not matrix.is_cpu or matrix.dtype not in TYPES["cpu"]:
        return matrix
    rows, columns = matrix.shape
    return matrix.new_empty(columns, rows + PADDING)[:, :rows].copy_(matrix.t()).t()


class Kept(Generic[T]):
    """A result, and the state of the tensors that it was made of.

    Writes to `.data` raise no version. On the CPU, therefore, values are compared as well: of large tensors some.
    Elsewhere this would wait for the device: nothing is kept there in training mode. Copies have kept nothing yet.
    """

    def __init__(self) -> None:
        self._found: tuple[Any, list[Any], list[bytes], T, Any] | None = None
        self._seen: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Kept, ()

    def clear(self) -> None:
        """Forgets the result."""
        self._found = None

    def read(self, tensors: Sequence[torch.Tensor], is_training: bool, make: Callable[[], T]) -> T:
        """The result of the last call, or a new one if a tensor, or the result itself, has changed.

        Args:
            tensors: those that it is made of.
            is_training: whether their module is in training mode.
            make: makes it.
        """
        key = state_of(tensors)
        if key is None or (is_training and not is_on_cpu(tensors)):
            return make()
        if (found := self._found) is not None and found[0] == key:
            _, views, values, made, version = found
            is_same = version is None or version == made._version  # type: ignore[attr-defined]
            if is_same and values == [each.tobytes() for each in views]:
                return made
        views = [_elements(each) for each in tensors if each.is_cpu]
        values = [each.tobytes() for each in views]  # before, as other threads may write
        made = make()
        self._found = key, views, values, made, _version(made)
        return made

    def read_again(self, tensors: Sequence[torch.Tensor], is_training: bool, make: Callable[[], T]) -> T:
        """The same, kept from the second read on: what is read once takes no memory."""
        if self._found is None:
            seen, self._seen = self._seen, [id(each) for each in tensors]
            if seen != self._seen:
                return make()
        return self.read(tensors, is_training, make)


def state_of(tensors: Sequence[torch.Tensor]) -> Any:
    """A key of some tensors and their versions; None if they have none, as those made in inference mode."""
    try:
        found = [(id(each), each._version, each.data_ptr()) for each in tensors]
    except RuntimeError:  # inference tensors count no versions
        return None
    found.append((STEPS[0], torch.is_inference_mode_enabled(), 0))
    return found


def _version(made: Any) -> int | None:
    """How often a tensor was written to, where this is counted."""
    is_counted = isinstance(made, torch.Tensor) and not made.is_inference()
    return made._version if is_counted else None


def tensors_in(module: torch.nn.Module) -> list[torch.Tensor]:
    """The parameters and buffers of a module."""
    parts, found = [module], list[torch.Tensor | None]()
    for part in parts:  # grows
        held = part.__dict__
        for name in ("_parameters", "_buffers", "_former_parameters"):  # the last is of replicas
            if each := held.get(name):
                found += each.values()
        if more := held["_modules"]:
            parts += more.values()
    return [each for each in found if each is not None]


def is_on_cpu(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether all of some tensors are on the CPU."""
    return False not in [each.is_cpu for each in tensors]


def _elements(tensor: torch.Tensor) -> Any:
    """A view of all elements of a tensor, or of some, as integers."""
    is_small = tensor.numel() <= ALL
    step = 1 if is_small else math.ceil((tensor.numel() / SOME) ** (1 / tensor.ndim))
    some = tensor.detach()[tuple(slice(None, None, step) for _ in tensor.shape)]
    return some.view(WORDS[tensor.element_size()]).numpy()


LEAST, WORK = 1 << 14, 1 << 20
"""The least elements of a weight, and of these times rows + 4, for which integers are tried."""

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

    def may_pay(self, rows: int, positions: int = 1) -> bool:
        """Whether products by so many rows may be faster in integers."""
        return self.count >= LEAST and self.count * positions * (rows + 4) >= WORK

    def linear(self, layer: Any, x: torch.Tensor) -> torch.Tensor | None:
        """x·Wᵀ + bias of a call without gradients, of low rank by two products; None where floats are needed."""
        tensors = _tensors([layer]) if x.shape[-1] == self.columns and _are_floats(x) else []
        packs = self._kept.read(tensors, False, functools.partial(_chain, layer)) if tensors else []
        for each in packs:
            x = torch.ops.quantized.linear_dynamic(x, each, True)
        return x if packs else None

    def cells(self, module: Any, x: torch.Tensor, states: Any) -> list[Any]:
        """The packed weights of a GRU or an LSTM in a call without gradients; none in these cases."""
        base, layers = module.base, [*module._modules.values()]
        rows, positions = x.shape[:2] if base.batch_first else x.shape[1::-1]
        if not self.may_pay(rows, positions) or not all("_integers" in each.__dict__ for each in layers):
            return []
        is_hooked = base._forward_hooks or base._forward_pre_hooks
        given = () if states is None else (states,) if isinstance(states, torch.Tensor) else states
        if base.mode not in KERNELS or is_hooked or x.shape[-1] != self.columns:
            return []
        tensors = _tensors(layers) if _are_floats(x, *given) else []
        return self._kept.read(tensors, False, functools.partial(_cells, layers)) if tensors else []


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
    if (lone := layer._wholes["weight"].lone) is None:  # scales of ranks are those of rows of the first
        u, v = held["U"], held["V"]
        first, last = (u.codes.mT, v.codes.mT) if is_turned else (v.codes, u.codes)
        scale = u.scale * v.scale
        # what the first makes is as large as inputs, since small numbers lose their digits
        size = (first * scale[:, None]).square().sum(1).mean().sqrt().clamp(min=torch.finfo(scale.dtype).tiny)
        return [(first, scale / size), (last, size.expand(len(last)))]
    whole = held[lone]
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


class Rounded(torch.nn.Module):
    """A factor as scales times codes: F = scale · codes.

    Calls return F. Without gradients it is made once, and again when one of the two has changed. State dicts hold the
    codes packed: `bits` bits each, as bytes.

    Attributes:
        lies: changes how a matrix that is kept lies in memory.
    """

    codes: torch.Tensor
    lies: Callable[[torch.Tensor], torch.Tensor] = torch.detach

    def __init__(
        self,
        codes: torch.Tensor,
        scale: torch.nn.Parameter,
        bits: Any,
        apart: tuple[int, ...],
        shape: tuple[int, ...],
    ) -> None:
        """A factor.

        Args:
            codes: integers of int8.
            scale: a parameter.
            bits: of each code, when they are packed, an array that broadcasts to the codes.
            apart: the dimensions of the codes along which scales differ.
            shape: of the factor.
        """
        super().__init__()
        self.register_buffer("codes", codes)
        self.scale, self.bits, self.shape = scale, bits, shape
        self._view = [size if n in apart else 1 for n, size in enumerate(codes.shape)]
        self._kept, self._saved = Kept[torch.Tensor](), Kept[torch.Tensor]()

    def forward(self) -> torch.Tensor:
        """The factor."""
        read = self.tensors()
        if is_recorded():
            return self._product()
        if (torch.is_grad_enabled() and read[1].requires_grad) or "free" in self._parameters:
            self._kept.clear()
            return self._product()
        return self._kept.read(read, self.training, lambda: self.lies(self._product()))

    def tensors(self) -> list[Any]:
        """The codes and the scales. Attributes of modules would take much of the time of small calls."""
        scale = self._parameters.get("scale")  # replicas have no parameters
        return [self._buffers["codes"], self.scale if scale is None else scale]

    def train(self, mode: bool = True) -> Any:
        """Training mode, or evaluation mode. What was kept is made again."""
        self._kept.clear()
        return super().train(mode)

    def loosen(self) -> None:
        """Makes the codes a parameter of real numbers, and each call reads the nearest codes, until `tighten`.

        Its gradient is that of the codes (Y. Bengio et al., 2013, the straight-through estimator).
        """
        self.free = torch.nn.Parameter(self.codes.to(self.scale.dtype))

    def tighten(self) -> None:
        """Rounds what was loosened."""
        with torch.no_grad():
            self.codes.copy_(self._nearest(self.free))
        del self.free

    def _nearest(self, free: torch.Tensor) -> torch.Tensor:
        most, whole = (
            torch.as_tensor(each, device=free.device) for each in (largest_code(self.bits), self.bits == 8)
        )
        return torch.where(whole, free.round(), 2 * (free / 2).floor() + 1).clamp(-most, most)

    def _product(self) -> torch.Tensor:
        free = self._parameters.get("free")
        codes = (
            self.codes.to(self.scale.dtype) if free is None else free + (self._nearest(free) - free).detach()
        )
        return (codes * self.scale.reshape(self._view)).reshape(self.shape)

    def extra_repr(self) -> str:
        """The bits, the shape of the codes and the number of scales."""
        shape = "×".join(map(str, self.shape))
        bits = " to ".join(map(str, dict.fromkeys((np.min(self.bits), np.max(self.bits)))))
        return f"{shape} codes of {bits} bits, {self.scale.numel()} scales"

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """Saves packed codes: one tensor for all places of a factor in a network, which files hold once."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}codes"] = self._saved.read([self.codes], False, self._packed)

    def _packed(self) -> torch.Tensor:
        if self.codes.is_meta:
            return torch.empty(packed_bytes(self.codes.shape, self.bits), dtype=torch.uint8, device="meta")
        return torch.from_numpy(pack(self.codes.cpu().numpy(), self.bits)).to(self.codes.device)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        name, shape = f"{prefix}codes", tuple(self.codes.shape)
        packed, wanted = state_dict.get(name), (packed_bytes(shape, self.bits),)
        # those of other bits stay as they are, and torch refuses their shape
        if packed is not None and packed.dtype == torch.uint8 and packed.shape == wanted:
            codes = (
                torch.empty(shape, dtype=torch.int8, device="meta")
                if packed.is_meta
                else torch.from_numpy(unpack(packed.cpu().numpy(), self.bits, shape)).to(packed.device)
            )
            state_dict = {**state_dict, name: codes}
        super()._load_from_state_dict(state_dict, prefix, *rest)


def of_factors(
    form: Formed, arrays: Mapping[str, Any], shape: tuple[int, ...]
) -> dict[str, torch.nn.Parameter | Rounded]:
    """The factors of a weight of some shape by name: parameters, or of a rounded form codes and scales."""
    if not form.bits:
        return dict(arrays)
    found: dict[str, torch.nn.Parameter | Rounded] = {}
    for scale, codes in zip(form.product.factors[::2], form.product.factors[1::2], strict=True):
        apart = tuple(n for n, axis in enumerate(codes.axes) if axis in scale.axes)
        name = codes.name.removesuffix(CODES)
        own = tuple(form.sizes[axis] for axis in codes.axes) if form.product.ranks else shape
        found[name] = Rounded(arrays[name + CODES], arrays[name + SCALE], form.widths(codes), apart, own)
    return found
