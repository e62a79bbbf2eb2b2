"""Device meshes, the placements of tensors on them, and what collectives cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from ..errors import ShapeError, checked_number, near

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


LINK = (100e9, 1e-5)
"""The assumed link of a mesh axis: bytes a second out of each device, and seconds before the first."""

FLOPS, MEMORY = 4e14, 2.4e12
"""The assumed device: FLOPs a second, and bytes of memory a second (about an H100 in bfloat16)."""

_SHARES: Mapping[str, Any] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: n - 1,
    "all_gather_invariant": lambda n: n - 1,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "shard": lambda n: 0.0,
    "vary": lambda n: 0.0,
}
"""The bytes that leave each of n devices in a ring, as a share of the bytes of its operand."""

_DIVIDING = ("reduce_scatter", "shard")
"""The collectives whose result is a part of the size of their operand."""


class Move(NamedTuple):
    """A collective that changes a placement.

    Attributes:
        name: the collective.
        axis: the number of the mesh axis.
        dim: the dimension that it divides or joins; None for one without.
        other: for `all_to_all`, the dimension that it divides while it joins `dim`.
    """

    name: str
    axis: int
    dim: int | None = None
    other: int | None = None


@dataclass(frozen=True)
class Mesh:
    """A mesh of devices.

    Attributes:
        axes: the names of its axes.
        shape: the number of devices along each.
        links: bytes a second and seconds of latency along each.
        flops, memory: FLOPs, and bytes of memory, a second of one device.
    """

    axes: tuple[str, ...]
    shape: tuple[int, ...]
    links: tuple[tuple[float, float], ...]
    flops: float = FLOPS
    memory: float = MEMORY

    @property
    def size(self) -> int:
        """The number of devices."""
        return math.prod(self.shape)

    def __str__(self) -> str:
        return " × ".join(f"{name}={n}" for name, n in zip(self.axes, self.shape, strict=True))

    def number(self, name: object) -> int:
        """The number of an axis.

        Raises:
            ShapeError: there is none of that name.
        """
        if name not in self.axes:
            fix = f"{near(str(name), self.axes)}its axes: {', '.join(self.axes)}"
            raise ShapeError(f"the mesh has no axis '{name}'", fix=fix)
        return self.axes.index(str(name))

    def moved(self, name: str, axis: int, size: float) -> float:
        """The bytes that leave each device in a collective with an operand of this many bytes."""
        return float(_SHARES[name](self.shape[axis]) * size)

    def after(self, name: str, axis: int, size: float) -> float:
        """The bytes of the result of a collective, given those of its operand."""
        n = self.shape[axis]
        return size * n if name.startswith("all_gather") else size / n if name in _DIVIDING else size

    def seconds(self, name: str, axis: int, size: float) -> float:
        """The expected time of a collective, given the bytes of its operand."""
        rate, latency = self.links[axis]
        return (latency if self.moved(name, axis, 1.0) else 0.0) + self.moved(name, axis, size) / rate

    @staticmethod
    def of(mesh: Any, links: Mapping[str, tuple[float, float]] | None = None) -> Mesh:
        """A mesh from a dictionary of sizes, a `torch.distributed.DeviceMesh` or a `jax.sharding.Mesh`.

        Raises:
            ShapeError: an axis has no name, a size is no positive integer, or a link is of no axis of the mesh, or no
                pair of numbers.
        """
        if isinstance(mesh, Mesh):
            return mesh
        sizes = _sizes_of(mesh)
        for name, size in sizes.items():
            checked_number(size, f"the number of devices along '{name}'", 1, whole=True)
        made = Mesh(tuple(sizes), tuple(map(int, sizes.values())), (LINK,) * len(sizes))
        told = {made.number(name): _link(name, link) for name, link in (links or {}).items()}
        return Mesh(made.axes, made.shape, tuple(told.get(n, LINK) for n in range(len(sizes))))


def _link(name: str, given: Any) -> tuple[float, float]:
    """Bytes a second and seconds of latency, which cost time and no division by 0."""
    try:
        rate, latency = map(float, given)
    except (TypeError, ValueError):
        rate = latency = math.nan
    if not (rate > 0 and 0 <= latency < math.inf):
        fix = "give bytes a second and seconds of latency: (450e9, 3e-6)"
        raise ShapeError(f"the link along '{name}' is {given!r}", fix=fix)
    return rate, latency


def _sizes_of(mesh: Any) -> dict[str, Any]:
    """The sizes of the axes of a mesh, by name."""
    if isinstance(mesh, Mapping):
        return {str(name): size for name, size in mesh.items()}
    if hasattr(mesh, "axis_names"):  # of JAX
        return {name: int(size) for name, size in dict(mesh.shape).items()}
    names = getattr(mesh, "mesh_dim_names", None)
    if not names:
        fix = "give {'data': 2, 'model': 4}, or a DeviceMesh with mesh_dim_names="
        raise ShapeError("the mesh has no names for its axes", fix=fix)
    return dict(zip(names, map(int, mesh.shape), strict=True))
