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
    """The results of a function that computes a piece from its start, each assembled along its own axis.

    Pieces are written to their place at once, so only the whole results and one piece are alive at a time.

    Args:
        function: computes the piece that starts at a position; returns its results as a tuple, or the one.
        size, length: the number of positions, and that of each piece but the last.
        axes: the axis of each result.
        empty: returns an array of a shape, with the type and device of another; None if pieces must not be written
            into it.
        joined: concatenates all pieces along an axis, if `empty` returns None.
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
        del first  # frees it before the next piece is computed
        for at in later:
            _put(wholes, pieces(at), axes, at)
    return wholes[0] if len(axes) == 1 else tuple(wholes)


def _put(wholes: Sequence[Any], made: Sequence[Any], axes: Sequence[int], at: int) -> None:
    """Writes a piece of each result at its start along the axis."""
    for whole, piece, axis in zip(wholes, made, axes, strict=True):
        whole[(slice(None),) * axis + (slice(at, at + piece.shape[axis]), ...)] = piece
