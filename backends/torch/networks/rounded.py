"""Rounded factors: integer codes and scales in the place of a parameter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from tensornet.fitting.rounding import largest_code, pack, packed_bytes, unpack
from tensornet.weights.equations import CODES, SCALE, Formed

from ..products import is_recorded
from .kept import Kept


class Rounded(torch.nn.Module):
    """A factor as scales times codes: F = scale · codes.

    Calls return F. Without gradients it is made once, and again when one of the two has changed. State dicts hold the
    codes packed: `bits` bits each, as bytes.
    """

    codes: torch.Tensor

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
        return self._kept.read(read, self.training, lambda: self._product().detach())

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
