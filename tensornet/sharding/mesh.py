"""Device meshes, the placements of tensors on them, and redistribution: the collectives that lead from one placement to
another, and what they cost.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from ..errors import ShapeError, checked_number, near
from ..ops.collectives import VJP

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


@functools.lru_cache(maxsize=1 << 14)
def route(given: Placement, asked: Placement) -> tuple[Move, ...] | None:
    """The collectives from one placement to another, in order; None if no collectives lead there.

    Where several mesh axes divide one dimension, the first divides it into the largest parts. So an axis changes only
    while no later one divides the same dimension.
    """
    pairs = zip(given, asked, strict=True)
    if any(one != two and (two == PARTIAL or one == VARYING) for one, two in pairs):
        return None
    turned = _turned(given, asked)
    early = [n for n in turned if given[n] == PARTIAL and not _meets(asked[n], given, asked, turned, n)]
    moves = [move for n in early for move in _onto(given[n], asked[n], n)]
    left = [n for n in turned if n not in early]
    for n in reversed(left):
        if isinstance(given[n], int):
            direct = isinstance(asked[n], int) and given[n] != asked[n] and not _shares(given, asked, left, n)
            moves += _off(given[n], asked[n], n, direct)
    for n in left:
        if given[n] == PARTIAL:
            moves += _onto(given[n], asked[n], n)
        elif given[n] == REPLICATED:
            moves += _onto(REPLICATED, asked[n], n)
        elif isinstance(asked[n], int) and (given[n] == asked[n] or _shares(given, asked, left, n)):
            moves.append(Move("shard", n, int(asked[n])))
    return tuple(moves)


def _turned(given: Placement, asked: Placement) -> list[int]:
    """The mesh axes that change, and later ones that divide what they divide."""
    turned = {n for n in range(len(given)) if given[n] != asked[n]}
    for n in range(len(given)):
        dims = {place for place in (given[n], asked[n]) if isinstance(place, int)} if n in turned else set()
        turned |= {m for m in range(n + 1, len(given)) if dims & {given[m], asked[m]}}
    return sorted(turned)


def _meets(dim: int | str, given: Placement, asked: Placement, turned: Sequence[int], n: int) -> bool:
    """Whether another changing mesh axis divides a dimension, in the given placement or in the one asked for."""
    return isinstance(dim, int) and any(dim in (given[m], asked[m]) for m in turned if m != n)


def _shares(given: Placement, asked: Placement, turned: Sequence[int], n: int) -> bool:
    """Whether another changing mesh axis divides what this one divides, in either of the two placements."""
    return any(_meets(dim, given, asked, turned, n) for dim in (given[n], asked[n]))


def _off(one: int | str, two: int | str, n: int, direct: bool) -> Iterator[Move]:
    """The collective that ends a division."""
    assert isinstance(one, int)
    if direct:
        assert isinstance(two, int)
        yield Move("all_to_all", n, one, two)
    else:
        yield Move("all_gather" if two == VARYING else "all_gather_invariant", n, one)


def _onto(one: int | str, two: int | str, n: int) -> Iterator[Move]:
    """The collectives from a tensor that is not divided along a mesh axis."""
    if isinstance(two, int):
        yield Move("reduce_scatter" if one == PARTIAL else "shard", n, two)
        return
    if one == PARTIAL:
        yield Move("all_reduce", n)
    if two == VARYING:
        yield Move("vary", n)


# ---------------------------------------------------------------------------- costs


@functools.lru_cache(maxsize=1 << 16)
def cost_of_route(given: Placement, asked: Placement, mesh: Mesh, backward: bool) -> tuple[float, float]:
    """The seconds of the collectives between two placements, and those for each byte of the whole tensor.

    Args:
        given, asked: the placements.
        mesh: the mesh.
        backward: whether the collectives of the backward pass count too.
    """
    dims = [*dict.fromkeys(place for place in (*given, *asked) if isinstance(place, int))]
    if dims != [*range(len(dims))]:  # it does not matter which dimensions these are
        one, other = (tuple(dims.index(p) if p in dims else p for p in each) for each in (given, asked))
        return cost_of_route(one, other, mesh, backward)
    moves = route(given, asked)
    if moves is None:
        return math.inf, 0.0
    latency = rate = 0.0
    size = 1.0 / math.prod(n for n, place in zip(mesh.shape, given, strict=True) if isinstance(place, int))
    for move in moves:
        runs = [(move.name, size)]
        size = mesh.after(move.name, move.axis, size)
        runs += [(VJP[move.name], size)] if backward else []
        for name, operand in runs:
            latency += mesh.seconds(name, move.axis, 0.0)
            rate += mesh.seconds(name, move.axis, operand) - mesh.seconds(name, move.axis, 0.0)
    return latency, rate


@functools.lru_cache(maxsize=1 << 10)
def costs_of_routes(
    own: tuple[Placement, ...], needs: tuple[Placement, ...], mesh: Mesh, backward: bool
) -> tuple[Any, Any]:
    """`cost_of_route` from each of some placements to each of some others, as two arrays."""
    import numpy

    found = [[cost_of_route(p, q, mesh, backward) for q in needs] for p in own]
    latency, rate = numpy.moveaxis(numpy.array(found), -1, 0)
    return latency, rate
