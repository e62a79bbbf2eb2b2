"""Loops of generated code, for all libraries: scans, associative scans, and sliced execution.

Each takes the functions of a library first, which say how it cuts arrays and whether it writes into them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any


def scan(
    library: Any,
    function: Callable[..., Any],
    cut: Sequence[Any],
    states: Sequence[Any],
    rest: Sequence[Any],
    size: int,
    axes: Sequence[int],
    following: Sequence[int],
    results: int,
    back: bool,
    last: Sequence[int] = (),
) -> tuple[list[Any], Sequence[Any]]:
    """The first `results` results of a function at all positions, stacked along a new first axis, and the last states.

    Args:
        library: the functions of the library.
        function: takes the inputs at a position, the states and the rest; returns its results as a tuple, or the one.
        cut, axes: the inputs, and the axis of each that is cut into positions.
        states, following: the initial states, and the index of the result that becomes the next value of each.
        rest, size, results: operands that all positions share; the number of positions, and of results to stack.
        back: whether it runs from the last position to the first.
        last: the results that are kept of the last iteration alone, as a stack of one.
    """
    inputs = list(zip(cut, axes, strict=True))
    if not size:
        blank = [library.zeros(each, each.shape[:axis] + each.shape[axis + 1 :]) for each, axis in inputs]
        found = as_tuple(function(*blank, *states, *rest))
        return [library.xp.stack([each], axis=0)[:0, ...] for each in found[:results]], states
    made: list[Any] = []  # which torch.compile traces
    order = slice(None, None, -1 if back else 1)
    pieces = [library.unbind(each, axis)[order] for each, axis in inputs]
    for at, *given in zip(range(size)[order], *pieces, strict=True):
        found = as_tuple(function(*given, *states, *rest))
        states = [found[number] for number in following]
        if not made:
            made = [[None] if n in last else _blank(library, found[n], size) for n in range(results)]
        for whole, each in zip(made, found, strict=False):
            whole[min(at, len(whole) - 1) if isinstance(whole, list) else (at, ...)] = each
    return [library.xp.stack(each, axis=0) if isinstance(each, list) else each for each in made], states


JOINED = 1 << 14
"""Up to so many elements, torch stacks results in less time than it writes them one by one into an array. For more, a
second copy would take memory that plans do not count."""


def _blank(library: Any, like: Any, size: int) -> Any:
    """Room for a result at each position: an array, or a list of what is stacked."""
    shape = (size, *like.shape)
    is_listed = library.joins(like) or math.prod(shape) <= JOINED
    return [None] * size if is_listed else library.empty(like, shape)


def as_tuple(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)


def along(library: Any, *call: Any) -> Any:
    """The stacked results of `scan`; one result is not in a tuple."""
    found, _ = scan(library, *call)
    return found[0] if len(found) == 1 else tuple(found)


def in_pieces(
    library: Any,
    function: Callable[[int, int], Any],
    size: int,
    length: int,
    axes: Sequence[int],
    tile: bool = False,
) -> Any:
    """The results of a function that computes a piece from its start, each assembled along its own axis.

    Pieces are written to their place at once, so only the whole results and one piece are alive at a time, unless the
    library must concatenate them.

    Args:
        library: the functions of the library.
        function: computes the piece of a length that starts at a position; returns its results as a tuple, or the one.
        size, length: the number of positions, and that of each piece but the last.
        axes: the axis of each result.
        tile: whether it is for speed alone: what is recorded, by a compiler or by autograd, is computed whole.
    """
    if tile and library.is_recorded():
        return function(0, size)
    piece = as_tuple(function(0, length))
    if size > length and any(map(library.joins, piece)):
        if tile:
            return function(0, size)
        later = (as_tuple(function(at, length)) for at in range(length, size, length))
        pieces = zip(piece, *later, strict=True)
        piece = tuple(library.xp.concat(each, axis=axis) for each, axis in zip(pieces, axes, strict=True))
    elif size > length:
        shapes = ((*one.shape[:n], size, *one.shape[n + 1 :]) for one, n in zip(piece, axes, strict=True))
        wholes = tuple(library.empty(one, shape) for one, shape in zip(piece, shapes, strict=True))
        for at in range(0, size, length):
            piece = piece if not at else as_tuple(function(at, length))
            for whole, one, axis in zip(wholes, piece, axes, strict=True):
                whole[(slice(None),) * axis + (slice(at, at + one.shape[axis]), ...)] = one
            piece, one = (), None  # frees it before the next piece is computed
        piece = wholes
    return piece[0] if len(axes) == 1 else piece


def recur(library: Any, a: Any, b: Any, start: float, back: float) -> Any:
    """y with y[0] = start and y[j] = a[j-1]·y[j-1] + b[j-1], along the last axis.

    On a processor, positions are computed one after another, unless there is little to compute at each. Else two steps
    compose to one: a'·(a·y + b) + b' = (a'·a)·y + (a'·b + b'). So each round doubles the number of steps that an
    element combines. (G. Blelloch, Prefix Sums and Their Applications, 1990.)

    Args:
        library: the functions of the library.
        a, b: the factor of the previous value and the addend; one of them may be a number.
        start: the first value.
        back: nonzero to run from the last position to the first.
    """
    xp = library.xp
    is_product = isinstance(b, int | float) and not b
    a = xp.full_like(b, a) if isinstance(a, int | float) else a
    b = xp.full_like(a, b) if isinstance(b, int | float) else b
    a, b = xp.broadcast_arrays(a, b)
    if not a.shape[-1]:
        return a
    if not is_product and _is_walked(library, a, b):
        return _walked(library, a, b, start, back)
    if back:
        a, b = xp.flip(a, axis=-1), xp.flip(b, axis=-1)
    first = a[..., :1]
    total = xp.concat([xp.full_like(first, start), (a if is_product else b)[..., :-1]], axis=-1)
    if is_product:
        found = library.cumprod(total, -1, 0)
    else:
        found = _doubled(xp, total, xp.concat([xp.full_like(first, 1), a[..., :-1]], axis=-1))
    return xp.flip(found, axis=-1) if back else found


STEP, ROUND, NEXT, PASSED = 3.6, 28.0, 0.003, 0.0012
"""Microseconds: of a position and of a round of doubling, and for each of their elements. Measured with torch."""


def _is_walked(library: Any, a: Any, b: Any) -> bool:
    """Whether positions one after another are expected to be faster."""
    if not library.overwrites(a, b) or not str(library.device(b)).startswith("cpu"):
        return False
    positions, elements = b.shape[-1], math.prod(b.shape)
    doubling = positions.bit_length() * (ROUND + PASSED * elements)
    return bool(STEP * positions + NEXT * elements < doubling)


def _walked(library: Any, a: Any, b: Any, start: float, back: float) -> Any:
    """The same, position by position, in the order in memory of `b`."""
    made, rows = library.xp.empty_like(b), library.positions_apart(b)
    found = made if rows is b else library.xp.empty_like(rows)
    given = library.positions_apart(a), rows, found
    factors, addends, room = (library.unbind(each, each.ndim - 1) for each in given)
    order = range(len(room))[::-1] if back else range(len(room))
    room[order[0]][...] = start
    for last, at in itertools.pairwise(order):
        library.next_state(factors[last], room[last], addends[last], room[at])
    if found is not made:
        made[...] = found
    return made


def _doubled(xp: Any, total: Any, factor: Any) -> Any:
    """Composes each step `y -> factor·y + total` with all steps before it, twice as many in each round."""
    behind = 1
    while behind < total.shape[-1]:
        reached = total[..., behind:] + factor[..., behind:] * total[..., :-behind]
        total = xp.concat([total[..., :behind], reached], axis=-1)
        factor = xp.concat([factor[..., :behind], factor[..., behind:] * factor[..., :-behind]], axis=-1)
        behind *= 2
    return total
