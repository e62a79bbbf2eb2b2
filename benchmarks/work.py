"""What a function asks of torch, call by call, and what the device can do at most.

Calls are those of ATen, as eager mode runs them; of each what it reads and writes is counted, and the operations
of matrix products, convolutions and attention. A view costs nothing and is counted apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from tensornet.device.timing import Clock, timings

__all__ = ["Ceilings", "Work", "ceilings", "counted"]


SIZES = {"cpu": (2048, 2**26), "cuda": (8192, 2**28)}
"""Rows and columns of the matrices, and elements of the array, that the ceilings are measured with."""


@dataclass(frozen=True)
class Work:
    """What one run asks for.

    Attributes:
        calls: of functions that compute or copy.
        views: of functions that look at the same memory otherwise.
        flops: of matrix products, convolutions and attention.
        moved: bytes that the calls read and write.
    """

    calls: int
    views: int
    flops: int
    moved: int


@dataclass(frozen=True)
class Ceilings:
    """What the device does at most: FLOP/s in a large matrix product, bytes/s in a large copy."""

    flops: float
    bandwidth: float


def counted(run: Callable[[], object]) -> Work:
    """The work of one run."""
    with _Calls() as calls:
        run()
    return Work(calls.calls, calls.views, calls.flops, calls.moved)


def ceilings(device: str, dtype: torch.dtype, clock: Clock) -> Ceilings:
    """Measures the device with a product of large matrices and a copy of a large array."""
    side, elements = SIZES[torch.device(device).type]
    a, b = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    source = torch.zeros(elements, device=device, dtype=dtype)
    target = torch.empty_like(source)
    runs: dict[str, Callable[[], object]] = {
        "product": lambda: torch.mm(a, b),
        "copy": lambda: target.copy_(source),
    }
    found = timings(runs, rounds=7, clock=clock)
    return Ceilings(2 * side**3 / found["product"].low, 2 * source.nbytes / found["copy"].low)


class _Calls(TorchDispatchMode):
    """Counts the calls that reach ATen, and the bytes of their tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = self.views = self.flops = self.moved = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        if function.is_view or function in _NO_WORK:
            self.views += 1
        else:
            self.calls += 1
            self.flops += _flops(function.overloadpacket, args, kwargs or {}, result)
            self.moved += _bytes([*args, *(kwargs or {}).values()]) + _bytes([result])
        return result


_NO_WORK = (
    torch.ops.aten.detach.default,
    torch.ops.aten.empty.memory_format,
    torch.ops.aten._unsafe_view.default,
)


def _bytes(values: Iterable[Any]) -> int:
    """The bytes of the elements that are there: of one that is broadcast, those that are read from memory."""
    return sum(
        each.element_size() * _elements(each)
        for each in tree_leaves(list(values))
        if isinstance(each, torch.Tensor)
    )


def _elements(tensor: torch.Tensor) -> int:
    count = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= size if stride else min(size, 1)
    return count


def _flops(packet: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> int:
    """The operations of a call, as torch counts them; masked attention as if nothing were masked."""
    if packet in _ATTENTION:
        return _ATTENTION[packet](*(each.shape for each in args[:4] if isinstance(each, torch.Tensor)))
    return int(flop_registry[packet](*args, **kwargs, out_val=result)) if packet in flop_registry else 0


def _attention(q: torch.Size, k: torch.Size, v: torch.Size, *_: torch.Size) -> int:
    return int(sdpa_flop_count(q, (*q[:2], *k[2:]), (*q[:2], *v[2:])))


def _attention_backward(gradient: torch.Size, q: torch.Size, k: torch.Size, v: torch.Size) -> int:
    return int(sdpa_backward_flop_count(gradient, q, (*q[:2], *k[2:]), (*q[:2], *v[2:])))


_ATTENTION: dict[Any, Callable[..., int]] = {
    getattr(torch.ops.aten, f"_scaled_dot_product_{kind}{suffix}"): count
    for kind in ("flash_attention", "flash_attention_for_cpu", "efficient_attention", "cudnn_attention")
    for suffix, count in (("", _attention), ("_backward", _attention_backward))
}
"""Fused attention, of queries that share keys and values too, which torch's own table of FLOPs refuses."""
