"""Scan loops: a function called along an axis with the state it left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["along", "gone_along"]


def along(*call: Any, **library: Any) -> Any:
    """The results of `gone_along`, with the last states or without: several, or the only one."""
    *repeated, last = call
    wholes, states = gone_along(*repeated, **library)
    found = [*wholes, *(states if last else ())]
    return found[0] if len(found) == 1 else tuple(found)


def gone_along(
    function: Callable[..., Any],
    cut: Sequence[Any],
    states: Sequence[Any],
    rest: Sequence[Any],
    size: int,
    axes: Sequence[int],
    following: Sequence[int],
    results: int,
    back: bool,
    *,
    parts: Callable[[Any, int], Sequence[Any]],
    blank: Callable[[Any, int], Any],
    empty: Callable[[Any, int], Any],
    stacked: Callable[[Sequence[Any]], Any],
) -> tuple[list[Any], Sequence[Any]]:
    """The first results of a function of each position, each put together along a new first axis, and the last states.

    Args:
        function: of what comes in at a position, the states, and the rest; its results, or its one result.
        cut, axes: what comes in, and along which axis position by position.
        states, following: what the states are first, and which of the results takes the place of each.
        rest: what is the same at all positions.
        size: the positions there are.
        results: how many of the results are put together.
        back: whether it goes from the last position to the first.
        parts: the positions of an array along an axis.
        blank: an array without an axis, of whatever values, where that has no positions.
        empty: an array of so many of another, of its type and on its device; nothing where results must not be
            written into another.
        stacked: results that are kept until all are there, one after another along a new first axis; for those.
    """

    def called(pieces: Sequence[Any], now: Sequence[Any]) -> tuple[Any, ...]:
        found = function(*pieces, *now, *rest)
        return found if isinstance(found, tuple) else (found,)

    if not size:
        found = called([blank(each, axis) for each, axis in zip(cut, axes, strict=True)], states)
        return [stacked([each])[:0, ...] for each in found[:results]], states
    pieces = [parts(each, axis) for each, axis in zip(cut, axes, strict=True)]
    made: list[list[Any]] = [[] for _ in range(results)]
    now, first = states, size - 1 if back else 0
    for at in range(size - 1, -1, -1) if back else range(size):
        found = called([each[at] for each in pieces], now)
        now = [found[number] for number in following]
        if at == first:
            wholes = [empty(each, size) for each in found[:results]]
        for whole, kept, each in zip(wholes, made, found, strict=False):
            if whole is None:
                kept.append(each)
            else:
                whole[at, ...] = each
    for number, kept in enumerate(made):
        if kept:
            wholes[number] = stacked(kept[::-1] if back else kept)
    return wholes, now
