"""What is planned for."""

from __future__ import annotations

from dataclasses import dataclass

from ..dtypes import itemsize
from ..operations.functions import FUNCTIONS, Function
from .device import DeviceProfile

__all__ = ["Target"]


@dataclass(frozen=True)
class Target:
    """What is planned for: a library on a device, and an element type.

    Attributes:
        backend, device, dtype: as for `tensornet.plan`.
        profile: the constants of the device.
        spelled: the operations that the backend has a spelling for.
        kernels: those that compute what several equations say, the backend's and the user's.
    """

    backend: str
    device: str
    dtype: str
    profile: DeviceProfile
    spelled: frozenset[str]
    kernels: tuple[Function, ...] = ()

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return itemsize(self.dtype)

    @classmethod
    def of(
        cls, backend: str, device: str, dtype: str, profile: DeviceProfile, spelled: frozenset[str]
    ) -> Target:
        """The target with the kernels that there are for it; the user's own first."""
        known = [row for row in FUNCTIONS.values() if row.means]
        own = [row for row in known if backend in dict(row.implementations)]
        kernels = (*own, *(row for row in known if row.name in spelled))
        return cls(backend, device, dtype, profile, spelled, kernels)
