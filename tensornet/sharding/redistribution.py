"""Redistribution: the collectives that lead from one placement of a tensor to another, and what they cost."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

from ..ops.collectives import VJP
from .mesh import PARTIAL, REPLICATED, VARYING, Mesh, Move, Placement


@functools.lru_cache(maxsize=1 << 14)
def route(given: Placement, asked: Placement) -> tuple[Move, ...] | None:
    """The collectives from one placement to another, in order; None if no collectives lead there.

    Where several mesh axes divide one dimension, the first divides it into the largest parts. So an axis changes only
    while no later one divides the same dimension.
    """
    if any(_impossible(one, two) for one, two in zip(given, asked, strict=True)):
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


def _impossible(one: int | str, two: int | str) -> bool:
    return one != two and (two == PARTIAL or one == VARYING)


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
