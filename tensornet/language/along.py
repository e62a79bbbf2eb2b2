"""Blocks called at each position of an axis: `h[b,t,p], c[b,t,p] = cell(x[b,t,i], h[b,t-1,p], c[b,t-1,p])`.

What is read at another position gets an equation of its own before the call, `h.before[b,t,p] = h[b,t-1,p]`, so
that it is read, starts and goes round as it would without a block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import EquationError, Place, told_in
from .equation import AlongAxis, Calling, Equation
from .expression import Call, Ref, fresh, is_told
from .recurring import step_of

__all__ = ["CallAlong", "called_along"]


@dataclass(frozen=True)
class CallAlong:
    """A call as it is written, whose results and operands have brackets behind them."""

    results: tuple[Ref, ...]
    block: str
    operands: tuple[Ref, ...]
    scope: str
    place: Place | None = None


@told_in("blocks")
def called_along(lines: Sequence[Any]) -> list[Any]:
    """The lines of a block, in which the axis of each such call is known, and its operands are names.

    Raises:
        EquationError: no operand of a call is read at another position, or results do not have the axis.
    """
    taken = {ref.name for line in lines if isinstance(line, CallAlong) for ref in line.operands}
    found = list[Any]()
    for line in lines:
        found.extend(_apart(line, taken) if isinstance(line, CallAlong) else (line,))
    return found


def _apart(line: CallAlong, taken: set[str]) -> Iterator[Any]:
    """The equations of what a call reads at other positions, and the call."""
    if not any(ref.index for ref in line.operands):
        yield from _named(line, taken)
        return
    axis = _axis(line)
    operands = list[Ref]()
    for ref in line.operands:
        if any(map(step_of, ref.index)):
            index = tuple(told[0] if (told := step_of(entry)) else entry for entry in ref.index)
            name = fresh(f"{ref.name}.before", taken)
            taken.add(name)
            yield Equation(name, _plain(ref, index), ref, ref.place)
            ref = Ref(name, index, ref.place)
        else:
            _plain(ref, ref.index)
        operands.append(ref)
    left = tuple(_plain(ref, ref.index) for ref in line.results)
    along = AlongAxis(axis, left, tuple(ref.index for ref in operands))
    names = (tuple(ref.name for ref in refs) for refs in (line.results, operands))
    yield Calling(next(names), line.block, next(names), line.scope, along, line.place)


def _named(line: CallAlong, taken: set[str]) -> Iterator[Any]:
    """A call on tensors by their names, and its results under the axes that the line gives them."""
    made = [fresh(f"{ref.name}.made", taken) for ref in line.results]
    operands = tuple(ref.name for ref in line.operands)
    yield Calling(tuple(made), line.block, operands, line.scope, place=line.place)
    for name, ref in zip(made, line.results, strict=True):
        yield Equation(ref.name, _plain(ref, ref.index), Ref(name, ref.index, ref.place), ref.place)


def _axis(line: CallAlong) -> str:
    """The axis that a call goes along: what it gives at one position it is given at the next."""
    axes = {told[0]: None for ref in line.operands for entry in ref.index if (told := step_of(entry))}
    if len(axes) != 1:
        fix = "call it on tensors by their names, `y = block(x)`, or at one axis' other positions, as in h[b,t-1,p]"
        found = f"several axes, {', '.join(axes)}" if axes else "none"
        raise EquationError(f"a call in brackets goes along one axis, and here {found}", line.place, fix)
    (axis,) = axes
    for ref in line.results:
        if ref.index.count(axis) != 1:
            raise EquationError(
                f"'{ref.name}' is made at each position of '{axis}', which is not in its brackets",
                ref.place,
                f"write {ref.name}[…,{axis},…]",
            )
    return axis


def _plain(ref: Ref, index: tuple[Any, ...]) -> tuple[Any, ...]:
    """What stands in brackets, of axes alone."""
    for entry in index:
        if isinstance(entry, int | Call) or is_told(entry) or entry == "...":
            fix = "read it in an equation of its own, and call the block on that"
            raise EquationError(f"a block reads '{ref.name}' under axes alone", ref.place, fix)
    return index
