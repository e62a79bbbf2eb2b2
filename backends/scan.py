"""Scan loops: a function called at each position of an axis with the state of the previous call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

__all__ = ["Positions", "along", "gone_along"]


class Positions(NamedTuple):
    """How a library cuts arrays into positions and stacks results.

    Attributes:
        parts: returns the slices of an array at the positions along an axis.
        blank: returns an array of any values in the shape of such a slice, for an axis without positions.
        empty: returns an array for `size` results like the given one, of its type and on its device; None if results
            must not be written into another array.
        stacked: stacks results along a new first axis, if `empty` returns None or there are no positions.
    """

    parts: Callable[[Any, int], Sequence[Any]]
    blank: Callable[[Any, int], Any]
    empty: Callable[[Any, int], Any]
    stacked: Callable[[list[Any]], Any]


def along(library: Positions, *call: Any) -> Any:
    """The results of `gone_along`, with the last states if the last argument is true; one result is not in a tuple."""
    *repeated, last = call
    wholes, states = gone_along(library, *repeated)
    found = [*wholes, *(states if last else ())]
    return found[0] if len(found) == 1 else tuple(found)


def gone_along(
    library: Positions,
    function: Callable[..., Any],
    cut: Sequence[Any],
    states: Sequence[Any],
    rest: Sequence[Any],
    size: int,
    axes: Sequence[int],
    following: Sequence[int],
    results: int,
    back: bool,
) -> tuple[list[Any], Sequence[Any]]:
    """The first `results` results of a function at all positions, stacked along a new first axis, and the last states.

    Args:
        library: how arrays are cut and results are stacked.
        function: takes the inputs at a position, the states and the rest; returns its results as a tuple, or the one.
        cut, axes: the inputs, and the axis of each that is cut into positions.
        states, following: the initial states, and the index of the result that becomes the next value of each.
        rest: operands that are the same at all positions.
        size: the number of positions.
        results: the number of results to stack.
        back: whether it runs from the last position to the first.
    """
    if not size:
        blank = [library.blank(each, axis) for each, axis in zip(cut, axes, strict=True)]
        found = _as_tuple(function(*blank, *states, *rest))
        return [library.stacked([each])[:0, ...] for each in found[:results]], states
    pieces = [library.parts(each, axis) for each, axis in zip(cut, axes, strict=True)]
    order = range(size)[::-1] if back else range(size)
    wholes: list[Any] = []
    made: list[list[Any]] = [[] for _ in range(results)]
    now = states
    for at in order:
        found = _as_tuple(function(*(each[at] for each in pieces), *now, *rest))
        now = [found[number] for number in following]
        wholes = wholes or [library.empty(each, size) for each in found[:results]]
        _add(found, at, wholes, made)
    stacked = (library.stacked(kept[::-1] if back else kept) if kept else None for kept in made)
    return [each if whole is None else whole for whole, each in zip(wholes, stacked, strict=True)], now


def _add(found: Sequence[Any], at: int, wholes: Sequence[Any], made: Sequence[list[Any]]) -> None:
    """Writes the results at a position where they belong, or adds them to those to be stacked."""
    for whole, kept, each in zip(wholes, made, found, strict=False):
        if whole is None:
            kept.append(each)
        else:
            whole[at, ...] = each


def _as_tuple(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)
