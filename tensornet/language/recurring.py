"""Recurrences as papers print them, in the functions that say them.

    h[b,t,o] = tanh(x[b,t,i] * W[o,i] + h[b,t-1,p] * U[o,p])      h[b,t-1,p] is previous[t](h[b,t,p], h0[b,p])
    h[b,-1,o] = h0[b,o]

A tensor recurs if an equation reads it one position before or after, and is not below the line that defines
it; so does one with a start. The start stands at -1, one step before the first position, of what is read at
`t-1`, and at +1 of what is read at `t+1`; without one it is 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import EquationError, Place, told_in
from ..operations.steps import STEPS
from .expression import Call, Expression, Index, Literal, Ref, free_axes, fresh, rename, transform

__all__ = ["Start", "recurring", "step_of", "steps_in"]

FARTHEST = 8
"""So many positions back at most."""


@dataclass(frozen=True)
class Start:
    """`h[b,-1,o] = h0[b,o]`: what a tensor that recurs is outside of its positions.

    Attributes:
        name: the tensor.
        index: what stands in brackets on the left, the position among it.
        step: the position, -1 or below, or 1 or above.
        right: what it is there.
    """

    name: str
    index: tuple[Index, ...]
    step: int
    right: Expression
    place: Place | None = field(default=None, compare=False, repr=False)

    @property
    def at(self) -> int:
        """The dimension that the position is in."""
        return next(n for n, entry in enumerate(self.index) if isinstance(entry, int))


def step_of(entry: Any) -> tuple[str, int] | None:
    """The axis and the step of an entry such as `t-1`; nothing for any other."""
    match entry:
        case Call("add", (Ref(axis, ()), Literal(int(by)))) if by:
            return axis, by
    return None


@told_in("recurrences")
def recurring(lines: Sequence[Any]) -> list[Any]:
    """The lines of a block, with what recurs said by functions, and without the starts."""
    starts: dict[tuple[str, int], Start] = {}
    for each in lines:
        if isinstance(each, Start):
            if (each.name, each.step) in starts:
                raise EquationError(f"'{each.name}' starts twice", each.place, "say it once")
            starts[each.name, each.step] = each
    names = {name for name, _ in starts} | set(_late(lines))
    if not names:
        return list(lines)
    _check_starts(lines, starts)
    return [_told(line, names, starts) for line in lines if not isinstance(line, Start)]


def _check_starts(lines: Sequence[Any], starts: Mapping[tuple[str, int], Start]) -> None:
    """Refuses a start that nothing goes on from."""
    farthest: dict[tuple[str, int], int] = {}
    for line in lines:
        for ref in steps_in(line.right) if hasattr(line, "right") else ():
            for _, by in filter(None, map(step_of, ref.index)):
                key = ref.name, 1 if by > 0 else -1
                farthest[key] = max(farthest.get(key, 0), abs(by))
    for (name, step), start in starts.items():
        sign = 1 if step > 0 else -1
        if abs(step) > farthest.get((name, sign), 0):
            other = farthest.get((name, -sign), 0)
            fix = (
                f"it is read at t{-sign:+d}, which starts at {-sign:+d}"
                if other
                else f"read it at t{step:+d}, or leave it out"
            )
            raise EquationError(f"nothing goes on from '{name}' at {step:+d}", start.place, fix)


def _late(lines: Sequence[Any]) -> Iterator[str]:
    """The tensors read at another position by an equation that is not below theirs."""
    waiting = {line.name for line in lines if hasattr(line, "right") and not isinstance(line, Start)}
    for line in lines:
        if not hasattr(line, "right") or isinstance(line, Start):
            continue
        yield from (ref.name for ref in steps_in(line.right) if ref.name in waiting)
        waiting.discard(line.name)


def steps_in(expression: Expression) -> Iterator[Ref]:
    """The tensors in an expression that are read at another position, as they are."""
    waiting = [expression]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Ref) and any(step_of(entry) for entry in part.index):
            yield part
        transform(part, lambda each: waiting.append(each) or each)  # type: ignore[func-returns-value]


def _told(line: Any, names: set[str], starts: Mapping[tuple[str, int], Start]) -> Any:
    """A line in which what recurs is read by functions."""
    if not hasattr(line, "right"):
        return line

    def visit(part: Expression) -> Expression:
        part = transform(part, visit)
        if isinstance(part, Ref) and part.name in names:
            return _read(part, starts)
        return part

    return replace(line, right=visit(line.right))


def _read(ref: Ref, starts: Mapping[tuple[str, int], Start]) -> Expression:
    """A tensor at another position: its function, once for each step there."""
    steps = [(n, step) for n, entry in enumerate(ref.index) if (step := step_of(entry)) is not None]
    if not steps:
        return ref
    if len(steps) > 1:
        raise EquationError(f"'{ref.name}' is read at another position of two axes", ref.place, "move one")
    ((at, (axis, by)),) = steps
    if abs(by) > FARTHEST:
        raise EquationError(
            f"'{ref.name}' is read {abs(by)} positions away", ref.place, f"{FARTHEST} at most"
        )
    sign = 1 if by > 0 else -1
    index = (*ref.index[:at], axis, *ref.index[at + 1 :])
    found: Expression = replace(ref, index=index)
    for far in range(1, abs(by) + 1):
        start = starts.get((ref.name, sign * far))
        given = () if start is None else _given(start, index, at, ref)
        found = Call(STEPS[sign], (found, *given), (axis,), place=ref.place)
    return found


def _given(start: Start, index: tuple[Index, ...], at: int, ref: Ref) -> tuple[Expression, ...]:
    """The start under the axes that a tensor is read with."""
    if start.at != at or len(start.index) != len(index):
        shown = f"[…,{start.step:+d},…]"
        fix = f"put the position {shown} where the step stands"
        raise EquationError(f"the start of '{ref.name}' is along another axis", start.place, fix)
    if start.right == Literal(0):
        return ()
    own, read = _without(start.index, at), _without(index, at)
    right = start.right
    if isinstance(right, Ref) and not right.index:
        right = replace(right, index=own)
    pairs: list[tuple[str, str]] = []
    for mine, theirs in zip(own, read, strict=True):
        match mine, theirs:
            case str(), str():
                pairs.append((mine, theirs))
            case tuple(), tuple() if len(mine) == len(theirs):
                pairs.extend(zip(mine, theirs, strict=True))
            case _:
                fix = "read it under plain axes, in a line of its own"
                raise EquationError(f"'{ref.name}' has a start, and is read in parts", ref.place, fix)
    names = dict(pairs)
    taken = {*names, *names.values()}
    for axis in free_axes(right):
        if axis not in names:
            names[axis] = fresh(axis, taken)
            taken.add(names[axis])
    return (rename(right, {old: new for old, new in names.items() if old != new}),)


def _without(index: Iterable[Any], at: int) -> tuple[Any, ...]:
    """What stands in brackets, without one entry."""
    return tuple(entry for n, entry in enumerate(index) if n != at)
