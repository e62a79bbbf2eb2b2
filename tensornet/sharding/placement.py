"""Placements of tensors on a mesh, and the shapes of their parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

__all__ = ["PARTIAL", "REPLICATED", "VARYING", "Placement", "divisors", "local_shape"]

REPLICATED, VARYING, PARTIAL = "replicated", "varying", "partial"

Placement: TypeAlias = "tuple[int | str, ...]"
"""For each axis of the mesh: the dimension that is divided; or that the tensor is replicated, varying (a copy on
each device, which computes another part with it), or partial (a term of a sum over the devices)."""


def divisors(placement: Placement, mesh: Sequence[int], rank: int) -> list[int]:
    """The number of parts that each dimension is divided into."""
    found = [1] * rank
    for place, n in zip(placement, mesh, strict=True):
        if isinstance(place, int):
            found[place] *= n
    return found


def local_shape(shape: Sequence[int], placement: Placement, mesh: Sequence[int]) -> tuple[int, ...]:
    """The shape of the part of a tensor on one device."""
    return tuple(size // by for size, by in zip(shape, divisors(placement, mesh, len(shape)), strict=True))
