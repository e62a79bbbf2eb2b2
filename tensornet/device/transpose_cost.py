"""Cost of a transpose: expected seconds to copy a tensor into another order of its axes, or to walk over several."""

from __future__ import annotations

import math
from collections.abc import Mapping

from .memory_access import MOST, memory_access
from .model import DeviceProfile

__all__ = ["HELD", "access_seconds", "transpose_seconds"]

Layout = tuple[str, ...]

HELD = 1e15
"""More elements than any memory holds: the layout of such a tensor is ignored."""


def transpose_seconds(
    profile: DeviceProfile, layout: Layout, order: Layout, sizes: Mapping[str, int], itemsize: int
) -> float:
    """Seconds to copy a tensor from one layout into another, and to create the view that is copied.

    Args:
        profile: the device.
        layout, order: the axes in memory order, before and after the copy.
        sizes: axis to number of positions.
        itemsize: bytes of one element.
    """
    return access_seconds(profile, order, (layout,), sizes, itemsize) + profile.view


def access_seconds(
    profile: DeviceProfile,
    result: Layout,
    operands: tuple[Layout, ...],
    sizes: Mapping[str, int],
    itemsize: int,
) -> float:
    """Seconds to walk through memory in the order of a result, reading operands in their layouts."""
    elements = min(math.prod([sizes[axis] for axis in result]), MOST)
    if elements > HELD:
        return profile.pointwise(itemsize * elements, 0.0)
    return profile.access_seconds(memory_access(result, operands, sizes, itemsize))
