"""The target: backend, device model and element type."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..device.cost_model import MAPPED, DeviceProfile
from ..dtypes import itemsize
from ..graph.leaves import Leaf
from ..language.patterns import pattern_of
from ..ops.table import FUNCTIONS, Function
from ..sizes import evaluate, size_names


def _takes_complex(kernel: Function) -> bool:
    """Whether a kernel computes the same for complex numbers as the equations that it replaces."""
    return kernel.complex == "taken" and all(pattern_of(each).complex for each in kernel.recognised)


@dataclass(frozen=True)
class Target:
    """The target of a plan: a library on a device, and an element type.

    Attributes:
        backend, device, dtype: as for `tensornet.plan`.
        profile: the constants of the device.
        supported: the operations that the backend has a template for.
        kernels: the kernels that compute several equations at once: the user's, then the backend's.
        closed: whether tensors that depend on open sizes are computed again at each call.
        changing: the leaves that get gradients, where the backward pass is planned as well.
        loops: whether recurrences always become loops, with as much as possible computed position by position.
        parallel: whether linear recurrences may become products with triangular matrices.
    """

    backend: str
    device: str
    dtype: str
    profile: DeviceProfile
    supported: frozenset[str]
    kernels: tuple[Function, ...] = field(init=False)
    closed: bool = False
    changing: frozenset[str] = frozenset()
    loops: bool = False
    parallel: bool = True

    def __post_init__(self) -> None:
        known = [row for row in FUNCTIONS.values() if row.recognised]
        own = [row for row in known if self.backend in dict(row.implementations)]
        kernels = (*own, *(row for row in known if row.name in self.supported))
        if "complex" in self.dtype:
            kernels = tuple(row for row in kernels if _takes_complex(row))
        object.__setattr__(self, "kernels", kernels)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return itemsize(self.dtype)

    @property
    def tiled_from(self) -> float:
        """The bytes of intermediates from which tiles may pay: those that get new memory from the system at each call.

        On a GPU there is no such memory, and autograd keeps what all passes make.
        """
        may_pay = "in_tiles" in self.supported and self.device == "cpu" and not self.changing
        return 1.5 * MAPPED if may_pay else math.inf

    def told_sizes(self, leaves: Iterable[Leaf], bound: Mapping[str, Any]) -> frozenset[str]:
        """The open sizes that steps done once may depend on: those that occur in the shapes of leaves."""
        if self.closed:
            return frozenset()
        sizes = {size for leaf in leaves for size in leaf.shape if not isinstance(size, int)}
        return frozenset(name for size in sizes for name in size_names(evaluate(size, bound)))
