"""What is planned for."""

from __future__ import annotations

from dataclasses import dataclass

from ..dtypes import itemsize
from .device import DeviceProfile

__all__ = ["Target"]


@dataclass(frozen=True)
class Target:
    """What is planned for: a library on a device, and an element type.

    Attributes:
        backend, device, dtype: as for `tensornet.plan`.
        profile: the constants of the device.
        spelled: the operations that the backend has a spelling for; of kernels some have none.
    """

    backend: str
    device: str
    dtype: str
    profile: DeviceProfile
    spelled: frozenset[str]

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return itemsize(self.dtype)
