"""Sliced execution: a function computed in pieces, which are concatenated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["in_pieces"]


def in_pieces(
    function: Callable[[int], Any],
    size: int,
    length: int,
    axes: Sequence[int],
    empty: Callable[[Any, tuple[int, ...]], Any],
    joined: Callable[[Sequence[Any], int], Any] | None = None,
) -> Any:
    """The results of a function of where a piece begins, each put together along an axis of its own.

    Pieces are written where they belong, so that no more than the wholes and one of them are alive at once.

    Args:
        function: computes a piece; its results, or its one result.
        size, length: the positions there are, and those of each piece but the last.
        axes: the axis of each result.
        empty: an array of a shape, of the type and on the device of another; nothing where that must not be
            written into another.
        joined: pieces that are kept until all are there, one after another along an axis; for those.
    """

    def pieces(at: int) -> Sequence[Any]:
        found = function(at)
        return (found,) if len(axes) == 1 else found

    first = pieces(0)
    if size <= length:
        return first[0] if len(axes) == 1 else first
    shapes = ((*one.shape[:n], size, *one.shape[n + 1 :]) for one, n in zip(first, axes, strict=True))
    wholes = [empty(one, shape) for one, shape in zip(first, shapes, strict=True)]
    later = range(length, size, length)
    if joined is not None and any(whole is None for whole in wholes):
        wholes = list(map(joined, zip(first, *map(pieces, later), strict=True), axes))
    else:
        _put(wholes, first, axes, 0)
        del first  # it is gone before the next is made
        for at in later:
            _put(wholes, pieces(at), axes, at)
    return wholes[0] if len(axes) == 1 else tuple(wholes)


def _put(wholes: Sequence[Any], made: Sequence[Any], axes: Sequence[int], at: int) -> None:
    """Writes a piece of each result where it begins along the axis."""
    for whole, piece, axis in zip(wholes, made, axes, strict=True):
        whole[(slice(None),) * axis + (slice(at, at + piece.shape[axis]), ...)] = piece
