"""Placements of tensors on a mesh, and the collectives that lead from one to another."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from .mesh import Move

__all__ = ["PARTIAL", "REPLICATED", "VARYING", "Placement", "divisors", "local_shape", "route", "shown"]

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


def shown(placement: Placement, names: Sequence[str]) -> str:
    """A placement as text: `data: 0, model: partial`."""
    pairs = zip(names, placement, strict=True)
    return ", ".join(f"{name}: {place}" for name, place in pairs if place != REPLICATED) or REPLICATED


@functools.lru_cache(maxsize=1 << 14)
def route(given: Placement, asked: Placement) -> tuple[Move, ...] | None:
    """The collectives from one placement to another, in order; None if there are none.

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
    """Whether another changing mesh axis divides a dimension before or after."""
    return isinstance(dim, int) and any(dim in (given[m], asked[m]) for m in turned if m != n)


def _shares(given: Placement, asked: Placement, turned: Sequence[int], n: int) -> bool:
    """Whether a dimension that a mesh axis divides before or after is one of another changing axis too."""
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
