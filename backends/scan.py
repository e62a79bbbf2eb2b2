"""Scan loops: a function called at each position of an axis with the state of the previous call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["along", "gone_along"]


def along(*call: Any, **library: Any) -> Any:
    """The results of `gone_along`, with the last states if the last argument is true; one result is not in a tuple."""
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
    """The first `results` results of a function at all positions, stacked along a new first axis, and the last states.

    Args:
        function: takes the inputs at a position, the states and the rest; returns its results as a tuple, or the one.
        cut, axes: the inputs, and the axis of each that is cut into positions.
        states, following: the initial states, and the index of the result that becomes the next value of each.
        rest: operands that are the same at all positions.
        size: the number of positions.
        results: the number of results to stack.
        back: whether it runs from the last position to the first.
        parts: returns the slices of an array at the positions along an axis.
        blank: returns an array of any values in the shape of such a slice, for an axis without positions.
        empty: returns an array for `size` results like the given one, of its type and on its device; None if results
            must not be written into another array.
        stacked: stacks results along a new first axis, if `empty` returns None or there are no positions.
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
